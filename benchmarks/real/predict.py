"""Predicts the time of a placement on a runtime, from a profile of the model and the costs of pieces and hand-overs.

The units are the pieces that the runtime runs. A piece takes the measured times of its ops plus a call. A tensor from
another device arrives after a hand-over. Ops slow down while other devices are busy, as measured by the profile. Ops
that the runtime can no longer fuse, because the cut separates them, pass their tensors through memory. The judge does
the rest: it prices the placement of the pieces in `operator` execution or in a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from placewise.coarsen.coarse import coarse_problem
from placewise.core.apply_profile import with_profile
from placewise.errors import CostError
from placewise.files.profile_file import ProfileFile
from placewise.model.cluster import HOST, Cluster
from placewise.model.columns import Floats, Ints
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Timeline
from placewise.simulate import judge_placement
from placewise.transform.pieces import Pieces

ROUNDS = 4
"""Iterations of the fixed point between times and overlaps."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Costs that a profile of the whole model does not contain, in seconds.

    `call` is the cost of a piece besides its ops (None: that of an empty call). `hand_over` is the time from the end
    of a piece to the start of one on another device, besides the links. `per_byte` applies to every tensor between
    pieces. `load` is the share of the difference between loaded and idle times that an op pays while all other devices
    are busy.
    """

    call: float | None = None
    hand_over: float = 0.0
    per_byte: float = 0.0
    load: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Seconds per sample, how busy the other devices are while each one works (0 to 1), and the number of fused sets
    of ops that the placement cuts.
    """

    seconds: float
    busy: tuple[float, ...]
    cut: int


@dataclass(frozen=True, slots=True, eq=False)
class TuningCase:
    """A placement, its pieces, and its measured seconds."""

    placement: Placement
    pieces: Pieces
    seconds: float


class Predictor:
    """Predictions for one problem and one profile; with `in_flight` above 1, for a stream of samples.

    Raises CostError for a profile of another model or of other devices.
    """

    def __init__(self, problem: Problem, profile: ProfileFile, *, in_flight: int = 1) -> None:
        graph, cluster = problem.graph, problem.cluster
        idle = with_profile(problem.costs, graph, cluster, profile)
        self._idle = idle.costs.op_seconds
        self._loaded = with_profile(problem.costs, graph, cluster, profile, loaded=True).costs.op_seconds
        self._calls = np.array([idle.calls.get(device.name, device.call_overhead) for device in cluster])
        index = {name: op for op, name in enumerate(graph.ops.name)}
        self._fused = [np.array([index[name] for name in names]) for names in idle.together]
        moved = np.array(profile.bytes) if profile.bytes else np.zeros(graph.n_ops)
        bandwidth = np.array([d.memory_bandwidth * d.efficiency.get("memory", 1.0) for d in cluster])
        self._alone = np.maximum(self._idle, moved[:, None] / bandwidth)
        kind: Literal["throughput", "latency"] = "throughput" if in_flight > 1 else "latency"
        objective = replace(problem.objective, kind=kind, execution="operator")
        free = replace(graph, ops=replace(graph.ops, group=np.full(graph.n_ops, -1, np.int32)))
        rules = replace(problem.constraints, pins=(), forbidden=(), together=(), contiguous=False, convex=False)
        self._problem = problem.with_(graph=free, objective=objective, constraints=rules)

    def __call__(self, placement: Placement, pieces: Pieces, tuning: Tuning = Tuning()) -> Prediction:
        """The prediction for a placement cut into these pieces. Raises CostError if an op cannot run on its device."""
        at = np.arange(self._problem.n_ops), placement.device
        idle, loaded, cut = self._split_kernels(pieces, self._idle[at], self._loaded[at], placement)
        if not np.isfinite(idle).all():
            raise CostError("an op cannot run where the placement puts it", remedy="judge the placement first")
        coarse = coarse_problem(self._problem, pieces.piece)
        device = coarse.down(placement.device)
        number = np.zeros(coarse.problem.n_ops, np.int32)
        number[coarse.op] = pieces.piece
        busy, seconds = np.zeros(coarse.problem.n_ops), 0.0
        for _ in range(ROUNDS if (loaded > idle).any() else 1):
            times = idle + tuning.load * np.maximum(loaded - idle, 0.0) * busy[coarse.op]
            piece_seconds = np.bincount(coarse.op, times, len(device)).astype(np.float64)
            priced = self._price_pieces(coarse.problem, device, piece_seconds, tuning)
            judged = judge_placement(priced, Placement(device, order=number))
            seconds, timeline = judged.value, judged.timeline
            loads = np.array([use.load for use in judged.devices])
            busy = _run_overlaps(timeline, device) if timeline else _stream_overlaps(loads, device)
        shares = [float(busy[device == d].mean()) if (device == d).any() else 0.0 for d in range(len(loads))]
        return Prediction(seconds, tuple(shares), cut)

    def _split_kernels(
        self, pieces: Pieces, idle: Floats, loaded: Floats, placement: Placement
    ) -> tuple[Floats, Floats, int]:
        """Idle and loaded times [n_ops] and the number of cut kernels; ops cut off from a kernel run on their own."""
        idle, loaded, cut = idle.copy(), loaded.copy(), 0
        for ops in self._fused:
            main = pieces.piece[ops[np.argmax(idle[ops])]]
            away = ops[pieces.piece[ops] != main]
            cut += bool(len(away))
            more = np.maximum(self._alone[away, placement.device[away]] - idle[away], 0.0)
            idle[away] += more
            loaded[away] += more
        return idle, loaded, cut

    def _price_pieces(self, problem: Problem, device: Ints, seconds: Floats, tuning: Tuning) -> Problem:
        """The problem of the pieces with their `seconds` on `device` [pieces]; each tensor is handed over by itself."""
        calls = self._calls if tuning.call is None else np.full(problem.n_devices, tuning.call)
        producer, size = problem.graph.tensors.producer, np.maximum(problem.graph.tensors.bytes, 0)
        written = np.bincount(producer[producer >= 0], size[producer >= 0], problem.n_ops)
        table = np.full((problem.n_ops, problem.n_devices), np.inf)
        table[np.arange(problem.n_ops), device] = seconds + calls[device] + tuning.per_byte * written
        transfers = transfer_seconds_of(problem.graph, problem.cluster)
        transfers[:, 1:] += np.where(transfers[:, 1:] > 0, tuning.hand_over, 0.0)
        return problem.with_(costs=CostTable.given(table, transfers))


def with_tuning(problem: Problem, tuning: Tuning) -> Problem:
    """The problem with the costs of hand-overs added to its links, so that placers account for them.

    A tensor that goes to another device costs a call and a hand-over more, and its bytes twice: the source converts it
    to a plain layout, and the target converts it back.
    """
    cluster = problem.cluster
    links = tuple(
        replace(
            link,
            latency=link.latency + (tuning.call or 0.0) + tuning.hand_over,
            bandwidth=1 / (1 / link.bandwidth + 2 * tuning.per_byte) if tuning.per_byte else link.bandwidth,
        )
        if HOST not in (link.source, link.target)
        else link
        for link in cluster.links
    )
    slower = Cluster(cluster.devices, links, cluster.transfers)
    transfers = transfer_seconds_of(problem.graph, slower)
    return problem.with_(cluster=slower, costs=replace(problem.costs, transfer_seconds=transfers))


def fit_tuning(predictor: Predictor, cases: Sequence[TuningCase], start: Tuning = Tuning()) -> Tuning:
    """The tuning with the least mean absolute log error on measured cases, by coordinate descent over grids."""

    def loss(tuning: Tuning) -> float:
        ratios = [predictor(case.placement, case.pieces, tuning).seconds / case.seconds for case in cases]
        return float(np.abs(np.log(ratios)).mean())

    grids: dict[str, Sequence[float]] = {
        "call": (0.0, 5e-6, 1e-5, 2e-5, 4e-5, 8e-5, 1.6e-4, 3.2e-4),
        "hand_over": (0.0, 1e-5, 2e-5, 4e-5, 8e-5, 1.6e-4, 3.2e-4),
        "per_byte": (0.0, 2e-11, 5e-11, 1e-10, 2e-10, 4e-10, 8e-10),
        "load": (0.0, 0.25, 0.5, 0.75, 1.0, 1.25),
    }
    lowest, best = loss(start), start
    for _ in range(2):
        before = lowest
        for name, grid in grids.items():
            for value in grid:
                candidate = replace(best, **{name: value})
                error = loss(candidate)
                if error < lowest:
                    lowest, best = error, candidate
        if lowest >= before:
            break
    return best


def _run_overlaps(timeline: Timeline, device: Ints) -> Floats:
    """For each op [n], the share of its time during which the other used devices are busy, as a mean over them."""
    used = np.unique(device).tolist()
    busy = np.zeros(len(device))
    if len(used) < 2:
        return busy
    work = {d: _busy_before([timeline.start[device == d], timeline.finish[device == d]]) for d in used}
    length = timeline.finish - timeline.start
    for d in used:
        own = np.flatnonzero((device == d) & (length > 0))
        for other in used:
            if other != d:
                both = work[other](timeline.finish[own]) - work[other](timeline.start[own])
                busy[own] += both / length[own] / (len(used) - 1)
    return busy


def _busy_before(spans: Sequence[Floats]) -> Callable[[Floats], Floats]:
    """A function from a time to the seconds that a device was busy before it; its ops must not overlap."""
    order = np.argsort(spans[0], kind="stable")
    start, finish = spans[0][order], spans[1][order]
    done = np.concatenate(([0.0], np.cumsum(finish - start)))

    def busy(moment: Floats) -> Floats:
        row = np.searchsorted(start, moment, side="right")
        over = np.where(row > 0, np.maximum(finish[np.maximum(row - 1, 0)] - moment, 0.0), 0.0)
        seconds: Floats = done[row] - over
        return seconds

    return busy


def _stream_overlaps(loads: Floats, device: Ints) -> Floats:
    """The same in a stream [n], where a device is busy for its share of the largest load."""
    used = np.unique(device)
    shares = np.zeros(len(loads))
    for d in used.tolist() if len(used) > 1 and loads.max() > 0 else ():
        shares[d] = (loads[used].sum() - loads[d]) / (len(used) - 1) / loads.max()
    overlaps: Floats = shares[device]
    return overlaps
