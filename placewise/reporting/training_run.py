"""A training run beside its prediction, as text and as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from placewise._util.units import format_bytes, format_seconds
from placewise.reporting.console import rows_table
from placewise.reporting.plain import shown_text


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A process: its device, the stages that it runs, and its peak memory in bytes, measured and predicted."""

    process: int
    device: str
    place: str
    stages: tuple[int, ...]
    memory: float
    predicted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTable:
    """A run: losses of all steps, seconds per step (the median, and the interquartile range as a share of it).

    `alone` is the whole program in one process. `compared` steps were repeated by it: the differences are the largest
    ones, of losses as a share, and of the first step's gradients as a share of the largest entry.
    """

    schedule: str
    optimizer: str
    learning_rate: float
    microbatches: int
    replicas: int
    first: int
    losses: tuple[float, ...]
    seconds: float
    spread: float
    predicted: float
    alone: float
    predicted_alone: float
    compared: int
    loss_difference: float
    gradient_difference: float
    rows: tuple[TrainingRow, ...]
    restarts: tuple[str, ...] = ()
    checkpoint: str = ""
    notes: tuple[str, ...] = ()


def training_run_view(table: TrainingTable) -> RenderableType:
    """Everything that is printed of a run."""
    times = "" if table.replicas == 1 else f", {table.replicas} replicas"
    head = (
        f"trained {len(table.losses)} steps: {table.schedule}, {table.microbatches} micro-batches{times}, "
        f"{table.optimizer} with learning rate {table.learning_rate:g}"
    )
    first, last = table.losses[0], table.losses[-1]
    parts: list[RenderableType] = [Text(head), Text(f"loss {first:.6g} → {last:.6g}"), Text()]
    spread = "–" if math.isnan(table.spread) else f"{table.spread:.1%}"
    cells = [["plan", _seconds(table.seconds), spread, *_prediction(table.predicted, table.seconds)]]
    if math.isfinite(table.alone):
        cells.append(["one process", _seconds(table.alone), "–", *_prediction(table.predicted_alone, table.alone)])
    parts += [rows_table(("seconds per step", "measured ", "spread ", "predicted ", "off by "), cells), Text()]
    ranks = [
        [str(row.process), row.device, row.place, ", ".join(map(str, row.stages)), format_bytes(row.memory),
         "–" if math.isnan(row.predicted) else format_bytes(row.predicted)]
        for row in table.rows
    ]  # fmt: skip
    columns = ("process", "device", "place", "stages", "peak memory ", "predicted ")
    parts += [rows_table(columns, ranks), Text()]
    parts += [shown_text(sentence) for sentence in _sentences(table)]
    parts += [shown_text(f"note: {note}", style="dim") for note in table.notes]
    return Group(*parts)


def _sentences(table: TrainingTable) -> list[str]:
    said = []
    if table.compared:
        steps = f"{table.compared} step{'s' if table.compared != 1 else ''}"
        said.append(
            f"As one process trains it, in {steps}: losses differ by {table.loss_difference:.1e}, "
            f"gradients by {table.gradient_difference:.1e} of the largest entry."
        )
    if table.first > 1:
        said.append(f"Went on from step {table.first - 1} of the checkpoint.")
    said += [f"Restarted: {reason}." for reason in table.restarts]
    if table.checkpoint:
        said.append(f"The last checkpoint and the weights are in {table.checkpoint}.")
    return said


def _seconds(value: float) -> str:
    return format_seconds(value) if math.isfinite(value) else "–"


def _prediction(predicted: float, measured: float) -> list[str]:
    if not (math.isfinite(predicted) and math.isfinite(measured) and measured > 0):
        return ["–", "–"]
    return [format_seconds(predicted), f"{predicted / measured - 1:+.0%}"]
