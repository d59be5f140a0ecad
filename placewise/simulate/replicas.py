"""Replicated stages: the load of each replica, and the synchronization of their weights.

The r devices of a stage, its members, take the samples by turns: each does an r-th of the stage's compute and
communication. In training graphs they sum their gradients around a ring: in every step each member sends, and at the
same time receives, 2 (r − 1) / r times the stage's weights (Patarasuk and Yuan, J. Parallel and Distributed Computing
69, 2009, which is optimal). The slowest link of the ring sets the pace, and the samples of a step share the seconds.
docs/judge.md has a worked example.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from placewise.model.columns import Floats, Ints, frozen
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate.judge.memory import weight_bytes
from placewise.simulate.judge.throughput import Loads, loads
from placewise.simulate.phases import PhaseColumns
from placewise.simulate.problem_arrays import ProblemArrays, to_native


def equal_devices(problem: Problem) -> Ints:
    """The class [n_devices] of each device, numbered by its first device: members of a class may share a stage.

    They have the same ops, memory and rules, and exchanging two of them changes the speed of no link.
    """
    cluster = problem.cluster
    kind = np.arange(len(cluster), dtype=np.int32)
    heads: dict[object, list[int]] = {}
    for device in range(len(cluster)):
        seconds = np.where(problem.allowed[:, device], problem.costs.op_seconds[:, device], np.inf)
        key = float(problem.capacity[device]), bool(cluster.is_host[device]), seconds.tobytes()
        known = heads.setdefault(key, [])
        same = (head for head in known if exchangeable(cluster.link_class, head, device))
        kind[device] = next(same, device)
        if kind[device] == device:
            known.append(device)
    return kind


def exchangeable(table: Ints, one: int, other: int) -> bool:
    """Whether a table over locations [n + 1, n + 1] stays the same when two locations are exchanged."""
    rows, columns = table[[one, other]].copy(), table[:, [other, one]].T.copy()
    rows[1, [one, other]] = rows[1, [other, one]]
    columns[0, [one, other]] = columns[0, [other, one]]
    return bool((rows[0] == rows[1]).all() and (columns[0] == columns[1]).all())


def sync_pace(problem: Problem, members: Sequence[int]) -> float:
    """Seconds per sample that the synchronization of a stage takes, per byte of its weights."""
    if len(members) < 2 or not problem.graph.ops.backward.any():
        return 0.0
    return passes(problem, len(members)) / ring_bandwidth(problem, members)


def passes(problem: Problem, count: int) -> float:
    """How often the weights of a stage with `count` members cross a link of their ring, per sample."""
    return 2 * (count - 1) / count / (problem.objective.step_samples or count)


def ring_bandwidth(problem: Problem, members: Sequence[int]) -> float:
    """Bytes per second of the slowest link in the ring of the members; inf inside one memory.

    Equal devices have the same among any two or more of them.
    """
    classes = [int(problem.cluster.link_class[hop]) for hop in _ring(problem, members)]
    return float(problem.cluster.class_bandwidth[classes].min(initial=np.inf))


def replicated_loads(problem: Problem, phase: PhaseColumns, placement: Placement, *, syncs: bool = True) -> Loads:
    """The loads of a placement with replicas in a phase: each member of a stage has its share of the stage's load.

    The synchronization counts only if the phase `syncs`. All pairs of members share the transfers between two stages
    evenly.
    """
    a, native = phase
    if placement.replicas is None:
        return loads(native, placement.device)
    if a.n_wires:
        places = problem.n_devices + 1
        wire = frozen(np.arange(places**2).reshape(places, places), np.int32)
        native = to_native(a._replace(wire=wire, n_wires=places**2))
    parts = loads(native, placement.device)
    stage = placement.replicas
    share = 1 / np.bincount(stage, minlength=problem.n_devices)[stage]
    compute, send, receive = (column[stage] * share for column in (parts.compute, parts.send, parts.receive))
    groups = {e: np.flatnonzero(stage == e).tolist() for e in np.unique(stage).tolist()}
    wires = _spread(a, parts.wires, groups) if a.n_wires else np.zeros(0)
    sync = np.zeros(problem.n_devices)
    size = weight_bytes(problem, placement.device)
    for e, members in groups.items():
        if syncs and len(members) > 1:
            sync[members] = size[e] * sync_pace(problem, members)
            _add_ring(problem, members, float(size[e]), wires)
    return Loads(compute, send, receive, wires, sync)


def _ring(problem: Problem, members: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The links (pairs of locations) of a ring around the members; none inside one memory."""
    cluster, host = problem.cluster, problem.n_devices
    places = [int(cluster.location[member]) for member in members]
    for here, there in zip(places, places[1:] + places[:1], strict=True):
        if here == there:
            continue
        yield from ((here, host), (host, there)) if cluster.transfers == "staged" else ((here, there),)


def _spread(a: ProblemArrays, traffic: Floats, groups: dict[int, list[int]]) -> Floats:
    """The load of each shared wire, from the traffic [(n_devices + 1)²] between locations of whole stages."""
    host = len(a.location)
    wires = np.zeros(a.n_wires)
    for pair in np.flatnonzero(traffic).tolist():
        ends = [[end] if end == host else groups[end] for end in divmod(pair, host + 1)]
        each = float(traffic[pair]) / (len(ends[0]) * len(ends[1]))
        for link in product(*ends):
            if a.wire[link] >= 0:
                wires[a.wire[link]] += each
    return wires


def _add_ring(problem: Problem, members: list[int], size: float, wires: Floats) -> None:
    """Add the synchronization of `size` bytes of weights to the shared wires of its ring."""
    cluster = problem.cluster
    if not problem.graph.ops.backward.any():
        return
    for hop in _ring(problem, members):
        if cluster.wire[hop] >= 0:
            bandwidth = float(cluster.class_bandwidth[cluster.link_class[hop]])
            wires[cluster.wire[hop]] += size * passes(problem, len(members)) / bandwidth
