"""The checker of a placement's rules, independent of the judge's kernels on purpose.

It shares with the judge only the problem, the times of a schedule, and the definition of contiguity. Its sums and
sweeps are its own (for memory in `check/memory.py`), so that a mistake in a kernel cannot hide itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from placewise.model.cluster import Device
from placewise.model.columns import Bools, Ints, Longs
from placewise.model.placement import Placement
from placewise.model.problem import Problem, matching
from placewise.model.result import Timeline, Violation, ViolationKind
from placewise.simulate.check.memory import check_memory
from placewise.simulate.contiguity import contract, out_of_order, path_back, stage_cycle

_SHOWN = 5

_CLOSED, _UNABLE, _FORBIDDEN, _PINNED = range(4)
"""Reasons why an op may not be on its device; from `_PINNED` on, it is pinned to device 0, 1, …"""


def check_placement(
    problem: Problem, placement: Placement, piece: Ints | None, timeline: Timeline | None
) -> list[Violation]:
    """Every rule that `placement` breaks; an empty list if it breaks none.

    `piece` [n_ops] numbers the pieces of each device, or `timeline` says when ops run (`operator`); without
    either, memory is checked by resident bytes alone.
    """
    coverage = check_coverage(problem, placement)
    if coverage:
        return coverage
    violations = check_op_rules(problem, placement)
    if placement.replicas is not None:
        violations += check_replicas(problem, placement.replicas.tolist())
    if problem.constraints.contiguous:
        violations += _contiguity(problem, placement) or _order(problem, placement)
    elif problem.constraints.convex:
        violations += _convexity(problem, placement)
    return violations + check_memory(problem, placement, piece, timeline)


def check_op_rules(problem: Problem, placement: Placement) -> list[Violation]:
    """The rules about ops alone that a complete placement breaks: support, pins and colocation."""
    return _support(problem, placement.device) + _colocation(problem, placement.device)


def check_calls(problem: Problem, device: Ints, value: float) -> list[Violation]:
    """The violation of a placement that cannot run although every op [n_ops] has a time: its calls wait in a circle."""
    called = problem.objective.kind == "latency" and problem.objective.execution == "subgraph"
    if np.isfinite(value) or not called or np.isinf(problem.costs.op_seconds[np.arange(len(device)), device]).any():
        return []
    return [Violation("calls", "the calls of the accelerators wait for each other in a circle: it cannot run")]


def check_coverage(problem: Problem, placement: Placement) -> list[Violation]:
    """The violation of a placement that does not give every op a device, or whose replicas repeat no stage."""
    if len(placement) != problem.n_ops:
        return [Violation("coverage", f"it places {len(placement)} ops, the graph has {problem.n_ops}")]
    lost = _op_names(problem, np.flatnonzero((placement.device < 0) | (placement.device >= problem.n_devices)))
    if lost:
        return [Violation("coverage", f"{_list_ops(lost)} on no device", ops=lost)]
    meaningless = "" if placement.replicas is None else misread_replicas(problem, placement)
    return [Violation("coverage", meaningless)] if meaningless else []


def _support(problem: Problem, device: Ints) -> list[Violation]:
    ops = np.flatnonzero(~problem.allowed[np.arange(len(device)), device])
    if not len(ops):
        return []
    where, why = device[ops].astype(np.int64), _reasons(problem, ops, device[ops])
    names = problem.cluster.names
    violations = []
    for rows in _group_rows(where * (_PINNED + len(names)) + why):
        name, reason, away = names[where[rows[0]]], int(why[rows[0]]), _op_names(problem, ops[rows])
        kind: ViolationKind = "support" if reason == _UNABLE else "pin"
        violations.append(Violation(kind, f"{_list_ops(away)} on {name}, {_reason_text(names, reason)}", name, away))
    return violations


def _reasons(problem: Problem, ops: Longs, device: Ints) -> Longs:
    """The reason why each of `ops` may not be on its device, as a number; of several, the strongest."""
    cluster, kind = problem.cluster, problem.graph.ops.kind
    why = np.full(len(ops), _FORBIDDEN)
    why[~np.isfinite(problem.costs.op_seconds[ops, device])] = _UNABLE
    for d in np.unique(device).tolist():
        lacking = np.array([_lacks(cluster.devices[d], value) for value in kind.values], np.bool_)
        why[(device == d) & lacking[kind.codes[ops]]] = _UNABLE
    for rule in reversed(problem.constraints.pins):
        target = cluster.index(rule.device)
        why[matching(problem.graph, rule.pattern)[ops] & (device != target)] = _PINNED + target
    closed: Bools = np.array([not d.available for d in cluster], np.bool_)
    why[closed[device]] = _CLOSED
    return why


def _lacks(device: Device, kind: str) -> bool:
    """Written a second time, beside `Device.can_run`."""
    return kind in device.unsupported or not (device.supported is None or kind in device.supported)


def _reason_text(names: tuple[str, ...], reason: int) -> str:
    if reason >= _PINNED:
        return f"pinned to {names[reason - _PINNED]}"
    return {_CLOSED: "which may not be used", _UNABLE: "which cannot run it", _FORBIDDEN: "where a rule forbids it"}[
        reason
    ]


def _colocation(problem: Problem, device: Ints) -> list[Violation]:
    grouped = np.flatnonzero(problem.group >= 0)
    homes = device[grouped]
    violations = []
    for rows in _group_rows(problem.group[grouped], split_by=homes):
        names = _op_names(problem, grouped[rows])
        places = ", ".join(problem.cluster.names[d] for d in np.unique(homes[rows]).tolist())
        violations.append(Violation("colocation", f"{_list_ops(names)} belong together and are on {places}", ops=names))
    return violations


def _order(problem: Problem, placement: Placement) -> list[Violation]:
    back = out_of_order(contract(problem), placement.device) if problem.constraints.ordered else None
    if back is None:
        return []
    late, early = (problem.cluster.names[d] for d in back)
    return [Violation("order", f"the stage of {early} follows that of {late}, and {early} comes first", early)]


def _contiguity(problem: Problem, placement: Placement) -> list[Violation]:
    cycle = stage_cycle(problem, placement.device)
    if cycle is None:
        return []
    names = " → ".join(problem.cluster.names[d] for d in (*cycle, cycle[0]))
    return [Violation("contiguity", f"the stages are no chain: {names}")]


def _convexity(problem: Problem, placement: Placement) -> list[Violation]:
    path = path_back(problem, placement.device)
    if path is None:
        return []
    name = problem.cluster.names[int(placement.device[path[0]])]
    names = tuple(problem.graph.ops.name[op] for op in path)
    away = _list_ops(names[1:-1])
    message = f"the ops on {name} are not convex: a path leaves them at {names[0]!r} and comes back at {names[-1]!r}"
    return [Violation("convexity", f"{message}, by way of {away}", name, names)]


def _group_rows(key: Ints | Longs, split_by: Ints | None = None) -> Iterator[Longs]:
    """The rows of each distinct key, ascending; keys in the order of their first rows.

    With `split_by`, only of keys whose rows differ in that column.
    """
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=key[order[:1]] - 1)) if len(order) else order
    cuts = np.append(starts, len(order))
    groups = np.arange(len(starts))
    if split_by is not None and len(starts):
        values = split_by[order]
        groups = np.flatnonzero(np.minimum.reduceat(values, starts) != np.maximum.reduceat(values, starts))
    bounds = [*pairwise(cuts.tolist())]
    for group in groups[np.argsort(order[starts[groups]])].tolist():
        yield order[slice(*bounds[group])]


def _op_names(problem: Problem, ops: Longs) -> tuple[str, ...]:
    names = problem.graph.ops.name
    return tuple(names[op] for op in ops.tolist())


def _list_ops(names: Iterable[str]) -> str:
    shown = list(names)
    rest = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ("op " if len(shown) == 1 else "ops ") + ", ".join(map(repr, shown[:_SHOWN])) + rest


def misread_replicas(problem: Problem, placement: Placement) -> str:
    """Why the replicas of a placement are meaningless, in words; "" if they name each stage by one device."""
    stage = [] if placement.replicas is None else placement.replicas.tolist()
    names = problem.cluster.names
    if len(stage) != len(names):
        return f"it has replicas for {len(stage)} devices, the cluster has {len(names)}"
    busy = set(np.unique(placement.device).tolist())
    for d, e in enumerate(stage):
        if not 0 <= e < len(names):
            return f"{names[d]} repeats the stage of device number {e}, which does not exist"
        if stage[e] != e:
            return f"{names[d]} repeats the stage of {names[e]}, which repeats that of another device"
        if e != d and d in busy:
            return f"{names[d]} repeats the stage of {names[e]} and has ops of its own"
    return ""


def check_replicas(problem: Problem, stage: list[int]) -> list[Violation]:
    """The violations by stages that too many or unequal devices share."""
    names, violations = problem.cluster.names, []
    links = problem.cluster.link_class
    tables = links.tolist(), links.T.tolist()
    members: dict[int, list[int]] = defaultdict(list)
    for d, e in enumerate(stage):
        members[e].append(d)
    for e, sharers in members.items():
        if len(sharers) > problem.max_replicas:
            shown = ", ".join(names[d] for d in sharers)
            message = f"{shown} share one stage, and at most {problem.max_replicas} may"
            violations.append(Violation("replicas", message, names[e]))
        for d in sharers:
            why = "" if d == e else _difference(problem, tables, d, e)
            if why:
                message = f"{names[d]} repeats the stage of {names[e]}, and {why}"
                violations.append(Violation("replicas", message, names[d]))
    return violations


def _difference(problem: Problem, tables: Sequence[list[list[int]]], one: int, other: int) -> str:
    """How two devices differ, in words; "" if they are equal. `tables` has the links by source and by target."""
    if problem.capacity[one] != problem.capacity[other]:
        return "their memory differs"
    allowed, times = problem.allowed[:, [one, other]], problem.costs.op_seconds[:, [one, other]]
    if (allowed[:, 0] != allowed[:, 1]).any() or (allowed[:, 0] & (times[:, 0] != times[:, 1])).any():
        return "they differ in the ops that they may run or in how long these take"
    if problem.cluster.is_host[one] != problem.cluster.is_host[other]:
        return "one of them works in host memory"
    for table in tables:
        exchanged = list(table[other])
        exchanged[one], exchanged[other] = exchanged[other], exchanged[one]
        if table[one] != exchanged:
            return "their links differ"
    return ""
