"""The costs of stages in whole numbers: the arrays that the dynamic program over ideals reads.

Seconds become integers, rounded down, so that sums are exact in any order and a proved minimum stays a minimum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from placewise import _native
from placewise.model.columns import Bools, Floats, Ints, Longs, distinct, frozen, offsets_of
from placewise.model.problem import Problem
from placewise.placers.shared.memory_footprint import compute_footprint
from placewise.placers.shared.stages.replicated_stages import (
    bound_sync,
    compute_sync_paces,
    count_members,
    count_usable,
)
from placewise.simulate.blocks import op_times
from placewise.simulate.replicas import equal_devices

NEVER = 1 << 61
"""More than any sum of costs: the time of a component on a class that may not run it."""

MODES = {"blocking": 0, "overlap": 1, "duplex": 2}


class ComponentCosts(NamedTuple):
    """Components, the tensors between them, and classes of equal devices, as flat read-only arrays.

    A tensor has a producer (−1: host memory) and distinct other consumers; `readers` counts them, plus one if the host
    needs the tensor. A rate is a price per tensor to enter and to leave the devices of a class; classes of host devices
    have rate −1 and pay nothing. `mirrored` marks tensors that may flow from later components to earlier ones (backward
    ops). Weights of a single component are part of its bytes; the others are storages. A stage on r devices of class k
    pays ``pace[k, r]`` per byte of weights for their synchronization.
    """

    seconds: Longs  # [n, n_classes], NEVER where not allowed
    size: Longs  # [n] bytes
    weight: Longs  # [n] bytes of them that are weights
    producer: Ints  # [n_tensors]
    readers: Ints  # [n_tensors]
    output: Bools  # [n_tensors]
    mirrored: Bools  # [n_tensors]
    consumer_offsets: Longs  # [n_tensors + 1]
    consumers: Ints
    enter: Longs  # [n_tensors, n_rates]
    leave: Longs  # [n_tensors, n_rates]
    use_offsets: Longs  # [n + 1] tensors that a component reads
    uses: Ints
    make_offsets: Longs  # [n + 1] tensors that it produces
    makes: Ints
    storage_offsets: Longs  # [n + 1] shared storages that it holds
    storages: Ints
    storage_bytes: Longs
    rate: Ints  # [n_classes]
    capacity: Longs  # [n_classes]
    n_devices: Ints  # [n_classes]
    most: Ints  # [n_classes] the most devices that may share a stage
    pace: Floats  # [n_classes, most members + 1]
    mode: int
    ordered: bool  # stages follow the order of the classes, each of which is one device


def to_native(costs: ComponentCosts) -> _native.StageCosts:
    """The same columns for the C++ kernels: checked once, never copied."""
    return _native.StageCosts(**costs._asdict())


class PricedStages(NamedTuple):
    """Stage costs, their units per second, the devices of each class, and the tensors that are priced."""

    costs: ComponentCosts
    scale: float
    devices: tuple[tuple[int, ...], ...]
    tensors: Longs


class _Rates(NamedTuple):
    """Seconds [n_tensors] to enter and to leave a device; host devices have None and pay nothing."""

    enter: Floats
    leave: Floats


def price_stages(problem: Problem, component: Ints, n: int, capacity: Floats) -> PricedStages:
    """Stage costs of ops grouped by `component` [n_ops] → 0…n − 1, within `capacity` [n_devices] bytes."""
    op_seconds = op_times(problem)
    sums = [np.bincount(component, weights=column, minlength=n) for column in op_seconds.seconds]
    by_component = np.stack([sums[column] for column in op_seconds.of.tolist()], axis=1)
    rates = _list_rates(problem)
    classes, rate_of, distinct = _group_devices(by_component, capacity, rates, _classify_devices(problem))
    first = [devices[0] for devices in classes]
    times = by_component[:, first]
    transfers = np.array([[pair.enter, pair.leave] for pair in distinct]).reshape(
        len(distinct), 2, problem.graph.n_tensors
    )
    most, pace = count_members(problem, classes), compute_sync_paces(problem, classes)
    scale = _choose_scale(op_seconds.seconds, transfers, bound_sync(problem))
    needed = compute_footprint(problem, component, n).totals()
    able = np.isfinite(times) & (needed[:, None] <= capacity[first])
    whole = np.where(able, np.floor(np.where(able, times, 0.0) * scale), float(NEVER)).astype(np.int64)
    size, weight, storages = resident_sizes(problem, component, n)
    tensors, kept = crossing_tensors(problem, component, n, np.asarray(transfers.any(axis=(0, 1))))
    costs = ComponentCosts(
        seconds=frozen(whole, np.int64),
        size=size,
        weight=weight,
        **tensors,
        enter=frozen(np.floor(transfers[:, 0, kept].T * scale), np.int64),
        leave=frozen(np.floor(transfers[:, 1, kept].T * scale), np.int64),
        **storages,
        rate=frozen([rate_of[device] for device in first], np.int32),
        capacity=frozen(np.floor(np.clip(capacity[first], 0, NEVER)), np.int64),
        n_devices=count_usable(classes, most, n),
        most=most,
        pace=frozen(pace * (scale * (1 - 1e-12)), np.float64),
        mode=MODES[problem.objective.communication],
        ordered=problem.constraints.ordered,
    )
    return PricedStages(costs, scale, classes, frozen(np.flatnonzero(kept), np.int64))


def _classify_devices(problem: Problem) -> Ints:
    """Device classes [n_devices] beyond equal figures: the place in an order, or equal links for replicas."""
    if problem.constraints.ordered:
        return np.arange(problem.n_devices, dtype=np.int32)
    return equal_devices(problem) if problem.max_replicas > 1 else np.zeros(problem.n_devices, np.int32)


def _choose_scale(seconds: Floats, transfers: Floats, sync: float) -> float:
    """Units per second, such that all costs together stay below 2^60; the same for every grouping of the ops."""
    total = np.where(np.isfinite(seconds), seconds, 0.0).max(axis=0, initial=0.0).sum()
    total += 2 * transfers.max(axis=(0, 1), initial=0.0).sum() + sync
    return 2.0**59 / float(total) if total > 0 else 1.0


def _list_rates(problem: Problem) -> list[_Rates | None]:
    """The least cost of each tensor to enter and to leave each device; devices with equal links share one object.

    Staged: exactly the trip from and to host memory. Direct: one trip from the quickest source and one to the quickest
    destination; the judge charges at least that.
    """
    links, host = problem.cluster.link_class, problem.n_devices
    places = np.unique(problem.cluster.location)
    known: dict[tuple[tuple[int, ...], ...], _Rates] = {}
    rates: list[_Rates | None] = []
    for here in problem.cluster.location.tolist():
        others = places[places != here] if problem.cluster.transfers == "direct" else places[:0]
        lists = links[host, [here]], links[here, [host]], np.unique(links[others, here]), np.unique(links[here, others])
        key = tuple(tuple(classes.tolist()) for classes in lists)
        if here != host and key not in known:
            known[key] = _build_rates(problem, *key)
        rates.append(None if here == host else known[key])
    return rates


def _build_rates(
    problem: Problem, enter: tuple[int, ...], leave: tuple[int, ...], sources: tuple[int, ...], targets: tuple[int, ...]
) -> _Rates:
    """Rates by the classes of the links from the host, to the host, from other devices and to other devices."""
    cost = problem.costs.transfer_seconds
    if not sources:
        return _Rates(cost[:, enter[0]], cost[:, leave[0]])
    quickest_in, quickest_out = cost[:, sources].min(axis=1), cost[:, targets].min(axis=1)
    made_by_host = problem.graph.tensors.producer < 0
    to_host = np.where(problem.graph.tensors.output, cost[:, leave[0]], np.inf)
    return _Rates(np.where(made_by_host, cost[:, enter[0]], quickest_in), np.minimum(quickest_out, to_host))


def _group_devices(
    seconds: Floats, capacity: Floats, rates: list[_Rates | None], kind: Ints
) -> tuple[tuple[tuple[int, ...], ...], dict[int, int], list[_Rates]]:
    """Classes of devices equal in every figure, in order; the rate number of each device; the distinct rates."""
    numbers: dict[bytes, int] = {}
    distinct: list[_Rates] = []
    rate_of: dict[int, int] = {}
    groups: dict[tuple[bytes, float, int, int], list[int]] = {}
    written = {id(pair): pair.enter.tobytes() + pair.leave.tobytes() for pair in rates if pair is not None}
    for device, pair in enumerate(rates):
        rate_of[device] = -1
        if pair is not None:
            key = written[id(pair)]
            if key not in numbers:
                numbers[key] = len(distinct)
                distinct.append(pair)
            rate_of[device] = numbers[key]
        if np.isfinite(seconds[:, device]).any():
            key_of_class = (seconds[:, device].tobytes(), float(capacity[device]), rate_of[device], int(kind[device]))
            groups.setdefault(key_of_class, []).append(device)
    return tuple(tuple(devices) for devices in groups.values()), rate_of, distinct


def resident_sizes(problem: Problem, component: Ints, n: int) -> tuple[Longs, Longs, dict[str, npt.NDArray[Any]]]:
    """Bytes of each component [n] with its private weights, those weights, and the shared storages."""
    footprint = compute_footprint(problem, component, n)
    size, shared = footprint.own(), ~footprint.private
    storages = {
        "storage_offsets": frozen(offsets_of(footprint.group[shared], n), np.int64),
        "storages": frozen(footprint.storage[shared], np.int32),
        "storage_bytes": frozen(footprint.stored, np.int64),
    }
    return frozen(size, np.int64), frozen(size - footprint.state, np.int64), storages


def crossing_tensors(
    problem: Problem, component: Ints, n: int, priced: Bools
) -> tuple[dict[str, npt.NDArray[Any]], Bools]:
    """The `priced` tensors that leave a component, as columns of `ComponentCosts`, and their mask [n_tensors]."""
    graph = problem.graph
    producer = np.where(graph.tensors.producer < 0, -1, component[graph.tensors.producer])
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    pairs = distinct(tensor * max(n, 1) + component[graph.consumers])
    tensor, reader = pairs // max(n, 1), pairs % max(n, 1)
    crosses = producer[tensor] != reader
    tensor, reader = tensor[crosses], reader[crosses]
    readers = np.bincount(tensor, minlength=graph.n_tensors) + graph.tensors.output
    late = np.bincount(tensor[reader < producer[tensor]], minlength=graph.n_tensors) > 0
    kept = priced & (readers > 0) & ((producer >= 0) | (np.bincount(tensor, minlength=graph.n_tensors) > 0))
    tensor, reader = (np.cumsum(kept) - 1)[tensor[kept[tensor]]], reader[kept[tensor]]
    producer = producer[kept]
    by_reader, by_producer = np.argsort(reader, kind="stable"), np.argsort(producer, kind="stable")
    return {
        "producer": frozen(producer, np.int32),
        "readers": frozen(readers[kept], np.int32),
        "output": frozen(graph.tensors.output[kept], np.bool_),
        "mirrored": frozen(late[kept], np.bool_),
        "consumer_offsets": frozen(offsets_of(tensor, int(kept.sum())), np.int64),
        "consumers": frozen(reader, np.int32),
        "use_offsets": frozen(offsets_of(reader[by_reader], n), np.int64),
        "uses": frozen(tensor[by_reader], np.int32),
        "make_offsets": frozen(offsets_of(producer[by_producer], n), np.int64),
        "makes": frozen(by_producer, np.int32),
    }, kept
