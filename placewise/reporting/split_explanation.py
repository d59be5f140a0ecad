"""Why a unit of ops is split or recomputed as it is: its ways, and the best plan with each other choice."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from placewise._util.text import visible
from placewise._util.units import format_bytes, format_seconds
from placewise.reporting.console import rows_table
from placewise.reporting.difference import compare_values, is_same
from placewise.reporting.leaderboard import finite


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOfUnit:
    """One way to run the unit: seconds per micro-batch on each of `degree` devices, and bytes held there.

    `collective` is the part of the seconds that the split's exchanges take, `in_flight` the bytes per micro-batch in
    flight, `held` those held throughout.
    """

    name: str
    degree: int
    chosen: bool
    seconds: float
    collective: float
    in_flight: float
    held: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedChoice:
    """The best plan in which the unit runs as `choice` says ("tp=4", "recompute", "no-recompute"); value in seconds.

    `lower_bound` holds for all such plans, `unmet` proves that there is none.
    """

    choice: str
    value: float
    lower_bound: float
    unmet: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitExplanation:
    """Why the unit of an op runs as it does, in a stage of a pipeline; seconds per micro-batch, and bytes."""

    asked: str
    unit: str
    stage: int
    devices: tuple[str, ...]
    tensor_parallel: int
    data_parallel: int
    in_flight: int
    stage_seconds: float
    stage_bytes: float
    capacity: float
    measure: str
    value: float
    ways: tuple[WayOfUnit, ...]
    forced: tuple[ForcedChoice, ...]


def split_explanation_view(explanation: SplitExplanation) -> RenderableType:
    """Everything that `explain` prints of an op that may be split."""
    split = f"split over {explanation.tensor_parallel} devices" if explanation.tensor_parallel > 1 else "not split"
    replicas = f", in each of {explanation.data_parallel} replicas" if explanation.data_parallel > 1 else ""
    head = f"{explanation.unit} is {split}{replicas}, in stage {explanation.stage}"
    room = f"{format_bytes(explanation.stage_bytes)} of {format_bytes(explanation.capacity)}"
    stage = (
        f"the stage takes {format_seconds(explanation.stage_seconds)} of {format_seconds(explanation.value)}, and "
        f"holds {room} on each of its {len(explanation.devices)} devices, with {explanation.in_flight} micro-batches "
        "in flight"
    )
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
    lines = [Text(visible(describe_choice(explanation, choice))) for choice in explanation.forced]
    return Group(Text(visible(head), style="bold"), Text(visible(stage), style="dim"), Text(), table, Text(), *lines)


def describe_choice(explanation: SplitExplanation, choice: ForcedChoice) -> str:
    """What another choice for the unit would cost, in words."""
    if choice.unmet:
        return f"With {choice.choice} there is no plan: {choice.unmet}."
    if not math.isfinite(choice.value):
        return f"With {choice.choice} no plan was found; that there is none is not proved."
    best = f"With {choice.choice} the best plan has a {explanation.measure} of {format_seconds(choice.value)}"
    if is_same(choice.value, explanation.value):
        return f"{best}: nothing is lost or gained."
    proved = choice.lower_bound >= choice.value * (1 - 1e-6)
    end = "; no plan with it is better" if proved else "; that nothing better exists is not proved"
    return f"{best}, {compare_values(choice.value, explanation.value, 'the plan')}{end}."


def split_document(explanation: SplitExplanation) -> dict[str, Any]:
    """The explanation as JSON values, in seconds and bytes."""
    document = asdict(explanation)
    document["forced"] = [
        {**asdict(choice), "value": finite(choice.value), "lower_bound": finite(choice.lower_bound),
         "answer": describe_choice(explanation, choice)}
        for choice in explanation.forced
    ]  # fmt: skip
    document["capacity"] = finite(explanation.capacity)
    return document
