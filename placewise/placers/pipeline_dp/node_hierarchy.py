"""Pipelines over nodes of devices: a lower bound on what the slow links between nodes cost any chain of stages.

Links within a node are quick, links between nodes are slow, so that the cost of a stage depends on where its neighbours
are. However stages are spread, the first stage in a node receives everything that earlier stages produced from other
nodes, the last one sends everything that later stages need to other nodes, and a stage alone in its node does both. So
a device in use has one of four roles, and a node has at most one first and one last stage. The dynamic program over
ideals counts devices by kind and role, and charges each role its cheapest possible links. This is a lower bound for
every way to group devices into nodes, and a good proposal once roles are assigned to real devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from placewise.model.columns import Bools, Floats, Ints, Longs, frozen
from placewise.model.disjoint_sets import DisjointSets
from placewise.model.problem import Problem
from placewise.model.result import Reason
from placewise.model.topology import sort_topologically
from placewise.placers.shared.stages import stage_costs
from placewise.placers.shared.stages.dp_driver import (
    MAX_CELLS,
    ChainSearchResult,
    GoOn,
    build_expansion,
    compute_remaining_capacity,
    compute_remaining_work,
    count_states,
    list_states,
    list_targets,
    run_expansion,
)
from placewise.placers.shared.stages.ideals import Ideals
from placewise.placers.shared.stages.stage_costs import NEVER, ComponentCosts, PricedStages
from placewise.simulate.contiguity import Contraction

ALONE, FIRST, LAST, BETWEEN = range(4)
MAX_LEVELS = 3


def list_partitions(problem: Problem) -> list[Ints]:
    """Partitions of the accelerators into nodes: the node of each device [n_devices], −1 for host devices.

    There is one for every level of link speed: devices share a node if links at least as quick connect them.
    """
    cluster = problem.cluster
    if cluster.transfers != "direct":
        return []
    accelerators = np.flatnonzero(~cluster.is_host)
    pace = problem.costs.transfer_seconds.sum(axis=0)[cluster.link_class]
    between = pace[np.ix_(accelerators, accelerators)]
    between = np.minimum(between, between.T)
    levels = []
    for level in np.unique(between[~np.eye(len(accelerators), dtype=np.bool_)]).tolist():
        group = _connect_devices(between <= level)
        if 1 < group.max(initial=0) + 1 < len(accelerators):
            node = np.full(len(cluster), -1, np.int32)
            node[accelerators] = group
            levels.append(node)
    return levels[-MAX_LEVELS:]


def _connect_devices(linked: Bools) -> Ints:
    """The connected component of each vertex [n], numbered by its first."""
    sets = DisjointSets(len(linked))
    for one, other in np.argwhere(linked).tolist():
        sets.join(one, other)
    return np.unique(sets.roots(), return_inverse=True)[1].astype(np.int32)


class _DeviceRole(NamedTuple):
    """Devices of one kind in one role: equal in all figures and in the distance to other nodes."""

    base: int  # their class in the prices without roles
    kind: int
    role: int


class _LinkPace(NamedTuple):
    """Seconds per tensor [n_tensors] to enter and leave a device on its quickest links: of all, and to other nodes."""

    enter: Floats
    leave: Floats
    enter_far: Floats
    leave_far: Floats


@dataclass(frozen=True, slots=True, eq=False)
class PricedRoles:
    """Stage costs by kind and role; `kinds` are the devices of each kind, `node` [n_devices] the node of each."""

    priced: PricedStages
    base: PricedStages
    classes: tuple[_DeviceRole, ...]
    kinds: tuple[tuple[int, ...], ...]
    node: Ints


def price_roles(problem: Problem, graph: Contraction, capacity: Floats, node: Ints) -> PricedRoles:
    """Stage costs of the components of a contraction, role by role, for devices in the nodes `node` [n_devices]."""
    base = _coarsen_units(problem, stage_costs.price_stages(problem, graph.component, graph.n, capacity))
    ahead, back = _classify_tensors(graph, base.costs)
    kinds = _group_devices(problem, base, node)
    size = np.bincount(node[[d for _, devices, _ in kinds for d in devices if node[d] >= 0]], minlength=node.max() + 1)
    classes, rates, columns, counts = [], list[int](), list[tuple[Floats, Floats]](), list[int]()
    for number, (k, devices, pace) in enumerate(kinds):
        for role, count in _count_roles(devices, node, size).items():
            if not count:
                continue
            classes.append(_DeviceRole(k, number, role))
            counts.append(min(count, max(graph.n, 1)))
            rates.append(-1 if pace is None else len(columns))
            if pace is not None:
                first, last = role in (ALONE, FIRST), role in (ALONE, LAST)
                enters_far = (ahead & first) | (back & last) | (first & last)
                leaves_far = (ahead & last) | (back & first) | (first & last)
                columns.append(
                    (
                        np.where(enters_far, pace.enter_far, pace.enter),
                        np.where(leaves_far, pace.leave_far, pace.leave),
                    )
                )
    priced = np.array(columns).reshape(len(columns), 2, len(base.tensors))
    chosen = [c.base for c in classes]
    costs = base.costs._replace(
        seconds=frozen(base.costs.seconds[:, chosen], np.int64),
        enter=frozen(np.floor(priced[:, 0].T * base.scale), np.int64),
        leave=frozen(np.floor(priced[:, 1].T * base.scale), np.int64),
        rate=frozen(rates, np.int32),
        capacity=frozen(base.costs.capacity[chosen], np.int64),
        n_devices=frozen(counts, np.int32),
        most=frozen(np.ones(len(chosen)), np.int32),
        pace=frozen(np.zeros((len(chosen), 2)), np.float64),
    )
    first_of = np.concatenate(([0], np.cumsum(counts))).tolist()
    stand_ins = tuple(tuple(range(first_of[c], first_of[c + 1])) for c in range(len(counts)))
    named = base._replace(costs=costs, devices=stand_ins)
    return PricedRoles(named, base, tuple(classes), tuple(devices for _, devices, _ in kinds), node)


def _coarsen_units(problem: Problem, priced: PricedStages) -> PricedStages:
    """The prices in coarser units if necessary, so that sums cannot overflow on the slowest links either."""
    slowest = 4 * float(problem.costs.transfer_seconds.max(axis=1, initial=0.0).sum()) * priced.scale
    shift = max(0, int(np.ceil(np.log2(max(slowest, 1.0) / 2.0**59))))
    costs = priced.costs
    seconds = np.where(costs.seconds < NEVER, costs.seconds >> shift, NEVER)
    coarse = costs._replace(
        seconds=frozen(seconds, np.int64),
        enter=frozen(costs.enter >> shift, np.int64),
        leave=frozen(costs.leave >> shift, np.int64),
    )
    return priced._replace(costs=coarse, scale=priced.scale / 2.0**shift)


def _count_roles(devices: tuple[int, ...], node: Ints, size: Longs) -> dict[int, int]:
    """How many devices of a kind can be in each role at once; host devices are always alone."""
    nodes_used, members = np.unique(node[list(devices)], return_counts=True)
    if nodes_used[0] < 0:
        return {ALONE: len(devices)}
    shared = int((size[nodes_used] > 1).sum())
    between = int(np.minimum(members, np.maximum(size[nodes_used] - 2, 0)).sum())
    return {ALONE: len(nodes_used), FIRST: shared, LAST: shared, BETWEEN: between}


def _classify_tensors(graph: Contraction, costs: ComponentCosts) -> tuple[Bools, Bools]:
    """Which tensors [n_tensors] can only cross to later stages, and which only to earlier stages."""
    tail, head = graph.edges()
    known = tail.astype(np.int64) * graph.n + head
    reader = costs.consumers.astype(np.int64)
    tensor = np.repeat(np.arange(len(costs.producer)), np.diff(costs.consumer_offsets))
    producer = costs.producer[tensor].astype(np.int64)
    ahead, back = np.ones(len(costs.producer), np.bool_), np.ones(len(costs.producer), np.bool_)
    produced = producer >= 0
    np.logical_and.at(ahead, tensor[produced], np.isin(producer * graph.n + reader, known)[produced])
    np.logical_and.at(back, tensor[produced], np.isin(reader * graph.n + producer, known)[produced])
    return ahead, back


def _group_devices(
    problem: Problem, base: PricedStages, node: Ints
) -> list[tuple[int, tuple[int, ...], _LinkPace | None]]:
    """(class in `base`, devices, their pace) of devices that are also equally far from other nodes."""
    groups: dict[tuple[int, bytes, bool], tuple[list[int], _LinkPace | None]] = {}
    for k, devices in enumerate(base.devices):
        for d in devices:
            pace = None if node[d] < 0 else _compute_pace(problem, base.tensors, d, node)
            mark = b"" if pace is None else b"".join(column.tobytes() for column in pace)
            groups.setdefault((k, mark, pace is None), ([], pace))[0].append(d)
    return [(k, tuple(devices), pace) for (k, _, _), (devices, pace) in groups.items()]


def _compute_pace(problem: Problem, tensors: Longs, device: int, node: Ints) -> _LinkPace:
    cluster, graph = problem.cluster, problem.graph
    cost, host, here = problem.costs.transfer_seconds[tensors], len(cluster), int(cluster.location[device])
    from_host = graph.tensors.producer[tensors] < 0
    to_host = np.where(graph.tensors.output[tensors], cost[:, cluster.link_class[here, host]], np.inf)
    columns = []
    for far in (False, True):
        others = np.unique(cluster.location[(node != node[device]) if far else np.arange(host) != device])
        enter = cost[:, np.unique(cluster.link_class[others, here])].min(axis=1)
        leave = cost[:, np.unique(cluster.link_class[here, others])].min(axis=1)
        columns += [np.where(from_host, cost[:, cluster.link_class[host, here]], enter), np.minimum(leave, to_host)]
    return _LinkPace(*columns)


def search_roles(roles: PricedRoles, ideals: Ideals, go_on: GoOn, beat: int, gap: float) -> ChainSearchResult | None:
    """The best chain of kinds and roles below `beat`, with its proof; None if there are too many states."""
    base, costs = roles.base.costs, roles.priced.costs
    if count_states(costs) * len(ideals) > MAX_CELLS:
        return None
    room, unfinished = _limit_states(roles, list_states(costs)[0])
    expansion = build_expansion(costs, ideals, compute_remaining_work(base, ideals), room)
    expansion.restrict_states(unfinished, np.array([c.role in (ALONE, BETWEEN) for c in roles.classes]))
    floor = 0
    for target in list_targets(base, beat):
        expansion.start(target)
        result = run_expansion(roles.priced, ideals, expansion, go_on)
        if result.reason is not Reason.FINISHED or result.chain is not None:
            proved = result.chain.value if result.chain is not None and result.reason is Reason.FINISHED else floor
            return replace(result, floor=proved)
        floor = target
        if beat - floor <= gap * beat:
            break
    return ChainSearchResult(None, Reason.FINISHED, floor)


def _limit_states(roles: PricedRoles, counts: Ints) -> tuple[Floats, Bools]:
    """The capacity that each state [n_states] leaves (−1: impossible state), and which states cannot be final."""
    base = roles.base.costs
    role = np.array([c.role for c in roles.classes])
    placed = np.array([roles.node[roles.kinds[c.kind][0]] >= 0 for c in roles.classes])
    first, last, between = (counts[:, placed & (role == r)].sum(axis=1) for r in (FIRST, LAST, BETWEEN))
    alone = counts[:, placed & (role == ALONE)].sum(axis=1)
    usable = [roles.node[d] for devices in roles.kinds for d in devices if roles.node[d] >= 0]
    size = np.bincount(usable, minlength=1)
    possible = (alone + first <= (size > 0).sum()) & (first <= (size > 1).sum()) & (last <= first)
    possible &= between <= max(int(size.max()) - 2, 0) * first
    for kind, devices in enumerate(roles.kinds):
        mine = np.array([c.kind == kind for c in roles.classes])
        possible &= counts[:, mine].sum(axis=1) <= len(devices)
    used = np.zeros((len(counts), len(base.n_devices)), np.int64)
    for column, c in enumerate(roles.classes):
        used[:, c.base] += counts[:, column]
    possible &= (used <= base.n_devices).all(axis=1)
    state = np.where(possible, used @ list_states(base)[1], 0)
    return np.where(possible, compute_remaining_capacity(base)[state], -1.0), last < first


def search_nodes(
    problem: Problem,
    graph: Contraction,
    ideals: Ideals,
    reached: float,
    go_on: GoOn,
    gap: float,
    *,
    nodes: Sequence[Ints] | None = None,
) -> tuple[list[Ints], float, Reason]:
    """Placements [n_ops] that may beat `reached` seconds, a lower bound in seconds for every chain, and the reason.

    Each partition in `nodes` is tried (None: those of `list_partitions`), with a chain unless its bound refutes one.
    """
    placements, floor = list[Ints](), 0.0
    for node in list_partitions(problem) if nodes is None else nodes:
        roles = price_roles(problem, graph, problem.capacity, node)
        beat = min(int(reached * roles.priced.scale), NEVER)
        outcome = search_roles(roles, ideals, go_on, beat, gap)
        if outcome is None:
            continue
        floor = max(floor, outcome.floor / roles.priced.scale)
        if outcome.chain is not None:
            placements.append(assign_devices(roles, graph, outcome.chain.device)[graph.component])
        if outcome.reason is not Reason.FINISHED:
            return placements, floor, outcome.reason
    return placements, floor, Reason.FINISHED


def assign_devices(roles: PricedRoles, graph: Contraction, stand_in: Ints) -> Ints:
    """Real devices [n] for a chain of stand-ins [n]: stages of a node are kept together as far as roles allow."""
    class_of = np.repeat(np.arange(len(roles.classes)), roles.priced.costs.n_devices)
    free = {kind: list(devices) for kind, devices in enumerate(roles.kinds)}
    device, begun = np.empty(graph.n, np.int32), list[int]()
    for stage in sort_stages(graph, stand_in):
        c = roles.classes[class_of[stage]]
        known = [n for n in reversed(begun) if any(roles.node[d] == n for d in free[c.kind])]
        fresh = [d for d in free[c.kind] if roles.node[d] not in begun]
        if c.role in (ALONE, FIRST) and fresh:
            chosen = fresh[0]
        else:
            chosen = next((d for n in known for d in free[c.kind] if roles.node[d] == n), free[c.kind][0])
        free[c.kind].remove(chosen)
        begun.append(int(roles.node[chosen]))
        device[stand_in == stage] = chosen
    return device


def sort_stages(graph: Contraction, stage: Ints) -> list[int]:
    """The stages in topological order; those that are free together, by their first components."""
    used, first, place = np.unique(stage, return_index=True, return_inverse=True)
    tail, head = (place[ends] for ends in graph.edges())
    before: list[set[int]] = [set() for _ in used]
    for one, other in zip(tail[tail != head].tolist(), head[tail != head].tolist(), strict=True):
        before[other].add(one)
    order: list[int] = used[sort_topologically(before, first.tolist())].tolist()
    return order
