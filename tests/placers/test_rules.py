"""Whoever takes a problem keeps its rules: every placer of the registry against every kind of rule."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from quick import QUICK
from simulate_problems import random_problem, seeded
from soak import seeds
from split_problems import split_problem
from step_problems import step_problem

from placewise.core.place import place
from placewise.errors import PlacerError
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.model.result import Reason
from placewise.placers import registry
from placewise.placers.base import Budget
from placewise.simulate import judge_placement

RULES: dict[str, dict[str, Any]] = {
    "ordered": {"contiguous": True, "ordered": True},
    "ordered, forbidden": {"contiguous": True, "ordered": True, "forbidden": (Rule("op1$", "d0"),)},
    "convex": {"convex": True},
    "forbidden": {"forbidden": (Rule("op1$", "d0"), Rule("op2$", "d1"))},
    "pinned": {"pins": (Rule("op1$", "d1"),)},
    "together": {"together": (("op0", "op3"),)},
    "replicas": {"contiguous": True, "replicas": 0},
}
EXECUTIONS: tuple[Any, ...] = ("operator", "subgraph", "sequential")
OBJECTIVES = (Objective("throughput"), *(Objective("latency", execution=each) for each in EXECUTIONS))
ORDERED = Constraints(contiguous=True, ordered=True)


def small(seed: int, objective: Objective, rules: Constraints) -> Problem:
    """A problem of five to nine ops on two devices or more, memory scarce in every other."""
    for number in itertools.count(seed, 50):
        choose, scarce = seeded(number), bool(seed % 2)
        found = random_problem(choose, max_devices=3, objective=objective, constraints=Constraints(), scarce=scarce)
        if found.n_ops >= 5 and found.n_devices >= 2:
            return found.with_(constraints=rules)
    raise AssertionError


def rename_ops(rules: Constraints) -> Constraints:
    """The rules for the layers of `step_problem`, whose stages are a chain."""
    forbidden, pins = (
        tuple(Rule(r.pattern.replace("op", "f"), r.device) for r in own) for own in (rules.forbidden, rules.pins)
    )
    together = tuple(tuple(op.replace("op", "f") for op in own) for own in rules.together)
    return replace(
        rules, contiguous=True, convex=False, microbatches=4, forbidden=forbidden, pins=pins, together=together
    )


def take(name: str, seed: int, objective: Objective, rules: Constraints) -> Problem:
    """A problem as the placer takes it: its ops may be split if the placer can split them, or it is a training step."""
    if name == "pipeline_search":
        return step_problem(seed, devices=2 + seed % 3, layers=5).with_(constraints=rename_ops(rules))
    if name not in ("parallel_dp", "uniform"):
        return small(seed, objective, rules)
    return split_problem(seed, units=4, devices=4, kind=objective.kind).with_(constraints=rules)


@pytest.mark.usefixtures("brief_proofs")
@pytest.mark.parametrize("name", registry.known_names())
def test_a_proposal_keeps_the_rules(name: str) -> None:
    """A placement that is valid, none, or a refusal in words; never one that breaks a rule of the problem."""
    placed = late = 0
    for number, (rules, objective) in enumerate(itertools.product(RULES.values(), OBJECTIVES)):
        if objective.kind == "latency" and number % 4 != 1 + number // 4 % 3:
            continue
        problem = take(name, number % 13, objective, Constraints(**rules))
        try:
            found = place(problem, name, Budget(0.05, iterations=1, evaluations=8), options=QUICK.get(name))
        except PlacerError as refused:
            assert "cannot take this problem" in str(refused) and "--placer auto" in str(refused)
            continue
        assert not any("breaks a rule" in note for note in found.notes), (rules, objective, found.notes)
        placed += found.placement is not None
        late += found.status.reason is Reason.TIME_LIMIT
    assert placed or late


@pytest.mark.parametrize("name", ["dp", "cpsat"])
def test_the_best_pipeline_in_the_order_is_proved(name: str) -> None:
    """The optimum of all placements in the order of the devices, training and flushing pipelines among them."""
    for seed in seeds(12):
        schedule: Any = "gpipe" if seed % 4 == 3 and name == "dp" else "1f1b"
        communication: Any = ("blocking", "overlap", "duplex")[seed % 3]
        objective = Objective("throughput", communication, memory="sum", schedule=schedule)
        problem = random_problem(
            seeded(seed), max_ops=6, max_devices=3, training=seed % 2 == 1, objective=objective, constraints=ORDERED,
            transfers="staged", wires=False, scarce=seed % 3 == 0,
        )  # fmt: skip
        homes = itertools.product(range(problem.n_devices), repeat=problem.n_blocks)
        every = (judge_placement(problem, Placement(np.array(home, np.int32)[problem.block])) for home in homes)
        best = min((judged.value for judged in every if judged.valid), default=math.inf)
        found = place(problem, name)
        assert found.value == pytest.approx(best) if found.placement is not None else best == math.inf, seed
        assert found.status.reason is Reason.PROVED, seed
