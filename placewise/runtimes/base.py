"""The interface of runtimes, which prepare placements on this machine, run them and time them."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from placewise.errors import InputError
from placewise.model.columns import Bools
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Execution, Problem
from placewise.runtimes.binding import Place
from placewise.runtimes.inputs import Arrays
from placewise.transform.precision import precision_of


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """The properties of a runtime; `execution` is the order of work for one sample that it realises (docs/judge.md).

    `formats` are the model formats that it runs (`Source.format`), and `extra` the package extra to install. `remote`:
    its devices may be on other machines, so that they are not bound to places of this one. A runtime of `stages` runs a
    line of them, one process each, from an empty pipeline to an empty one; its transfers do not overlap with compute. A
    runtime that `emulates` needs neither the devices nor the model, and follows the execution of the plan. `limits` are
    those of places that it can keep.
    """

    name: str
    summary: str
    execution: Execution
    formats: tuple[str, ...]
    extra: str
    remote: bool = False
    stages: bool = False
    emulates: bool = False
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A placement to run: the problem, whose graph names the model file, the placement, and where the devices are.

    `model` is the live model if there is one (a PyTorch module, with its example inputs as `example`); else the file is
    read. `options` are the runtime's own. A worker that does not answer within `seconds` counts as hanging. With
    `trust_model`, loading the file may run code that it holds.
    """

    problem: Problem
    placement: Placement
    places: tuple[Place, ...]
    model: Any = None
    example: Any = None
    options: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 300.0
    trust_model: bool = False

    def on(self, placement: Placement) -> Job:
        """The same job with another placement."""
        return replace(self, placement=placement)

    def alone(self, device: int) -> Job:
        """The same job with every op on one device."""
        return self.on(Placement.on(device, self.problem.n_ops))


@dataclass(frozen=True, slots=True)
class Realised:
    """What really ran where, as read back from the runtime.

    `pieces` counts the separately submitted parts of each device of the cluster. `share` is the part of the op seconds
    (by the problem's costs) that ran on the device of the placement. `idle` names devices of the placement on which
    nothing ran, `elsewhere` ops that ran on another device, as far as the runtime reports them. `memory` predicts the
    bytes that each device of the cluster holds by the runtime's own rules; empty if it has none.
    """

    pieces: tuple[int, ...]
    share: float = 1.0
    idle: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    memory: tuple[int, ...] = ()


class PreparedPlacement(Protocol):
    """A placement that is ready to run. Close it after use."""

    notes: tuple[str, ...]
    """What the user should know: defaults that were taken, silent fallbacks."""
    realised: Realised

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The model's outputs by name for one sample. Raises RunError."""

    def time(self, samples: Sequence[Arrays], *, in_flight: int = 1) -> list[float]:
        """Seconds per sample. Raises RunError.

        With one `in_flight`: the seconds of each sample alone, from its inputs to its outputs. With more: one figure,
        the mean per sample of the whole stream.
        """

    def close(self) -> None: ...


@runtime_checkable
class Movable(PreparedPlacement, Protocol):
    """A prepared placement whose workers can take over another placement."""

    def move(self, placement: Placement) -> None:
        """Run another placement of the same job, on the same devices, from now on.

        Raises RunError, InputError; it must be closed then.
        """


class Closing(ABC):
    """A base of classes that are closed when their context exits."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Runtime(Protocol):
    """Something that executes placements. Stateless; CONTRIBUTING.md describes how to add one."""

    info: ClassVar[RuntimeInfo]

    def prepare(self, job: Job) -> PreparedPlacement:
        """Prepare the placement of `job`. Raises RunError if it cannot run, MissingExtraError, InputError."""


def match_execution(problem: Problem, info: RuntimeInfo, *, pipelined: bool) -> Problem:
    """The problem with the objective that the runtime measures, so that predictions and measurements compare."""
    objective = problem.objective
    if info.emulates and objective.kind == "step":
        return problem
    if pipelined and info.stages:
        return problem.with_(objective=replace(objective, kind="throughput", communication="blocking"))
    if pipelined:
        return problem.with_(objective=replace(objective, kind="throughput"))
    execution = objective.execution if info.emulates and not objective.op_by_op else info.execution
    return problem.with_(objective=replace(objective, kind="latency", execution=execution))


def warn_of_trust(path: str) -> None:
    """Say that loading a file may run what it holds."""
    logging.getLogger("placewise").warning(
        f"warning: {path} is loaded with --trust-model: code that the file holds runs with your rights"
    )


def require_as_written(graph: Graph) -> None:
    """Raise InputError for a graph that was cast: runtimes execute files and modules as they are."""
    if name := precision_of(graph):
        raise InputError(
            f"the plan prices the model in {name}, and a runtime executes it as it is",
            where="" if graph.source is None else graph.source.path,
            remedy="convert the model and place it, or place this one without --precision",
        )


def share_of_time(problem: Problem, device: npt.NDArray[np.int32], in_place: Bools) -> float:
    """The part of the op seconds under a placement [n_ops] that belongs to the ops of a mask [n_ops]."""
    seconds = problem.costs.op_seconds[np.arange(problem.n_ops), device]
    total = float(seconds.sum())
    return float(seconds[in_place].sum()) / total if total > 0 else float(in_place.mean())
