"""What each target that takes a model would keep of a plan that was not made for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from placewise.core.target_rules import TARGETS
from placewise.errors import PlacewiseError
from placewise.exporters.device_map import DeviceMapExporter
from placewise.exporters.stack import find_stack
from placewise.exporters.writing import describe_loss
from placewise.model.dtypes import dtype_code
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement, Reason, Result
from placewise.model.verdict import SINGLE_DEVICE
from placewise.placers.base import Budget, Stopwatch
from placewise.targets.fastest_split import LAYERED, TOLERATED, find_faster
from placewise.targets.place_for import find_exporter
from placewise.targets.relays import judge_on_target

SAME = 5e-4
"""A loss that is none."""
SECONDS = 3.0
"""For the fastest splits of all targets together."""
SHARE, FEWEST_SECONDS = 0.05, 0.5
"""After a search that used all its time: a share of its seconds, but at least so many."""
FILES = frozenset({"onnx", "openvino", "tensorflow"})
"""Targets that have the model in a form of their own, and the formats from which nobody goes there."""
READERS = frozenset({"llama.cpp", "vllm"})
"""Targets that train nothing, and whose models read text: tokens, which are whole numbers."""
NAMED = frozenset({"huggingface", "torch-export", "torch-module", "torch-modules"})
"""Formats whose inputs are what the model is given, tokens or pictures."""
MOST_OPS, MOST_LAYERS = 50_000, 300
"""On larger graphs projections take longer than they are worth."""


@dataclass(frozen=True, slots=True)
class Kept:
    """How much slower a target makes a plan, as a share, and whether what it makes of it keeps the rules.

    `gains` is False where one device alone is slower than the plan, but not slower than what the target makes of it.
    """

    target: str
    loss: float
    valid: bool
    gains: bool = True


def list_kept(result: Result, seconds: float = SECONDS) -> tuple[Kept, ...]:
    """Every target that takes the model and the devices, the one that keeps most first.

    Where the nearest split of layers loses much, a faster one is searched for, in `seconds` for all targets together.
    Empty for graphs of more than `MOST_OPS` ops, or of more than `MOST_LAYERS` layers if a target takes layers only.
    """
    if result.placement is None or result.judgement is None or result.target or result.problem.n_ops > MOST_OPS:
        return ()
    if result.problem.objective.kind == "step":
        return ()
    if result.problem.ways is not None:  # whether a target can split as the plan does is what `export` says
        return ()
    found, source, alone = [], result.problem.graph.source, _best_alone(result)
    split_gains = result.value < alone * (1 - SAME) < math.inf
    far = LAYERED if source is not None and source.format in FILES else frozenset()
    graph = result.problem.graph
    if graph.ops.backward.any() or (source is not None and source.format in NAMED and not _reads_tokens(graph)):
        far |= READERS
    stack = find_stack(result.problem) if LAYERED - far else None
    if stack is not None and stack.count > MOST_LAYERS:
        return ()
    nearest: dict[str, Placement] = {}
    for target in TARGETS:
        if target not in far:
            with suppress(PlacewiseError):
                nearest[target] = _project(result.problem, result.placement, target)
    watch, searches = Stopwatch(Budget(seconds=seconds)), len(LAYERED & nearest.keys())
    for target, placement in nearest.items():
        share = watch.left / searches if target in LAYERED else 0.0
        searches -= target in LAYERED
        try:
            judged = _judge_export(result, target, placement, share)
        except PlacewiseError:
            continue
        loss = judged.value / result.value - 1 if result.value > 0 else 0.0
        gains = not split_gains or (judged.valid and judged.value < alone * (1 - SAME))
        found.append(Kept(target, loss, judged.valid, gains))
    return tuple(sorted(found, key=lambda kept: (not kept.valid, round(kept.loss, 6))))


def _reads_tokens(graph: Graph) -> bool:
    """Whether some input of the model consists of whole numbers."""
    given = graph.tensors.dtype[graph.tensors.producer < 0]
    return bool(np.isin(given, [dtype_code("int32"), dtype_code("int64")]).any())


def seconds_after(result: Result) -> float:
    """Seconds for `list_kept` after a search: few if that has used all its time."""
    late = result.status.reason is Reason.TIME_LIMIT
    return min(SECONDS, max(FEWEST_SECONDS, SHARE * result.seconds)) if late else SECONDS


def _judge_export(result: Result, target: str, nearest: Placement, seconds: float) -> Judgement:
    """What an export would write, the nearest placement or the fastest one, judged as the target runs it."""
    assert result.placement is not None
    found = find_faster(result.problem, result.placement, target, nearest, seconds) if seconds > 0 else None
    return judge_on_target(result.problem, nearest if found is None else found, target)


def _best_alone(result: Result) -> float:
    """The seconds of the best single device; inf where none can run the model."""
    judged = result.baselines.get(SINGLE_DEVICE)
    return judged[1].value if judged is not None and judged[1].valid else math.inf


def _project(problem: Problem, placement: Placement, target: str) -> Placement:
    exporter = find_exporter(target)
    if isinstance(exporter, DeviceMapExporter):
        return exporter.project_known(problem, placement)
    return exporter.project(problem, placement)


def describe_kept(kept: Sequence[Kept]) -> str:
    """The targets in one line, and whether any keeps the gain of the plan; "" if none takes the model."""
    if not kept:
        return ""
    words: dict[str, list[str]] = {}
    for one in kept:
        words.setdefault(_loss_of(one), []).append(one.target)
    said = "; ".join(f"{', '.join(targets)}: {loss}" for loss, targets in words.items())
    lost = any(one.loss > SAME or not one.valid for one in kept)
    none = "" if any(one.gains for one in kept) or not lost else "No export of it is faster than one device. "
    hint = any(one.loss > TOLERATED or not one.valid for one in kept)
    return f"{none}Exported to {said}{' (place --for a target searches what it can run)' if hint else ''}"


def _loss_of(kept: Kept) -> str:
    if not kept.valid:
        return "breaks a rule"
    if abs(kept.loss) <= SAME:
        return "as fast as planned"
    return describe_loss(kept.loss)
