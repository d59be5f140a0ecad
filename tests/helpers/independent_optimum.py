"""The optimum of a tiny problem by the independent judge: every placement, with all that a placement may decide."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice, permutations, product

import numpy as np
from independent_judge import Case, case_of, judge_independently

from placewise.model.placement import Placement
from placewise.model.problem import Problem


def independent_optimum(problem: Problem, most: int = 4000) -> float | None:
    """The least value of a placement that keeps the rules, inf if none does; None beyond `most` placements."""
    placements = list(islice(every_placement(problem), most + 1))
    if len(placements) > most:
        return None
    judged = [judge_independently(problem, placement) for placement in placements]
    return min((one.value for one in judged if not one.broken), default=math.inf)


def every_placement(problem: Problem) -> Iterator[Placement]:
    """Every placement that keeps support and groups; orders that start an op before what it needs add nothing."""
    case, objective = case_of(problem), problem.objective
    homes = [
        [d for d in range(problem.n_devices) if problem.allowed[problem.block == block, d].all()]
        for block in range(problem.n_blocks)
    ]
    ancestors = _ancestors(case)
    orders = [
        order for order in (permutations(range(problem.n_ops)) if _orders(problem) else ())
        if all(order[u] < order[v] for v in range(problem.n_ops) for u in ancestors[v])
    ]  # fmt: skip
    for choice in product(*homes):
        device = np.array(choice, np.int32)[problem.block]
        if _orders(problem):
            yield from (Placement(device, order=np.array(order, np.int32)) for order in orders)
        elif objective.kind == "latency" and objective.execution == "subgraph":
            yield from (
                Placement(device, call=np.array(call, np.int32)) for call in _calls(case, device.tolist(), ancestors)
            )
        elif objective.kind == "throughput" and problem.max_replicas > 1:
            used = set(device.tolist())
            stages = product(*([d] if d in used else [d, *sorted(used)] for d in range(problem.n_devices)))
            yield from (Placement(device, replicas=np.array(stage, np.int32)) for stage in stages)
        else:
            yield Placement(device)


def _orders(problem: Problem) -> bool:
    return problem.objective.kind == "latency" and problem.objective.execution == "operator"


def _ancestors(case: Case) -> list[set[int]]:
    found: list[set[int]] = []
    for op in range(len(case.reads)):
        found.append(set().union(*({before} | found[before] for before in case.before(op))))
    return found


def _calls(case: Case, device: Sequence[int], ancestors: Sequence[set[int]]) -> Iterator[list[int]]:
    """Every way to number calls, those left out in which a call waits for a later one of its device."""
    ops = [op for op, home in enumerate(device) if case.location[home] != case.host]
    for numbers in product(*(range(sum(device[op] == device[other] for other in ops)) for op in ops)):
        call = dict(zip(ops, numbers, strict=True))
        parts = [[call[op] for op in ops if device[op] == d] for d in {device[op] for op in ops}]
        dense = all(set(part) == set(range(max(part) + 1)) for part in parts)
        if dense and all(call[u] <= call[v] for v in ops for u in ancestors[v] if device[u] == device[v]):
            yield [call.get(op, 0) for op in range(len(device))]
