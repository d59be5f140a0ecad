"""fit_cluster(): fit the efficiencies of this machine's devices, class by class, to profiles of whole models.

The roofline seconds = max(FLOPs / (peak · e[class]), bytes / (bandwidth · m)) + overhead is fitted to kernels by least
absolute errors of the logarithm, which a few outliers do not move. Coordinate descent: each factor in turn takes the
best of the values at which it explains a kernel exactly, until the error stops falling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewise.catalog.device_specs import add_notes
from placewise.catalog.entries import catalog
from placewise.errors import CostError
from placewise.files.profile_file import DeviceProfile, ProfileFile
from placewise.model.cluster import Cluster, Device
from placewise.model.columns import Floats, Longs

MAX_CANDIDATES = 200
"""Values to try for a factor: quantiles of those that explain a kernel exactly."""
MAX_ROUNDS = 30
MIN_KERNELS = 3
"""A class with fewer kernels keeps the factor of the catalogue."""
_FREE, _MEMORY, _OVERHEAD = "free", "memory", "op_overhead"


@dataclass(frozen=True, slots=True, eq=False)
class KernelTable:
    """Kernels of one device [n]: seconds, FLOPs, bytes that they read and write, the peak of their element type in
    FLOP/s, and the class of the op with the most FLOPs ("" if none has any).
    """

    seconds: Floats
    flops: Floats
    bytes: Floats
    peak: Floats
    op_class: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.seconds)


@dataclass(frozen=True, slots=True)
class RooflineFit:
    """How well a roofline explains kernels: median relative error, rank correlation, and number of kernels."""

    error: float
    rank: float
    kernels: int


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """The fitted cluster, and by device how well it explains the profiles before and after fitting.

    `left_out`, with several profiles: the mean over models of a fit to all other models, tested on that model.
    """

    cluster: Cluster
    before: Mapping[str, RooflineFit]
    after: Mapping[str, RooflineFit]
    left_out: Mapping[str, RooflineFit]


def fit_cluster(cluster: Cluster, profiles: Sequence[ProfileFile]) -> Calibration:
    """Fit efficiencies, memory bandwidth and overhead per op of a cluster to profiles of its devices, by name.

    Raises CostError if no profile is of any of its devices.
    """
    before, after, left_out, devices = (
        dict[str, RooflineFit](),
        dict[str, RooflineFit](),
        dict[str, RooflineFit](),
        list[Device](),
    )
    for device in cluster:
        tables = [
            collect_kernels(profile, own, device)
            for profile in profiles for own in profile.devices if own.name == device.name
        ]  # fmt: skip
        if not tables:
            devices.append(device)
            continue
        kernels = _concatenate(tables)
        fitted = fit_device(device, kernels)
        before[device.name], after[device.name] = evaluate(device, kernels), evaluate(fitted, kernels)
        if len(tables) > 1:
            others = [_concatenate([other for other in tables if other is not table]) for table in tables]
            tests = [evaluate(fit_device(device, rest), table) for rest, table in zip(others, tables, strict=True)]
            error, rank = np.mean([test.error for test in tests]), np.mean([test.rank for test in tests])
            left_out[device.name] = RooflineFit(float(error), float(rank), len(kernels))
        noted = _with_note(fitted, [profile.runtime for profile in profiles], after[device.name])
        devices.append(replace(noted, error=left_out.get(device.name, after[device.name]).error))
    if not after:
        have = ", ".join(dict.fromkeys(device.name for p in profiles for device in p.devices))
        raise CostError(f"the profiles are of {have}, which the cluster does not have", remedy="name its devices so")
    return Calibration(Cluster(tuple(devices), cluster.links, cluster.transfers), before, after, left_out)


def collect_kernels(profile: ProfileFile, measured: DeviceProfile, device: Device) -> KernelTable:
    """The kernels of a profile: one per op or set of fused ops, which write no intermediate results."""
    times = measured.idle.ops
    kernel = np.arange(len(times))
    for ops in measured.fused:
        kernel[list(ops)] = min(ops)
    is_timed = np.array([time is not None for time in times]) & (np.array(profile.classes) != _FREE)
    rows = np.flatnonzero(is_timed)
    names, number = np.unique(kernel[rows], return_inverse=True)
    seconds = _sums(number, np.array([times[row] or 0.0 for row in rows]), len(names))
    flops, moved = np.array(profile.flops)[rows], np.array(profile.bytes)[rows]
    largest = _largest(number, np.where(flops > 0, 1 + flops, moved / (1 + moved.max(initial=0.0))), len(names))
    main, most_moved = rows[largest], np.zeros(len(names))
    np.maximum.at(most_moved, number, moved)
    return KernelTable(
        seconds,
        _sums(number, flops, len(names)),
        most_moved,
        np.array([_peak(device, profile.dtypes[row]) for row in main]),
        tuple(profile.classes[row] if profile.flops[row] > 0 else "" for row in main),
    )


def _concatenate(tables: Sequence[KernelTable]) -> KernelTable:
    seconds, flops, moved, peak = (
        np.concatenate([getattr(table, name) for table in tables]) for name in ("seconds", "flops", "bytes", "peak")
    )
    return KernelTable(seconds, flops, moved, peak, tuple(name for table in tables for name in table.op_class))


def predict_seconds(device: Device, kernels: KernelTable) -> Floats:
    """Seconds of kernels by the roofline [n]."""
    share = np.array([device.efficiency.get(name, 1.0) for name in kernels.op_class])
    moved = kernels.bytes / (device.memory_bandwidth * device.efficiency.get(_MEMORY, 1.0))
    seconds: Floats = np.maximum(kernels.flops / (kernels.peak * share), moved) + device.op_overhead
    return seconds


def fit_device(device: Device, kernels: KernelTable) -> Device:
    """The device with the factors whose roofline explains kernels best; a class with few kernels keeps its factor."""
    counted = [name for name in catalog().behaviour["cpu"].efficiency if kernels.op_class.count(name) >= MIN_KERNELS]
    names = [_OVERHEAD, _MEMORY, *counted]
    value = {_OVERHEAD: device.op_overhead, **{name: device.efficiency.get(name, 1.0) for name in names[1:]}}
    best = _loss(_with_factors(device, value), kernels)
    for _ in range(MAX_ROUNDS):
        start = best
        for name in names:
            for candidate in _candidates(_with_factors(device, value), kernels, name):
                loss = _loss(_with_factors(device, {**value, name: candidate}), kernels)
                if loss < best * (1 - 1e-9):
                    best, value = loss, {**value, name: candidate}
        if best >= start * (1 - 1e-6):
            break
    return _limit_to_peaks(_with_factors(device, value))


def evaluate(device: Device, kernels: KernelTable) -> RooflineFit:
    """How well the figures of a device explain kernels."""
    seconds = predict_seconds(device, kernels)
    error = float(np.median(np.abs(seconds / kernels.seconds - 1)))
    return RooflineFit(error, rank_correlation(seconds, kernels.seconds), len(kernels))


def rank_correlation(first: Floats, second: Floats) -> float:
    """Spearman's rank correlation; equal values share their mean rank."""
    a, b = _ranks(first), _ranks(second)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else 0.0


def _candidates(device: Device, kernels: KernelTable, name: str) -> list[float]:
    """Values of one factor, each of which explains a kernel exactly."""
    over = np.maximum(kernels.seconds - device.op_overhead, 1e-12)
    if name == _OVERHEAD:
        values = kernels.seconds - (predict_seconds(device, kernels) - device.op_overhead)
        values = np.append(values[values > 0], 0.0)
    elif name == _MEMORY:
        values = kernels.bytes / (device.memory_bandwidth * over)
    else:
        in_class = np.array([op_class == name for op_class in kernels.op_class])
        values = (kernels.flops / (kernels.peak * over))[in_class]
    values = values[np.isfinite(values) & (values >= (0 if name == _OVERHEAD else 1e-9))]
    if len(values) <= MAX_CANDIDATES:
        return sorted(set(values.tolist()))
    return np.unique(np.quantile(values, np.linspace(0, 1, MAX_CANDIDATES))).tolist()  # type: ignore[no-any-return]


def _loss(device: Device, kernels: KernelTable) -> float:
    with np.errstate(divide="ignore"):
        return float(np.abs(np.log(predict_seconds(device, kernels) / kernels.seconds)).mean())


def _with_factors(device: Device, value: Mapping[str, float]) -> Device:
    shares = {name: share for name, share in value.items() if name != _OVERHEAD}
    return replace(device, op_overhead=value[_OVERHEAD], efficiency={**device.efficiency, **shares})


def _limit_to_peaks(device: Device) -> Device:
    """The same device with no share above 1: peaks that are too low are raised, and all shares fall."""
    arithmetic = {name: share for name, share in device.efficiency.items() if name != _MEMORY}
    up = max(1.0, *arithmetic.values()) if arithmetic else 1.0
    memory = max(1.0, device.efficiency.get(_MEMORY, 1.0))
    efficiency = {name: share / (memory if name == _MEMORY else up) for name, share in device.efficiency.items()}
    peaks = {dtype: peak * up for dtype, peak in device.peak_flops.items()}
    return replace(device, efficiency=efficiency, peak_flops=peaks, memory_bandwidth=device.memory_bandwidth * memory)


def _with_note(device: Device, runtimes: Sequence[str], after: RooflineFit) -> Device:
    note = (
        f"measured: efficiencies, memory and overhead per op fitted to {after.kernels} kernels of "
        f"{' and '.join(dict.fromkeys(runtimes))}, which they explain to {after.error:.0%} (median)"
    )
    return add_notes(device, note)


def _peak(device: Device, dtype: str) -> float:
    return device.peak_flops.get(dtype, device.peak_flops.get("float32", max(device.peak_flops.values(), default=1.0)))


def _sums(number: Longs, values: Floats, count: int) -> Floats:
    return np.bincount(number, values, count).astype(np.float64)


def _largest(number: Longs, weight: Floats, count: int) -> Longs:
    """The row with the largest weight of each number [count]."""
    order = np.lexsort((weight, number))
    last = np.append(np.flatnonzero(np.diff(number[order])), len(order) - 1)
    return order[last] if count else order


def _ranks(values: Floats) -> Floats:
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[inverse]
