"""The runtime `torch`: a torch.export program in one process, a lane per device."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from placewise.errors import InputError, MissingExtraError
from placewise.model.placement import Placement
from placewise.processes.worker import Worker
from placewise.runtimes.base import Job, Prepared, Realised, RuntimeInfo, share_of_time
from placewise.runtimes.binding import Place
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.torch.job_payload import Program, nodes_of
from placewise.runtimes.torch.payload import LanePlace

FORMATS = ("torch-export", "torch-module")


class Torch:
    """Every device of the placement is a lane of one worker process: a thread on cores of its own, or a GPU."""

    info: ClassVar[RuntimeInfo] = RuntimeInfo(
        name="torch",
        summary="torch.export programs over cores and GPUs of one process, a queue per device",
        execution="operator",
        formats=FORMATS,
        extra="torch",
    )

    def prepare(self, job: Job) -> Prepared:
        """The placement, loaded and cut. Raises RunError, InputError, MissingExtraError."""
        require_torch()
        return _Prepared(job)


class _Prepared:
    def __init__(self, job: Job) -> None:
        problem, placement = job.problem, job.placement
        used = np.unique(placement.device).tolist()
        lanes = [LanePlace(device_of(place), place.cores) for place in job.places]
        cores = sorted({core for device in used for core in job.places[device].cores})
        self.notes = _notes([job.places[device] for device in used])
        self._job, self._seconds = job, job.seconds
        self._program = Program(job)
        try:
            self._worker = Worker(
                "placewise.runtimes.torch.server:Server",
                self._program.handed(problem, placement),
                lanes,
                name="PyTorch",
                cores=cores,
                environment={"OMP_NUM_THREADS": str(max([len(job.places[d].cores) for d in used], default=1) or 1)},
            )
        except BaseException:
            self._program.close()
            raise
        self.realised = realised_of(job, self._worker.ask("pieces", timeout=job.seconds))

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        found: dict[str, npt.NDArray[Any]] = self._worker.ask("run", dict(inputs), timeout=self._seconds)
        return found

    def time(self, samples: Sequence[Arrays], *, in_flight: int = 1) -> list[float]:
        found: list[float] = self._worker.ask("time", list(map(dict, samples)), in_flight, timeout=self._seconds)
        return found

    def move(self, placement: Placement) -> None:
        """As `Movable.move` says: PyTorch is loaded already, and the lanes have their cores."""
        job = self._job.on(placement)
        pieces = self._worker.ask("move", self._program.handed(job.problem, placement), timeout=self._seconds)
        self.realised = realised_of(job, pieces)

    def close(self) -> None:
        self._worker.close()
        self._program.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_torch() -> None:
    """Raise MissingExtraError without PyTorch."""
    if find_spec("torch") is None:
        raise MissingExtraError("running PyTorch models", "torch")


def device_of(place: Place) -> str:
    """What PyTorch calls a place. Raises InputError for one that it has not."""
    if place.kind == "cores":
        return "cpu"
    if place.kind == "cuda":
        return f"cuda:{place.name or 0}"
    raise InputError(f"PyTorch does not drive {place}", remedy="bind the device to cores or cuda:NUMBER")


def _notes(places: Sequence[Place]) -> tuple[str, ...]:
    notes = []
    hosts = [place for place in places if place.kind == "cores"]
    if len(hosts) > 1:
        notes.append("cores of one process share its memory: nothing is copied between them")
        if len({len(place.cores) for place in hosts}) > 1:
            notes.append("PyTorch may use as many threads for a product on every device as the largest has cores")
    return tuple(notes)


def realised_of(job: Job, pieces: list[int]) -> Realised:
    """What runs where; elsewhere run ops that stand for a part of a call which goes with its greater part."""
    problem, device = job.problem, job.placement.device
    ran = nodes_of(problem, job.placement)
    origins = problem.graph.ops.origin
    there = np.array(
        [bool(origin) and ran[origin[0]] == home for origin, home in zip(origins, device.tolist(), strict=True)]
    )
    names = problem.cluster.names
    idle = tuple(names[d] for d in np.unique(device).tolist() if not pieces[d])
    elsewhere = tuple(name for name, here in zip(problem.graph.ops.name, there.tolist(), strict=True) if not here)
    return Realised(tuple(pieces), share_of_time(problem, device, there), idle, elsewhere)
