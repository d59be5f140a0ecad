"""The local machine as a device: cores, clock, instruction set and memory, as reported by Linux.

Peak = cores × clock × operations per cycle of the widest vector unit. Linux does not report the memory bandwidth,
so a default per socket is assumed. All figures are estimates, and the device's notes say so.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from placewise._util.cores import allowed_cores
from placewise._util.units import format_seconds
from placewise.catalog.entries import catalog
from placewise.model.cluster import Device

SOCKET_BANDWIDTH = 50e9
"""Bytes/s of the memory of one socket: about two channels of DDR4-3200, the smallest common configuration."""

CLOCK = 2.5e9
"""Hertz; the default where the system does not report a clock."""

_VECTOR_WIDTHS = (("avx512f", 64), ("avx2", 32), ("avx", 16), ("sse2", 8), ("asimd", 16))
"""float32 operations per cycle and core: two fused multiply-add units of 512, 256 or (asimd) 128 bits."""

_NARROW_TYPES = (
    ("amx_int8", "int8", 32), ("amx_bf16", "bfloat16", 16), ("amx_fp16", "float16", 16),
    ("avx512_vnni", "int8", 4), ("avx_vnni", "int8", 4), ("asimddp", "int8", 4),
    ("avx512_bf16", "bfloat16", 2), ("bf16", "bfloat16", 2),
    ("avx512_fp16", "float16", 2), ("asimdhp", "float16", 2),
)  # fmt: skip
"""Instruction sets and the factor by which they raise the float32 rate for narrower types; the first match counts."""


@dataclass(frozen=True, slots=True)
class Processor:
    """The contents of `/proc/cpuinfo`: name, physical cores and sockets in use, clock in Hertz, and flags."""

    title: str
    cores: int
    sockets: int
    clock: float
    flags: frozenset[str]


def this_machine(*, root: Path = Path("/"), cpus: frozenset[int] | None = None) -> Device:
    """The processors and the memory available to this process, as one device named ``cpu``.

    `root` contains ``proc`` and ``sys``; `cpus` are the processors to use (default: the process's affinity).
    """
    allowed = frozenset(allowed_cores()) if cpus is None else cpus
    processor = _read_processor(root, allowed)
    cores = core_count(root=root, cpus=allowed)
    width = next((width for flag, width in _VECTOR_WIDTHS if flag in processor.flags), 8)
    rate = cores * processor.clock * width
    peaks = {"float64": rate / 2, "float32": rate}
    for flag, dtype, factor in _NARROW_TYPES:
        if flag in processor.flags and dtype not in peaks:
            peaks[dtype] = rate * factor
    memory = _lowest_limit(root, "memory", _read_memory_limit)
    installed = _read_installed_memory(root)
    behaviour = catalog().behaviour["cpu"]
    return Device(
        name="cpu",
        kind="cpu",
        memory=installed if memory is None else min(installed, memory),
        peak_flops=peaks,
        memory_bandwidth=SOCKET_BANDWIDTH * processor.sockets,
        op_overhead=behaviour.overhead_on(cores),
        efficiency=behaviour.efficiency_on(cores),
        notes=(
            f"this machine, estimated: {processor.title}, {cores:g} cores × {processor.clock / 1e9:.1f} GHz × "
            f"{width} operations per cycle; memory bandwidth {SOCKET_BANDWIDTH / 1e9:.0f} GB/s per socket is assumed",
            f"efficiency and {format_seconds(behaviour.overhead_on(cores))} per op: those of cpu with {cores:g} cores",
        ),
    )


def this_core(*, root: Path = Path("/"), cpus: frozenset[int] | None = None) -> Device:
    """One core of this machine: an equal share of its speed and memory bandwidth, and all of its memory."""
    machine, cores = this_machine(root=root, cpus=cpus), core_count(root=root, cpus=cpus)
    behaviour = catalog().behaviour["cpu"]
    physical_cores = _read_processor(root, frozenset(allowed_cores()) if cpus is None else cpus).cores
    return replace(
        machine,
        name="core",
        kind="core",
        peak_flops={dtype: peak / cores for dtype, peak in machine.peak_flops.items()},
        memory_bandwidth=machine.memory_bandwidth / physical_cores,
        op_overhead=behaviour.overhead_on(1),
        efficiency=behaviour.efficiency_on(1),
        notes=(
            *machine.notes,
            f"one core of {physical_cores}: an equal share of the machine's speed and memory bandwidth; "
            "the memory is the machine's, shared by all cores",
        ),
    )


def processor_title() -> str:
    """The name of this machine's processor and the number of its cores."""
    processor = _read_processor(Path("/"), frozenset(range(os.cpu_count() or 1)))
    return f"{processor.title}, {processor.cores} cores"


def core_count(*, root: Path = Path("/"), cpus: frozenset[int] | None = None) -> float:
    """The physical cores available to this process, limited by its CPU quota (which may be fractional: 2.5)."""
    cores = _read_processor(root, frozenset(allowed_cores()) if cpus is None else cpus).cores
    quota = _lowest_limit(root, "cpu", _read_cpu_quota)
    return cores if quota is None else min(cores, quota)


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def _read_processor(root: Path, allowed: frozenset[int]) -> Processor:
    all_blocks = [_parse_block(block) for block in _read_text(root / "proc/cpuinfo").split("\n\n")]
    blocks = [
        block for block in all_blocks if block.get("processor", "").isdigit() and int(block["processor"]) in allowed
    ]
    if not blocks:
        return Processor(platform.machine() or "unknown processor", len(allowed), 1, CLOCK, _guess_flags())
    cores = {(b.get("physical id", "0"), b.get("core id", b["processor"])) for b in blocks}
    first = blocks[0]
    flags = frozenset((first.get("flags") or first.get("Features", "")).split())
    title = first.get("model name", platform.machine())
    return Processor(title, len(cores), len({core[0] for core in cores}), _read_clock(root, first), flags)


def _guess_flags() -> frozenset[str]:
    return frozenset(("asimd",) if platform.machine().lower() in ("arm64", "aarch64") else ("sse2",))


def _parse_block(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _read_clock(root: Path, block: dict[str, str]) -> float:
    """Hertz: the base frequency, else the one in the processor's name, the maximum, or the current one."""
    policy = root / "sys/devices/system/cpu/cpu0/cpufreq"
    base, highest = (_read_text(policy / name).strip() for name in ("base_frequency", "cpuinfo_max_freq"))
    named = re.search(r"@ ([\d.]+)\s*GHz", block.get("model name", ""))
    if base.isdigit():
        return int(base) * 1e3
    if named:
        return float(named[1]) * 1e9
    if highest.isdigit():
        return int(highest) * 1e3
    current = re.fullmatch(r"\d+(\.\d+)?", block.get("cpu MHz", ""))
    return round(float(current[0]) / 100) * 1e8 if current and float(current[0]) >= 100 else CLOCK


def _read_installed_memory(root: Path) -> float:
    match = re.search(r"MemTotal:\s+(\d+) kB", _read_text(root / "proc/meminfo"))
    if match:
        return int(match[1]) * 1024.0
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _lowest_limit(root: Path, controller: str, read: Callable[[Path], float | None]) -> float | None:
    """The lowest limit of a controller over the process's control groups and all their parents."""
    limits = [limit for folder in _cgroup_folders(root, controller) if (limit := read(folder)) is not None]
    return min(limits, default=None)


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the process's control groups (v1 and v2), innermost first."""
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0":
            base = root / "sys/fs/cgroup"
        elif controller in names.split(","):
            base = root / "sys/fs/cgroup" / controller
        else:
            continue
        own = path.strip("/")
        for part in (Path(own), *Path(own).parents) if own else (Path(),):
            yield base / part


def _read_cpu_quota(folder: Path) -> float | None:
    quota, _, period = _read_text(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (_read_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(quota) * int(period) else None


def _read_memory_limit(folder: Path) -> float | None:
    text = _read_text(folder / "memory.max").strip() or _read_text(folder / "memory.limit_in_bytes").strip()
    return float(text) if text.isdigit() else None
