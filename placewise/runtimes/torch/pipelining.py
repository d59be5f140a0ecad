"""The runtime `pipelining`: torch.distributed.pipelining, a process per device, stages one after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy.typing as npt

from placewise.errors import RunError
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.processes.scratch import Scratch
from placewise.processes.worker import Worker
from placewise.runtimes.base import Job, Prepared, RuntimeInfo
from placewise.runtimes.inputs import Arrays, fresh_inputs
from placewise.runtimes.torch.job_payload import Program
from placewise.runtimes.torch.payload import Payload
from placewise.runtimes.torch.runtime import FORMATS, device_of, realised_of, require_torch
from placewise.transform.stages import stage_order

_RANK = "placewise.runtimes.torch.rank:Rank"
HEARSAY = 1.0
"""Seconds by which a neighbour may hear of a death before the system tells."""


class Pipelining:
    """One rank per device that the placement uses, joined by gloo, or by NCCL where all of them are GPUs.

    All samples of a stream are the micro-batches of one GPipe schedule: nothing limits how many are in flight.
    """

    info: ClassVar[RuntimeInfo] = RuntimeInfo(
        name="pipelining",
        summary="torch.distributed.pipelining: a process per device, contiguous stages, micro-batches",
        execution="sequential",
        formats=FORMATS,
        extra="torch",
    )

    def prepare(self, job: Job) -> Prepared:
        """The stages, each in its process. Raises RunError for a placement that is no line of stages."""
        require_torch()
        return _Prepared(job)


class _Prepared:
    def __init__(self, job: Job) -> None:
        order = stages_in_line(job.problem, job.placement)
        self._seconds = job.seconds
        self._folder = Scratch()
        self._workers: list[Worker] = []
        self._program: Program | None = None
        try:
            self._program = Program(job)
            self._start(job, order, self._program.handed(job.problem, job.placement))
            self._meet(fresh_inputs(job.problem.graph, 0))
        except BaseException:
            self.close()
            raise
        stages = dict.fromkeys(order, 1)
        self.realised = realised_of(job, [stages.get(device, 0) for device in range(job.problem.n_devices)])
        self.notes: tuple[str, ...] = (
            () if len(order) == 1 else ("all samples of a stream are micro-batches of one GPipe schedule",)
        )

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        return self._together("stream", [dict(inputs)], 1)[-1][2][0]  # type: ignore[no-any-return]

    def time(self, samples: Sequence[Arrays], *, in_flight: int = 1) -> list[float]:
        given, count = list(map(dict, samples)), len(samples)
        if in_flight > 1:
            ranks = self._together("stream", given, count)
            return [(ranks[-1][1] - ranks[0][0]) / max(count, 1)]
        first, *_, last = [*self._together("alone", given, count)] * 2
        return [end - begin for (begin, _), (_, end) in zip(first, last, strict=True)]

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        if self._program is not None:
            self._program.close()
        self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, job: Job, order: Sequence[int], handed: Payload) -> None:
        """A worker per stage; they load side by side."""
        stages = {device: place for place, device in enumerate(order)}
        told = Payload(handed.path, handed.shown, {n: stages[d] for n, d in handed.device.items()}, handed.names, {})
        meeting = str(self._folder.path / "meeting")
        environment = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
        for device in order:
            place = job.places[device]
            worker = Worker(
                "placewise.runtimes.torch.deferred:Later", name=str(place), cores=place.cores, environment=environment
            )
            self._workers.append(worker)
        self._all(
            [
                ("make", _RANK, (told, number, len(order), device_of(job.places[device]), meeting, self._seconds))
                for number, device in enumerate(order)
            ]
        )

    def _meet(self, inputs: Arrays) -> None:
        values = dict(inputs)
        for worker in self._workers:
            values = worker.ask("do", "probe", (values,), timeout=self._seconds)
        self._all([("do", "connect", ())] * len(self._workers))

    def _together(self, method: str, samples: list[dict[str, Any]], count: int) -> list[Any]:
        """The answers of all ranks to one question; only the first is given the samples."""
        return self._all([("do", method, ([] if rank else samples, count)) for rank in range(len(self._workers))])

    def _all(self, questions: Sequence[tuple[str, str, tuple[Any, ...]]]) -> list[Any]:
        """Ask every rank, then hear them all; if one fails, none of them lives on."""
        try:
            for worker, question in zip(self._workers, questions, strict=True):
                worker.tell(*question)
            return [worker.answer(self._seconds) for worker in self._workers]
        except BaseException as error:
            dead = self._dead() if isinstance(error, RunError) else None
            for worker in self._workers:
                worker.kill()
            if dead is not None and dead.name not in str(error):
                raise RunError(f"the worker of {dead.name} is gone, and the other stages with it ({error})") from None
            raise

    def _dead(self) -> Worker | None:
        """Who has died, where one has."""
        until = time.monotonic() + HEARSAY
        while True:
            dead = next((worker for worker in self._workers if not worker.alive), None)
            if dead is not None or time.monotonic() > until:
                return dead
            time.sleep(0.01)


def stages_in_line(problem: Problem, placement: Placement) -> tuple[int, ...]:
    """The devices of a placement as stages. Raises RunError, naming an edge, where they feed each other in a circle."""
    order, back = stage_order(problem.graph, placement.device)
    if back is None:
        return order
    (source, target), names = back, problem.graph.ops.name
    where = [problem.cluster.names[int(placement.device[op])] for op in (source, target)]
    raise RunError(
        f"the devices of this placement are no line of stages: {names[source]!r} on {where[0]} feeds {names[target]!r} "
        f"on {where[1]}, which comes before it; place with --contiguous, or run it with --runtime torch"
    )
