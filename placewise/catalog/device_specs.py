"""Device specs: devices with their default links, before the cluster assigns their names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from placewise._util.units import format_bytes, format_seconds
from placewise.catalog.detect import this_core, this_machine
from placewise.catalog.entries import APPLE, DeviceEntry, catalog, describe_family, find_device, is_part_of_chip
from placewise.errors import ClusterError
from placewise.model.cluster import ASSUMED, MEANT, Device, is_rpc

MAX_DEVICES = 256
"""The largest number of devices in a cluster; links are stored for every pair."""

SMALL_MACHINE, SMALL_SHARE, LARGE_SHARE = 35e9, 2 / 3, 3 / 4
"""What macOS lets an Apple GPU have of up to 32 GB, and of more (recommendedMaxWorkingSetSize in logs of llama.cpp:
21845 MB of 32 GB in ollama#434, 49152 MB of 64 GB and 73728 MB of 96 GB in llama.cpp#1870 and #3213)."""
_LEFT = f"{MEANT}macOS lets it have "
_REST = f"{MEANT}what is left of one memory beside the GPU's part"
_NO_MEMORY = "0 bytes of memory: nothing is placed here"


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device and the default links of its model.

    `prefix` starts the name that the device still has to get ("" if its name is final); `model` is its name in the
    catalogue ("" if unknown); `host_link`, `peer_link` (to devices of the same model) and `nvlink` (optional bridge)
    are names of links in the catalogue. `rest` are the bytes of the machine's memory that a GPU may not use, and
    `shares` says that a processor has the bandwidth of that GPU's memory.
    """

    device: Device
    prefix: str = ""
    model: str = ""
    host_link: str = ""
    peer_link: str = ""
    nvlink: str = ""
    rest: float = 0.0
    shares: bool = False


def parse_device(name: str, memory: float | None = None, *, cpu: str = "") -> DeviceSpec:
    """The device for a model name, a disk, ``core``, ``cpu`` (the model `cpu`) or ``this``. Raises ClusterError."""
    word = name.strip().lower()
    if word == "disk" or word in catalog().disks:
        return with_memory(_disk_spec(catalog().defaults.disk if word == "disk" else word), memory)
    if word == "this":
        return with_memory(DeviceSpec(this_machine(), prefix="cpu"), memory)
    if word == "core":
        core = DeviceSpec(this_core(), "core:", model="core", host_link="in-place", peer_link="core-to-core")
        return with_memory(core, memory)
    if is_rpc(word):
        return with_memory(_rpc_spec(word, cpu), memory)
    if word == "cpu":
        return with_memory(default_spec(cpu or catalog().defaults.cpu), memory)
    model, family = find_device(name), describe_family(name)
    spec = _catalog_spec(model)
    if family:
        spec = replace(spec, device=add_notes(spec.device, MEANT + family))
    machine = spec.device.memory if memory is None else memory
    usable = _find_usable(model, machine)
    if 0 < usable < machine:
        raised = "--max-memory where iogpu.wired_limit_mb is larger"
        note = f"{_LEFT}{format_bytes(usable)} of {format_bytes(machine)}; {raised}"
        return replace(spec, device=add_notes(set_memory(spec.device, usable), note), rest=machine - usable)
    return with_memory(spec, usable)


def _find_usable(model: str, memory: float) -> float:
    """The bytes that a device of the catalogue may use in a machine with so much memory: a part for a GPU of Apple."""
    if catalog().devices[model].behaviour != APPLE:
        return memory
    return memory * (SMALL_SHARE if memory <= SMALL_MACHINE else LARGE_SHARE)


def _rpc_spec(name: str, cpu: str) -> DeviceSpec:
    """An RPC server of llama.cpp: of unknown model, and over the Ethernet of a home."""
    defaults = catalog().defaults
    spec = default_spec(defaults.desktop_cpu if is_part_of_chip(cpu) else cpu or defaults.cpu)
    device = replace(spec.device, name=name, kind="accelerator")
    return replace(spec, device=device, prefix="", host_link=catalog().defaults.rpc_link)


def _disk_spec(model: str) -> DeviceSpec:
    """A disk. The CPU computes the ops placed on it, see `name_devices`."""
    entry = catalog().disks[model]
    speed = entry.bandwidth * entry.efficiency
    note = (
        f"{entry.title}: weights are read from it in every run, at {speed / 1e9:.3g} GB/s ({entry.efficiency:.0%} of "
        f"{entry.bandwidth / 1e9:.3g} GB/s, assumed; {entry.source})"
    )
    return DeviceSpec(Device("disk", kind="disk", weight_bandwidth=speed, notes=(note,)), prefix="disk", model=model)


def _add_cpu_figures(spec: DeviceSpec, cpu: Device) -> DeviceSpec:
    """A disk of the catalogue with the figures of the CPU that computes its ops."""
    if spec.device.kind != "disk" or not spec.model or spec.device.peak_flops:
        return spec
    device = replace(
        spec.device, peak_flops=cpu.peak_flops, memory_bandwidth=cpu.memory_bandwidth, op_overhead=cpu.op_overhead,
        efficiency=cpu.efficiency, unsupported=cpu.unsupported, supported=cpu.supported,
    )  # fmt: skip
    return replace(spec, device=add_notes(device, f"its ops are computed by {cpu.name}"))


def default_spec(model: str, why: str = "") -> DeviceSpec:
    """A device of unknown model: the figures of `model`, without its links between equal devices."""
    spec = _catalog_spec(model)
    note = f"{ASSUMED}like {catalog().devices[model].title}{why}, since no model is given"
    return replace(spec, device=add_notes(spec.device, note), model="", peer_link="", nvlink="")


def with_memory(spec: DeviceSpec, memory: float | None) -> DeviceSpec:
    """The device with this memory in bytes, if given."""
    return spec if memory is None else replace(spec, device=set_memory(spec.device, memory))


def set_memory(device: Device, memory: float) -> Device:
    """The device with this memory in bytes. 0 makes it unavailable; more makes it available again if it had 0."""
    notes = tuple(note for note in device.notes if note != _NO_MEMORY and not note.startswith(_LEFT))
    if memory == 0:
        return replace(device, memory=memory, available=False, notes=(*notes, _NO_MEMORY))
    return replace(device, memory=memory, available=device.available or device.memory == 0, notes=notes)


def leave_rest(specs: Sequence[DeviceSpec], limited: Sequence[bool]) -> list[DeviceSpec]:
    """The specs in which processors without a limit of their own have what the GPU of their node may not use."""
    rests: dict[str, list[float]] = {}
    for spec in specs:
        if spec.rest and not is_rpc(spec.device.name):
            rests.setdefault(spec.device.node, []).append(spec.rest)
    cpus = Counter(spec.device.node for spec in specs if spec.device.kind == "cpu")
    left = {node: found[0] / max(cpus[node], 1) for node, found in rests.items() if len(found) == 1}
    return [
        replace(spec, device=add_notes(set_memory(spec.device, left[spec.device.node]), _REST))
        if spec.device.kind == "cpu" and not is_limited and spec.device.node in left else spec
        for spec, is_limited in zip(specs, limited, strict=True)
    ]  # fmt: skip


def _share_bandwidth(specs: Sequence[DeviceSpec]) -> list[DeviceSpec]:
    """The specs in which Apple's processors have the bandwidth of the memory that the GPU of their node shares."""
    known, chips = catalog().devices, dict[str, float]()
    for spec in specs:
        here = spec.model in known and not is_rpc(spec.device.name)
        if here and known[spec.model].behaviour == APPLE:
            chips[spec.device.node] = min(spec.device.memory_bandwidth, chips.get(spec.device.node, math.inf))
    return [
        _set_bandwidth(spec, chips[spec.device.node]) if spec.shares and spec.device.node in chips else spec
        for spec in specs
    ]


def _set_bandwidth(spec: DeviceSpec, bandwidth: float) -> DeviceSpec:
    note = f"{MEANT}its memory is the GPU's, of {bandwidth / 1e9:g} GB/s"
    return replace(spec, device=add_notes(replace(spec.device, memory_bandwidth=bandwidth), note))


def share_rest(devices: Sequence[Device], limits: Mapping[str, float]) -> dict[str, float]:
    """The limits of memory [bytes] by device, and those of the other parts where some of a Mac's memory is given."""
    found = dict(limits)
    for gpu in devices:
        cpus = [cpu for cpu in devices if _REST in cpu.notes and cpu.node == gpu.node]
        if not cpus or is_rpc(gpu.name) or not any(note.startswith(_LEFT) for note in gpu.notes):
            continue
        whole, free = gpu.memory + sum(cpu.memory for cpu in cpus), [cpu for cpu in cpus if cpu.name not in limits]
        given = sum(limits.get(cpu.name, 0.0) for cpu in cpus)
        if gpu.name in limits:
            rest = max(whole - limits[gpu.name] - given, 0.0) / max(len(free), 1)
            found |= {cpu.name: rest for cpu in free}
        elif given:
            kept = given + sum(cpu.memory for cpu in free)
            found[gpu.name] = min(gpu.memory, max(whole - kept, 0.0))
    return found


def rename_device(spec: DeviceSpec, name: str) -> DeviceSpec:
    """The device with its final name."""
    return replace(spec, device=replace(spec.device, name=name), prefix="")


def add_notes(device: Device, *notes: str) -> Device:
    """The device with additional notes."""
    return replace(device, notes=(*device.notes, *notes))


def name_devices(specs: Sequence[DeviceSpec]) -> tuple[DeviceSpec, ...]:
    """Name the devices that have a prefix: prefix and number, or the bare prefix (``cpu``) if there is only one.

    Disks get the figures of the first CPU, or of the default CPU, and CPUs of Apple the bandwidth of their GPU.
    """
    specs = _share_bandwidth(specs)
    if not specs:
        raise ClusterError("no device is given", remedy="name at least one, such as 'A100-80GB,cpu'")
    if len(specs) > MAX_DEVICES:
        raise ClusterError(f"{len(specs)} devices are too many", remedy=f"describe at most {MAX_DEVICES}")
    taken = {spec.device.name for spec in specs if not spec.prefix}
    count = Counter(spec.prefix for spec in specs)
    names = {prefix: _free_names(prefix, count[prefix] == 1, taken) for prefix in count if prefix}
    named = [
        replace(spec, device=replace(spec.device, name=next(names[spec.prefix])), prefix="") if spec.prefix else spec
        for spec in specs
    ]
    cpus = [spec.device for spec in named if spec.device.kind == "cpu"]
    cpu = cpus[0] if cpus else _catalog_spec(catalog().defaults.cpu).device
    return tuple(_add_cpu_figures(spec, cpu) for spec in named)


def _free_names(prefix: str, single: bool, taken: set[str]) -> Iterator[str]:
    if prefix.isalpha():
        if single and prefix not in taken:
            yield prefix
        prefix = f"{prefix}:"
    for number in range(len(taken) + MAX_DEVICES):
        if f"{prefix}{number}" not in taken:
            yield f"{prefix}{number}"


def _catalog_spec(model: str) -> DeviceSpec:
    entry = catalog().devices[model]
    behaviour = catalog().behaviour[entry.behaviour]
    overhead = behaviour.overhead_on(entry.cores)
    kind = f"{entry.behaviour} with {entry.cores} cores" if entry.cores else entry.behaviour
    device = Device(
        name=model,
        kind=entry.kind,
        memory=entry.memory,
        peak_flops=_add_tf32(entry),
        memory_bandwidth=entry.memory_bandwidth,
        op_overhead=overhead,
        efficiency=behaviour.efficiency_on(entry.cores),
        error=behaviour.error or 0.0,
        notes=(
            f"{entry.title}: {format_bytes(entry.memory)}; {entry.source}",
            f"efficiency and {format_seconds(overhead)} per op: as for {kind}",
        ),
    )
    nvlink = entry.nvlink or (entry.peer_link if catalog().links[entry.peer_link or "pcie3"].brick else "")
    shares = model == catalog().defaults.apple_cpu
    return DeviceSpec(device, entry.prefix, model, entry.host_link, entry.peer_link, nvlink, shares=shares)


def _add_tf32(entry: DeviceEntry) -> dict[str, float]:
    """The peaks of a device, with that of TF32: half of float16 on NVIDIA's GPUs since Ampere, which have bfloat16.

    So the datasheets of A100, A10, L4, L40S, H100, H200 and B200 and the whitepapers of GA102 and Ada have it.
    """
    peaks = dict(entry.peak_flops)
    if entry.behaviour == "cuda" and {"float16", "bfloat16"} <= peaks.keys():
        peaks.setdefault("tf32", peaks["float16"] / 2)
    return peaks
