"""Why an op is where it is: what it costs there and elsewhere, and the best plan with it on another device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from placewise._util.units import format_bytes, format_seconds
from placewise.reporting.console import rows_beside_nodes
from placewise.reporting.difference import EQUAL, PartChange, changes_table, compare_values, explain_change, is_same
from placewise.reporting.plain import shown_text

MAX_CHOICES, MAX_NAMES = 16, 4
"""How many devices get a row, and how many ops are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The ops on one device, with all others as planned.

    `refusal` says why the device may not run them at all. `compute` is their seconds there; `copies` the seconds that
    links spend on the `tensors` that they read or make, `bytes` in all. `adds` is the bytes that the device must hold
    for them throughout, `peak` of `capacity` what it holds in all. `value` is the value of that plan in seconds,
    `broken` the rules that it violates. `node` is the machine that holds the device, "" where none is named.
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
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedMove:
    """The best plan that a placer found with the ops on `device`.

    `lower_bound` holds for all such plans. `moved` counts the ops on another device than in the plan, apart from equal
    devices that swap places (`traded`). `unmet` proves that no such plan exists. `changes` compares the parts of the
    plan's value with those of this one.
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
    changes: tuple[PartChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpExplanation:
    """Why the `ops` that `asked` names are on `device`; `along` are the ops that must share it.

    `measure` is the name of the plan's `value`; `lower_bound` holds for every plan of the problem. Both in seconds.
    `beside` says in words what the device holds.
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
    forced: tuple[ForcedMove, ...] = ()
    notes: tuple[str, ...] = ()
    beside: str = ""


def explanation_view(explanation: OpExplanation) -> RenderableType:
    """Everything that `explain` prints."""
    parts: list[RenderableType] = [shown_text(subject(explanation), style="bold")]
    if explanation.beside:
        parts.append(shown_text(f"{explanation.device} holds {explanation.beside}", style="dim"))
    parts.append(Text())
    parts.append(_choices_table(explanation))
    for move in explanation.forced:
        parts += [Text(), shown_text(describe_move(explanation, move), style="bold")]
        if move.changes and (move.moved or not move.traded):
            table = changes_table(move.changes, ("the plan", f"with it on {move.device}"))
            parts += [shown_text(explain_change(move.changes)), table]
    if not explanation.forced:
        parts += [Text(), shown_text(describe_alternative(explanation))]
    return Group(*parts, *(shown_text(f"note: {note}", style="dim") for note in explanation.notes))


def subject(explanation: OpExplanation) -> str:
    """Which ops are meant, and where they are."""
    ops, what, along = explanation.ops, explanation.what, explanation.along
    together = f", with {_list_names(along)}, which must share its device" if along else ""
    one = len(ops) == 1
    subject = f"op {ops[0]!r} ({what})" if one else f"{what} ({len(ops)} ops)"
    return f"{subject} {'is' if one or what.startswith('module') else 'are'} on {explanation.device}{together}"


def describe_move(explanation: OpExplanation, move: ForcedMove) -> str:
    """What it costs to force the ops onto a device, in words."""
    there = f"With {'it' if len(explanation.ops) == 1 else 'them'} on {move.device}"
    found = f"{move.placer} found in {move.seconds:.1f} s"
    refusal = next((choice.refusal for choice in explanation.choices if choice.device == move.device), "")
    if refusal:
        return f"{there} there is no plan: {refusal}."
    if move.unmet:
        return f"{there} no placement keeps the rules: {move.unmet}."
    if not math.isfinite(move.value):
        return f"{there} {found} nothing that keeps the rules; that there is nothing is not proved."
    best = f"the best plan that {found} has a {explanation.measure} of {format_seconds(move.value)}"
    moved = _describe_moved(move)
    if is_same(move.value, explanation.value):
        return f"{there} nothing is lost or gained: {best}, as the plan{moved}."
    how = compare_values(move.value, explanation.value, "the plan")
    if move.value < explanation.value:
        return (
            f"{there} it gets better: {best}, {how}{moved}. -o keeps it; whether the "
            "move or the search found it, `placewise place --start` on the plan tells."
        )
    return f"{there} it gets worse: {best}, {how}{moved}{_proof(explanation, move)}."


def _describe_moved(move: ForcedMove) -> str:
    """What is elsewhere than in the plan, in brackets."""
    trade = f"equal devices trade places: {move.traded}" if move.traded else ""
    ops = f"{move.moved} ops elsewhere than in the plan" if move.moved or not trade else ""
    return f" ({'; apart from that, '.join(part for part in (trade, ops) if part)})"


def describe_alternative(explanation: OpExplanation) -> str:
    """The effect of moving these ops alone, without placing the rest anew."""
    able = [choice for choice in explanation.choices if not (choice.chosen or choice.refusal or choice.broken)]
    able = [choice for choice in able if math.isfinite(choice.value)]
    hint = "--why-not DEVICE places the rest anew around the move"
    if not able:
        return f"Moved alone, it breaks a rule or cannot run everywhere else; {hint}."
    best = min(able, key=lambda choice: choice.value)
    if is_same(best.value, explanation.value):
        return f"Moved alone to {best.device} the plan is worth the same; {hint}."
    return f"Moved alone to {best.device} the plan is {compare_values(best.value, explanation.value)}; {hint}."


def _proof(explanation: OpExplanation, move: ForcedMove) -> str:
    """What the lower bound of the forced problem proves, as a clause."""
    if move.lower_bound >= move.value * (1 - 1e-6):
        return "; no plan with it there is better"
    if move.lower_bound > explanation.value * (1 + EQUAL):
        share = move.lower_bound / explanation.value - 1
        return f"; every plan with it there is at least {share:.1%} slower ({move.bound_method})"
    return "; that nothing better exists is not proved"


def _choices_table(explanation: OpExplanation) -> RenderableType:
    """A row per device: what the ops cost there, and the value of the plan if nothing else moves."""
    forced = {move.device for move in explanation.forced}
    ranked = sorted(explanation.choices, key=lambda c: (not c.chosen, c.device not in forced, c.value))
    names = {choice.device for choice in ranked[:MAX_CHOICES]}
    shown = [choice for choice in explanation.choices if choice.device in names]
    rows = [_choice_row(explanation, choice) for choice in shown]
    table = rows_beside_nodes(_COLUMNS, [choice.node for choice in shown], rows)
    lines = [f"{choice.device}: {objection}" for choice in shown if (objection := _objection(choice))]
    left = len(explanation.choices) - len(shown)
    lines += [f"… and {left} more devices: --json has them"] if left else []
    return Group(table, *(shown_text(line, style="dim") for line in lines))


_COLUMNS = ("device", "compute ", "copies ", "tensors ", "memory ", "of ", "if only this moves ", "")


def _choice_row(explanation: OpExplanation, choice: Choice) -> tuple[str, ...]:
    if choice.refusal:
        return choice.device, *["–"] * (len(_COLUMNS) - 2), "impossible"
    tensors = f"{choice.tensors}, {format_bytes(choice.bytes)}" if choice.tensors else "0"
    seconds = format_seconds(choice.compute), format_seconds(choice.copies), tensors
    memory = format_bytes(choice.peak), format_bytes(choice.capacity)
    return choice.device, *seconds, *memory, format_seconds(choice.value), _remark(explanation, choice)


def _remark(explanation: OpExplanation, choice: Choice) -> str:
    if choice.chosen:
        return "chosen"
    if choice.broken:
        return "breaks a rule"
    if not math.isfinite(choice.value):
        return "cannot run"
    if is_same(choice.value, explanation.value):
        return "the same"
    return compare_values(choice.value, explanation.value)


def _objection(choice: Choice) -> str:
    """Why the ops cannot be on a device, or not without others."""
    more = f" (and {len(choice.broken) - 1} more)" if len(choice.broken) > 1 else ""
    return choice.refusal or (f"moved alone, {choice.broken[0]}{more}" if choice.broken else "")


def _list_names(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMES
    return f"{', '.join(map(repr, names[:MAX_NAMES]))}{f' and {more} more' if more > 0 else ''}"
