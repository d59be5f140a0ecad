"""Features of units: columns in named sections, three orders of the units, and what GDP's network reads.

Sections and their sources: `kind` (mean one-hot of op kinds), `shape` (log dims of outputs), `in_degree`,
`out_degree` (one-hot), `fractal` (fractal dimension), `position` (sines of the topological index) and `place` (the
index itself, as a share): Duan et al., NeurIPS 2024; `seconds` (log time on each device), `sent` (log time to send
the outputs), `weights` (share of the smallest memory), `levels` (longest paths from the start and to the end, of the
critical path): list scheduling, and Doppler (arXiv 2505.23131). Policies that fit any graph also use `degrees` (their
logarithms), `work` (log shares of the whole), `places` (`order_positions`) and `backward`.

The features of GDP are of the graph, of devices, and of units on devices; for all devices or some of them. All are
shares or logarithms of shares, so that they have the same meaning on any graph and any cluster.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from placewise import _native
from placewise.coarsen.merging import sums
from placewise.errors import PlacerError
from placewise.model.columns import Bools, Floats, Longs, offsets_of
from placewise.model.problem import Problem
from placewise.placers.base import Budget, run_placer
from placewise.placers.learned.view import View
from placewise.placers.registry import create
from placewise.placers.shared.interchangeable import interchangeable
from placewise.placers.shared.memory_footprint import compute_footprint
from placewise.simulate.judge.ranks import downward_ranks, mean_op_seconds, mean_transfer_seconds, upward_ranks

Singles = npt.NDArray[np.float32]

RANK, DIM_SCALE = 4, 10.0
"""A shape is described by its last four dimensions, as log(1 + dim) / 10."""
DEGREES = 8
"""One column per degree; the last one is for seven or more."""
POSITIONS, POSITION_BASE = 16, 1000.0
HASHED = 32
"""Columns of hashed kinds, for policies that must fit graphs with other kinds."""
REACH = 512
"""Units that a walk around one visits, for its fractal dimension."""
BUCKETS = 64
"""Units count as parallel if the longest paths to them, as shares of the longest of all, are in one bucket."""
SPREAD = 64
"""Largest distance, in edges, at which a unit takes its depth from neighbours."""
NUMBERS = 16
"""Without device features, a device is identified by its number; the last column is for all further ones."""
DEVICE = 4 + 4 + 4 + 6 + 1
"""Speed; share of the work, its start and end; work allowed; need of memory (log and linear); host; links out and in;
streams; share of equal devices; sines and cosines of the number among these; number of devices."""
ADVISERS = ("critical_path", "etf")
"""Placers (list schedulers) whose choices are features."""
PAIR = 4 + 6 + len(ADVISERS)
"""Allowed, log seconds above the least, log share of the work, memory; distance from, and side of, the device's part of
each order; choices of the advisers."""
GRAPH = 7 + 6
"""Execution or throughput, communication; units, edges per unit, devices, longest path, traffic, memory."""
FLOOR = 1e-6
FAR = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """`matrix` [n_units, width], finite; `layout`: the sections in order, with their widths."""

    matrix: Singles
    layout: tuple[tuple[str, int], ...]

    @property
    def width(self) -> int:
        return int(self.matrix.shape[1])


ALL = ("kind", "shape", "in_degree", "out_degree", "fractal", "position", "seconds", "sent", "weights", "levels")


def build_features(view: View, sections: Iterable[str] = ALL, *, hashed: bool = False) -> Features:
    """Compute sections of features. With `hashed`, the columns of kinds are the same for all graphs.

    Raises PlacerError for an unknown section.
    """
    blocks: list[tuple[str, Singles]] = []
    for name in sections:
        if name not in _SECTIONS:
            raise PlacerError(f"there is no feature {name!r}", remedy=f"choose from {', '.join(_SECTIONS)}")
        columns = _kinds(view, hashed=hashed) if name == "kind" else _SECTIONS[name](view)
        blocks.append((name, np.ascontiguousarray(columns, np.float32).reshape(view.n, -1)))
    layout = tuple((name, columns.shape[1]) for name, columns in blocks)
    return Features(np.concatenate([np.zeros((view.n, 0), np.float32), *(block for _, block in blocks)], 1), layout)


def time_scale(view: View) -> float:
    """The time unit of features, in seconds: the mean time of a unit on the devices that may run it."""
    mean = float(mean_op_seconds(view.problem).sum()) / max(view.n, 1)
    return mean if mean > 0 else 1.0


def _kinds(view: View, *, hashed: bool = False) -> Floats:
    kind = view.problem.graph.ops.kind
    names = sorted({kind.values[code] for code in np.unique(kind.codes).tolist()})
    column = {name: zlib.crc32(name.encode()) % HASHED if hashed else place for place, name in enumerate(names)}
    of_code = np.array([column.get(name, 0) for name in kind.values], np.int64)
    table = np.zeros((view.n, HASHED if hashed else len(names)))
    np.add.at(table, (view.unit, of_code[kind.codes]), 1.0)
    mean: Floats = table / np.maximum(table.sum(axis=1, keepdims=True), 1.0)
    return mean


def _shapes(view: View) -> Floats:
    """The last dimensions, as means over all outputs of the ops."""
    tensors = view.problem.graph.tensors
    made = np.flatnonzero(tensors.producer >= 0)
    dims = np.zeros((len(made), RANK))
    offsets, values = tensors.shape.offsets, tensors.shape.values
    for back in range(1, RANK + 1):
        place = offsets[made + 1] - back
        has = place >= offsets[made]
        dims[has, -back] = np.log1p(np.maximum(values[place[has]], 0)) / DIM_SCALE
    unit = view.unit[tensors.producer[made]]
    count = np.maximum(np.bincount(unit, minlength=view.n), 1)
    return np.stack([sums(column, unit, view.n) / count for column in dims.T], axis=1)


def _degrees(ends: npt.NDArray[np.integer], n: int) -> Floats:
    table = np.zeros((n, DEGREES))
    table[np.arange(n), np.minimum(np.bincount(ends, minlength=n), DEGREES - 1)] = 1.0
    return table


def _positions(view: View) -> Floats:
    """Sines and cosines of the topological index, with base 1000 (Duan et al. 2024, section 2.2, as printed)."""
    rate = POSITION_BASE ** (-np.arange(0, POSITIONS, 2) / POSITIONS)
    angle = np.arange(view.n)[:, None] * rate
    return np.concatenate((np.sin(angle), np.cos(angle)), axis=1)


def _seconds(view: View) -> Floats:
    """log(1 + time in mean times) on each device; −1 where it is not allowed."""
    return np.where(view.allowed, np.log1p(np.where(view.allowed, view.seconds, 0.0) / time_scale(view)), -1.0)


def _sent(view: View) -> Floats:
    outwards = sums(view.flow, view.tail, view.n)
    made = view.problem.graph.tensors.producer
    sent = mean_transfer_seconds(view.problem)[made >= 0]
    everything = sums(sent, view.unit[made[made >= 0]], view.n)
    return np.log1p(np.stack((outwards, everything), axis=1) / time_scale(view))


def _weights(view: View) -> Floats:
    footprint = compute_footprint(view.problem, view.unit, view.n).totals().astype(np.float64)
    room = view.problem.capacity[np.isfinite(view.problem.capacity) & (view.problem.capacity > 0)]
    return footprint / (room.min() if len(room) else max(float(footprint.sum()), 1.0))


def _levels(view: View) -> Floats:
    """Mean over ops of the longest path to each, and from each to the end, as shares of the longest of all."""
    before, after = _path_seconds(view)
    longest = max(float(after.max(initial=0.0)), float(before.max(initial=0.0)))
    return np.stack([_unit_means(view, column) / (longest or 1.0) for column in (before, after)], axis=1)


def _all_degrees(view: View) -> Floats:
    """Logarithms of in- and out-degrees."""
    columns = [np.log1p(np.bincount(ends, minlength=view.n)) / DEGREES for ends in (view.head, view.tail)]
    return np.stack(columns, axis=1)


def _work(view: View) -> Floats:
    """Shares of all work: of the unit on its fastest device, and of its traffic in and out; log10 over six decades."""
    work = fastest_seconds(view)
    arrives, leaves = sums(view.flow, view.head, view.n), sums(view.flow, view.tail, view.n)
    shares = np.stack((work, arrives, leaves), axis=1) / (float(work.sum()) or 1.0)
    return np.log10(np.clip(shares, 1e-6, 1e6)) / 6 + 1


def _backward(view: View) -> Floats:
    """The share of a unit's ops in the backward pass."""
    return _unit_means(view, view.problem.graph.ops.backward.astype(np.float64))


def _path_seconds(view: View) -> tuple[Floats, Floats]:
    """Seconds [n_ops] of the longest paths from the start to each op, and from each to the end."""
    return downward_ranks(view.problem), upward_ranks(view.problem)


def _unit_means(view: View, column: Floats) -> Floats:
    """The means [n_units] of a column [n_ops] over the ops of units."""
    return sums(column, view.unit, view.n) / np.maximum(np.bincount(view.unit, minlength=view.n), 1)


def fractal_dimensions(n: int, tail: npt.NDArray[np.integer], head: npt.NDArray[np.integer]) -> Floats:
    """The slope of log N(v, r) over log r for each node [n], N the nodes within r edges of v, either way.

    By least squares over r = 1, 2, … up to the end of the walk (Duan et al. 2024, section 2.2); 0 for fewer than two
    distances. A walk ends after `REACH` nodes, so that the run time is linear in n.
    """
    start, end = np.concatenate((tail, head)), np.concatenate((head, tail)).astype(np.int32)
    order = np.lexsort((end, start))
    return _native.fractal_dimensions(offsets_of(start[order], n), end[order], REACH)


def order_positions(view: View) -> Floats:
    """Positions [n_units, 3] in three orders, from 0 to 1: the share of the work before the middle of a unit.

    `order` is that of the units, which is nearly topological. `depth` is the order in which weights are first read:
    unrolled steps of a layer, its forward and its backward ops are adjacent. `lane` separates parallel units: among
    units at the same distance from the start, those of one branch come before those of the next, all along the branch.
    """
    work = fastest_seconds(view)
    number = np.arange(view.n, dtype=np.float64)
    deep = weight_depths(view)
    columns = [_share_before(work, number), _share_before(work, deep), _lanes(view, work)]
    return np.stack(columns, axis=1)


def fastest_seconds(view: View) -> Floats:
    """Seconds [n_units] of each unit on its fastest device; 0 if it may run nowhere."""
    least: Floats = np.where(view.allowed, view.seconds, np.inf).min(axis=1, initial=np.inf)
    return np.where(np.isfinite(least), least, 0.0)


def path_buckets(view: View) -> Longs:
    """The bucket [n_units] of the longest path to the middle of each unit, as a share of the longest of all."""
    before, after = _path_seconds(view)
    share = _unit_means(view, before) / (float((before + after).max(initial=0.0)) or 1.0)
    return np.minimum((share * BUCKETS).astype(np.int64), BUCKETS - 1)


def weight_depths(view: View) -> Floats:
    """The mean rank [n_units], by first reader, of a unit's weights; for units without weights, that of neighbours.

    In graphs without weights, the unit's number.
    """
    graph = view.problem.graph
    storage = graph.weights.storage[graph.weight_edges.value].astype(np.int64)
    unit = view.unit[graph.weight_edges.consumer]
    if not len(storage):
        return np.arange(view.n, dtype=np.float64)
    _, first, dense = np.unique(storage, return_index=True, return_inverse=True)
    rank = np.empty(len(first))
    rank[np.argsort(first)] = np.arange(len(first))
    known = np.bincount(unit, minlength=view.n).astype(np.float64)
    depth = sums(rank[dense.reshape(-1)], unit, view.n) / np.maximum(known, 1)
    one, other = np.concatenate((view.tail, view.head)), np.concatenate((view.head, view.tail))
    has = known > 0
    for _ in range(SPREAD):
        spreads = has[one] & ~has[other]
        if not spreads.any():
            break
        count = np.bincount(other[spreads], minlength=view.n)
        fresh = count > 0
        depth[fresh] = sums(depth[one[spreads]], other[spreads], view.n)[fresh] / count[fresh]
        has |= fresh
    return np.where(has, depth, np.arange(view.n) / max(view.n, 1) * len(first))


def _share_before(work: Floats, key: Floats) -> Floats:
    """The share of all work before the middle of each [n], in the order of `key`."""
    order = np.argsort(key, kind="stable")
    place = np.empty(len(work))
    place[order] = np.cumsum(work[order]) - work[order] / 2
    return place / (float(work.sum()) or 1.0)


def _lanes(view: View, work: Floats) -> Floats:
    """The share of a bucket's work before the middle of each unit, in depth-first order."""
    bucket = path_buckets(view)
    order = np.lexsort((_depth_first_numbers(view), bucket))
    sorted_work = work[order]
    whole = sums(work, bucket, BUCKETS)
    start = np.concatenate((np.zeros(1), np.cumsum(whole)))[bucket[order]]
    place = np.empty(view.n)
    place[order] = (np.cumsum(sorted_work) - sorted_work / 2 - start) / np.where(whole > 0, whole, 1.0)[bucket[order]]
    return np.clip(place, 0.0, 1.0)


def _depth_first_numbers(view: View) -> Longs:
    """The position [n_units] of each unit depth first, after all that lead to it; those on cycles come last."""
    heads = view.head[np.lexsort((-view.head, view.tail))]
    sources = np.setdiff1d(np.arange(view.n), view.head)[::-1].copy()
    number = _native.last_ready_first(offsets_of(view.tail, view.n), heads, sources, np.zeros(view.n, np.int32))
    return np.where(number < 0, view.n, number)


_SECTIONS: dict[str, Callable[[View], Floats]] = {
    "kind": _kinds,
    "shape": _shapes,
    "in_degree": lambda view: _degrees(view.head, view.n),
    "out_degree": lambda view: _degrees(view.tail, view.n),
    "fractal": lambda view: fractal_dimensions(view.n, view.tail, view.head),
    "position": _positions,
    "place": lambda view: np.arange(view.n) / max(view.n - 1, 1),
    "seconds": _seconds,
    "sent": _sent,
    "weights": _weights,
    "levels": _levels,
    "degrees": _all_degrees,
    "work": _work,
    "places": order_positions,
    "backward": _backward,
}


@dataclass(frozen=True, slots=True, eq=False)
class GdpFeatures:
    """n units, D devices (all of them; units may use the `allowed` ones [n, D]), E edges.

    `graph` [GRAPH], `device` [D, DEVICE], `pair` [n, D, PAIR]; `tail`, `head` [E]; `into`, `out` [E], the share of an
    edge in the traffic into its head and out of its tail; `arrives`, `leaves` [n], that traffic relative to the unit's
    work; `load` [n, D], seconds over an even share of all work; `held` [n, D], share of the memory; `bucket` [n].
    """

    graph: Tensor
    device: Tensor
    pair: Tensor
    allowed: Tensor
    tail: Tensor
    head: Tensor
    into: Tensor
    out: Tensor
    arrives: Tensor
    leaves: Tensor
    load: Tensor
    held: Tensor
    bucket: Tensor

    @property
    def n(self) -> int:
        return len(self.allowed)


@dataclass(frozen=True, slots=True, eq=False)
class GdpFacts:
    """Facts for all subsets of devices: work, positions, buckets and bytes of units, speeds and links of devices."""

    work: Floats
    place: Floats
    bucket: Longs
    bytes: Floats
    speed: Floats
    pace: Floats


def gdp_facts(view: View) -> GdpFacts:
    """Compute the facts. `speed` [D] is a device's allowed work over its seconds, times that work's share of all."""
    work = fastest_seconds(view)
    can = np.where(view.allowed, work[:, None], 0.0).sum(axis=0)
    takes = np.where(view.allowed, view.seconds, 0.0).sum(axis=0)
    whole = float(work.sum()) or 1.0
    speed = np.where(takes > 0, can / np.where(takes > 0, takes, 1.0), 0.0) * can / whole
    held = compute_footprint(view.problem, view.unit, view.n).totals().astype(np.float64)
    speed = np.maximum(speed, FLOOR)
    return GdpFacts(work, order_positions(view), path_buckets(view), held, speed, link_pace(view.problem))


def gdp_features(view: View, facts: GdpFacts, keep: Bools, *, device_features: bool, advice: bool) -> GdpFeatures:
    """Compute features for the devices of `keep` [D]; units that may run on none of them keep all their devices.

    Without `device_features`, only the numbers of devices remain. `advice` adds the choices of list schedulers.
    """
    allowed = view.allowed & keep
    homeless = ~allowed.any(axis=1)
    allowed[homeless] = view.allowed[homeless]
    keep = keep | allowed.any(axis=0)
    balanced = float(facts.work.sum()) / max(float(facts.speed[keep].sum()), FLOOR) or 1.0
    seconds = np.where(view.allowed, view.seconds, 0.0)
    held = facts.bytes[:, None] / np.maximum(view.problem.capacity, 1.0)
    flow_in, flow_out = sums(view.flow, view.head, view.n), sums(view.flow, view.tail, view.n)
    device, part = _devices(view, facts, keep)
    choices = _advice(view, int(keep.sum())) if advice else np.zeros((view.n, view.n_devices, len(ADVISERS)))
    pair = np.concatenate((_pairs(view, facts, allowed, held, part), choices), axis=2)
    if not device_features:
        device = np.zeros_like(device)
        device[np.arange(len(device)), np.minimum(np.arange(len(device)), NUMBERS)] = 1.0
        pair = np.where(np.arange(PAIR) == 0, allowed[:, :, None], np.zeros_like(pair))
    return GdpFeatures(
        graph=to_single(_graph(view, facts, keep, balanced)), device=to_single(device), pair=to_single(pair),
        allowed=torch.from_numpy(allowed), tail=torch.from_numpy(view.tail.astype(np.int64)),
        head=torch.from_numpy(view.head.astype(np.int64)), into=to_single(view.flow / _above(flow_in)[view.head]),
        out=to_single(view.flow / _above(flow_out)[view.tail]),
        arrives=to_single(flow_in / _above(flow_in + facts.work)),
        leaves=to_single(flow_out / _above(flow_out + facts.work)),
        load=to_single(np.minimum(seconds / balanced, FAR)), held=to_single(held),
        bucket=torch.from_numpy(facts.bucket),
    )  # fmt: skip


def _devices(view: View, facts: GdpFacts, keep: Bools) -> tuple[Floats, Floats]:
    """Features [D, DEVICE], and each device's interval [D, 2] of the work, in proportion to speed."""
    problem, n_devices = view.problem, view.n_devices
    cluster, kind = problem.cluster, interchangeable(problem)
    speed = np.where(keep, facts.speed, 0.0)
    share = speed / (float(speed.sum()) or 1.0)
    order = np.lexsort((np.arange(n_devices), -speed))
    end = np.empty(n_devices)
    end[order] = np.cumsum(share[order])
    mates = (kind[:, None] == kind) & keep
    number = np.array([mates[d, :d].sum() for d in range(n_devices)], np.float64)
    count = np.maximum(mates.sum(axis=1), 1)
    need = float(facts.bytes.sum()) / np.maximum(problem.capacity, 1.0)
    work = float(facts.work.sum()) or 1.0
    traffic = float(mean_transfer_seconds(problem).sum()) / work
    others = max(int(keep.sum()) - 1, 1)
    link = facts.pace * traffic * keep[:, None] * keep
    turns = number[:, None] * np.pi / np.array([1.0, 2.0, 4.0])
    columns = [
        np.log10(np.maximum(speed, FLOOR) / max(float(speed.max(initial=0.0)), FLOOR)) / 3, share, end - share, end,
        np.where(view.allowed, facts.work[:, None], 0.0).sum(axis=0) / work, _log(need), np.minimum(need, FAR),
        np.array([device.is_host for device in cluster], np.float64),
        _log(link.sum(axis=1) / others), _log(link.sum(axis=0) / others),
        np.log2([device.streams for device in cluster]) / 4, count / n_devices,
        *np.sin(turns).T, *np.cos(turns).T, np.full(n_devices, np.log2(max(int(keep.sum()), 1)) / 3),
    ]  # fmt: skip
    return np.stack(columns, axis=1), np.stack((end - share, end), axis=1)


def _pairs(view: View, facts: GdpFacts, allowed: Bools, held: Floats, part: Floats) -> Floats:
    """[n, D, PAIR]."""
    seconds = np.where(view.allowed, view.seconds, 0.0)
    above = np.where(allowed, np.log10((seconds + 1e-12) / (facts.work[:, None] + 1e-12)), 0.0)
    share = _log(seconds / (float(facts.work.sum()) or 1.0))
    width = np.maximum(part[:, 1] - part[:, 0], FLOOR)
    side = (facts.place[:, None, :] - part.mean(axis=1)[None, :, None]) / width[None, :, None]
    outside = np.clip(np.abs(side) - 0.5, 0.0, FAR)
    table = np.stack((allowed, np.clip(above, 0.0, 3.0), share, np.minimum(held, FAR)), axis=2)
    return np.concatenate((table, outside, np.clip(side, -FAR, FAR)), axis=2)


def _advice(view: View, devices: int) -> Floats:
    """The share of each unit's ops that each adviser puts on each device [n, D, advisers], on `devices` devices."""
    size = np.maximum(np.bincount(view.unit, minlength=view.n), 1)[:, None]
    tables = np.zeros((len(ADVISERS), view.n, view.n_devices))
    for table, name in zip(tables, ADVISERS, strict=True):
        placement = run_placer(create(name, {"devices": devices}), view.problem, Budget()).placement
        if placement is not None:
            np.add.at(table, (view.unit, placement.device), 1.0)
            table /= size
    return np.moveaxis(tables, 0, 2)


def _graph(view: View, facts: GdpFacts, keep: Bools, balanced: float) -> Floats:
    objective = view.problem.objective
    kinds = [objective.kind == "throughput"]
    ways = (objective.op_by_op, objective.execution == "subgraph", objective.execution == "sequential")
    kinds += [objective.kind == "latency" and way for way in ways]
    kinds += [objective.communication == name for name in ("blocking", "overlap", "duplex")]
    room = float(np.where(keep, view.problem.capacity, 0.0).sum())
    work = float(facts.work.sum()) or 1.0
    busy = sums(facts.work, facts.bucket, BUCKETS)
    columns = [
        np.log10(max(view.n, 1)) / 5, len(view.tail) / max(view.n, 1) / 4, np.log2(max(int(keep.sum()), 1)) / 3,
        float((busy > 0).mean()), float(_log(np.array(view.flow.sum() / work))),
        float(_log(np.array(facts.bytes.sum() / room))) if room > 0 else 1.0,
    ]  # fmt: skip
    return np.array([*kinds, *columns], np.float64)


def _log(share: npt.ArrayLike) -> Floats:
    """log10 of a share over six decades: −1 for a millionth or less, 1 for a million or more."""
    return np.log10(np.clip(np.asarray(share, np.float64), FLOOR, 1 / FLOOR)) / 6


def _above(values: Floats) -> Floats:
    return np.where(values > 0, values, 1.0)


def to_single(values: npt.NDArray[np.generic]) -> Tensor:
    """Convert an array to single precision."""
    return torch.from_numpy(np.ascontiguousarray(values, np.float32))


def link_pace(problem: Problem) -> Floats:
    """[D, D]: time to send all tensors from one device to another, over the mean of all pairs."""
    cluster, host = problem.cluster, problem.n_devices
    whole, pace = problem.costs.transfer_seconds.sum(axis=0), np.zeros((host, host))
    for source in range(host):
        for target in range(host):
            here, there = cluster.location[source], cluster.location[target]
            hops = ((here, host), (host, there)) if cluster.transfers == "staged" else ((here, there),)
            pace[source, target] = sum(whole[cluster.link_class[hop]] for hop in hops) if source != target else 0.0
    return pace / (float(mean_transfer_seconds(problem).sum()) or 1.0)
