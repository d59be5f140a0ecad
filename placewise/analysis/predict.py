"""predict(): what a runtime takes for a placement, from a profile of the model and what pieces and hand-overs cost.

The units are the pieces that the runtime is handed. A piece takes the measured times of its ops and a call; a tensor
of another device arrives after a hand-over; ops slow down while other devices are busy, as far as the profile says; and
ops that the runtime cannot fuse any more, since their kernel is cut, move what lies between them through memory. The
rest is the judge's: the placement of the pieces, priced in `operator` execution or in a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from placewise.coarsen.coarse import CoarseProblem, coarse_problem
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
"""How often times and overlaps are found from each other."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a profile of whole models does not say, in seconds: `call`, of a piece besides its ops (None: what a call
    that does nothing costs), `hand_over`, from the end of a piece to the start of one on another device, besides the
    links, and `per_byte`, of a tensor that goes from piece to piece at all. `load` is how much of the difference
    between loaded and idle times an op pays while all other devices are busy.
    """

    call: float | None = None
    hand_over: float = 0.0
    per_byte: float = 0.0
    load: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Seconds of a sample (or per sample of a stream), how busy the others were while each device worked (0 to 1), and
    how many sets of fused ops are cut.
    """

    seconds: float
    busy: tuple[float, ...]
    cut: int


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A placement as it was cut, and what it took when it ran."""

    placement: Placement
    pieces: Pieces
    seconds: float


class Predictor:
    """Predictions for one problem and one profile; `in_flight` more than one means a stream of samples.

    Raises CostError for a profile that is not of this model and these devices.
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
        """What a placement takes that is cut into these pieces. Raises CostError if an op cannot run where it is."""
        at = np.arange(self._problem.n_ops), placement.device
        idle, loaded, cut = self._with_cut_kernels(pieces, self._idle[at], self._loaded[at], placement)
        if not np.isfinite(idle).all():
            raise CostError("an op cannot run where the placement puts it", remedy="judge the placement first")
        coarse = self._coarse(pieces)
        device = coarse.down(placement.device)
        number = np.zeros(coarse.problem.n_ops, np.int32)
        number[coarse.op] = pieces.piece
        busy, seconds = np.zeros(coarse.problem.n_ops), 0.0
        for _ in range(ROUNDS if (loaded > idle).any() else 1):
            times = idle + tuning.load * np.maximum(loaded - idle, 0.0) * busy[coarse.op]
            made = self._priced(coarse, device, np.bincount(coarse.op, times, len(device)).astype(np.float64), tuning)
            found = judge_placement(made, Placement(device, order=number))
            seconds = found.value
            loads = np.array([use.load for use in found.devices])
            busy = _overlaps(found.timeline, device) if found.timeline else _shares(loads, device)
        shares = [float(busy[device == d].mean()) if (device == d).any() else 0.0 for d in range(len(loads))]
        return Prediction(seconds, tuple(shares), cut)

    def _with_cut_kernels(
        self, pieces: Pieces, idle: Floats, loaded: Floats, placement: Placement
    ) -> tuple[Floats, Floats, int]:
        """Times [n_ops] where ops that part from the largest of their kernel run by themselves."""
        idle, loaded, cut = idle.copy(), loaded.copy(), 0
        for ops in self._fused:
            main = pieces.piece[ops[np.argmax(idle[ops])]]
            away = ops[pieces.piece[ops] != main]
            cut += bool(len(away))
            more = np.maximum(self._alone[away, placement.device[away]] - idle[away], 0.0)
            idle[away] += more
            loaded[away] += more
        return idle, loaded, cut

    def _coarse(self, pieces: Pieces) -> CoarseProblem:
        return coarse_problem(self._problem, pieces.piece)

    def _priced(self, coarse: CoarseProblem, device: Ints, seconds: Floats, tuning: Tuning) -> Problem:
        """The problem of the pieces, each with its seconds on its device; tensors are handed over one by one."""
        problem = coarse.problem
        calls = self._calls if tuning.call is None else np.full(problem.n_devices, tuning.call)
        produced = problem.graph.tensors.producer
        made = np.bincount(
            produced[produced >= 0], np.maximum(problem.graph.tensors.bytes, 0)[produced >= 0], problem.n_ops
        )
        table = np.full((problem.n_ops, problem.n_devices), np.inf)
        table[np.arange(problem.n_ops), device] = seconds + calls[device] + tuning.per_byte * made
        transfers = transfer_seconds_of(problem.graph, problem.cluster)
        transfers[:, 1:] += np.where(transfers[:, 1:] > 0, tuning.hand_over, 0.0)
        return problem.with_(costs=CostTable.given(table, transfers))


def predict(
    problem: Problem, placement: Placement, profile: ProfileFile, pieces: Pieces, *, in_flight: int = 1,
    tuning: Tuning = Tuning(),
) -> float:  # fmt: skip
    """Seconds of a sample, or per sample with several in flight, of a placement that is cut into these pieces."""
    return Predictor(problem, profile, in_flight=in_flight)(placement, pieces, tuning).seconds


def with_tuning(problem: Problem, tuning: Tuning) -> Problem:
    """The problem with links that charge what a tuning says of hand-overs, so that placers reckon with it.

    A tensor that goes to another device costs a call and a hand-over more, and its bytes twice: where it is written in
    a plain layout, and where it is taken over.
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
    made = Cluster(cluster.devices, links, cluster.transfers)
    transfers = transfer_seconds_of(problem.graph, made)
    return problem.with_(cluster=made, costs=replace(problem.costs, transfer_seconds=transfers))


def tuned(predictor: Predictor, cases: Sequence[Case], start: Tuning = Tuning()) -> Tuning:
    """The tuning with the least mean absolute error, in logarithms, on cases that ran: one figure after the other."""

    def loss(tuning: Tuning) -> float:
        found = [predictor(case.placement, case.pieces, tuning).seconds / case.seconds for case in cases]
        return float(np.abs(np.log(found)).mean())

    grids: dict[str, Sequence[float]] = {
        "call": (0.0, 5e-6, 1e-5, 2e-5, 4e-5, 8e-5, 1.6e-4, 3.2e-4),
        "hand_over": (0.0, 1e-5, 2e-5, 4e-5, 8e-5, 1.6e-4, 3.2e-4),
        "per_byte": (0.0, 2e-11, 5e-11, 1e-10, 2e-10, 4e-10, 8e-10),
        "load": (0.0, 0.25, 0.5, 0.75, 1.0, 1.25),
    }
    best, found = loss(start), start
    for _ in range(2):
        before = best
        for name, grid in grids.items():
            for value in grid:
                tried = replace(found, **{name: value})
                error = loss(tried)
                if error < best:
                    best, found = error, tried
        if best >= before:
            break
    return found


def _overlaps(timeline: Timeline, device: Ints) -> Floats:
    """For each op [n], the share of its time in which others are busy: the mean over the other devices in use."""
    used = np.unique(device).tolist()
    busy = np.zeros(len(device))
    if len(used) < 2:
        return busy
    work = {d: _until([timeline.start[device == d], timeline.finish[device == d]]) for d in used}
    length = timeline.finish - timeline.start
    for d in used:
        own = np.flatnonzero((device == d) & (length > 0))
        for other in used:
            if other != d:
                both = work[other](timeline.finish[own]) - work[other](timeline.start[own])
                busy[own] += both / length[own] / (len(used) - 1)
    return busy


def _until(spans: Sequence[Floats]) -> Callable[[Floats], Floats]:
    """How long a device has been busy at a time, as a function: its ops never overlap."""
    order = np.argsort(spans[0], kind="stable")
    start, finish = spans[0][order], spans[1][order]
    done = np.concatenate(([0.0], np.cumsum(finish - start)))

    def busy(when: Floats) -> Floats:
        row = np.searchsorted(start, when, side="right")
        over = np.where(row > 0, np.maximum(finish[np.maximum(row - 1, 0)] - when, 0.0), 0.0)
        seconds: Floats = done[row] - over
        return seconds

    return busy


def _shares(loads: Floats, device: Ints) -> Floats:
    """In a stream the others are busy by their load's share of the largest: the mean over the other devices in use."""
    used = np.unique(device)
    shares = np.zeros(len(loads))
    for d in used.tolist() if len(used) > 1 and loads.max() > 0 else ():
        shares[d] = (loads[used].sum() - loads[d]) / (len(used) - 1) / loads.max()
    found: Floats = shares[device]
    return found
