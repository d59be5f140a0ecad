"""A profile of ours over the costs of a problem: times of ops, what stays together, what a call costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from placewise._util.units import format_seconds
from placewise.costing.measured.devices import match_devices
from placewise.costing.measured.load import apply_measured
from placewise.costing.measured.table import TimingRow, Timings
from placewise.errors import CostError
from placewise.files.profile_file import DeviceProfile, ProfileFile
from placewise.model.cluster import Cluster, Device
from placewise.model.costs import CostTable
from placewise.model.graph import Graph


@dataclass(frozen=True, slots=True, eq=False)
class Profiled:
    """The cost table with a profile's times over it; sets of ops that one kernel runs, by name; seconds of a call by
    device; and what to say of them.
    """

    costs: CostTable
    together: tuple[tuple[str, ...], ...]
    calls: Mapping[str, float]
    notes: tuple[str, ...]


def with_profile(
    base: CostTable, graph: Graph, cluster: Cluster, profile: ProfileFile, *, device: str = "", loaded: bool = False
) -> Profiled:
    """`base` with the times of a profile, measured with all devices busy where `loaded` is wished and was measured.

    `device` says whose times they are, where the profile is of one device or has one of that name. A device of the
    cluster that was not profiled, but has the same figures as one that was, takes its times. Raises CostError for a
    profile of another model, or of none of these devices.
    """
    if profile.graph_hash and profile.graph_hash != graph.digest():
        made = f" (it was made from {profile.source.path})" if profile.source else ""
        raise CostError(f"this profile is of another model, or of other dimensions{made}", remedy="profile this one")
    used = {cluster.names[column]: profiled for column, profiled in _columns(profile, cluster, device).items()}
    rows = tuple(
        TimingRow(op, seconds, ops=(op,), device=name, spread=profiled.figures(loaded=loaded).spread)
        for name, profiled in used.items()
        for op, seconds in zip(profile.ops, profiled.figures(loaded=loaded).ops, strict=True)
        if seconds is not None
    )
    busy = loaded and all(profiled.loaded is not None for profiled in used.values())
    state = ", with all devices busy" if busy else ", with no other device busy" if loaded else ""
    version = f"{profile.runtime} {profile.runtime_version}".strip()
    table, notes = apply_measured(base, graph, cluster, Timings(f"profile of {version}{state}", rows, by_op=True))
    sets = {ops for profiled in used.values() for ops in profiled.fused}
    together = tuple(tuple(profile.ops[op] for op in ops) for ops in sorted(sets))
    if together:
        notes += (f"what {profile.runtime} runs as one kernel stays together: {len(together)} sets of ops",)
    notes += tuple(
        f"{name} was not profiled, and is given the times of {profiled.name}, which has the same figures"
        for name, profiled in used.items()
        if not device and name != profiled.name
    )
    table, more = _with_borders(table, graph, cluster, profile)
    notes += more
    return Profiled(table, together, {name: profiled.call_overhead for name, profiled in used.items()}, notes)


def _with_borders(
    costs: CostTable, graph: Graph, cluster: Cluster, profile: ProfileFile
) -> tuple[CostTable, tuple[str, ...]]:
    """The costs with the measured time of what goes between stages, for every kind of link that was measured."""
    index = {name: number for number, name in enumerate(cluster.names)}
    measured: dict[int, list[tuple[float, float]]] = {}
    for border in profile.borders:
        if border.source in index and border.target in index:
            ends = (int(cluster.location[index[border.source]]), int(cluster.location[index[border.target]]))
            for pair in (ends, ends[::-1]):
                measured.setdefault(int(cluster.link_class[pair]), []).append((border.latency, border.bandwidth))
    measured.pop(0, None)
    if not measured:
        return costs, ()
    seconds, size = costs.transfer_seconds.copy(), np.maximum(graph.tensors.bytes, 0)
    for kind, figures in measured.items():
        latency, bandwidth = np.median(np.array(figures), axis=0).tolist()
        seconds[:, kind] = latency + size / bandwidth
        seconds[:, kind] *= graph.tensor_repeats if graph.phases else 1
    latency, bandwidth = np.median(np.concatenate([*map(np.array, measured.values())]), axis=0).tolist()
    note = (
        f"a tensor between stages of {profile.runtime} takes {format_seconds(latency)}, and its bytes at "
        f"{bandwidth / 1e9:.3g} GB/s, as measured"
    )
    return replace(costs, transfer_seconds=seconds, transfer_source="measured"), (note,)


def _columns(profile: ProfileFile, cluster: Cluster, word: str) -> dict[int, DeviceProfile]:
    """Which device of the profile stands for which of the cluster."""
    known = {device_profile.name: device_profile for device_profile in profile.devices}
    if word:
        columns = match_devices(word, cluster)
        if not columns:
            raise CostError(f"{word!r} is not a device of this cluster", remedy=f"it has {', '.join(cluster.names)}")
        if word not in known and len(known) > 1:
            remedy = f"profile one device, or name one of {', '.join(known)}"
            raise CostError(f"has times of several devices and does not say which are those of {word!r}", remedy=remedy)
        return dict.fromkeys(columns, known.get(word, profile.devices[0]))
    profiles = {column: known[name] for column, name in enumerate(cluster.names) if name in known}
    for column, device in enumerate(cluster):
        twin = next((one for one in profiles if _figures(cluster.devices[one]) == _figures(device)), None)
        if column not in profiles and twin is not None:
            profiles[column] = profiles[twin]
    if not profiles:
        remedy = f"the cluster has {', '.join(cluster.names)}; say which is meant, NAME=FILE"
        raise CostError(f"has times of {', '.join(known)}, which the cluster does not have", remedy=remedy)
    return profiles


def _figures(device: Device) -> tuple[object, ...]:
    efficiency = tuple(sorted(device.efficiency.items()))
    return device.kind, tuple(sorted(device.peak_flops.items())), device.memory_bandwidth, efficiency
