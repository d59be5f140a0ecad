"""A training pipeline in words and as a table: schedule, idle time, stages and what they hold in flight."""

from __future__ import annotations

from collections.abc import Sequence

from placewise._util.units import format_bytes, format_seconds
from placewise.files.stage_records import PipelineRecord, PipelineStageRecord
from placewise.model.result import PipelineStageUse, PipelineUse
from placewise.reporting.ranges import name_range

TITLES = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved 1F1B", "zb-h1": "ZB-H1", "zb-v": "ZB-V",
}  # fmt: skip
COLUMNS = ("stage", "devices", "forward ", "backward ", "of weights ", "update ", "in flight ", "each holds ")


PipelineFigures = PipelineUse | PipelineRecord
StageFigures = PipelineStageUse | PipelineStageRecord
"""A pipeline and a stage of it, as the judge or a plan file has them."""


def pipeline_line(use: PipelineFigures | None) -> str:
    """The schedule, and how long its devices idle; "" without a pipeline."""
    if use is None:
        return ""
    count, copies = len(use.stages), max((len(stage.devices) for stage in use.stages), default=1)
    places = len({stage.devices for stage in use.stages})
    shape = f"{count} {'stage' if count == 1 else 'stages'}"
    shape += f", {count // places} on each device" if places < count else ""
    shape += f", {copies} replicas of each" if copies > 1 else ""
    title = TITLES.get(use.schedule, use.schedule)
    batches = f"{use.microbatches} micro-batch{'es' if use.microbatches != 1 else ''}"
    return f"schedule {title}: {batches} through {shape}; bubble {use.bubble:.1%}"


def pipeline_rows(use: PipelineFigures) -> list[tuple[str, ...]]:
    """A row per stage: seconds per micro-batch, and what is in flight at most."""
    stages: Sequence[StageFigures] = use.stages
    return [
        (
            str(s),
            name_range(list(stage.devices)),
            format_seconds(stage.forward),
            format_seconds(stage.backward),
            format_seconds(stage.weight) if stage.weight else "–",
            format_seconds(stage.update),
            _count_held(stage),
            format_bytes(stage.activation_bytes),
        )
        for s, stage in enumerate(stages)
    ]


def _count_held(stage: StageFigures) -> str:
    """The micro-batches in flight, and with those whose gradients of weights are still to come, if these are more."""
    more = f" ({stage.unfinished} with weights)" if stage.unfinished > stage.in_flight else ""
    return f"{stage.in_flight}{more}"
