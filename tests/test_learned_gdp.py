"""GDP: any graph and any devices, decisions scored as they were drawn, devices known by what they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from simulate_problems import problems, random_problem, seeded

from placewise.catalog import read_cluster
from placewise.costing.roofline import cost_table
from placewise.model.problem import Objective, Problem
from placewise.placers.learned.gdp import GdpOptions
from placewise.placers.learned.networks.gdp import Gdp, gdp
from placewise.placers.learned.pricing import Pricing
from placewise.simulate import why_infeasible
from placewise.zoo.random import random_graph

SMALL = {
    "hidden": 8,
    "inner": 8,
    "heads": 2,
    "layers": 2,
    "segment": 16,
    "rounds": 3,
    "moving": 0.0,
    "pretrained": False,
}


def zoo_problem(family: str, n_ops: int, seed: int, devices: str, objective: Objective | None = None) -> Problem:
    """A random graph of the zoo, large enough for its devices to be worth it."""
    graph, cluster = random_graph(family, n_ops, seed, size=64), read_cluster(devices)
    return Problem(graph, cluster, cost_table(graph, cluster), objective or Objective())


def some_policy(problem: Problem, seed: int = 0, **options: object) -> Gdp:
    """A small policy, its last layers drawn as well, so that what is untrained is not all the same."""
    policy = gdp(problem, GdpOptions(**{**SMALL, **options}), seed)  # type: ignore[arg-type]
    dice = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in policy.named_parameters():
            if name.startswith(("score", "lean")) or ".gate" in name:
                value.add_(torch.randn(value.shape, generator=dice) * 0.3)
    return policy


@settings(max_examples=20, deadline=None)
@given(problems(max_ops=9, rules=True), st.integers(0, 2**20))
def test_decisions_are_scored_as_they_were_drawn(problem: Problem, seed: int) -> None:
    """Any graph, any rules: log p and entropy are those of the probabilities, rights are kept, all is finite."""
    assume(not why_infeasible(problem))
    policy, pricing = some_policy(problem, seed), Pricing(problem)
    rollout = policy.rollout(5, torch.Generator().manual_seed(seed), pricing)
    device = rollout.choices["device"]
    log_prob, entropy = policy.log_prob(rollout.choices)
    spread = policy.logits().exp()
    assert torch.allclose(spread.sum(dim=1), torch.ones(policy.view.n), atol=1e-5)
    assert torch.allclose(log_prob.exp(), spread[torch.arange(policy.view.n), device], atol=1e-5)
    assert torch.allclose(entropy, torch.special.entr(spread).sum(dim=1).expand(5, -1), atol=1e-4)
    assert np.array_equal(rollout.seconds, pricing(policy.view.placements(device.numpy())), equal_nan=True)
    assert policy.view.allowed[np.arange(policy.view.n), device.numpy()].all()
    chosen = policy.decisions(policy.view.placements(device.numpy()))
    assert torch.equal(chosen["device"], device)
    with torch.autograd.set_detect_anomaly(True):
        log_prob, entropy = policy.log_prob(rollout.choices)
        torch.autograd.backward(log_prob.sum() + entropy.sum())
    grads = {name: value.grad for name, value in policy.named_parameters() if value.grad is not None}
    assert not [name for name, grad in grads.items() if not torch.isfinite(grad).all()]


@settings(max_examples=20, deadline=None)
@given(problems(max_ops=9, rules=True), st.integers(0, 2**20))
def test_probabilities_are_for_ops(problem: Problem, seed: int) -> None:
    """Rows of ops sum to one, nothing where an op may not run; favourites are placements, the same every time."""
    assume(not why_infeasible(problem))
    policy = some_policy(problem, seed)
    share = policy.probabilities()
    assert share.shape == (problem.n_ops, problem.n_devices)
    assert np.allclose(share.sum(axis=1), 1.0) and not share[~problem.allowed].any()
    found = policy.greedy(Pricing(problem))
    assert np.array_equal(found, policy.greedy(Pricing(problem))) and 1 <= len(found) <= problem.n_devices
    assert problem.allowed[np.arange(problem.n_ops), found].all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**20))
def test_devices_are_known_by_what_they_are(seed: int) -> None:
    """The same devices in another order get the same scores, in that order."""
    problem = random_problem(seeded(seed), max_ops=8, max_devices=4)
    policy = some_policy(problem, seed)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(problem.n_devices))
    scene = policy.scene
    shuffled = replace(
        scene, device=scene.device[order], pair=scene.pair[:, order], allowed=scene.allowed[:, order],
        load=scene.load[:, order], held=scene.held[:, order],
    )  # fmt: skip
    with torch.no_grad():
        units, graph = policy.embedded()
        expected = policy.scores(scene, units, graph)[:, order]
        assert torch.allclose(policy.scores(shuffled, units, graph), expected, atol=1e-4)


def test_weights_fit_any_graph_and_any_devices() -> None:
    """The same names and shapes for every problem and whichever parts are switched off, and they can be exchanged."""
    first = some_policy(zoo_problem("branchy", 40, 1, "2xP100,cpu"))
    for problem in (zoo_problem("layered", 70, 2, "4xK80"), zoo_problem("erdos-renyi", 30, 3, "P100,V100-16GB,2xcpu")):
        for part in ("attention", "superposition", "device_features"):
            other = some_policy(problem, **{part: False})
            assert {k: v.shape for k, v in other.state_dict().items()} == {
                k: v.shape for k, v in first.state_dict().items()
            }
            other.load_state_dict(first.state_dict())
            assert np.isfinite(other.probabilities()).all()
            assert other.features.layout == first.features.layout
