"""Features of GDP: of the graph, of devices, and of units on devices; for all devices or some of them.

All features are shares or logarithms of shares, so that they have the same meaning on any graph and any cluster.
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
from placewise.placers.learned.networks.walk import link_pace, to_single
from placewise.placers.learned.orders import BUCKETS, fastest_seconds, order_positions, path_buckets
from placewise.placers.learned.view import View
from placewise.placers.registry import create
from placewise.placers.shared.interchangeable import interchangeable
from placewise.placers.shared.memory_footprint import compute_footprint
from placewise.simulate.judge.ranks import mean_transfer_seconds

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

    @property
    def n_devices(self) -> int:
        return self.allowed.shape[1]


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
    """log10 of a share over six decades: −1 for a millionth or less, 1 for a million or more."""
    scaled: Floats = np.log10(np.clip(np.asarray(share, np.float64), FLOOR, 1 / FLOOR)) / 6
    return scaled


def _above(values: Floats) -> Floats:
    return np.where(values > 0, values, 1.0)
