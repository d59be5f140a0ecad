"""A profile of ours over the costs of a problem: times of ops, what stays together, what a call costs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewise._util.units import format_seconds
from placewise.costing.llama_rates import CACHE, LlamaRates, find_types, list_op_seconds, scale_rates
from placewise.costing.measured.devices import match_devices
from placewise.costing.measured.load import apply_measured
from placewise.costing.measured.table import TimingRow, Timings
from placewise.errors import CostError
from placewise.files.profile_file import DeviceProfile, ProfileFile, RunsRecord
from placewise.model.cluster import HOST, Cluster, Device, Link, is_rpc
from placewise.model.costs import NO_RUNS, CostTable, MachineRuns, transfer_seconds_of
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.readers.gguf.reader import parse_cache_type
from placewise.readers.run_dims import find_run_dims

ALIKE, SHOWN = 0.05, 5e-4
"""Devices of one kind whose measured times differ by no more than the first are taken as equal; a difference from the
second on is told."""
_NUMBERS = re.compile(r"(?<=; cores )\d+|(?<=, )\d+(?=[,;]|$)|(?<=cuda:)\d+|(?:GPU-)?[0-9a-f]{8}(?:-[0-9a-f]{4,12}){4}")
"""What tells apart processors of one kind in their descriptions: numbers of cores and of GPUs, and their UUIDs."""


@dataclass(frozen=True, slots=True, eq=False)
class Profiled:
    """The cost table with a profile's times over it; the cluster with what a call and a border cost; sets of ops that
    one kernel runs, by name; seconds of a call by device; and what to say of them.
    """

    costs: CostTable
    cluster: Cluster
    together: tuple[tuple[str, ...], ...]
    calls: Mapping[str, float]
    notes: tuple[str, ...]


def with_profile(
    base: CostTable,
    graph: Graph,
    cluster: Cluster,
    profile: ProfileFile,
    *,
    device: str = "",
    loaded: bool = False,
    pool: bool = True,
) -> Profiled:
    """`base` with the times of a profile, measured with all devices busy where `loaded` is wished and was measured.

    `device` says whose times they are, where the profile is of one device or has one of that name. A device of the
    cluster that was not profiled, but has the same figures as one that was, takes its times. With `pool`, devices of
    one kind that differ by at most `ALIKE`, or by no more than one of them from run to run, get the mean of their
    times: they stay equal. Raises CostError for a profile of another model, or of none of these devices.
    """
    profile = _at_other_sizes(profile, graph)
    if profile.graph_hash and profile.graph_hash != graph.digest():
        made = f" (it was made from {profile.source.path})" if profile.source else ""
        raise CostError(f"this profile is of another model, or of other dimensions{made}", remedy="profile this one")
    columns, pooled = _columns(profile, cluster, device), tuple[str, ...]()
    if pool:
        columns, pooled = _pool_alike(columns, cluster, loaded=loaded)
    used = {cluster.names[column]: profiled for column, profiled in columns.items()}
    rows = tuple(
        TimingRow(op, seconds, ops=(op,), device=name, spread=profiled.figures(loaded=loaded).spread)
        for name, profiled in used.items()
        for op, seconds in zip(profile.ops, profiled.figures(loaded=loaded).ops, strict=True)
        if seconds is not None
    )
    busy = loaded and all(profiled.loaded is not None for profiled in used.values())
    state = ", with all devices busy" if busy else ", with no other device busy" if loaded else ""
    version = f"{profile.runtime} {profile.runtime_version}".strip()
    where = dict.fromkeys(profiled.processor.partition(";")[0] for profiled in used.values() if profiled.processor)
    place = f" on {', '.join(where)}" if where else ""
    table, notes = apply_measured(
        base, graph, cluster, Timings(f"profile of {version}{place}{state}", rows, by_op=True)
    )
    sets = {ops for profiled in used.values() for ops in profiled.fused}
    together = tuple(tuple(profile.ops[op] for op in ops) for ops in sorted(sets))
    if together:
        notes += (f"what {profile.runtime} runs as one kernel stays together: {len(together)} sets of ops",)
    notes += pooled
    notes += tuple(
        f"{name} was not profiled, and is given the times of {profiled.name}, which has the same figures"
        for name, profiled in used.items()
        if not device and name != profiled.name
    )
    cluster, more = _with_server_links(cluster, used, profile)
    if more:
        table = replace(table, transfer_seconds=transfer_seconds_of(graph, cluster), transfer_source="measured")
    else:
        table, more = _with_borders(table, graph, cluster, profile)
    notes += more
    calls = {name: profiled.call_overhead for name, profiled in used.items()}
    devices = (replace(device, call_overhead=device.call_overhead or calls.get(device.name, 0.0)) for device in cluster)
    calling = Cluster(tuple(devices), cluster.links, cluster.transfers)
    if profile.runs is None:
        return Profiled(table, calling, together, calls, notes)
    if profile.borders:
        table = replace(table, runs=summarize_runs(profile.runs))
        return Profiled(table, calling, together, calls, notes)
    bordered = with_borders(calling, set(used), profile.runs.border_seconds, profile.runs.border_bytes_per_second)
    table = replace(
        table,
        transfer_seconds=transfer_seconds_of(graph, bordered),
        transfer_source="measured",
        runs=summarize_runs(profile.runs),
    )
    return Profiled(table, bordered, together, calls, (*notes, *_describe_runs(table.runs)))


def _at_other_sizes(profile: ProfileFile, graph: Graph) -> ProfileFile:
    """A profile of llama.cpp at the lengths of `graph`, by its rates; the profile itself for anything else.

    Rates are those of one sequence and of the types of cache that were measured, and serve all GGUF models of the types
    of matrices that were measured. Raises CostError for others.
    """
    made, source, rated = profile.source, graph.source, [device.llama for device in profile.devices if device.llama]
    if not rated or made is None or source is None or source.format != "gguf":
        return profile
    dims = find_run_dims(source)
    if dims is None:
        return profile
    if dims.streams > 1:
        wrong = f"has rates of llama.cpp for one sequence, and not for {dims.streams}"
        raise CostError(wrong, remedy="leave out the batch and the sequences, or the profile")
    known, wanted = (parse_cache_type(str(one.options.get("cache_type", ""))) for one in (made, source))
    if known != wanted:
        wrong = f"has rates of llama.cpp for a cache of {','.join(known)}, and not of {','.join(wanted)}"
        raise CostError(wrong, remedy=f"profile with --cache-type {','.join(wanted)}")
    if any(CACHE not in record.token for record in rated):
        raise CostError("has rates of llama.cpp by an older version", remedy="profile the model again")
    missing = {kind for record in rated for kind in find_types(graph) - LlamaRates(record.prompt, record.token).types}
    if missing:
        remedy = "profile a model that has matrices of all its types"
        raise CostError(f"has no rates of llama.cpp for {', '.join(sorted(missing))}", remedy=remedy)
    devices = list[DeviceProfile]()
    for device in profile.devices:
        seconds = device.idle.ops
        if device.llama is not None:
            own = device.llama.own if made.sha256 == source.sha256 else (1.0, 1.0)
            rates = scale_rates(LlamaRates(device.llama.prompt, device.llama.token), own)
            seconds = tuple(list_op_seconds(graph, rates).tolist())
        figures = device.idle.model_copy(update={"ops": seconds, "whole": None})
        devices.append(device.model_copy(update={"idle": figures}))
    return profile.model_copy(update={"graph_hash": graph.digest(), "ops": graph.ops.name, "devices": tuple(devices)})


def apply_to_problem(problem: Problem, profile: ProfileFile) -> Problem:
    """A problem with the times of a profile of its model and devices, each its own, for latency.

    Raises as `with_profile`.
    """
    profiled = with_profile(problem.costs, problem.graph, problem.cluster, profile, pool=False)
    together = (*problem.constraints.together, *profiled.together)
    return problem.with_(
        cluster=profiled.cluster, costs=profiled.costs, constraints=replace(problem.constraints, together=together)
    )


def _with_server_links(
    cluster: Cluster, used: Mapping[str, DeviceProfile], profile: ProfileFile
) -> tuple[Cluster, tuple[str, ...]]:
    """The cluster whose links between host memory and RPC servers are those that were measured, and notes of them.

    A server that has the times of another one has its link, too.
    """
    measured = {border.target: border for border in profile.borders if is_rpc(border.target)}
    links, notes = list[Link](), dict[str, str]()
    for link in cluster.links:
        server = link.source if link.target == HOST else link.target if link.source == HOST else ""
        border = measured.get(used[server].name) if is_rpc(server) and server in used else None
        if border is None:
            links.append(link)
            continue
        links.append(replace(link, latency=border.latency, bandwidth=border.bandwidth))
        speed = f"{border.bandwidth / 1e9:.3g} GB/s"
        notes[server] = (
            f"{server}: a tensor takes {format_seconds(border.latency)}, and its bytes go at {speed}, as measured"
        )
    return (Cluster(cluster.devices, tuple(links), cluster.transfers) if notes else cluster), tuple(notes.values())


def with_borders(cluster: Cluster, names: set[str], seconds: float, bytes_per_second: float) -> Cluster:
    """The cluster whose links between the devices `names` cost this for every tensor.

    Devices that work in host memory have no links between them, and keep none.
    """
    bandwidth = bytes_per_second or float("inf")
    links = tuple(
        replace(link, latency=seconds, bandwidth=bandwidth) if names.issuperset((link.source, link.target)) else link
        for link in cluster.links
    )
    return Cluster(cluster.devices, links, cluster.transfers)


def summarize_runs(record: RunsRecord) -> MachineRuns:
    """What the runs of a profile say of the costs: the median of how much longer chosen plans took.

    Their error is how far they lie from that, and no less than that of the time of each.
    """
    chosen = [pilot for pilot in record.pilots if pilot.chosen]
    ratios = np.array([pilot.measured / pilot.predicted for pilot in chosen])
    runs = replace(
        NO_RUNS,
        own_threads=record.own_threads or float("inf"),
        own_threads_error=record.own_threads_error,
        cores=record.cores,
    )
    if not len(ratios):
        return runs
    middle = float(np.median(ratios))
    apart = float(np.abs(ratios / middle - 1).max())
    error = max(apart, *(pilot.error for pilot in chosen))
    return replace(runs, longer=middle - 1, error=error, plans=len(ratios))


def _describe_runs(runs: MachineRuns) -> tuple[str, ...]:
    if not runs.plans:
        return ()
    how = f"{abs(runs.longer):.1%} {'longer' if runs.longer > 0 else 'less'} than"
    return (f"{runs.describe_plans()} took {how} the costs say, which is added",)


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


def _pool_alike(
    columns: Mapping[int, DeviceProfile], cluster: Cluster, *, loaded: bool
) -> tuple[dict[int, DeviceProfile], tuple[str, ...]]:
    """The columns, where alike devices have the mean of their times, and notes of them."""
    alike: dict[object, dict[str, DeviceProfile]] = {}
    for column, profiled in columns.items():
        ops = tuple(seconds is None for seconds in profiled.figures(loaded=loaded).ops)
        state = loaded and profiled.loaded is not None
        key = _figures(cluster.devices[column]), _NUMBERS.sub("#", profiled.processor), state, ops
        alike.setdefault(key, {})[profiled.name] = profiled
    pooled, notes = dict[str, DeviceProfile](), list[str]()
    for profiles in alike.values():
        rest = sorted(profiles.values(), key=lambda profiled: _total(profiled, loaded=loaded))
        while rest:
            group = [rest.pop(0)]
            least, spread = _total(group[0], loaded=loaded), group[0].figures(loaded=loaded).spread
            while rest:
                wider = max(spread, rest[0].figures(loaded=loaded).spread)
                if _total(rest[0], loaded=loaded) > least * (1 + max(wider, ALIKE)):
                    break
                group.append(rest.pop(0))
                spread = wider
            if len(group) > 1:
                pooled |= {one.name: _with_mean(one, group, loaded=loaded) for one in group}
                apart = _total(group[-1], loaded=loaded) / least - 1 if least > 0 else 0.0
                names = ", ".join(sorted(one.name for one in group))
                if apart >= SHOWN:
                    notes.append(f"{names} are alike, and get the mean of their times, which differ by {apart:.1%}")
    return {column: pooled.get(profiled.name, profiled) for column, profiled in columns.items()}, tuple(notes)


def _total(profiled: DeviceProfile, *, loaded: bool) -> float:
    return math.fsum(seconds for seconds in profiled.figures(loaded=loaded).ops if seconds is not None)


def _with_mean(profiled: DeviceProfile, group: Sequence[DeviceProfile], *, loaded: bool) -> DeviceProfile:
    """A profile with the mean times of a group, whose profiles have times of the same ops."""
    rows = zip(*(one.figures(loaded=loaded).ops for one in group), strict=True)
    ops = tuple(None if row[0] is None else math.fsum(row) / len(row) for row in rows)
    figures = profiled.figures(loaded=loaded).model_copy(update={"ops": ops})
    state = "idle" if profiled.figures(loaded=loaded) is profiled.idle else "loaded"
    overhead = math.fsum(one.call_overhead for one in group) / len(group)
    return profiled.model_copy(update={state: figures, "call_overhead": overhead})


def _figures(device: Device) -> tuple[object, ...]:
    efficiency = tuple(sorted(device.efficiency.items()))
    return device.kind, tuple(sorted(device.peak_flops.items())), device.memory_bandwidth, efficiency
