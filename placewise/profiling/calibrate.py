"""fitted(): what share of their peaks this machine's devices reach, class by class, from profiles of whole models.

The roofline with free factors, seconds = max(FLOPs / (peak · e[class]), bytes / (bandwidth · m)) + overhead, is fitted
to kernels by least absolute errors of the logarithm: a median, which a few odd kernels do not move. One factor after
the other takes the best of the values at which it explains a kernel exactly, until nothing gets better.
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
from placewise.model.columns import Floats, Ints, Longs

MOST_CANDIDATES = 200
"""Values that are tried for a factor: quantiles of those that explain a kernel exactly."""
MOST_ROUNDS = 30
LEAST_KERNELS = 3
"""A class with fewer kernels keeps the catalogue's factor."""
_FREE, _MEMORY, _OVERHEAD = "free", "memory", "op_overhead"


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """Kernels that ran on one device [n]: seconds, FLOPs, bytes that they read and write, the peak (FLOP/s) of their
    element type, and the class that most of their FLOPs are of ("" for none).
    """

    seconds: Floats
    flops: Floats
    bytes: Floats
    peak: Floats
    op_class: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.seconds)


@dataclass(frozen=True, slots=True)
class Fit:
    """How well a roofline explains kernels: the median relative error, and the rank correlation of the times."""

    error: float
    rank: float
    kernels: int


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """The cluster with fitted figures, and by device how well the figures explain the profiles before and after; and,
    with several profiles, how well those fitted to all models but one explain that one (`left_out`, the mean).
    """

    cluster: Cluster
    before: Mapping[str, Fit]
    after: Mapping[str, Fit]
    left_out: Mapping[str, Fit]


def fitted(cluster: Cluster, profiles: Sequence[ProfileFile], *, loaded: bool = False) -> Calibration:
    """The cluster with efficiencies, memory and overhead per op fitted to profiles of its devices, by name.

    Raises CostError if no profile is of any of them.
    """
    before, after, left_out, devices = dict[str, Fit](), dict[str, Fit](), dict[str, Fit](), list[Device]()
    for device in cluster:
        of = [kernels_of(p, d, device, loaded=loaded) for p in profiles for d in p.devices if d.name == device.name]
        if not of:
            devices.append(device)
            continue
        every = joined(of)
        found = fit(device, every)
        before[device.name], after[device.name] = explained(device, every), explained(found, every)
        if len(of) > 1:
            others = [joined([k for k in of if k is not one]) for one in of]
            tests = [explained(fit(device, rest), one) for rest, one in zip(others, of, strict=True)]
            error, rank = np.mean([test.error for test in tests]), np.mean([test.rank for test in tests])
            left_out[device.name] = Fit(float(error), float(rank), len(every))
        devices.append(_noted(found, [p.runtime for p in profiles], after[device.name]))
    if not after:
        have = ", ".join(dict.fromkeys(device.name for p in profiles for device in p.devices))
        raise CostError(f"the profiles are of {have}, which the cluster does not have", remedy="name its devices so")
    return Calibration(Cluster(tuple(devices), cluster.links, cluster.transfers), before, after, left_out)


def kernels_of(profile: ProfileFile, found: DeviceProfile, device: Device, *, loaded: bool = False) -> Kernels:
    """The kernels of a profile: its ops, those that are fused as one, which pass on what is between them unwritten."""
    times = found.figures(loaded=loaded).ops
    kernel = np.arange(len(times))
    for ops in found.fused:
        kernel[list(ops)] = min(ops)
    measured = np.array([time is not None for time in times]) & (np.array(profile.classes) != _FREE)
    rows = np.flatnonzero(measured)
    names, number = np.unique(kernel[rows], return_inverse=True)
    seconds = _sums(number, np.array([times[row] or 0.0 for row in rows]), len(names))
    flops, moved = np.array(profile.flops)[rows], np.array(profile.bytes)[rows]
    largest = _largest(number, np.where(flops > 0, 1 + flops, moved / (1 + moved.max(initial=0.0))), len(names))
    main = rows[largest]
    return Kernels(
        seconds,
        _sums(number, flops, len(names)),
        np.maximum.reduceat(moved[np.argsort(number, kind="stable")], _starts(number)) if len(names) else moved,
        np.array([_peak(device, profile.dtypes[row]) for row in main]),
        tuple(profile.classes[row] if profile.flops[row] > 0 else "" for row in main),
    )


def joined(parts: Sequence[Kernels]) -> Kernels:
    """Kernels of several profiles together."""
    seconds, flops, moved, peak = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("seconds", "flops", "bytes", "peak")
    )
    return Kernels(seconds, flops, moved, peak, tuple(word for part in parts for word in part.op_class))


def predicted(device: Device, kernels: Kernels) -> Floats:
    """Seconds of kernels by the roofline [n]."""
    share = np.array([device.efficiency.get(word, 1.0) for word in kernels.op_class])
    moved = kernels.bytes / (device.memory_bandwidth * device.efficiency.get(_MEMORY, 1.0))
    seconds: Floats = np.maximum(kernels.flops / (kernels.peak * share), moved) + device.op_overhead
    return seconds


def fit(device: Device, kernels: Kernels) -> Device:
    """The device whose roofline explains kernels best; a class with few of them keeps what it has."""
    counted = [word for word in catalog().behaviour["cpu"].efficiency if kernels.op_class.count(word) >= LEAST_KERNELS]
    names = [_OVERHEAD, _MEMORY, *counted]
    value = {_OVERHEAD: device.op_overhead, **{name: device.efficiency.get(name, 1.0) for name in names[1:]}}
    best = _loss(_with(device, value), kernels)
    for _ in range(MOST_ROUNDS):
        start = best
        for name in names:
            for candidate in _candidates(_with(device, value), kernels, name):
                loss = _loss(_with(device, {**value, name: candidate}), kernels)
                if loss < best * (1 - 1e-9):
                    best, value = loss, {**value, name: candidate}
        if best >= start * (1 - 1e-6):
            break
    return _within_peaks(_with(device, value))


def explained(device: Device, kernels: Kernels) -> Fit:
    """How well a device's figures explain kernels."""
    found = predicted(device, kernels)
    error = float(np.median(np.abs(found / kernels.seconds - 1)))
    return Fit(error, rank_correlation(found, kernels.seconds), len(kernels))


def rank_correlation(first: Floats, second: Floats) -> float:
    """Spearman's: the correlation of ranks, equal values sharing their mean rank."""
    a, b = _ranks(first), _ranks(second)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else 0.0


def _candidates(device: Device, kernels: Kernels, name: str) -> list[float]:
    """Values of one factor, each of which explains some kernel exactly."""
    over = np.maximum(kernels.seconds - device.op_overhead, 1e-12)
    if name == _OVERHEAD:
        found = kernels.seconds - (predicted(device, kernels) - device.op_overhead)
        found = np.append(found[found > 0], 0.0)
    elif name == _MEMORY:
        found = kernels.bytes / (device.memory_bandwidth * over)
    else:
        of = np.array([word == name for word in kernels.op_class])
        found = (kernels.flops / (kernels.peak * over))[of]
    found = found[np.isfinite(found) & (found >= (0 if name == _OVERHEAD else 1e-9))]
    if len(found) <= MOST_CANDIDATES:
        return sorted(set(found.tolist()))
    return np.unique(np.quantile(found, np.linspace(0, 1, MOST_CANDIDATES))).tolist()  # type: ignore[no-any-return]


def _loss(device: Device, kernels: Kernels) -> float:
    with np.errstate(divide="ignore"):
        return float(np.abs(np.log(predicted(device, kernels) / kernels.seconds)).mean())


def _with(device: Device, value: Mapping[str, float]) -> Device:
    shares = {name: share for name, share in value.items() if name != _OVERHEAD}
    return replace(device, op_overhead=value[_OVERHEAD], efficiency={**device.efficiency, **shares})


def _within_peaks(device: Device) -> Device:
    """The same device with no share above 1: peaks that were taken too low are raised, and all shares fall."""
    arithmetic = {name: share for name, share in device.efficiency.items() if name != _MEMORY}
    up = max(1.0, *arithmetic.values()) if arithmetic else 1.0
    memory = max(1.0, device.efficiency.get(_MEMORY, 1.0))
    efficiency = {name: share / (memory if name == _MEMORY else up) for name, share in device.efficiency.items()}
    peaks = {dtype: peak * up for dtype, peak in device.peak_flops.items()}
    return replace(device, efficiency=efficiency, peak_flops=peaks, memory_bandwidth=device.memory_bandwidth * memory)


def _noted(device: Device, runtimes: Sequence[str], after: Fit) -> Device:
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
    """The row of the largest weight of each number [count]."""
    order = np.lexsort((weight, number))
    last = np.append(np.flatnonzero(np.diff(number[order])), len(order) - 1)
    return order[last] if count else order


def _starts(number: Longs) -> Ints:
    ordered = np.sort(number, kind="stable")
    return np.concatenate(([0], np.flatnonzero(np.diff(ordered)) + 1)).astype(np.int32)


def _ranks(values: Floats) -> Floats:
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[inverse]
