"""The runtime `torch`: a torch.export program in one process, with a lane per device."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from placewise.errors import InputError, MissingExtraError
from placewise.model.placement import Placement
from placewise.processes.worker import Worker
from placewise.runtimes.base import Closing, Job, PreparedPlacement, Realised, RuntimeInfo, share_of_time
from placewise.runtimes.binding import Place, require_no_options
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.torch.job_payload import ProgramFile, assign_calls
from placewise.runtimes.torch.payload import LanePlace

FORMATS = ("torch-export", "torch-module")


class Torch:
    """Every device of the placement is a lane of one worker process: a thread on its own cores, or a GPU."""

    info: ClassVar[RuntimeInfo] = RuntimeInfo(
        name="torch",
        summary="torch.export programs over cores and GPUs of one process, a queue per device",
        execution="operator",
        formats=FORMATS,
        extra="torch",
    )

    def prepare(self, job: Job) -> PreparedPlacement:
        """Load and split the program. Raises RunError, InputError, MissingExtraError."""
        require_torch()
        require_no_options(job.places)
        return PreparedLanes(job)


class PreparedLanes(Closing):
    """The pieces of a placement in the lanes of a worker."""

    def __init__(self, job: Job) -> None:
        used = [job.places[device] for device in np.unique(job.placement.device).tolist()]
        lanes = [LanePlace(torch_device(place), place.cores) for place in job.places]
        self.notes = _notes(used)
        self._job, self._seconds = job, job.seconds
        self._program = ProgramFile(job)
        try:
            self._worker = Worker(
                "placewise.runtimes.torch.server:LaneServer",
                self._program.payload(job.problem, job.placement),
                lanes,
                name="PyTorch",
                cores=sorted({core for place in used for core in place.cores}),
                environment={"OMP_NUM_THREADS": str(max([len(place.cores) for place in used], default=1) or 1)},
            )
        except BaseException:
            self._program.close()
            raise
        self.realised = read_back(job, self._worker.ask("pieces", timeout=job.seconds))

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        outputs: dict[str, npt.NDArray[Any]] = self._worker.ask("run", dict(inputs), timeout=self._seconds)
        return outputs

    def time(self, samples: Sequence[Arrays], *, in_flight: int = 1) -> list[float]:
        seconds: list[float] = self._worker.ask("time", list(map(dict, samples)), in_flight, timeout=self._seconds)
        return seconds

    def move(self, placement: Placement) -> None:
        """As `Movable.move`; PyTorch stays loaded, and the lanes keep their cores."""
        job = self._job.on(placement)
        pieces = self._worker.ask("move", self._program.payload(job.problem, placement), timeout=self._seconds)
        self.realised = read_back(job, pieces)

    def close(self) -> None:
        """End the worker."""
        self._worker.close()
        self._program.close()


def require_torch() -> None:
    """Raise MissingExtraError without PyTorch."""
    if find_spec("torch") is None:
        raise MissingExtraError("running PyTorch models", "torch")


def torch_device(place: Place) -> str:
    """PyTorch's name of a place. Raises InputError for a place that PyTorch cannot use."""
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


def read_back(job: Job, pieces: list[int]) -> Realised:
    """What ran where. An op that stands for a part of a call runs elsewhere if the greater part of the call does."""
    problem, device = job.problem, job.placement.device
    ran, origins = assign_calls(problem, job.placement), problem.graph.ops.origin
    in_place = np.array(
        [bool(origin) and ran[origin[0]] == own for origin, own in zip(origins, device.tolist(), strict=True)]
    )
    idle = tuple(problem.cluster.names[number] for number in np.unique(device).tolist() if not pieces[number])
    elsewhere = tuple(problem.graph.ops.name[op] for op in np.flatnonzero(~in_place))
    return Realised(tuple(pieces), share_of_time(problem, device, in_place), idle, elsewhere)
