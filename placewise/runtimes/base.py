"""What a runtime is: it prepares a placement of a model on this machine, runs it, and says how it orders work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from placewise.model.columns import Bools
from placewise.model.placement import Placement
from placewise.model.problem import Execution, Problem
from placewise.runtimes.binding import Place
from placewise.runtimes.inputs import Arrays


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """What is said of a runtime: `execution` is the order of work for one sample that it realises (docs/judge.md).

    `formats` are the formats of models that it runs, as `Source.format` says them; `pipelines` whether several samples
    can be in flight; `extra` is what must be installed.
    """

    name: str
    summary: str
    execution: Execution
    formats: tuple[str, ...]
    extra: str
    pipelines: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A placement to run: the problem (whose graph says where the model is), the placement, and where devices are.

    `model` is the live model, where there is one (a PyTorch module with its example inputs as `example`); else the
    file that the graph's source names is read. `options` are the runtime's own. `seconds` is how long any one answer
    may take before a worker counts as hanging.
    """

    problem: Problem
    placement: Placement
    places: tuple[Place, ...]
    model: Any = None
    example: Any = None
    options: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 300.0

    def on(self, placement: Placement) -> Job:
        """The same with another placement."""
        return Job(self.problem, placement, self.places, self.model, self.example, self.options, self.seconds)

    def alone(self, device: int) -> Job:
        """The same with every op on one device."""
        return self.on(Placement(np.full(self.problem.n_ops, device, np.int32)))


@dataclass(frozen=True, slots=True)
class Realised:
    """What really ran where, as the runtime reads it back.

    `pieces` are the parts that were handed over as one, per device of the cluster; `share` is the part of the op
    seconds (by the problem's costs) that ran on the device that the placement names; `idle` names devices of the
    placement on which nothing ran; `elsewhere` ops that ran on another device than asked (of those that can be told).
    `memory` is what each device of the cluster is predicted to hold by the runtime's own rules, in bytes; empty where
    it has none.
    """

    pieces: tuple[int, ...]
    share: float = 1.0
    idle: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    memory: tuple[int, ...] = ()


class Prepared(Protocol):
    """A placement that is ready to run; use it as a context manager, or close it."""

    notes: tuple[str, ...]
    """What the user should know: defaults that were taken, silent fallbacks."""
    realised: Realised

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The model's outputs by name for one sample. Raises RunError."""

    def time(self, samples: Sequence[Arrays], *, in_flight: int = 1) -> list[float]:
        """Seconds: with one `in_flight`, of every sample, each run alone, from the moment when its inputs are handed
        over until its outputs are there; with more, one figure, the mean per sample of the whole stream. Raises
        RunError.
        """

    def close(self) -> None: ...


@runtime_checkable
class Movable(Prepared, Protocol):
    """Prepared so that another placement can take its place in the workers that are there already."""

    def move(self, placement: Placement) -> None:
        """From now on this placement of the same job, which must use the same devices. Raises RunError, InputError;
        then it is to be closed.
        """


class Runtime(Protocol):
    """Something that really executes a placement. Stateless; see CONTRIBUTING.md for how to add one."""

    info: ClassVar[RuntimeInfo]

    def prepare(self, job: Job) -> Prepared:
        """The placement of `job`, ready to run. Raises RunError for what cannot run, MissingExtraError, InputError."""


def share_of_time(problem: Problem, device: npt.NDArray[np.int32], where_asked: Bools) -> float:
    """The part of the op seconds under a placement [n_ops] that belongs to the ops of a mask [n_ops]."""
    seconds = problem.costs.op_seconds[np.arange(problem.n_ops), device]
    total = float(seconds.sum())
    return float(seconds[where_asked].sum()) / total if total > 0 else float(where_asked.mean())
