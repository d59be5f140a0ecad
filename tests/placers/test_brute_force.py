"""Every placer against brute force: all placements of hundreds of small problems, every combination of meanings.

The oracle is plain Python: the rules of `plain_rules`, the max-load twin, and for live memory the checker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
from plain_rules import placements, valid_optimum
from quick import LEARNED, QUICK
from simulate_problems import random_problem, seeded
from soak import FACTOR, SOAKS, seeds
from strategies import EXECUTIONS, MODES

from placewise.core import place as core_place
from placewise.core.place import place
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, Schedule
from placewise.model.result import Outcome, Reason, Result
from placewise.placers import registry
from placewise.placers.base import Budget
from placewise.simulate import evaluate, judge_placement, lower_bound

SHAPES = {"free": Constraints(), "convex": Constraints(convex=True), "contiguous": Constraints(contiguous=True)}
"""Options that make placers quick; proofs do not depend on them."""
EXACT_ON_STAGED = {"dp": ("contiguous",), "cpsat": tuple(SHAPES)}
"""Who must prove the optimum where transfers are staged over private links, memory is a sum and nothing is flushed."""


pytestmark = pytest.mark.usefixtures("brief_proofs", "shared_by_placers")


@pytest.fixture
def shared_by_placers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `place` finds before it asks a placer is found once for each problem, and then given to every placer."""
    for name in ("lower_bound", "collect_baselines"):
        monkeypatch.setattr(core_place, name, once_per_problem(getattr(core_place, name)))


def once_per_problem(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which remembers what it said of the last problem."""
    last: list[Any] = [None, None]

    def remembered(problem: Problem, *arguments: Any, **options: Any) -> Any:
        if last[0] is not problem:
            last[:] = problem, function(problem, *arguments, **options)
        return last[1]

    return remembered


def throughput_problems(mode: str, transfers: str, wires: bool) -> Iterator[tuple[str, Problem]]:
    """Shapes of stages, memory models, inference and training, some with equal devices, scarce memory or rules."""
    for number, (shape, memory, training) in enumerate(product(SHAPES, ("sum", "live"), (False, True))):
        seed = 1000 * MODES.index(mode) + 100 * (transfers == "direct") + 50 * wires + 7 * number
        schedule = get_args(Schedule)[seed % 3 == 0 and training]
        objective = Objective("throughput", communication=mode, memory=memory, schedule=schedule)  # type: ignore[arg-type]
        yield (
            shape,
            random_problem(
                seeded(seed),
                max_ops=6,
                max_devices=3,
                objective=objective,
                training=training,
                scarce=seed % 3 > 0,
                rules=seed % 5 == 0,
                alike=seed % 2 == 0,
                transfers=transfers,
                wires=wires,
                constraints=SHAPES[shape],
            ),
        )


def results(problem: Problem, *, slow: bool) -> Iterator[tuple[str, Result]]:
    """What every placer that takes the problem answers: valid, or nothing and why.

    The slow ones are asked seldom, and for a fifth of a second.
    """
    late = {
        "auto",
        "multilevel",
        "windows",
        *LEARNED,
        *(("cpsat",) if problem.objective.kind == "latency" else ()),
    }
    for name in registry.known_names():
        placer = registry.create(name)
        if placer.supports(problem) is None and (slow or name not in late):
            budget = Budget(0.2) if name in late and name not in LEARNED else Budget()
            result = place(problem, name, budget, options=QUICK.get(name))
            if result.placement is None:
                assert result.status.outcome in (Outcome.INFEASIBLE, Outcome.UNKNOWN) and (result.unmet or result.notes)
            else:
                assert result.judgement is not None and result.judgement.valid
                assert (result.status.outcome is Outcome.OPTIMAL) == (result.gap <= 1e-6), name
            yield name, result


def holds(name: str, problem: Problem, best: float, result: Result) -> None:
    """Bound ≤ optimum ≤ value; proofs only of what is so; nothing that breaks a rule."""
    where = f"{name}: {result.status}, bound {result.bound}, value {result.value}, optimum {best}"
    if result.status.outcome is Outcome.INFEASIBLE:
        assert math.isinf(best) and result.unmet, where
        return
    assert result.lower_bound <= best * (1 + 1e-12), where
    if result.judgement is not None:
        assert result.judgement.valid and result.value >= best * (1 - 1e-9), where
        if result.status.outcome is Outcome.OPTIMAL:
            assert result.value <= best * (1 + 1.1e-6), where


@pytest.mark.parametrize("wires", [False, True])
@pytest.mark.parametrize("transfers", ["staged", "direct"])
@pytest.mark.parametrize("mode", MODES)
def test_throughput(mode: str, transfers: str, wires: bool) -> None:
    """Twelve problems each, three in `make test`: every bound, value and proof of every placer against the optimum."""
    turn = 4 * MODES.index(mode) + 2 * (transfers == "direct") + wires
    for number, (shape, problem) in enumerate(throughput_problems(mode, transfers, wires)):
        if not SOAKS and (number - turn) % 4:
            continue
        best = valid_optimum(problem)
        assert lower_bound(problem).value <= best
        objective = problem.objective
        plain = transfers == "staged" and not problem.cluster.wires and objective.memory == "sum"
        plain &= objective.schedule == "1f1b"
        for name, result in results(problem, slow=(number - turn) % 12 < FACTOR):
            holds(name, problem, best, result)
            if plain and shape in EXACT_ON_STAGED.get(name, ()):
                proved = Outcome.INFEASIBLE if math.isinf(best) else Outcome.OPTIMAL
                assert result.status.outcome is proved and result.status.reason is Reason.PROVED, f"{name}: {result}"


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_latency(execution: str) -> None:
    """Bounds, values and proofs of every placer against all placements with the calls and orders of the judge.

    Where calls or an order may be chosen, a placer may do better than that, and never than its bound.
    """
    for seed in seeds(12):
        objective = Objective("latency", execution=execution, memory=("sum", "live")[seed % 2])  # type: ignore[arg-type]
        problem = random_problem(
            seeded(seed), max_ops=5, max_devices=3, objective=objective, training=seed % 4 == 0, scarce=seed % 3 > 0,
            rules=seed % 5 == 0, alike=seed % 2 == 0, constraints=Constraints(),
        )  # fmt: skip
        every = np.array([device for device, _ in placements(problem)], np.int32).reshape(-1, problem.n_ops)
        valid = [d for d in every if judge_placement(problem, Placement(d)).valid]
        best = float(evaluate(problem, np.array(valid)).min()) if valid else math.inf
        assert lower_bound(problem).value <= best
        for name, result in results(problem, slow=seed % 6 == EXECUTIONS.index(execution)):
            where = f"{name}, seed {seed}: {result.status}, bound {result.bound}, value {result.value}, best {best}"
            if result.status.outcome is Outcome.INFEASIBLE:
                assert not valid, where
                continue
            assert result.lower_bound <= best * (1 + 1e-12), where
            if result.judgement is not None and execution == "sequential":
                assert result.value >= best * (1 - 1e-12), where
