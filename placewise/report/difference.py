"""What differs between two plans: the parts of their values, what moved, and what their devices do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from placewise._util.text import visible
from placewise._util.units import format_bytes, format_seconds
from placewise.report.account import Part
from placewise.report.console import rows_table
from placewise.report.leaderboard import finite
from placewise.report.moves import Move

MOST_PARTS, MOST_DEVICES = 10, 24
"""Rows of parts and of devices that are shown; parts beyond them are one row, so that the sum stays the value."""
EQUAL = 1e-9
"""Values that differ by a smaller share are the same."""

Use = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """A part of the value before and after, in seconds."""

    what: str
    where: str
    before: float
    after: float

    @property
    def delta(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the plans: what it is called, what its value is called and is, and where that comes from.

    `parts` add up to the value; None where that is not known. `uses` maps a device to its seconds (compute, copies,
    idle) and bytes (peak).
    """

    name: str
    measure: str
    value: float
    lower_bound: float
    parts: tuple[Part, ...] | None
    uses: Mapping[str, Use]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """All that differs: `moves` in lines, `moved` ops of `ops` in all."""

    before: Side
    after: Side
    moves: tuple[Move, ...]
    moved: int
    ops: int
    notes: tuple[str, ...] = ()

    @property
    def comparable(self) -> bool:
        """Whether both values measure the same thing, and both plans can run."""
        finite_values = math.isfinite(self.before.value) and math.isfinite(self.after.value)
        return self.before.measure == self.after.measure and finite_values

    @property
    def changes(self) -> tuple[Change, ...]:
        """The parts of both values, the largest change first; none where those of one are not known."""
        if not self.comparable or self.before.parts is None or self.after.parts is None:
            return ()
        return part_changes(self.before.parts, self.after.parts)


def part_changes(before: Iterable[Part], after: Iterable[Part]) -> tuple[Change, ...]:
    """The parts of two values beside each other: their sums are the values."""
    old = {(part.what, part.where): part.seconds for part in before}
    new = {(part.what, part.where): part.seconds for part in after}
    both = [Change(*key, old.get(key, 0.0), new.get(key, 0.0)) for key in dict.fromkeys((*old, *new))]
    return tuple(sorted(both, key=lambda change: -abs(change.delta)))


def difference_view(found: Difference) -> RenderableType:
    """Everything that `diff` prints."""
    parts: list[RenderableType] = [Text(visible(headline(found)), style="bold")]
    if found.changes:
        parts += [Text(visible(reason(found.changes))), Text()]
        parts += [changes_table(found.changes, (found.before.name, found.after.name))]
    parts += [Text(), Text(visible(moved_line(found)), style="bold"), *_moves(found.moves)]
    parts += [Text(), _devices(found)]
    parts += [Text(visible(f"note: {note}"), style="dim") for note in found.notes]
    return Group(*parts)


def headline(found: Difference) -> str:
    """The two values, and how much better or worse the second is."""
    a, b = found.before, found.after
    if a.measure != b.measure:
        return (
            f"{a.name} has a {a.measure} of {format_seconds(a.value)}, {b.name} a {b.measure} of "
            f"{format_seconds(b.value)}: these cannot be compared"
        )
    if not found.comparable:
        unable = a if not math.isfinite(a.value) else b
        return f"{a.measure} {format_seconds(a.value)} → {format_seconds(b.value)}: {unable.name} cannot run"
    if same(a.value, b.value):
        return f"{a.measure} {format_seconds(a.value)} in both"
    change = f"{signed(b.value - a.value)}, {b.name} is {compared(b.value, a.value)}"
    return f"{a.measure} {format_seconds(a.value)} → {format_seconds(b.value)} ({change})"


def same(first: float, second: float) -> bool:
    """Whether two values differ by rounding only."""
    return math.isclose(first, second, rel_tol=EQUAL)


def compared(value: float, base: float, than: str = "") -> str:
    """How much faster or slower a value is than another, called so, in words: in percent or multiples."""
    better, worse = min(value, base), max(value, base)
    if not math.isfinite(worse):
        return "possible, unlike the other" if value < base else "impossible"
    if better <= 0 or worse >= 2 * better:
        ratio = f"{worse / better:.3g}×" if better > 0 else "infinitely"
        return f"{ratio} as {'fast' if value < base else 'slow'}{f' as {than}' if than else ''}"
    how = "faster" if value < base else "slower"
    return f"{_percent(abs(value - base) / base)} {how}{f' than {than}' if than else ''}"


def reason(changes: Sequence[Change]) -> str:
    """The change of the value by what it is spent on, in one sentence."""
    total: dict[str, list[float]] = {}
    for change in changes:
        total.setdefault(change.what, []).append(change.delta)
    sums = {what: math.fsum(deltas) for what, deltas in total.items()}
    told = [f"{what} {signed(delta)}" for what, delta in sorted(sums.items(), key=lambda item: -abs(item[1])) if delta]
    return f"of which {', '.join(told)}" if told else "in parts of the same length"


def changes_table(changes: Sequence[Change], names: tuple[str, str]) -> RenderableType:
    """The parts of two values; the last row is their sum, which is the values."""
    shown, rest = list(changes[:MOST_PARTS]), changes[MOST_PARTS:]
    if rest:
        sums = math.fsum(change.before for change in rest), math.fsum(change.after for change in rest)
        shown.append(Change(f"{len(rest)} smaller parts", "", *sums))
    sums = math.fsum(change.before for change in changes), math.fsum(change.after for change in changes)
    rows = [_cells(change) for change in shown if change.before or change.after]
    return rows_table(
        ("where the time goes", "", f"{names[0]} ", f"{names[1]} ", "change "),
        [*rows, _cells(Change("sum", "", *sums))],
    )


def moved_line(found: Difference) -> str:
    """How many ops moved, in one sentence."""
    if not found.moved:
        return f"all {found.ops} ops are where they were"
    return f"{found.moved} of {found.ops} ops moved ({_percent(found.moved / found.ops)})"


def document_of(found: Difference) -> dict[str, Any]:
    """The difference as JSON takes it; seconds and bytes."""
    return {
        "before": _side(found.before),
        "after": _side(found.after),
        "comparable": found.comparable,
        "change": finite(found.after.value - found.before.value) if found.comparable else None,
        "parts": [
            {"what": c.what, "where": c.where, "before": c.before, "after": c.after, "change": c.delta}
            for c in found.changes
        ],
        "ops": found.ops,
        "moved": found.moved,
        "moves": [
            {"from": m.source, "to": m.target, "module": m.module, "ops": m.ops, "of": m.of} for m in found.moves
        ],
        "notes": list(found.notes),
    }


def signed(seconds: float) -> str:
    """A change of seconds with its sign: "−1.2 ms"."""
    return f"{'−' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "less than 0.1%"


def _side(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "measure": side.measure,
        "value": finite(side.value),
        "lower_bound": finite(side.lower_bound),
        "devices": {name: {key: finite(value) for key, value in use.items()} for name, use in side.uses.items()},
    }


def _cells(change: Change) -> list[str]:
    delta = signed(change.delta) if change.delta else "="
    return [change.what, change.where, format_seconds(change.before), format_seconds(change.after), delta]


def _moves(moves: Sequence[Move]) -> list[RenderableType]:
    if not moves:
        return []
    rows = [(f"{move.source} → {move.target}", *_module(move)) for move in moves]
    repeated = [
        (("" if row and rows[row - 1][0] == cells[0] else cells[0]), *cells[1:]) for row, cells in enumerate(rows)
    ]
    return [rows_table(("from → to", "ops ", "module", ""), repeated)]


def _module(move: Move) -> tuple[str, str, str]:
    name = move.module or "the model"
    return str(move.ops), name, "all of it" if move.whole else f"of its {move.of}"


def _devices(found: Difference) -> RenderableType:
    """What every device does before and after."""
    names = list(dict.fromkeys((*found.before.uses, *found.after.uses)))
    rows = []
    for name in names[:MOST_DEVICES]:
        a, b = found.before.uses.get(name), found.after.uses.get(name)
        seconds = [_arrow(a, b, key, format_seconds) for key in ("compute", "copies", "idle")]
        rows.append((name, _arrow(a, b, "ops", lambda ops: f"{ops:.0f}"), *seconds, _arrow(a, b, "peak", format_bytes)))
    table = rows_table(("device", "ops ", "compute ", "copies ", "idle ", "memory "), rows)
    left = len(names) - MOST_DEVICES
    return Group(table, Text(f"… and {left} more devices: --json has them", style="dim")) if left > 0 else table


def _arrow(a: Use | None, b: Use | None, key: str, shown: Any) -> str:
    """A figure before → after, once if it stays."""
    told = ["–" if use is None else shown(use[key]) for use in (a, b)]
    return told[0] if told[0] == told[1] else " → ".join(told)
