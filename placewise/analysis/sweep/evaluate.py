"""One point of a sweep: the model at its sizes, placed on a cluster, as a record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from placewise._util.voice import SPEAKS_FLAGS
from placewise.core.build import Devices, build_read
from placewise.core.open_model import Model, open_model
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.core.target_rules import check_options
from placewise.errors import InputError
from placewise.files.sweep_file import MemoryRecord, NeedsRecord, PointRecord
from placewise.model.problem import Problem
from placewise.model.result import Reason, Result, batch_size
from placewise.placers.base import Budget, Placer
from placewise.readers.base import ImportedModel
from placewise.simulate import judge_placement
from placewise.targets.place_for import place_for
from placewise.zoo.registry import describe


@dataclass(frozen=True, slots=True, eq=False)
class SweepTask:
    """What all points of a sweep share: the model, what is asked of it, and how long the search of a point may take.

    With `speaks_flags`, errors name the options as the command line does.
    """

    model: Model
    options: ProblemOptions
    budget: Budget
    placer: str | Placer = "auto"
    placer_options: Mapping[str, Any] = field(default_factory=dict)
    target: str | None = None
    speaks_flags: bool = False


class PointEvaluator:
    """Evaluates points one after the other, and keeps the model that was read last. Workers serve one each."""

    def __init__(self, task: SweepTask) -> None:
        SPEAKS_FLAGS.set(task.speaks_flags)
        if task.target is not None:
            check_options(task.target, task.options)
        self._task = task
        self._sizes: Mapping[str, int] | None = None
        self._reading: ImportedModel | None = None

    def evaluate(self, sizes: Mapping[str, int], devices: Devices | None, label: str) -> PointRecord:
        """The point at these sizes on this cluster; its `status` is "error" if the model cannot have these sizes.

        Raises KeyboardInterrupt if the search was interrupted.
        """
        task = self._task
        options = replace(task.options, dims={**task.options.dims, **sizes})
        try:
            problem = build_read(self._read(sizes, options), task.model, devices, options)
            search = place if task.target is None else partial(place_for, target=task.target)
            result = search(problem, placer=task.placer, budget=task.budget, options=dict(task.placer_options))
        except InputError as error:
            return PointRecord(sizes=dict(sizes), devices=label, status="error", reason=str(error))
        if result.status.reason is Reason.INTERRUPTED:
            raise KeyboardInterrupt
        return record_point(result, sizes, label)

    def _read(self, sizes: Mapping[str, int], options: ProblemOptions) -> ImportedModel:
        if self._reading is None or self._sizes != sizes:
            self._reading, self._sizes = open_model(self._task.model, options), dict(sizes)
        return self._reading


def record_point(result: Result, sizes: Mapping[str, int], label: str) -> PointRecord:
    """A result as a point."""
    problem, judgement = result.problem, result.judgement
    point = PointRecord(
        sizes=dict(sizes),
        devices=label,
        status=str(result.status.outcome),
        reason=result.unmet or ("" if judgement else "; ".join(result.notes) or str(result.status.reason)),
        lower_bound=result.lower_bound,
        needs=_needs(problem),
        placer=result.placer,
    )
    if judgement is None or result.placement is None:
        return point
    verdict = result.verdict
    best = _best_baseline(result)
    return point.model_copy(
        update={
            "value": result.value,
            "latency": _latency(result),
            "throughput": _samples(problem) / result.value if result.value > 0 else None,
            "tokens_per_second": result.tokens_per_second,
            "memory": tuple(
                MemoryRecord(device=use.device, peak=use.peak, capacity=use.capacity)
                for use, device in zip(judgement.devices, problem.cluster, strict=True)
                if device.available
            ),
            "baseline": best[0],
            "baseline_ratio": best[1],
            "verdict": verdict.sentence if verdict else "",
        }
    )


def _best_baseline(result: Result) -> tuple[str, float | None]:
    """The fastest baseline that keeps the rules, and its time over that of the plan."""
    valid = {name: baseline.value for name, baseline in result.compared.items() if baseline.valid}
    name = min(valid, key=valid.__getitem__, default="")
    return (name, valid[name] / result.value) if name and result.value > 0 else (name, None)


def _latency(result: Result) -> float | None:
    """Seconds of one run of the plan; None for training steps and split ops, which have no such value."""
    problem, placement = result.problem, result.placement
    if problem.objective.kind == "latency":
        return result.value
    if problem.objective.kind == "step" or problem.ways is not None or placement is None:
        return None
    if problem.graph.ops.backward.any() or problem.max_replicas > 1:
        return None
    alone = problem.with_(objective=replace(problem.objective, kind="latency", schedule="1f1b", step_samples=0))
    value = judge_placement(alone, placement).value
    return value if math.isfinite(value) else None


def _samples(problem: Problem) -> int:
    """Samples in the time that the value is: those of a batch, or of all micro-batches of a step."""
    batches = max(problem.constraints.microbatches, 1) if problem.objective.kind == "step" else 1
    source = problem.graph.source
    if source is not None and source.format == "zoo":
        sizes = describe(source.path.removeprefix("zoo:")).sizes(source.options.get("dims", {}))
        return sizes.get("batch", 1) * batches
    return batch_size(problem) * batches


def _needs(problem: Problem) -> NeedsRecord:
    graph = problem.graph
    stored = dict(zip(graph.weights.storage.tolist(), graph.weights.bytes.tolist(), strict=True))
    tensors = graph.tensors.bytes.clip(min=0)
    return NeedsRecord(
        weights=float(sum(stored.values())),
        state=float(graph.ops.state_bytes.sum()),
        activations=float(tensors.sum()),
        largest=float(tensors.max(initial=0)),
    )
