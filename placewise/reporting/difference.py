"""What differs between two plans: the parts of their values, the ops that moved, and the loads of their devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from placewise._util.units import format_bytes, format_seconds
from placewise.reporting.breakdown import ValuePart
from placewise.reporting.console import rows_beside_nodes, rows_table
from placewise.reporting.moves import Move
from placewise.reporting.plain import shown_text

ROUNDING = 1e-12
"""Seconds below which a change is none."""
MAX_PARTS, MAX_DEVICES = 10, 24
"""How many parts and devices get a row; the parts beyond share one, so that the sum stays the value."""
EQUAL = 1e-9
"""Values that differ by a smaller share are equal."""

DeviceFigures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PartChange:
    """A part of the value before and after, in seconds."""

    what: str
    where: str
    before: float
    after: float

    @property
    def delta(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSide:
    """One of the two plans: its name, what its value measures, the value and its lower bound in seconds.

    `parts` add up to the value; None if they are unknown. `uses` maps each device to its ops, seconds (compute,
    copies, idle) and bytes (peak). `holds` says in words what each device holds, and `nodes` which
    machine it is in, where the cluster names any; both are empty without the model.
    """

    name: str
    measure: str
    value: float
    lower_bound: float
    parts: tuple[ValuePart, ...] | None
    uses: Mapping[str, DeviceFigures]
    holds: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Everything that differs: `moved` of all `ops` moved, and `moves` lists them by module."""

    before: PlanSide
    after: PlanSide
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
    def changes(self) -> tuple[PartChange, ...]:
        """The parts of both values, largest change first; empty unless both are known and comparable."""
        if not self.comparable or self.before.parts is None or self.after.parts is None:
            return ()
        return compare_parts(self.before.parts, self.after.parts)


def compare_parts(before: Iterable[ValuePart], after: Iterable[ValuePart]) -> tuple[PartChange, ...]:
    """The parts of two values side by side; each side adds up to its value."""
    old = {(part.what, part.where): part.seconds for part in before}
    new = {(part.what, part.where): part.seconds for part in after}
    both = [PartChange(*key, old.get(key, 0.0), new.get(key, 0.0)) for key in dict.fromkeys((*old, *new))]
    return tuple(sorted(both, key=lambda change: -abs(change.delta)))


def difference_view(diff: Difference) -> RenderableType:
    """Everything that `diff` prints."""
    parts: list[RenderableType] = [shown_text(headline(diff), style="bold")]
    if diff.changes:
        parts += [shown_text(explain_change(diff.changes)), Text()]
        parts += [changes_table(diff.changes, (diff.before.name, diff.after.name))]
    parts += [Text(), shown_text(moved_line(diff), style="bold"), *_moves_table(diff.moves)]
    parts += [Text(), _devices_table(diff), *_device_parts_table(diff)]
    parts += [shown_text(f"note: {note}", style="dim") for note in diff.notes]
    return Group(*parts)


def headline(diff: Difference) -> str:
    """The two values, and how much better or worse the second one is."""
    a, b = diff.before, diff.after
    if a.measure != b.measure:
        return (
            f"{a.name} has a {a.measure} of {format_seconds(a.value)}, {b.name} a {b.measure} of "
            f"{format_seconds(b.value)}: these cannot be compared"
        )
    if not diff.comparable:
        unable = a if not math.isfinite(a.value) else b
        return f"{a.measure} {format_seconds(a.value)} → {format_seconds(b.value)}: {unable.name} cannot run"
    if is_same(a.value, b.value):
        return f"{a.measure} {format_seconds(a.value)} in both"
    change = f"{format_change(b.value - a.value)}, {b.name} is {compare_values(b.value, a.value)}"
    return f"{a.measure} {format_seconds(a.value)} → {format_seconds(b.value)} ({change})"


def is_same(first: float, second: float) -> bool:
    """Whether two values differ by rounding only."""
    return math.isclose(first, second, rel_tol=EQUAL)


def compare_values(value: float, base: float, than: str = "") -> str:
    """How much faster or slower a value is than `base`, in percent or multiples; `than` names the base."""
    better, worse = min(value, base), max(value, base)
    if not math.isfinite(worse):
        return "possible, unlike the other" if value < base else "impossible"
    if better <= 0 or worse >= 2 * better:
        ratio = f"{worse / better:.3g}×" if better > 0 else "infinitely"
        return f"{ratio} as {'fast' if value < base else 'slow'}{f' as {than}' if than else ''}"
    how = "faster" if value < base else "slower"
    return f"{_format_share(abs(value - base) / base)} {how}{f' than {than}' if than else ''}"


def explain_change(changes: Sequence[PartChange]) -> str:
    """The change of the value by what the seconds are spent on, in one sentence."""
    deltas: dict[str, list[float]] = {}
    for change in changes:
        deltas.setdefault(change.what, []).append(change.delta)
    sums = sorted(((what, math.fsum(each)) for what, each in deltas.items()), key=lambda item: -abs(item[1]))
    words = [f"{what} {format_change(delta)}" for what, delta in sums if not is_nothing(delta)]
    return f"of which {', '.join(words)}" if words else "in parts of the same length"


def changes_table(changes: Sequence[PartChange], names: tuple[str, str]) -> RenderableType:
    """The parts of two values; the last row has their sums, which are the values."""
    shown, rest = list(changes[:MAX_PARTS]), changes[MAX_PARTS:]
    if rest:
        shown.append(_sum_changes(f"{len(rest)} smaller parts", rest))
    rows = [_change_cells(change) for change in shown if change.before or change.after]
    rows.append(_change_cells(_sum_changes("sum", changes)))
    return rows_table(("where the time goes", "", f"{names[0]} ", f"{names[1]} ", "change "), rows)


def _sum_changes(what: str, changes: Sequence[PartChange]) -> PartChange:
    sums = math.fsum(change.before for change in changes), math.fsum(change.after for change in changes)
    return PartChange(what, "", *sums)


def moved_line(diff: Difference) -> str:
    """How many ops moved, in one sentence."""
    if not diff.moved:
        return f"all {diff.ops} ops are where they were"
    return f"{diff.moved} of {diff.ops} ops moved ({_format_share(diff.moved / diff.ops)})"


def document_of(diff: Difference) -> dict[str, Any]:
    """The difference as JSON values, in seconds and bytes."""
    return {
        "before": _side_document(diff.before),
        "after": _side_document(diff.after),
        "comparable": diff.comparable,
        "change": diff.after.value - diff.before.value if diff.comparable else None,
        "parts": [
            {"what": c.what, "where": c.where, "before": c.before, "after": c.after, "change": c.delta}
            for c in diff.changes
        ],
        "ops": diff.ops,
        "moved": diff.moved,
        "moves": [{"from": m.source, "to": m.target, "module": m.module, "ops": m.ops, "of": m.of} for m in diff.moves],
        "notes": list(diff.notes),
    }


def is_nothing(seconds: float) -> bool:
    """Whether a change is one of rounding."""
    return abs(seconds) < ROUNDING


def format_change(seconds: float) -> str:
    """A change of seconds with its sign: "−1.2 ms"."""
    return f"{'−' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def _format_share(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "less than 0.1%"


def _side_document(side: PlanSide) -> dict[str, Any]:
    own = {name: getattr(side, name) for name in ("name", "measure", "value", "lower_bound")}
    return own | {"holds": dict(side.holds), "nodes": dict(side.nodes), "devices": dict(side.uses)}


def _change_cells(change: PartChange) -> list[str]:
    delta = "=" if is_nothing(change.delta) else format_change(change.delta)
    return [change.what, change.where, format_seconds(change.before), format_seconds(change.after), delta]


def _moves_table(moves: Sequence[Move]) -> list[RenderableType]:
    rows, last = [], ""
    for move in moves:
        pair = f"{move.source} → {move.target}"
        what = "all of it" if move.whole else f"of its {move.of}"
        rows.append(("" if pair == last else pair, str(move.ops), move.module or "the model", what))
        last = pair
    return [rows_table(("from → to", "ops ", "module", ""), rows)] if rows else []


def _devices_table(diff: Difference) -> RenderableType:
    """What every device does before and after."""
    names = list(dict.fromkeys((*diff.before.uses, *diff.after.uses)))
    rows = []
    for name in names[:MAX_DEVICES]:
        a, b = diff.before.uses.get(name), diff.after.uses.get(name)
        seconds = [_change_cell(a, b, key, format_seconds) for key in ("compute", "copies", "idle")]
        ops = _change_cell(a, b, "ops", lambda ops: f"{ops:.0f}")
        rows.append((name, ops, *seconds, _change_cell(a, b, "peak", format_bytes)))
    table = _by_device(diff, ("device", "ops ", "compute ", "copies ", "idle ", "memory "), rows)
    left = len(names) - MAX_DEVICES
    return Group(table, Text(f"… and {left} more devices: --json has them", style="dim")) if left > 0 else table


def _device_parts_table(diff: Difference) -> list[RenderableType]:
    """What the devices hold before and after, those that hold something else."""
    old, new = diff.before.holds, diff.after.holds
    names = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
    if not names or not old or not new:
        return []
    rows = [(name, old.get(name) or "nothing", new.get(name) or "nothing") for name in names[:MAX_DEVICES]]
    return [Text(), _by_device(diff, ("holds", diff.before.name, diff.after.name), rows)]


def _by_device(diff: Difference, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    """A table whose rows begin with a device; its node is beside it, where any of them is in one."""
    sides = diff.before.nodes, diff.after.nodes
    named = [" → ".join(dict.fromkeys(side[row[0]] for side in sides if side.get(row[0]))) for row in rows]
    return rows_beside_nodes(columns, named, rows)


def _change_cell(a: DeviceFigures | None, b: DeviceFigures | None, key: str, form: Callable[[Any], str]) -> str:
    """A figure before → after, or once if it stays the same."""
    before, after = ("–" if use is None else form(use[key]) for use in (a, b))
    return before if before == after else f"{before} → {after}"
