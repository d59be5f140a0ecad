"""The runtime `pipelining`: torch.distributed.pipelining with a process per device and stages in a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import numpy.typing as npt

from placewise.errors import RunError
from placewise.processes.limits import Network
from placewise.processes.scratch import ScratchFolder
from placewise.processes.worker import START, Worker, collect_answers, find_dead
from placewise.readers.torch.backends import choose_backend
from placewise.runtimes.base import Closing, Job, PreparedPlacement, RuntimeInfo
from placewise.runtimes.binding import require_no_options
from placewise.runtimes.inputs import Arrays, fresh_inputs
from placewise.runtimes.torch.job_payload import ProgramFile
from placewise.runtimes.torch.payload import Payload
from placewise.runtimes.torch.runtime import FORMATS, read_back, require_torch, torch_device
from placewise.transform.stages import stages_in_line

_RANK = "placewise.runtimes.torch.rank:Rank"


class Pipelining:
    """One rank per device of the placement, connected by NCCL if each has a GPU of its own, else by gloo.

    All samples of a stream are the micro-batches of one GPipe schedule: nothing limits how many are in flight.
    """

    info: ClassVar[RuntimeInfo] = RuntimeInfo(
        name="pipelining",
        summary="torch.distributed.pipelining: a process per device, contiguous stages, micro-batches",
        execution="sequential",
        formats=FORMATS,
        extra="torch",
        stages=True,
        limits=("quota", "bandwidth"),
    )

    def prepare(self, job: Job) -> PreparedPlacement:
        """Start a process per stage. Raises RunError for a placement that is no line of stages."""
        require_torch()
        require_no_options(job.places)
        return PreparedStages(job)


class PreparedStages(Closing):
    """The stages of a placement, each in its rank."""

    def __init__(self, job: Job) -> None:
        order = stages_in_line(job.problem, job.placement)
        self._seconds = job.seconds
        self._folder = ScratchFolder()
        self._workers: list[Worker] = []
        self._program: ProgramFile | None = None
        self._network: Network | None = None
        try:
            self._network = Network([job.places[device].bandwidth for device in order])
            self._program = ProgramFile(job)
            self._start(job, order, self._program.payload(job.problem, job.placement), self._network)
            self._connect(fresh_inputs(job.problem.graph, 0))
        except BaseException:
            self.close()
            raise
        self.realised = read_back(job, [int(device in order) for device in range(job.problem.n_devices)])
        self.notes: tuple[str, ...] = (
            () if len(order) == 1 else ("all samples of a stream are micro-batches of one GPipe schedule",)
        )

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        return self._run_samples("stream", [dict(inputs)])[-1][2][0]  # type: ignore[no-any-return]

    def time(self, samples: Sequence[Arrays], *, in_flight: int = 1) -> list[float]:
        arrays = list(map(dict, samples))
        if in_flight > 1:
            ranks = self._run_samples("stream", arrays)
            return [(ranks[-1][1] - ranks[0][0]) / max(len(samples), 1)]
        ranks = self._run_samples("alone", arrays)
        return [end - begin for (begin, _), (_, end) in zip(ranks[0], ranks[-1], strict=True)]

    def close(self) -> None:
        """End the ranks."""
        for worker in self._workers:
            worker.kill()
        if self._program is not None:
            self._program.close()
        if self._network is not None:
            self._network.close()
        self._folder.close()

    def _start(self, job: Job, order: Sequence[int], payload: Payload, network: Network) -> None:
        """Start a worker per stage; all of them load at the same time."""
        stage = {device: number for number, device in enumerate(order)}
        device = {call: stage[device] for call, device in payload.device.items()}
        payload = replace(payload, device=device, start={})
        meeting = str(self._folder.path / "meeting")
        backend = choose_backend([torch_device(job.places[device]) for device in order])
        for number, place in enumerate(job.places[device] for device in order):
            worker = Worker(
                _RANK, payload, number, len(order), torch_device(place), meeting, self._seconds, backend,
                name=str(place), cores=place.cores, quota=place.quota, network=network.namespaces[number],
                environment=network.environment, start=None,
            )  # fmt: skip
            self._workers.append(worker)
        with self._all_or_none():
            collect_answers(self._workers, START + self._seconds)

    def _connect(self, inputs: Arrays) -> None:
        values = dict(inputs)
        for worker in self._workers:
            with self._all_or_none():
                values = worker.ask("probe", values, timeout=self._seconds)
        self._ask("connect", [()] * len(self._workers))

    def _run_samples(self, method: str, samples: list[dict[str, Any]]) -> list[Any]:
        """The answers of all ranks; only the first one receives the samples, the others their number."""
        return self._ask(method, [([] if rank else samples, len(samples)) for rank in range(len(self._workers))])

    def _ask(self, method: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The answer of every rank to a request with its own arguments; the first that fails ends the request."""
        with self._all_or_none():
            for worker, own in zip(self._workers, args, strict=True):
                worker.tell(method, *own)
            return collect_answers(self._workers, self._seconds)

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Kill all ranks after a failure, and name the rank that died, whoever noticed it first."""
        try:
            yield
        except BaseException as error:
            dead = find_dead(self._workers) if isinstance(error, RunError) else None
            cause = dead.failure() if dead is not None and dead.name not in str(error) else None
            for worker in self._workers:
                worker.kill()
            if cause is not None:
                raise RunError(f"{cause}, and the other stages ended with it") from None
            raise
