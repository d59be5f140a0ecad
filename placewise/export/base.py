"""What an exporter is: it writes a placement in the form that another tool loads, and reads that form back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem

Verified = Literal["executed", "parsed by the tool's own code", "text only"]
"""How a target's files were verified: the tool ran them, its own code read them, or only we did."""

OptionValue = str | int | float | bool
OptionValues = Mapping[str, OptionValue]


@dataclass(frozen=True, slots=True)
class ExportOption:
    """An option of a target: what it is unless the user says otherwise, and what it means."""

    default: OptionValue
    meaning: str


@dataclass(frozen=True, slots=True)
class ExportInfo:
    """A target: what is written, who loads it (tool and versions), how that was verified, what it cannot say.

    `suffix` is that of the file (``.json``), or "" where a target writes several, into a directory. `takes` says in
    words which models it is for, and `disk` whether weights may lie on a disk. `library` is what writing needs besides
    Placewise, and `extra` what brings it.
    """

    name: str
    writes: str
    loaded_by: str
    verified: Verified
    cannot_say: str
    takes: str = "every model"
    suffix: str = ""
    disk: bool = False
    library: str = ""
    extra: str = ""
    options: Mapping[str, ExportOption] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """What an exporter made: files (name → content), the placement that they say, and what to tell the user.

    `placement` is the given one, or the nearest one that the target can say. A target with a `suffix` makes one file,
    and its name here is only a proposal.
    """

    files: Mapping[str, str | bytes]
    placement: Placement
    notes: tuple[str, ...] = ()


class Exporter(Protocol):
    """One target. Exporters are stateless, write nothing themselves and are made without arguments."""

    info: ExportInfo

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        """The files for a placement that gives every op a device; every option of `info.options` has its value.

        Where the target cannot say the placement, it is projected (`projection.py`). ``problem.graph.source`` names
        the model file. Raises ExportError for a model or cluster that the target cannot take.
        """
        ...

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """The device of each op [n_ops] as the files alone say it, every op and every parameter exactly once.

        −1 where they say nothing of an op. Raises ExportError for files that say something twice, or something
        unknown.
        """
        ...
