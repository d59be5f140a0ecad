"""The checker op by op: which rules does a placement break, in which words, and by how many bytes?

It shares with the checker in columns the meaning of contiguity and the rules of replicas; sums, sweeps and words are
its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from placewise._util.units import format_bytes
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem, matching
from placewise.model.result import Timeline, Violation
from placewise.simulate.check.check import check_replicas, misread_replicas
from placewise.simulate.contiguity import contract, device_cycle, path_back

_SHOWN = 5


def check(problem: Problem, placement: Placement, piece: Ints | None, timeline: Timeline | None) -> list[Violation]:
    """Every rule that `placement` breaks; an empty list if it breaks none.

    `piece` [n_ops] numbers the pieces of each device, or `timeline` says when ops run (`operator`); without
    either, memory is checked by resident bytes alone.
    """
    coverage = check_coverage(problem, placement)
    if coverage:
        return coverage
    device = placement.device.tolist()
    found = _support(problem, device) + _colocation(problem, device)
    stage = list(range(problem.n_devices)) if placement.replicas is None else placement.replicas.tolist()
    if placement.replicas is not None:
        found += check_replicas(problem, stage)
    if problem.constraints.contiguous:
        found += _contiguity(problem, placement)
    elif problem.constraints.convex:
        found += _convexity(problem, placement)
    return found + _memory(problem, device, stage, None if piece is None else piece.tolist(), timeline)


def check_coverage(problem: Problem, placement: Placement) -> list[Violation]:
    """The violation of a placement that does not give every op a device, or whose replicas repeat no stage."""
    if len(placement) != problem.n_ops:
        return [Violation("coverage", f"it places {len(placement)} ops, the graph has {problem.n_ops}")]
    names = problem.graph.ops.name
    lost = [names[op] for op, d in enumerate(placement.device.tolist()) if not 0 <= d < problem.n_devices]
    if lost:
        return [Violation("coverage", f"{_list(lost)} on no device", ops=tuple(lost))]
    meaningless = "" if placement.replicas is None else misread_replicas(problem, placement)
    return [Violation("coverage", meaningless)] if meaningless else []


def _support(problem: Problem, device: list[int]) -> list[Violation]:
    cluster, names = problem.cluster, problem.graph.ops.name
    rows = np.flatnonzero(~problem.allowed[np.arange(len(device)), device])
    reasons: dict[tuple[int, str, str], list[str]] = defaultdict(list)
    pinned = [(matching(problem.graph, rule.pattern), rule.device) for rule in problem.constraints.pins]
    for op in rows.tolist():
        d = device[op]
        away = next((target for mask, target in pinned if mask[op] and target != cluster.names[d]), None)
        if not cluster.devices[d].available:
            reason = ("pin", "which may not be used")
        elif away is not None:
            reason = ("pin", f"pinned to {away}")
        elif (
            not np.isfinite(problem.costs.op_seconds[op, d])
            or problem.graph.ops.kind[op] in cluster.devices[d].unsupported
            or problem.graph.ops.kind[op] not in (cluster.devices[d].supported or problem.graph.ops.kind.values)
        ):
            reason = ("support", "which cannot run it")
        else:
            reason = ("pin", "where a rule forbids it")
        reasons[(d, *reason)].append(names[op])
    return [
        Violation(kind, f"{_list(ops)} on {cluster.names[d]}, {why}", cluster.names[d], tuple(ops))
        for (d, kind, why), ops in reasons.items()
    ]


def _colocation(problem: Problem, device: list[int]) -> list[Violation]:
    members: dict[int, list[int]] = defaultdict(list)
    for op, group in enumerate(problem.graph.ops.group.tolist()):
        if group >= 0:
            members[group].append(op)
    found = []
    for ops in members.values():
        homes = sorted({device[op] for op in ops})
        if len(homes) > 1:
            names = tuple(problem.graph.ops.name[op] for op in ops)
            places = ", ".join(problem.cluster.names[d] for d in homes)
            found.append(Violation("colocation", f"{_list(names)} belong together and are on {places}", ops=names))
    return found


def _contiguity(problem: Problem, placement: Placement) -> list[Violation]:
    cycle = device_cycle(contract(problem), placement.device)
    if cycle is None:
        return []
    names = " → ".join(problem.cluster.names[d] for d in (*cycle, cycle[0]))
    return [Violation("contiguity", f"the stages are no chain: {names}")]


def _convexity(problem: Problem, placement: Placement) -> list[Violation]:
    path = path_back(problem, placement.device)
    if path is None:
        return []
    home = problem.cluster.names[int(placement.device[path[0]])]
    names = tuple(problem.graph.ops.name[op] for op in path)
    away = _list(names[1:-1])
    message = f"the ops on {home} are not convex: a path leaves them at {names[0]!r} and comes back at {names[-1]!r}"
    return [Violation("convexity", f"{message}, by way of {away}", home, names)]


def _memory(
    problem: Problem, device: list[int], stage: list[int], piece: list[int] | None, timeline: Timeline | None
) -> list[Violation]:
    resident = _resident(problem, device)
    unscheduled = piece is None and timeline is None
    peak = (
        resident
        if problem.objective.memory == "sum" or unscheduled
        else _live(problem, device, resident, piece, timeline)
    )
    found = []
    for d, used in ((d, peak[e]) for d, e in enumerate(stage) if e in peak):
        short = used - problem.capacity[d]
        if short > 0:
            name = problem.cluster.names[d]
            message = f"{name} needs {format_bytes(used)} and may use {format_bytes(problem.capacity[d])}: "
            message += f"{format_bytes(short)} ({short:.0f} bytes) short"
            found.append(Violation("memory", message, name, bytes_short=float(short)))
    return found


def _resident(problem: Problem, device: list[int]) -> dict[int, float]:
    graph = problem.graph
    total: dict[int, float] = defaultdict(float)
    for op, size in enumerate(graph.ops.state_bytes.tolist()):
        total[device[op]] += size
    largest: dict[tuple[int, int], int] = {}
    sizes, storages = graph.weights.bytes.tolist(), graph.weights.storage.tolist()
    biggest: dict[int, int] = defaultdict(int)
    for size, storage in zip(sizes, storages, strict=True):
        biggest[storage] = max(biggest[storage], size)
    for weight, op in zip(graph.weight_edges.value.tolist(), graph.weight_edges.consumer.tolist(), strict=True):
        largest[device[op], storages[weight]] = biggest[storages[weight]]
    for (d, _), size in largest.items():
        total[d] += size
    return total


def _live(
    problem: Problem, device: list[int], resident: dict[int, float], piece: list[int] | None, timeline: Timeline | None
) -> dict[int, float]:
    """Peak bytes by device: walk each device's ops in running order with the tensors that are alive."""
    key = timeline.start.tolist() if timeline is not None else piece
    assert key is not None
    runs: dict[int, list[int]] = defaultdict(list)
    for op in sorted(range(len(device)), key=lambda op: (key[op], op)):
        runs[device[op]].append(op)
    born: dict[int, dict[int, float]] = {d: defaultdict(float) for d in runs}
    dies: dict[int, dict[int, float]] = {d: defaultdict(float) for d in runs}
    windows = _Windows(problem, runs, key, timeline)
    for tensor in range(problem.graph.n_tensors):
        for d, (first, last, size) in windows.of(tensor, device).items():
            born[d][first] += size
            dies[d][last] += size
    peak = {}
    for d, ops in runs.items():
        alive = highest = 0.0
        for position in range(len(ops)):
            alive += born[d].get(position, 0.0)
            highest = max(highest, alive)
            alive -= dies[d].get(position, 0.0)
        peak[d] = resident.get(d, 0.0) + highest
    return peak


class _Windows:
    """From which to which position of each device a tensor is alive there."""

    def __init__(
        self, problem: Problem, runs: dict[int, list[int]], key: list[float] | list[int], timeline: Timeline | None
    ):
        self.problem, self.runs, self.key, self.timeline = problem, runs, key, timeline
        self.position = {op: place for ops in runs.values() for place, op in enumerate(ops)}
        self.keys = {d: [key[op] for op in ops] for d, ops in runs.items()}
        self.end = timeline.makespan if timeline is not None else 0.0
        self.opening: dict[tuple[int, float], int] = {}
        self.closing: dict[tuple[int, float], int] = {}
        for d, ops in runs.items():
            for place, op in enumerate(ops):
                self.opening.setdefault((d, key[op]), place)
                self.closing[d, key[op]] = place
        objective = problem.objective
        self.copies = 2 if objective.kind == "throughput" and objective.communication != "blocking" else 1

    def of(self, tensor: int, device: list[int]) -> dict[int, tuple[int, int, float]]:
        graph, is_host = self.problem.graph, self.problem.cluster.is_host
        maker, size = int(graph.tensors.producer[tensor]), max(int(graph.tensors.bytes[tensor]), 0)
        home = device[maker] if maker >= 0 else None
        readers: dict[int, list[int]] = defaultdict(list)
        for op in graph.consumers_of(tensor).tolist():
            readers[device[op]].append(op)
        away = [op for d, ops in readers.items() if d != home for op in ops]
        spans: dict[int, tuple[int, int, float]] = {}
        for d, ops in readers.items():
            if d != home:
                last = max(self.position[op] for op in ops)
                first = min(self._arrival(d, maker, ops), last)
                spans[d] = (first, last, size * self.copies)
        if home is not None:
            first = self.position[maker]
            last = max([first, *(self.position[op] for op in readers.get(home, []))])
            output = bool(graph.tensors.output[tensor])
            leaves = bool(away) or (output and not is_host[home])
            if leaves:
                last = max(last, self._departure(home, maker, away, output and not is_host[home]))
            if output and is_host[home]:
                last = len(self.runs[home]) - 1
            spans[home] = (first, last, size * (self.copies if leaves else 1))
        return spans

    def _arrival(self, d: int, maker: int, readers: list[int]) -> int:
        if self.timeline is not None:
            return self._working_on(d, float(self.timeline.finish[maker]) if maker >= 0 else 0.0)
        return self.opening[d, min(self.key[op] for op in readers)]

    def _departure(self, home: int, maker: int, away: list[int], goes_home: bool) -> int:
        if self.timeline is not None:
            return self._working_on(home, self.end if goes_home else max(self.key[op] for op in away))
        return self.closing[home, self.key[maker]]

    def _working_on(self, d: int, moment: float) -> int:
        """The position of the last op of device `d` to have started at a moment, or of its first."""
        return max(bisect_right(self.keys[d], moment) - 1, 0)


def _list(names: Iterable[str]) -> str:
    shown = list(names)
    rest = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ("op " if len(shown) == 1 else "ops ") + ", ".join(map(repr, shown[:_SHOWN])) + rest
