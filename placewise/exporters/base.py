"""The interface of exporters: they write a placement in the form of another tool, and read that form back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from placewise.exporters.space import Space
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem

Verified = Literal["executed", "parsed by the tool's own code", "text only"]
"""How the files of a target were verified: the tool ran them, its own parser read them, or only Placewise did."""

OptionValue = str | int | float | bool
OptionValues = Mapping[str, OptionValue]


@dataclass(frozen=True, slots=True)
class ExportOption:
    """An option of a target: its default and its meaning."""

    default: OptionValue
    meaning: str


@dataclass(frozen=True, slots=True)
class ExportInfo:
    """A target: what it writes, which tool and versions load it, how that was verified, what it cannot express.

    `suffix` is that of the file (``.json``), or "" for a target that writes several files into a folder. `takes` says
    which models it accepts, `disk` whether weights may be on a disk, and `precisions` which ones its files ask the tool
    for (docs/costs.md). `library` is the package that writing needs, and `extra` the extra that installs it. `splits`
    says whether it can express ops that are split over devices, and `cannot_split` what it cannot keep of such plans;
    `sequence_parallel`, whether its files keep sequence parallelism; `pipelines`, whether it keeps the stages, the
    schedule and the replicas of a training pipeline.
    """

    name: str
    writes: str
    loaded_by: str
    verified: Verified
    cannot_say: str
    takes: str = "every model"
    suffix: str = ""
    disk: bool = False
    precisions: tuple[str, ...] = ()
    library: str = ""
    extra: str = ""
    options: Mapping[str, ExportOption] = field(default_factory=dict)
    splits: bool = False
    cannot_split: str = ""
    sequence_parallel: bool = False
    pipelines: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """The result of an exporter: files (name → content), the placement that they express, and notes for the user.

    `placement` is the given one, or the nearest one that the target can express. A target with a `suffix` makes one
    file, whose name here is a proposal. `buffers` are bytes by device that the tool takes beside what is judged.
    """

    files: Mapping[str, str | bytes]
    placement: Placement
    notes: tuple[str, ...] = ()
    buffers: Mapping[str, int] = field(default_factory=dict)


class Exporter(Protocol):
    """One target. Exporters are stateless, take no arguments, and write no files themselves."""

    info: ExportInfo

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        """The files for a placement that gives every op a device; `options` has a value for each of `info.options`.

        A placement that the target cannot express is projected (`projection.py`). ``problem.graph.source`` names the
        model file. Raises ExportError for a model or cluster that the target does not support.
        """
        ...

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """The device of each op [n_ops] from the files alone, −1 for an op that they leave out.

        Raises ExportError for files that place an op or parameter twice, or an unknown one.
        """
        ...


def asked_precision(problem: Problem) -> str:
    """The precision that the user of a plan asked for; "" for that of the model."""
    source = problem.graph.source
    return "" if source is None else str(source.options.get("precision", ""))


@runtime_checkable
class RunningExporter(Exporter, Protocol):
    """A target that runs models: one that a plan can be made for (`core/target_rules.py` says how it runs them)."""

    def space(self, problem: Problem) -> Space:
        """What the target can express of a problem. Raises ExportError for a model or cluster that it cannot take."""
        ...

    def project(self, problem: Problem, placement: Placement) -> Placement:
        """The placement that `export` would write with default options; the given one where the target can say it.

        Raises ExportError as `export` does.
        """
        ...
