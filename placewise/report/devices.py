"""The table of devices: as many columns as the terminal is wide, and never half a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from placewise._util.text import visible
from placewise._util.units import format_bytes, format_seconds
from placewise.model.result import DeviceUse, Judgement

_BAR, _BETWEEN = 12, 2
_PHASES = ("forward", "backward")
_COLUMNS = ("device", "ops", "load", "", *_PHASES, "compute", "send", "receive", "memory", "free", "waits for")
_WORDS = {"device": 16, "waits for": 10}
"""The columns of words, which may fold, and how narrow they may get while another column can go instead."""
_LEAVING = ((), ("",), ("send", "receive"), ("compute",), _PHASES, ("free",), ("waits for",), ("memory",), ("ops",))
"""What goes, step by step, as the terminal gets narrower."""


@dataclass(frozen=True, slots=True)
class DeviceView:
    """Load, memory and waiting of each device, and the load of each shared link; `closed` are devices left out."""

    judgement: Judgement
    closed: frozenset[str] = frozenset()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        judgement = self.judgement
        rows = [_device_row(judgement, use, use.device in self.closed) for use in judgement.devices]
        rows += [_wire_row(judgement, wire, load) for wire, load in judgement.wires.items()]
        rows = [{name: visible(cell) for name, cell in row.items()} for row in rows]
        widths = {name: max(cell_len(text) for text in (name, *(row[name] for row in rows))) for name in _COLUMNS}
        flushes = any(use.forward is not None for use in judgement.devices)
        shown = _shown(widths, options.max_width, () if flushes else _PHASES)
        widths |= _folded(widths, shown, options.max_width)
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in shown:
            right = name not in ("", *_WORDS)
            table.add_column(name, justify="right" if right else "left", width=widths[name], overflow="fold")
        slowest = _bottleneck(judgement)
        for row in rows:
            bold = row["device"] == visible(slowest)
            table.add_row(*(Text(row[name], style="bold" if bold and name == "device" else "") for name in shown))
        yield table


def _shown(widths: Mapping[str, int], room: int, unknown: Sequence[str]) -> list[str]:
    """The columns that fit, without those of which nothing is known; words are folded if need be."""
    left = [name for name in _COLUMNS if name not in unknown]
    for leaving in _LEAVING:
        left = [name for name in left if name not in leaving]
        if sum(min(widths[name], _WORDS.get(name, widths[name])) for name in left) + _BETWEEN * (len(left) - 1) <= room:
            break
    return left


def _folded(widths: Mapping[str, int], shown: Sequence[str], room: int) -> dict[str, int]:
    """The widths of the columns of words: what the others leave, the names of devices served first."""
    words = [name for name in shown if name in _WORDS]
    least = {name: min(widths[name], _WORDS[name]) for name in words}
    spare = room - _BETWEEN * (len(shown) - 1) - sum(least.get(name, widths[name]) for name in shown)
    for name in words:
        more = max(min(spare, widths[name] - least[name]), 1 - least[name])
        least[name] += more
        spare -= more
    return least


def _device_row(judgement: Judgement, use: DeviceUse, closed: bool) -> dict[str, str]:
    idle = "left out" if closed else "unused"
    waits = "bottleneck" if use.device == _bottleneck(judgement) else use.waits_for if use.ops else idle
    cells = (
        use.device, str(use.ops), format_seconds(use.load), _bar(use.load, judgement.value),
        *("" if phase is None else format_seconds(phase) for phase in (use.forward, use.backward)),
        format_seconds(use.compute), format_seconds(use.send), format_seconds(use.receive),
        f"{format_bytes(use.peak)} of {format_bytes(use.capacity)}",
        format_bytes(use.free) if use.free >= 0 else f"−{format_bytes(-use.free)}", waits,
    )  # fmt: skip
    return dict(zip(_COLUMNS, cells, strict=True))


def _wire_row(judgement: Judgement, wire: str, load: float) -> dict[str, str]:
    waits = "bottleneck" if wire == _bottleneck(judgement) else ""
    cells = (f"link {wire}", "", format_seconds(load), _bar(load, judgement.value), *[""] * 7, waits)
    return dict(zip(_COLUMNS, cells, strict=True))


def _bottleneck(judgement: Judgement) -> str:
    """The device or wire that sets the value: none where nothing takes any time, and never an unused device."""
    unused = {use.device for use in judgement.devices if not use.ops}
    return judgement.bottleneck if judgement.value > 0 and judgement.bottleneck not in unused else ""


def _bar(load: float, value: float) -> str:
    share = load / value if value > 0 and math.isfinite(value) else 0.0
    full = round(min(max(share, 0.0), 1.0) * _BAR)
    return "█" * full + "░" * (_BAR - full)
