"""Exports a placement: makes the files of a target, reads them back, judges what they express, and writes them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from placewise._util.units import format_seconds
from placewise.core.split_ways import move_to_ways, remake_ways
from placewise.errors import ExportError, InputError, InternalError, OutputError
from placewise.exporters.base import Exported, Exporter, ExportInfo, OptionValue, RunningExporter
from placewise.exporters.registry import complete_options, create_exporter, require_library
from placewise.files.atomic import atomic_write, hidden_beside, make_locked
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Bound, Judgement, Outcome, Reason, Result, Status, gap_of
from placewise.processes.abandoned import unlock
from placewise.simulate import bound_soon, judge_placement
from placewise.transform.precision import precision_of

SMALLEST = 5e-4
"""The least loss that is reported."""


@dataclass(frozen=True, slots=True, eq=False)
class Export:
    """The files for a placement; the judgement of that placement (`asked`) and of the one in the files (`said`).

    `projected` says whether the two differ because of what the target can express. `moved` counts the ops on another
    device; it is 0 if only the order of ops or the replicas of stages are lost. `fastest` says that the files hold the
    fastest placement that the target can express, and not the one nearest to the plan. `problem` is the one that the
    files answer: that of the plan, or with `left_out`, the same without sequence parallelism; `reshaped` says that the
    placement is another one besides.
    """

    info: ExportInfo
    exported: Exported
    asked: Judgement
    said: Judgement
    projected: bool
    moved: int
    problem: Problem
    fastest: bool = False
    left_out: bool = False
    reshaped: bool = False

    @property
    def loss(self) -> float:
        """How much slower the exported placement is, as a share; negative if it is faster."""
        return self.said.value / self.asked.value - 1 if self.asked.value > 0 else 0.0


def export_placement(
    problem: Problem, placement: Placement, target: str, options: Mapping[str, OptionValue] | None = None
) -> Export:
    """The files of `target` for a placement, read back and compared with it.

    Raises ExportError (an unknown target or option, a model that the target does not support, a placement that leaves
    an op out), MissingExtraError, and InternalError if the files differ from the placement that they should express.
    """
    exporter = create_exporter(target)
    values = complete_options(exporter.info, options or {})
    require_library(exporter.info)
    pipelined = bool(placement.schedule) and exporter.info.pipelines
    placement = placement if pipelined else _flat_stages(problem, placement, exporter)
    if placement.stages and not pipelined and not exporter.info.splits:
        raise ExportError(
            f"{target} cannot express ops that are split over devices, stages with replicas, or recomputation",
            remedy="export to torch, vllm, megatron, deepspeed or trace, or place without --tensor-parallel",
        )
    asked = judge_placement(problem, placement)
    unplaced = np.flatnonzero(placement.device < 0)
    if len(unplaced):
        name = problem.graph.ops.name[unplaced[0]]
        raise ExportError(f"op {name!r} has no device", remedy="place the model again")
    disks = [problem.cluster.devices[device] for device in np.unique(placement.device).tolist()]
    if not exporter.info.disk and (disk := next((device.name for device in disks if device.kind == "disk"), "")):
        raise ExportError(f"{target} cannot express that weights are on {disk!r}", remedy="place without a disk")
    left_out = problem.constraints.sequence_parallel and bool(placement.stages) and not exporter.info.sequence_parallel
    if left_out:
        problem, placement = _leave_out_sequences(problem, placement)
    exported = exporter.export(problem, placement, values)
    _require_same(problem, target, exported.placement, exporter.read_back(exported, problem))
    notes = (*_note_precision(problem, exporter.info), *_note_idle(problem, exported.placement))
    exported = replace(exported, notes=(*exported.notes, *notes))
    moved = int((exported.placement.device != placement.device).sum())
    left_out &= any(group.tensor_parallel > 1 for group in placement.stages)
    reshaped = exported.placement != placement
    projected = left_out or reshaped
    said = judge_placement(problem, exported.placement) if projected else asked
    return Export(exporter.info, exported, asked, said, projected, moved, problem, False, left_out, reshaped)


def _leave_out_sequences(problem: Problem, placement: Placement) -> tuple[Problem, Placement]:
    """The problem without sequence parallelism, and the placement in its ways. Raises ExportError."""
    try:
        plain = remake_ways(problem, sequence_parallel=False)
        return plain, move_to_ways(problem, placement, plain)
    except InputError as error:
        raise ExportError(f"sequence parallelism cannot be left out: {error.problem}", remedy=error.remedy) from None


def _flat_stages(problem: Problem, placement: Placement, exporter: Exporter) -> Placement:
    """The devices of a training pipeline, for exporters that write where ops run; any other placement as it is.

    Raises ExportError where the target cannot take the model, devices hold several stages, or stages have replicas.
    """
    if not placement.schedule:
        return placement
    used = [device for group in placement.stages for device in group.devices]
    if len(set(used)) < len(used) or any(len(group.devices) > 1 for group in placement.stages):
        if isinstance(exporter, RunningExporter):
            exporter.space(problem)  # a model that it cannot take needs no other schedule
        message = f"{exporter.info.name} takes one stage per device and no replicas from a training pipeline"
        remedy = "export to pipelining, or place with --schedule 1f1b, gpipe or zb-h1, and without --replicas"
        raise ExportError(message, remedy=remedy)
    return Placement(placement.device)


def _note_precision(problem: Problem, info: ExportInfo) -> tuple[str, ...]:
    """A note for a plan in a precision that the model has yet to be converted to."""
    name = precision_of(problem.graph)
    if not name or name in info.precisions:
        return ()
    return (f"the plan prices the model in {name}, which {info.name} cannot ask for: convert the model to it",)


def result_of(export: Export, problem: Problem) -> Result:
    """The exported placement as a result, to be saved as a plan."""
    value = export.said.value
    bound = bound_soon(problem) if problem.ways is None else Bound(0.0, "nothing")
    notes = (f"projected for the target {export.info.name}",) if export.projected else ()
    reached = export.said.valid and gap_of(value, bound.value) <= OPTIMAL_GAP
    status = Status(Outcome.OPTIMAL if reached else Outcome.FEASIBLE, Reason.FINISHED)
    return Result(problem, export.exported.placement, status, export.said, bound, "export", 0.0, notes=notes)


def describe_loss(loss: float) -> str:
    """How much slower a plan is, as a share of its time, in words; a multiple where it takes twice as long or more."""
    if loss >= 0.9995:
        return f"{loss + 1:,.0f}× as slow" if loss >= 99 else f"{loss + 1:.3g}× as slow"
    return f"{abs(loss):.1%} {'slower' if loss > 0 else 'faster'}"


def describe_projection(export: Export, n_ops: int) -> str:
    """What a projection changes and costs; "" without one."""
    if not export.projected:
        return ""
    moved = f"{export.moved} of {n_ops} ops are on another device" if export.moved else "no op moves"
    said, asked = format_seconds(export.said.value), format_seconds(export.asked.value)
    change = f"as fast: {said}"
    if abs(export.loss) >= SMALLEST:
        change = f"{describe_loss(export.loss)}: {said} instead of {asked}"
    tokens = f"the files for {export.info.name} leave out sequence parallelism" if export.left_out else ""
    if tokens and not export.reshaped:
        return f"{tokens}; judged without it, the plan is {change}"
    which = "fastest" if export.fastest else "nearest"
    limits = [export.info.cannot_say]
    if export.exported.placement.stages and export.info.cannot_split:
        limits = [export.info.cannot_split, *limits]
    limit = f"{export.info.name} cannot express {', or '.join(limits)}"
    return f"{f'{tokens}, and ' if tokens else ''}{limit}; in the {which} placement that it can, {moved}, {change}"


def write_files(exported: Exported, info: ExportInfo, path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write the files atomically: a single one as `path`, several into the folder `path`. Returns their paths.

    A new folder appears with all its files or not at all; in an existing folder, file after file is replaced. Raises
    OutputError.
    """
    target = Path(path)
    if info.suffix:
        _write_file(target, next(iter(exported.files.values())))
        return (target,)
    with _atomic_folder(target) as folder:
        for name, content in exported.files.items():
            _make_folder((folder / name).parent)
            _write_file(folder / name, content)
    return tuple(target / name for name in exported.files)


def plan_path(info: ExportInfo, path: str | os.PathLike[str]) -> Path:
    """Where the plan of a projection goes: into the folder of the files, or beside the only file."""
    target = Path(path)
    return target.with_name(f"{target.name}.plan.json") if info.suffix else target / "plan.json"


@contextmanager
def _atomic_folder(target: Path) -> Iterator[Path]:
    """The folder to write into: the existing one, or a hidden one that is renamed when it is complete."""
    if os.path.lexists(target):
        _make_folder(target)
        yield target
        return
    hidden, lock = hidden_beside(target), -1
    try:
        lock = make_locked(hidden, _make_folder)
        yield hidden
        hidden.rename(target)
    except OutputError as error:
        where = error.where.replace(str(hidden), str(target))
        raise OutputError(error.problem, where=where, remedy=error.remedy) from None
    except OSError as error:
        raise _folder_error(target, error) from None
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
        unlock(lock)


def _write_file(path: Path, content: str | bytes) -> None:
    with atomic_write(path, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise _folder_error(path, error) from None


def _folder_error(path: Path, error: OSError) -> OutputError:
    reason = (error.strerror or "unknown cause").lower()
    return OutputError(f"cannot be made ({reason})", where=str(path), remedy="name a new folder")


def _note_idle(problem: Problem, placement: Placement) -> tuple[str, ...]:
    """A note that names the accelerators without any op."""
    used = set(placement.device.tolist())
    if placement.replicas is not None:
        used |= set(np.flatnonzero(placement.replicas != np.arange(problem.n_devices)).tolist())
    used |= {d for group in placement.stages for d in group.devices}
    left = [device for d, device in enumerate(problem.cluster) if d not in used and device.available]
    idle = [device.name for device in left if not device.is_host]
    return (f"{', '.join(idle)}: no op of this plan runs there",) if idle else ()


def _require_same(problem: Problem, target: str, placement: Placement, read: Ints) -> None:
    wrong = np.flatnonzero(placement.device != read)
    if len(wrong):
        op = wrong[0]
        names = {-1: "nowhere", **dict(enumerate(problem.cluster.names))}
        raise InternalError(
            f"the files for {target} put {len(wrong)} ops on a wrong device, the first of them "
            f"{problem.graph.ops.name[op]!r}: {names[int(read[op])]} instead of {names[int(placement.device[op])]}"
        )
