"""What each device does: a table that fits the terminal, remarks, and memory peaks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from placewise._util.text import visible
from placewise._util.units import format_bytes, format_seconds
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import DeviceUse, Judgement
from placewise.simulate import MemoryPeak
from placewise.simulate.blocks import held_by_several

_BAR, _BETWEEN = 12, 2
_PHASES = ("forward", "backward")
_COLUMNS = ("device", "ops", "load", "", *_PHASES, "compute", "send", "receive", "memory", "free", "waits for")
_WORDS = {"device": 16, "waits for": 10}
"""Text columns, which may fold, and the width below which another column is dropped instead."""
_DROPS = ((), ("",), ("send", "receive"), ("compute",), _PHASES, ("free",), ("waits for",), ("memory",), ("ops",))
"""The columns to drop, step by step, as the terminal gets narrower."""
FULL = 0.95
"""The share of memory from which on a device counts as full."""
MAX_KINDS = 3
"""How many kinds of op, weights or tensors a sentence names."""
_MEMORY_KINDS = (("weight", "weights"), ("state", "state"), ("tensor", "tensors"))


@dataclass(frozen=True, slots=True)
class DeviceView:
    """Load, memory and waiting of each device, and the load of each shared link; `closed` devices may not be used."""

    judgement: Judgement
    closed: frozenset[str] = frozenset()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        judgement = self.judgement
        slowest = _find_bottleneck(judgement)
        rows = [_device_row(judgement, use, use.device in self.closed, slowest) for use in judgement.devices]
        rows += [_link_row(judgement, wire, load, slowest) for wire, load in judgement.wires.items()]
        rows = [{name: visible(cell) for name, cell in row.items()} for row in rows]
        widths = {name: max(cell_len(text) for text in (name, *(row[name] for row in rows))) for name in _COLUMNS}
        flushes = any(use.forward is not None for use in judgement.devices)
        shown = _fit_columns(widths, options.max_width, () if flushes else _PHASES)
        widths |= _fold_widths(widths, shown, options.max_width)
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in shown:
            right = name not in ("", *_WORDS)
            table.add_column(name, justify="right" if right else "left", width=widths[name], overflow="fold")
        for row in rows:
            bold = row["device"] == visible(slowest)
            table.add_row(*(Text(row[name], style="bold" if bold and name == "device" else "") for name in shown))
        yield table


def _fit_columns(widths: Mapping[str, int], room: int, unknown: Sequence[str]) -> list[str]:
    """The columns that fit into `room`, without the `unknown` ones; text columns may fold."""
    left = [name for name in _COLUMNS if name not in unknown]
    for drop in _DROPS:
        left = [name for name in left if name not in drop]
        if sum(min(widths[name], _WORDS.get(name, widths[name])) for name in left) + _BETWEEN * (len(left) - 1) <= room:
            break
    return left


def _fold_widths(widths: Mapping[str, int], shown: Sequence[str], room: int) -> dict[str, int]:
    """The widths of the text columns: they share the room that is left, device names first."""
    words = [name for name in shown if name in _WORDS]
    least = {name: min(widths[name], _WORDS[name]) for name in words}
    spare = room - _BETWEEN * (len(shown) - 1) - sum(least.get(name, widths[name]) for name in shown)
    for name in words:
        more = max(min(spare, widths[name] - least[name]), 1 - least[name])
        least[name] += more
        spare -= more
    return least


def _device_row(judgement: Judgement, use: DeviceUse, closed: bool, slowest: str) -> dict[str, str]:
    idle = "left out" if closed else "unused"
    waits = "bottleneck" if use.device == slowest else use.waits_for if use.ops else idle
    cells = (
        use.device, str(use.ops), format_seconds(use.load), _bar(use.load, judgement.value),
        *("" if phase is None else format_seconds(phase) for phase in (use.forward, use.backward)),
        format_seconds(use.compute), format_seconds(use.send), format_seconds(use.receive),
        f"{format_bytes(use.peak)} of {format_bytes(use.capacity)}",
        format_bytes(use.free) if use.free >= 0 else f"−{format_bytes(-use.free)}", waits,
    )  # fmt: skip
    return dict(zip(_COLUMNS, cells, strict=True))


def _link_row(judgement: Judgement, wire: str, load: float, slowest: str) -> dict[str, str]:
    waits = "bottleneck" if wire == slowest else ""
    cells = (f"link {wire}", "", format_seconds(load), _bar(load, judgement.value), *[""] * 7, waits)
    return dict(zip(_COLUMNS, cells, strict=True))


def _find_bottleneck(judgement: Judgement) -> str:
    """The device or link that sets the value; "" where nothing takes any time. Never an unused device."""
    unused = {use.device for use in judgement.devices if not use.ops}
    return judgement.bottleneck if judgement.value > 0 and judgement.bottleneck not in unused else ""


def _bar(load: float, value: float) -> str:
    share = load / value if value > 0 and math.isfinite(value) else 0.0
    full = round(min(max(share, 0.0), 1.0) * _BAR)
    return "█" * full + "░" * (_BAR - full)


def device_remarks(problem: Problem, judgement: Judgement, placement: Placement | None = None) -> list[str]:
    """Sentences about unsupported kinds, full memory and, if a placement is given, weights with several copies."""
    names = () if placement is None else held_by_several(problem, placement.device)
    more = f" and {len(names) - MAX_KINDS} more" if len(names) > MAX_KINDS else ""
    copies = [f"held by every device that uses it: {', '.join(names[:MAX_KINDS])}{more}"] if names else []
    return [*_unsupported_remarks(problem), *_memory_remark(problem, judgement), *copies]


def _unsupported_remarks(problem: Problem) -> list[str]:
    """A sentence per set of kinds that some devices cannot run, so that these ops run elsewhere."""
    column = problem.graph.ops.kind
    count = dict(zip(column.values, np.bincount(column.codes, minlength=len(column.values)).tolist(), strict=True))
    devices_by_kinds: dict[frozenset[str], list[str]] = {}
    for device in problem.cluster:
        kinds = frozenset(kind for kind in column.values if count[kind] and not device.can_run(kind))
        if kinds and device.available:
            devices_by_kinds.setdefault(kinds, []).append(device.name)
    lines = []
    for kinds, devices in devices_by_kinds.items():
        ops, names = sum(count[kind] for kind in kinds), ", ".join(sorted(kinds)[:MAX_KINDS])
        more = f" and {len(kinds) - MAX_KINDS} kinds more" if len(kinds) > MAX_KINDS else ""
        elsewhere = "1 op is on another device" if ops == 1 else f"{ops} ops are on other devices"
        lines.append(f"{', '.join(devices)} cannot run {names}{more}: {elsewhere}")
    return lines


def _memory_remark(problem: Problem, judgement: Judgement) -> list[str]:
    """Accelerators that are all but full, unless the problem reserves headroom."""
    full = [
        f"{use.device} ({use.peak / use.capacity:.0%})"
        for device, use in zip(problem.cluster, judgement.devices, strict=True)
        if use.ops and not device.is_host and FULL * use.capacity <= use.peak <= use.capacity < math.inf
    ]
    if not full or problem.constraints.headroom or problem.constraints.spare:
        return []
    keep = "--headroom 10% keeps a tenth of every accelerator free for what frameworks lose"
    return [f"all but full: {', '.join(full)}; {keep}"]


def peak_line(peak: MemoryPeak) -> str:
    """When a device holds the most memory and what it holds then, the largest of each kind by name."""
    kinds = []
    for kind, plural in _MEMORY_KINDS:
        parts = [part for part in peak.held if part.kind == kind]
        if parts:
            names = [f"{part.name} {format_bytes(part.bytes)}" for part in parts[:MAX_KINDS]]
            names += [f"{len(parts) - MAX_KINDS:,} more"] if len(parts) > MAX_KINDS else []
            kinds.append(f"{plural} {format_bytes(peak.total(kind))} ({', '.join(names)})")
    content = "; ".join(kinds) or "nothing"
    return f"{peak.device} holds most, {format_bytes(peak.bytes)}, while {peak.op} runs: {content}"


def peak_record(peak: MemoryPeak) -> dict[str, Any]:
    """A memory peak as plain values: bytes per kind, and the largest 20 of all that the device holds."""
    totals = {plural: peak.total(kind) for kind, plural in _MEMORY_KINDS}
    held = [part._asdict() for part in peak.held[:20]]
    return {"device": peak.device, "op": peak.op, "bytes": peak.bytes, **totals, "count": len(peak.held), "held": held}
