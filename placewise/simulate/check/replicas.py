"""The checker's rules for replicas: equal members, and not too many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Violation


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
    names, found = problem.cluster.names, []
    links = problem.cluster.link_class
    tables = links.tolist(), links.T.tolist()
    members: dict[int, list[int]] = defaultdict(list)
    for d, e in enumerate(stage):
        members[e].append(d)
    for e, sharers in members.items():
        if len(sharers) > problem.most_replicas:
            shown = ", ".join(names[d] for d in sharers)
            message = f"{shown} share one stage, and at most {problem.most_replicas} may"
            found.append(Violation("replicas", message, names[e]))
        for d in sharers:
            why = "" if d == e else _difference(problem, tables, d, e)
            if why:
                message = f"{names[d]} repeats the stage of {names[e]}, and {why}"
                found.append(Violation("replicas", message, names[d]))
    return found


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
