"""Why a unit of ops is split or recomputed as it is: its ways, and the best plan with each other choice."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from placewise._util.units import format_bytes, format_seconds
from placewise.reporting.console import rows_table
from placewise.reporting.difference import compare_values, is_same
from placewise.reporting.explanation import OpExplanation, describe_move, explanation_view
from placewise.reporting.plain import shown_text


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOfUnit:
    """One way to run the unit: seconds per micro-batch on each of `degree` devices, and bytes held there.

    `collective` is the part of the seconds that the split's exchanges take, `in_flight` the bytes per micro-batch in
    flight, `held` those held throughout.
    """

    name: str
    degree: int
    chosen: bool
    recomputes: bool
    seconds: float
    collective: float
    in_flight: float
    held: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedChoice:
    """The best plan in which the unit runs as `choice` says ("tp=4", "no-recompute", …); value in seconds.

    `lower_bound` holds for all such plans, `unmet` proves that there is none.
    """

    choice: str
    value: float
    lower_bound: float
    unmet: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChoices:
    """A plan whose ops may be split, and the best plan with each other choice; `measure` is the name of its value."""

    measure: str
    value: float
    forced: tuple[ForcedChoice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitExplanation(PlanChoices):
    """Why the unit of an op runs as it does, in a stage of a pipeline; seconds per micro-batch, and bytes.

    Of `n_units` that were asked about, `first` is the one whose ways are listed. `bytes_kept` and `bytes_whole` are
    what the stage would hold without any recomputation, and with one device per replica (None: a unit has no such way).
    `sequence_parallel`: the stage also splits tokens.
    `pays_per_stage`: the slowest stage counts, and not the sum of all.
    """

    asked: str
    unit: str
    n_units: int
    first: str
    stage: int
    devices: tuple[str, ...]
    tensor_parallel: int
    data_parallel: int
    in_flight: int
    stage_seconds: float
    stage_bytes: float
    capacity: float
    bytes_kept: float | None
    bytes_whole: float | None
    trains: bool
    sequence_parallel: bool
    pays_per_stage: bool
    ways: tuple[WayOfUnit, ...]


def split_explanation_view(explanation: PlanChoices) -> RenderableType:
    """Everything that `explain` prints of an op that may be split, or of a whole plan."""
    lines = [shown_text(describe_choice(explanation, choice)) for choice in explanation.forced]
    if not isinstance(explanation, SplitExplanation):
        head = f"the plan has a {explanation.measure} of {format_seconds(explanation.value)}"
        return Group(shown_text(head, style="bold"), *lines)
    head, room = describe_unit(explanation), _room(explanation, explanation.stage_bytes)
    count, held = len(explanation.devices), explanation.in_flight
    where = f"each of its {count} devices" if count > 1 else "its device"
    stage = (
        f"the stage takes {format_seconds(explanation.stage_seconds)} of {format_seconds(explanation.value)}, and "
        f"holds {room} on {where}"
    )
    if explanation.trains:
        stage += f", with {held} micro-batch{'es' if held > 1 else ''} in flight"
    reasons = [shown_text(line) for line in (*describe_reasons(explanation), *_describe_many(explanation))]
    rows = [
        (
            f"{'→ ' if way.chosen else ''}{way.name}",
            str(way.degree),
            format_seconds(way.seconds),
            format_seconds(way.collective) if way.collective else "–",
            format_bytes(way.in_flight),
            format_bytes(way.held),
        )
        for way in explanation.ways
    ]
    table = rows_table(("way", "over ", "time ", "of it collectives ", "per micro-batch ", "held "), rows)
    first = (shown_text(head, style="bold"), shown_text(stage, style="dim"), *reasons)
    return Group(*first, Text(), table, Text(), *lines)


def describe_unit(explanation: SplitExplanation) -> str:
    """How the unit runs, in one sentence without a stop."""
    own = _chosen(explanation)
    split = f"split over {explanation.tensor_parallel} devices" if explanation.tensor_parallel > 1 else "not split"
    split += " with sequence parallelism" if explanation.sequence_parallel else ""
    again = (" and recomputes its activations" if own.recomputes else "") if explanation.trains else ""
    replicas = f", which has {explanation.data_parallel} replicas" if explanation.data_parallel > 1 else ""
    return f"{explanation.unit} is {split}{again}; it is in stage {explanation.stage}{replicas}"


def describe_reasons(explanation: SplitExplanation) -> list[str]:
    """Why it runs so, as far as its ways and the stage's memory tell."""
    own, reasons = _chosen(explanation), list[str]()
    alike = [way for way in explanation.ways if way.recomputes == own.recomputes and math.isfinite(way.seconds)]
    whole = next((way for way in alike if way.degree == 1), None)
    if own.degree > 1 and whole is not None:
        fewer = f"On one device it takes {format_seconds(whole.seconds)}, split {format_seconds(own.seconds)}."
        reasons.append(fewer)
        reasons += _describe_room(explanation, explanation.bytes_whole, "With one device per replica")
    elif own.degree == 1 and len(alike) > 1:
        best = min((way for way in alike if way.degree > 1), key=lambda way: way.seconds * way.degree)
        each = format_seconds(own.seconds / best.degree)
        rest = f"; {best.degree} replicas take {each} per micro-batch" if explanation.pays_per_stage else ""
        reasons.append(
            f"Split over {best.degree} devices it takes {format_seconds(best.seconds)}, whole "
            f"{format_seconds(own.seconds)}{rest}."
        )
    if own.recomputes:
        reasons += _describe_room(explanation, explanation.bytes_kept, "Without recomputation")
    return reasons


def _describe_room(explanation: SplitExplanation, needed: float | None, case: str) -> list[str]:
    if needed is None:
        return []
    verb = "does not fit: it" if needed > explanation.capacity else "fits, too: it"
    return [f"{case}, the stage {verb} would hold {_room(explanation, needed)} on each device."]


def _describe_many(explanation: SplitExplanation) -> list[str]:
    if explanation.n_units == 1:
        return []
    return [f"The ways are those of {explanation.first}, the first of {explanation.n_units} units."]


def _room(explanation: SplitExplanation, needed: float) -> str:
    return f"{format_bytes(needed)} of {format_bytes(explanation.capacity)}"


def _chosen(explanation: SplitExplanation) -> WayOfUnit:
    return next(way for way in explanation.ways if way.chosen)


def describe_choice(explanation: PlanChoices, choice: ForcedChoice) -> str:
    """What another choice for the unit would cost, in words."""
    if choice.unmet:
        return f"With {choice.choice} there is no plan: {choice.unmet}."
    if not math.isfinite(choice.value):
        return f"With {choice.choice} no plan was found; that there is none is not proved."
    best = f"With {choice.choice} the best plan has a {explanation.measure} of {format_seconds(choice.value)}"
    if is_same(choice.value, explanation.value):
        return f"{best}: nothing is lost or gained."
    proved = choice.lower_bound >= choice.value * (1 - 1e-6)
    end = "; no plan with it is better" if proved else f"; none with it is below {format_seconds(choice.lower_bound)}"
    return f"{best}, {compare_values(choice.value, explanation.value, 'the plan')}{end}."


def view_of(explanation: OpExplanation | PlanChoices) -> RenderableType:
    """Everything that `explain` prints, of an op or of a plan whose ops may be split."""
    if isinstance(explanation, PlanChoices):
        return split_explanation_view(explanation)
    return explanation_view(explanation)


def document_of(explanation: OpExplanation | PlanChoices) -> dict[str, Any]:
    """The explanation as plain values, in seconds and bytes, with an answer in words for all that is forced."""
    if isinstance(explanation, PlanChoices):
        answers = [describe_choice(explanation, choice) for choice in explanation.forced]
    else:
        answers = [describe_move(explanation, move) for move in explanation.forced]
    document = asdict(explanation)
    for record, answer in zip(document["forced"], answers, strict=True):
        record["answer"] = answer
    return document
