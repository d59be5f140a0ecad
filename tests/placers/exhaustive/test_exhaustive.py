"""exhaustive: the optimum and its proof, or the proof that nothing keeps the rules, against plain brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from export_models import stack_graph, stack_problem
from simulate_problems import OBJECTIVES, random_problem, seeded
from soak import seeds

from placewise.core.build import ProblemOptions, build
from placewise.core.place import place
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Problem, Rule
from placewise.model.result import Outcome
from placewise.placers.base import Budget, Stopwatch
from placewise.placers.exhaustive.decisions import decide
from placewise.placers.registry import create
from placewise.simulate import judge_placement

pytestmark = pytest.mark.usefixtures("brief_proofs")
SHAPES = (Constraints(), Constraints(contiguous=True), Constraints(convex=True))


def brute_force(problem: Problem) -> float:
    """The least value of any placement that the judge finds valid, inf if there is none."""
    values = [np.inf]
    for device in product(range(problem.n_devices), repeat=problem.n_ops):
        judged = judge_placement(problem, Placement(np.array(device, np.int32)))
        values += [judged.value] if judged.valid else []
    return min(values)


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_is_brute_force(shape: int) -> None:
    """The value is that of brute force over the judge; proved where devices alone decide it, as is that none is."""
    found = set()
    for seed in seeds(10):
        objective = OBJECTIVES[seed % len(OBJECTIVES)]
        problem = random_problem(
            seeded(1000 * shape + seed), max_ops=5, max_devices=3, scarce=seed % 2 == 0, rules=True,
            objective=objective, constraints=SHAPES[shape],
        )  # fmt: skip
        if create("exhaustive").supports(problem) is not None:
            continue
        result, best = place(problem, "exhaustive"), brute_force(problem)
        assert result.value == pytest.approx(best)
        decided = objective.kind == "throughput" or objective.execution == "sequential"
        if decided:
            assert result.status.outcome is (Outcome.INFEASIBLE if best == np.inf else Outcome.OPTIMAL)
        found.add(result.status.outcome)
    assert Outcome.OPTIMAL in found


def test_auto_is_never_unsure_of_a_handful_of_ops() -> None:
    """For throughput auto ends with the optimum or the proof that there is none, however tight memory is."""
    for seed in seeds(15):
        problem = random_problem(seeded(seed), max_ops=6, max_devices=3, scarce=True, objective=OBJECTIVES[seed % 3])
        assert place(problem, "auto", Budget(60.0)).status.outcome in (Outcome.OPTIMAL, Outcome.INFEASIBLE)


@pytest.mark.parametrize(("pinned", "value"), [("", 102.0), ("layers", 100.0)])
def test_many_ops_without_a_choice(pinned: str, value: float) -> None:
    """A hundred ops with one device to go to are no more placements than the other two ops have."""
    rules = Constraints((Rule(pinned, "cuda:0"),))
    result = place(stack_problem(stack_graph(50), cpu=False).with_(constraints=rules), "exhaustive")
    assert result.status.outcome is Outcome.OPTIMAL and result.value == value
    alone = place(stack_problem(stack_graph(50), gpus=1, cpu=False), "auto", Budget(60.0))
    assert alone.value == 102.0


def test_refuses_what_is_too_much() -> None:
    """Beyond a few ten thousand placements it says how many there are about."""
    problem = next(
        p
        for p in (random_problem(seeded(s), max_ops=30, max_devices=4) for s in range(99))
        if p.n_blocks > 15 and p.n_devices > 2
    )
    assert "placements" in str(create("exhaustive").supports(problem))


@pytest.mark.parametrize("execution", ["operator", "subgraph"])
def test_many_ops_on_one_device_are_not_listed(execution: str) -> None:
    """One placement of hundreds of ops has more orders and calls than can be listed: it is priced, and that is all."""
    problem = build("zoo:random-layered", "L4", ProblemOptions(execution=execution, dims={"n_ops": 300}))
    assert decide(problem, np.zeros((1, problem.n_ops), np.int32), Stopwatch(Budget())) is None
    assert place(problem, "exhaustive").placement is not None
