"""Small GDP policies and problems for them."""

from __future__ import annotations

import torch

from placewise.catalog import read_cluster
from placewise.costing.roofline import cost_table
from placewise.model.columns import Floats
from placewise.model.problem import Objective, Problem
from placewise.placers.learned.gdp import Gdp, GdpOptions
from placewise.placers.learned.policy import untrained_policy
from placewise.zoo.random import random_graph

SMALL = {
    "hidden": 8,
    "inner": 8,
    "heads": 2,
    "layers": 2,
    "segment": 16,
    "rounds": 3,
    "moving": 0.0,
}


def zoo_problem(family: str, n_ops: int, seed: int, devices: str, objective: Objective | None = None) -> Problem:
    """A random graph of the zoo, large enough for its devices to be worth it."""
    graph, cluster = random_graph(family, n_ops, seed, size=64), read_cluster(devices)
    return Problem(graph, cluster, cost_table(graph, cluster), objective or Objective())


def some_policy(problem: Problem, seed: int = 0, **options: object) -> Gdp:
    """A small policy, its last layers drawn as well, so that what is untrained is not all the same."""
    policy = untrained_policy(Gdp, problem, GdpOptions(**{**SMALL, **options}), seed)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in policy.named_parameters():
            if name.startswith(("score", "lean")) or ".gate" in name:
                value.add_(torch.randn(value.shape, generator=generator) * 0.3)
    return policy


@torch.no_grad()
def device_probabilities(policy: Gdp) -> Floats:
    """The probabilities of devices for each op [n_ops, n_devices]."""
    return policy.logits().double().exp().numpy()[policy.view.unit]
