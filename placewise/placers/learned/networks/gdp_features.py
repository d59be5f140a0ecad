"""What GDP sees of a problem, as tensors: units, devices, and units on devices; for all devices or some of them.

Everything is a share or the logarithm of one, so that it means the same on any graph and any cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from placewise.coarsen.merging import sums
from placewise.model.columns import Bools, Floats, Longs
from placewise.placers.base import Budget, run_placer
from placewise.placers.learned.networks.walk import pace
from placewise.placers.learned.orders import BUCKETS, buckets, fastest, places
from placewise.placers.learned.view import View
from placewise.placers.registry import create
from placewise.placers.shared.interchangeable import interchangeable
from placewise.placers.shared.memory_footprint import compute_footprint
from placewise.simulate.judge.ranks import mean_transfer_seconds

NUMBERS = 16
"""Without device features, a device is known by its number alone; the last column is for all that come after."""
DEVICE = 4 + 4 + 4 + 6 + 1
"""Speed, share, where that begins and ends; work allowed, room, need of it, host; links out and in, streams, alike;
sines of the number among devices alike; devices."""
ADVISERS = ("critical_path", "etf")
"""List schedulers that are asked, by their names as placers, where each unit would go."""
PAIR = 4 + 6 + len(ADVISERS)
"""Log seconds above the least, log share of the work, memory, allowed; how far outside, and on which side of, the
device's part of each order; whether the advisers take it."""
GRAPH = 7 + 6
"""Execution or throughput, communication; units, edges per unit, devices, longest path, traffic, memory."""
FLOOR = 1e-6
FAR = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class GdpFeatures:
    """n units, D devices, E edges; D are all devices, of which units may use the `allowed` ones [n, D].

    `graph` [GRAPH], `device` [D, DEVICE], `pair` [n, D, PAIR]; `tail`, `head` [E]; `into`, `out` [E], the share of an
    edge in what arrives at its head and leaves its tail; `arrives`, `leaves` [n], that traffic against the unit's own
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

    @property
    def n_devices(self) -> int:
        return self.allowed.shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What scenes of one view share: work, places and buckets of units, bytes that they hold, speeds of devices."""

    work: Floats
    place: Floats
    bucket: Longs
    bytes: Floats
    speed: Floats
    pace: Floats


def facts_of(view: View) -> Facts:
    """`speed` [D]: the work that a device may run, over its seconds for it, times what share of all work that is."""
    work = fastest(view)
    can = np.where(view.allowed, work[:, None], 0.0).sum(axis=0)
    takes = np.where(view.allowed, view.seconds, 0.0).sum(axis=0)
    whole = float(work.sum()) or 1.0
    speed = np.where(takes > 0, can / np.where(takes > 0, takes, 1.0), 0.0) * can / whole
    held = compute_footprint(view.problem, view.unit, view.n).totals().astype(np.float64)
    return Facts(work, places(view), buckets(view), held, np.maximum(speed, FLOOR), pace(view.problem))


def scene_of(view: View, facts: Facts, keep: Bools, *, known: bool, advised: bool) -> GdpFeatures:
    """The scene where only the devices of `keep` [D] are used, but by units that none of those may run.

    `known` false: of devices, the number alone is told. `advised`: list schedulers are asked.
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
    advice = _advice(view, int(keep.sum())) if advised else np.zeros((view.n, view.n_devices, len(ADVISERS)))
    pair = np.concatenate((_pairs(view, facts, allowed, held, part), advice), axis=2)
    if not known:
        device = np.zeros_like(device)
        device[np.arange(len(device)), np.minimum(np.arange(len(device)), NUMBERS)] = 1.0
        pair = np.where(np.arange(PAIR) == 0, allowed[:, :, None], np.zeros_like(pair))
    return GdpFeatures(
        graph=_single(_graph(view, facts, keep, balanced)), device=_single(device), pair=_single(pair),
        allowed=torch.from_numpy(allowed), tail=torch.from_numpy(view.tail.astype(np.int64)),
        head=torch.from_numpy(view.head.astype(np.int64)), into=_single(view.flow / _above(flow_in)[view.head]),
        out=_single(view.flow / _above(flow_out)[view.tail]),
        arrives=_single(flow_in / _above(flow_in + facts.work)),
        leaves=_single(flow_out / _above(flow_out + facts.work)),
        load=_single(np.minimum(seconds / balanced, FAR)), held=_single(held),
        bucket=torch.from_numpy(facts.bucket),
    )  # fmt: skip


def _devices(view: View, facts: Facts, keep: Bools) -> tuple[Floats, Floats]:
    """Features [D, DEVICE], and the part [D, 2] of the work from the first to the last that is a device's by speed."""
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


def _pairs(view: View, facts: Facts, allowed: Bools, held: Floats, part: Floats) -> Floats:
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
    """The share of each unit's ops that each adviser puts on each device [n, D, advisers], using so many devices."""
    size = np.maximum(np.bincount(view.unit, minlength=view.n), 1)[:, None]
    tables = np.zeros((len(ADVISERS), view.n, view.n_devices))
    for table, name in zip(tables, ADVISERS, strict=True):
        placement = run_placer(create(name, {"devices": devices}), view.problem, Budget()).placement
        if placement is not None:
            np.add.at(table, (view.unit, placement.device), 1.0)
            table /= size
    return np.moveaxis(tables, 0, 2)


def _graph(view: View, facts: Facts, keep: Bools, balanced: float) -> Floats:
    objective = view.problem.objective
    kinds = [objective.kind == "throughput"]
    kinds += [
        objective.kind == "latency" and objective.execution == name for name in ("operator", "subgraph", "sequential")
    ]
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
    """log10 of a share, from −1 at a millionth or less to 1 at a million or more."""
    found: Floats = np.log10(np.clip(np.asarray(share, np.float64), FLOOR, 1 / FLOOR)) / 6
    return found


def _above(values: Floats) -> Floats:
    return np.where(values > 0, values, 1.0)


def _single(values: npt.NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.float32))
