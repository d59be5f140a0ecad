"""export_placement(): a placement in a target's form, read back, and judged again where the target cannot say it."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from placewise._util.units import format_seconds
from placewise.errors import ExportError, InternalError, OutputError
from placewise.export.base import Exported, ExportInfo, OptionValue
from placewise.export.registry import available, exporter, filled
from placewise.files.atomic import atomic_write
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Judgement, Outcome, Reason, Result, Status, gap_of
from placewise.simulate import judge_placement, lower_bound

SMALLEST = 5e-4
"""A loss that is told in percent; less is none."""


@dataclass(frozen=True, slots=True, eq=False)
class Export:
    """The files for a placement, and the judge's word on what was asked and on what they say.

    `projected`: the target could not say the placement as it is; `moved` ops are on another device (none where only
    an order of ops, or replicas of stages, are left unsaid).
    """

    info: ExportInfo
    exported: Exported
    asked: Judgement
    said: Judgement
    projected: bool
    moved: int

    @property
    def loss(self) -> float:
        """By how much slower the projected placement is, as a share (negative: it is faster)."""
        return self.said.value / self.asked.value - 1 if self.asked.value > 0 else 0.0


def export_placement(
    problem: Problem, placement: Placement, target: str, options: Mapping[str, OptionValue] | None = None
) -> Export:
    """The files of `target` for a placement, compared with what they say when they are read back.

    Raises ExportError (an unknown target or option, a model that the target cannot take, a placement that leaves an
    op out), MissingExtraError, and InternalError where the files do not say what they should.
    """
    made = exporter(target)
    values = filled(made.info, options or {})
    available(made.info)
    asked = judge_placement(problem, placement)
    unplaced = np.flatnonzero(placement.device < 0)
    if len(unplaced):
        name = problem.graph.ops.name[unplaced[0]]
        raise ExportError(f"op {name!r} has no device", remedy="place the model again")
    disks = [problem.cluster.devices[device] for device in np.unique(placement.device).tolist()]
    if not made.info.disk and (disk := next((device.name for device in disks if device.kind == "disk"), "")):
        raise ExportError(f"{target} cannot say that weights are on {disk!r}", remedy="place without a disk")
    exported = made.export(problem, placement, values)
    read = made.read_back(exported, problem)
    _same(problem, target, exported.placement, read)
    exported = replace(exported, notes=(*exported.notes, *_idle(problem, exported.placement)))
    moved = int((exported.placement.device != placement.device).sum())
    projected = exported.placement != placement
    said = judge_placement(problem, exported.placement) if projected else asked
    return Export(made.info, exported, asked, said, projected, moved)


def plan_said(export: Export, problem: Problem, placer: str = "") -> Result:
    """What the files say as a result, to be saved as a plan. `placer` made the plan that they were made from."""
    value, bound = export.said.value, lower_bound(problem)
    notes = (f"projected for the target {export.info.name}",) if export.projected else ()
    reached = export.said.valid and gap_of(value, bound.value) <= OPTIMAL_GAP
    status = Status(Outcome.OPTIMAL if reached else Outcome.FEASIBLE, Reason.FINISHED)
    return Result(problem, export.exported.placement, status, export.said, bound, placer or "export", 0.0, notes=notes)


def sentence(export: Export, n_ops: int) -> str:
    """What a projection changes and costs; "" where the target says the placement as it is."""
    if not export.projected:
        return ""
    moved = f"{export.moved} of {n_ops} ops are on another device" if export.moved else "no op moves"
    said, asked = format_seconds(export.said.value), format_seconds(export.asked.value)
    change = f"as fast: {said}"
    if abs(export.loss) >= SMALLEST:
        change = f"{abs(export.loss):.1%} {'slower' if export.loss > 0 else 'faster'}: {said} instead of {asked}"
    return f"{export.info.name} cannot say {export.info.cannot_say}; projected, {moved}, {change}"


def write(exported: Exported, info: ExportInfo, path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write the files, each whole or not at all: the only one as `path`, several into the folder `path`.

    A new folder is there with all its files or not at all; in one that is there, file after file is replaced.
    Returns their paths. Raises OutputError.
    """
    target = Path(path)
    if info.suffix:
        _file(target, next(iter(exported.files.values())))
        return (target,)
    with _whole(target) as folder:
        for name, content in exported.files.items():
            _folder((folder / name).parent)
            _file(folder / name, content)
    return tuple(target / name for name in exported.files)


def beside(info: ExportInfo, path: str | os.PathLike[str]) -> Path:
    """Where the plan of projected files goes: into their folder, or behind the only file."""
    target = Path(path)
    return target.with_name(f"{target.name}.plan.json") if info.suffix else target / "plan.json"


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """The folder to write into: what is there, or a hidden one that gets the name when all is in it."""
    if os.path.lexists(target):
        _folder(target)
        yield target
        return
    hidden = target.with_name(f".placewise-{secrets.token_hex(8)}.tmp")
    try:
        _folder(hidden)
        yield hidden
        hidden.rename(target)
    except OutputError as error:
        where = error.where.replace(str(hidden), str(target))
        raise OutputError(error.problem, where=where, remedy=error.remedy) from None
    except OSError as error:
        raise _unmade(target, error) from None
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _file(path: Path, content: str | bytes) -> None:
    with atomic_write(path, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def _folder(path: Path) -> None:
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise _unmade(path, error) from None


def _unmade(path: Path, error: OSError) -> OutputError:
    reason = (error.strerror or "unknown cause").lower()
    return OutputError(f"cannot be made ({reason})", where=str(path), remedy="name a new folder")


def _idle(problem: Problem, placement: Placement) -> tuple[str, ...]:
    """A note that names accelerators without any op: whoever wants them used should know."""
    used = set(placement.device.tolist())
    if placement.replicas is not None:
        used |= set(np.flatnonzero(placement.replicas != np.arange(problem.n_devices)).tolist())
    left = [device for d, device in enumerate(problem.cluster) if d not in used and device.available]
    idle = [device.name for device in left if not device.is_host]
    return (f"{', '.join(idle)}: no op of this plan runs there",) if idle else ()


def _same(problem: Problem, target: str, placement: Placement, read: Ints) -> None:
    wrong = np.flatnonzero(placement.device != read)
    if len(wrong):
        op = wrong[0]
        names = {-1: "nowhere", **dict(enumerate(problem.cluster.names))}
        raise InternalError(
            f"the files for {target} put {len(wrong)} ops elsewhere than they should, the first of them "
            f"{problem.graph.ops.name[op]!r}: {names[int(read[op])]} instead of {names[int(placement.device[op])]}"
        )
