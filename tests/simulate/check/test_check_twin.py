"""The checker in columns against the one that goes op by op: the same violations, word for word, of every kind."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import twins
from simulate_problems import OBJECTIVES, Choose, random_problem, seeded
from soak import seeds

from placewise.errors import InputError
from placewise.model.cluster import Cluster
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.model.result import Timeline, Violation
from placewise.simulate.check.check import check_placement
from placewise.simulate.judge.memory import piece_numbers
from placewise.simulate.judge.schedule import timeline

KINDS = {"coverage", "support", "pin", "colocation", "memory", "contiguity", "convexity", "replicas"}


def ruled(problem: Problem, choose: Choose) -> Problem:
    """The problem with devices that are closed or lack a kind of op, pins, forbidden pairs, and stages of a shape."""
    devices = tuple(
        replace(
            d,
            available=choose(0, 9) > 0,
            unsupported=frozenset({"Op"} if choose(0, 9) == 0 else ()),
            supported=frozenset({"Other"}) if choose(0, 9) == 0 else None,
        )
        for d in problem.cluster
    )
    cluster = Cluster(devices, problem.cluster.links, problem.cluster.transfers)
    rules = [Rule(f"op{choose(0, 3)}$", cluster.names[choose(0, len(cluster) - 1)]) for _ in range(4)]
    pins, forbidden = tuple(rules[: choose(0, 2)]), tuple(rules[2 : 2 + choose(0, 2)])
    shape = choose(0, 2)
    wished = Constraints(pins, forbidden, shape == 1, problem.constraints.headroom, shape == 2, choose(0, 2))
    try:
        return problem.with_(cluster=cluster, constraints=wished)
    except InputError:  # a rule for an op that is not there
        return problem.with_(cluster=cluster)


def careless(problem: Problem, choose: Choose) -> Placement:
    """Any device for any op, now and then none; sometimes replicas, and calls or orders of its own."""
    n, last = problem.n_ops, problem.n_devices - 1
    low = -1 if choose(0, 19) == 0 else 0
    device = np.array([choose(low, last) for _ in range(n)])
    if choose(0, 2) == 0:
        device[:] = np.sort(device)
    numbers = np.array([choose(0, 3) for _ in range(n)])
    objective = problem.objective
    replicas = None
    if objective.kind == "throughput" and choose(0, 1):
        device[device > 0] = 0 if choose(0, 1) else device.max()
        busy = set(device.tolist())
        replicas = np.array([d if d in busy else choose(0, 1) * int(device[0]) for d in range(last + 1)])
    called, ordered = objective.execution == "subgraph", objective.execution == "operator"
    decided = objective.kind == "latency" and choose(0, 1) == 1
    return Placement(
        device[: n - (choose(0, 29) == 0)],
        numbers if decided and called and len(device) == n else None,
        numbers if decided and ordered else None,
        replicas,
    )


def schedule_of(problem: Problem, placement: Placement) -> tuple[Ints | None, Timeline | None]:
    """The pieces of a complete placement, or when its ops run."""
    if len(placement) != problem.n_ops or placement.device.min(initial=0) < 0:
        return None, None
    piece = piece_numbers(problem, placement)
    if piece is not None:
        return piece, None
    return None, timeline(problem, placement)[1]


def compared(seed: int, objective: Objective) -> list[Violation]:
    choose = seeded(seed)
    problem = ruled(
        random_problem(choose, max_ops=24, objective=objective, scarce=True, rules=True, alike=seed % 2 == 0), choose
    )
    placement = careless(problem, choose)
    piece, ran = schedule_of(problem, placement)
    found = check_placement(problem, placement, piece, ran)
    assert found == twins.check(problem, placement, piece, ran)
    assert check_placement(problem, placement, None, None) == twins.check(problem, placement, None, None)
    return found


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_the_same_violations(objective: Objective) -> None:
    """On random problems with careless placements both checkers say the same."""
    for seed in seeds(240):
        compared(seed, objective)


def test_every_kind_of_violation_is_compared() -> None:
    """What the comparison above goes through has every rule broken, several times."""
    throughput, operator = OBJECTIVES[1], OBJECTIVES[3]
    kinds = Counter(v.kind for o in (throughput, operator) for seed in seeds(240) for v in compared(seed, o))
    assert {kind for kind, times in kinds.items() if times >= 5} == KINDS
    reasons = Counter(
        v.message.split(", ")[-1].split(" to ")[0]
        for seed in seeds(240)
        for v in compared(seed, throughput)
        if v.kind in ("pin", "support")
    )
    expected = {"which may not be used", "which cannot run it", "where a rule forbids it", "pinned"}
    assert expected <= set(reasons)
