"""Why an op is where it is: what it costs there and elsewhere, and what the best plan with it elsewhere is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from placewise._util.text import visible
from placewise._util.units import format_bytes, format_seconds
from placewise.report.console import rows_table
from placewise.report.difference import EQUAL, Change, changes_table, compared, reason, same
from placewise.report.leaderboard import finite

MOST_CHOICES, MOST_NAMES = 16, 4
"""Rows of devices, and names of ops, that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The ops on one device, all others as planned.

    `refusal` says why they may not be there at all; `compute` their seconds there; `copies` the seconds that links
    spend on `tensors` that they read or make, `bytes` in all; `adds` bytes that the device must hold for them all the
    time, `peak` of `capacity` what it holds in all; `value` what the plan is then worth, and `broken` which rules.
    """

    device: str
    chosen: bool = False
    refusal: str = ""
    compute: float = math.inf
    copies: float = 0.0
    tensors: int = 0
    bytes: float = 0.0
    adds: float = 0.0
    peak: float = 0.0
    capacity: float = 0.0
    value: float = math.inf
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """The best plan that was found with the ops on `device`.

    `lower_bound` holds for all such plans; `moved` counts the ops that are elsewhere than in the plan, apart from equal
    devices that have `traded` places; `unmet` proves that no such plan exists. `changes` are the parts of the plan's
    value and of this one.
    """

    device: str
    value: float
    lower_bound: float
    bound_method: str
    placer: str
    seconds: float
    moved: int = 0
    traded: str = ""
    unmet: str = ""
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why the `ops` that were asked for are on `device`; `along` are the ops that must share it.

    `measure` is what the plan's `value` is called; `lower_bound` holds for every plan of the problem.
    """

    asked: str
    ops: tuple[str, ...]
    along: tuple[str, ...]
    what: str
    device: str
    measure: str
    value: float
    lower_bound: float
    choices: tuple[Choice, ...]
    forced: tuple[Forced, ...] = ()
    notes: tuple[str, ...] = ()


def explanation_view(found: Explanation) -> RenderableType:
    """Everything that `explain` prints."""
    parts: list[RenderableType] = [Text(visible(subject(found)), style="bold"), Text(), _choices(found)]
    for forced in found.forced:
        parts += [Text(), Text(visible(answer(found, forced)), style="bold")]
        if forced.changes and (forced.moved or not forced.traded):
            where = f"with it on {forced.device}"
            parts += [Text(visible(reason(forced.changes))), changes_table(forced.changes, ("the plan", where))]
    if not found.forced:
        parts += [Text(), Text(visible(alternative(found)))]
    return Group(*parts, *(Text(visible(f"note: {note}"), style="dim") for note in found.notes))


def subject(found: Explanation) -> str:
    """Which ops are meant, and where they are."""
    together = f", with {_listed(found.along)}, which must share its device" if found.along else ""
    one = len(found.ops) == 1
    what = f"op {found.ops[0]!r} ({found.what})" if one else f"{found.what} ({len(found.ops)} ops)"
    return f"{what} {'is' if one or found.what.startswith('module') else 'are'} on {found.device}{together}"


def answer(found: Explanation, forced: Forced) -> str:
    """What it costs to force the ops onto a device, in words."""
    there = f"With {'it' if len(found.ops) == 1 else 'them'} on {forced.device}"
    spent = f"{forced.placer} found in {forced.seconds:.1f} s"
    refusal = next((choice.refusal for choice in found.choices if choice.device == forced.device), "")
    if refusal:
        return f"{there} there is no plan: {refusal}."
    if forced.unmet:
        return f"{there} no placement keeps the rules: {forced.unmet}."
    if not math.isfinite(forced.value):
        return f"{there} {spent} nothing that keeps the rules; that there is nothing is not proved."
    best = f"the best plan that {spent} has a {found.measure} of {format_seconds(forced.value)}"
    moved = _elsewhere(forced)
    if same(forced.value, found.value):
        return f"{there} nothing is lost or gained: {best}, as the plan{moved}."
    how = compared(forced.value, found.value, "the plan")
    if forced.value < found.value:
        return (
            f"{there} it gets better: {best}, {how}{moved}. -o keeps it; whether the "
            "move or the search found it, `placewise place --start` on the plan tells."
        )
    return f"{there} it gets worse: {best}, {how}{moved}{_proof(found, forced)}."


def _elsewhere(forced: Forced) -> str:
    """What is elsewhere than in the plan, in brackets."""
    trade = f"equal devices trade places: {forced.traded}" if forced.traded else ""
    ops = f"{forced.moved} ops elsewhere than in the plan" if forced.moved or not trade else ""
    return f" ({'; apart from that, '.join(part for part in (trade, ops) if part)})"


def alternative(found: Explanation) -> str:
    """What moving only these ops would do, where nothing is re-optimized."""
    able = [choice for choice in found.choices if not (choice.chosen or choice.refusal or choice.broken)]
    able = [choice for choice in able if math.isfinite(choice.value)]
    hint = "--why-not DEVICE places the rest anew around the move"
    if not able:
        return f"Moved alone, it breaks a rule or cannot run everywhere else; {hint}."
    best = min(able, key=lambda choice: choice.value)
    if same(best.value, found.value):
        return f"Moved alone to {best.device} the plan is worth the same; {hint}."
    return f"Moved alone to {best.device} the plan is {compared(best.value, found.value)}; {hint}."


def document_of(found: Explanation) -> dict[str, Any]:
    """The explanation as JSON takes it; seconds and bytes."""
    document = asdict(found)
    document["choices"] = [_finite(choice) for choice in document["choices"]]
    document["forced"] = [
        {**_finite(forced), "answer": answer(found, told)}
        for told, forced in zip(found.forced, document["forced"], strict=True)
    ]
    return _finite(document)


def _proof(found: Explanation, forced: Forced) -> str:
    """What the lower bound of the forced problem proves."""
    if forced.lower_bound >= forced.value * (1 - 1e-6):
        return "; no plan with it there is better"
    if forced.lower_bound > found.value * (1 + EQUAL):
        share = forced.lower_bound / found.value - 1
        return f"; every plan with it there is at least {share:.1%} slower ({forced.bound_method})"
    return "; that nothing better exists is not proved"


def _choices(found: Explanation) -> RenderableType:
    """A row per device: what the ops cost there, and what the plan is worth if nothing else moves."""
    wanted = {forced.device for forced in found.forced}
    ranked = sorted(found.choices, key=lambda choice: (not choice.chosen, choice.device not in wanted, choice.value))
    names = {choice.device for choice in ranked[:MOST_CHOICES]}
    shown = [choice for choice in found.choices if choice.device in names]
    table = rows_table(_COLUMNS, [_row(found, choice) for choice in shown])
    lines = [f"{choice.device}: {reason}" for choice in shown if (reason := _against(choice))]
    left = len(found.choices) - len(shown)
    lines += [f"… and {left} more devices: --json has them"] if left else []
    return Group(table, *(Text(visible(line), style="dim") for line in lines))


_COLUMNS = ("device", "compute ", "copies ", "tensors ", "memory ", "of ", "if only this moves ", "")


def _row(found: Explanation, choice: Choice) -> tuple[str, ...]:
    if choice.refusal:
        return choice.device, *["–"] * (len(_COLUMNS) - 2), "impossible"
    tensors = f"{choice.tensors}, {format_bytes(choice.bytes)}" if choice.tensors else "0"
    seconds = format_seconds(choice.compute), format_seconds(choice.copies), tensors
    memory = format_bytes(choice.peak), format_bytes(choice.capacity)
    return choice.device, *seconds, *memory, format_seconds(choice.value), _remark(found, choice)


def _remark(found: Explanation, choice: Choice) -> str:
    if choice.chosen:
        return "chosen"
    if choice.broken:
        return "breaks a rule"
    if not math.isfinite(choice.value):
        return "cannot run"
    if same(choice.value, found.value):
        return "the same"
    return compared(choice.value, found.value)


def _against(choice: Choice) -> str:
    """Why the ops cannot be on a device, or not without others."""
    more = f" (and {len(choice.broken) - 1} more)" if len(choice.broken) > 1 else ""
    return choice.refusal or (f"moved alone, {choice.broken[0]}{more}" if choice.broken else "")


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return f"{', '.join(map(repr, names[:MOST_NAMES]))}{f' and {more} more' if more > 0 else ''}"


def _finite(document: dict[str, Any]) -> dict[str, Any]:
    return {key: finite(value) if isinstance(value, float) else value for key, value in document.items()}
