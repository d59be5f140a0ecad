"""The runtime `ray`: the stages of a line as actors on a Ray cluster, through which samples flow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy.typing as npt

from placewise.errors import InputError, RunError
from placewise.processes.ray_cluster import join_cluster
from placewise.processes.worker import START
from placewise.runtimes.base import Closing, Job, PreparedPlacement, RuntimeInfo
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.torch.job_payload import ProgramFile
from placewise.runtimes.torch.ray_stage import RayStage
from placewise.runtimes.torch.runtime import FORMATS, read_back, require_torch, torch_device
from placewise.transform.stages import stages_in_line

ATTEMPTS = 3
"""How often a sample is begun again, and a stage replaced, before the run has failed."""
LONGEST = 300
"""The most letters of an error of Ray in a message."""
GPU, BESIDE = 0.99, 0.01
"""Of a GPU, what a stage takes, so that no other stage is on it, and what the whole program takes beside a stage."""


class RayPipeline:
    """An actor per stage, wherever the cluster has a processor, or a GPU, for it; samples pass from actor to actor.

    The option `address` is that of the cluster: HOST:PORT, auto, or local for one that is started here. Every node
    needs Placewise and PyTorch. Stages that die are replaced, on another node if theirs is gone, and what they were
    computing is computed again.
    """

    info: ClassVar[RuntimeInfo] = RuntimeInfo(
        name="ray",
        summary="torch.export programs over a Ray cluster: an actor per stage, on any node",
        execution="sequential",
        formats=FORMATS,
        extra="ray",
        remote=True,
    )

    def prepare(self, job: Job) -> PreparedPlacement:
        """Start an actor per stage. Raises RunError without a cluster or room in it, MissingExtraError, InputError."""
        require_torch()
        return PreparedActors(job)


class PreparedActors(Closing):
    """The stages of a placement in their actors."""

    notes: tuple[str, ...] = ()

    def __init__(self, job: Job) -> None:
        unknown = next((name for name in job.options if name != "address"), None)
        if unknown is not None:
            raise InputError(f"the runtime 'ray' has no option {unknown!r}", remedy="it has address")
        order = stages_in_line(job.problem, job.placement)
        self._ray = join_cluster(job.options.get("address", "auto"), "running plans on a Ray cluster", may_start=True)
        self._seconds, self.repeated = job.seconds, 0
        devices = [torch_device(job.places[device]) for device in order]
        self._require_room(devices)
        self._actors: list[Any] = []
        program = ProgramFile(job)
        try:
            stage = {device: number for number, device in enumerate(order)}
            payload = program.payload(job.problem, job.placement)
            payload = replace(payload, device={call: stage[d] for call, d in payload.device.items()}, start={})
            self._archive = self._ray.put(Path(program.path).read_bytes())  # replaced stages read it again
            for number, device in enumerate(devices):
                on_gpu = device.startswith("cuda")
                alone = len(devices) == 1
                kind = self._ray.remote(RayStage).options(
                    num_cpus=0 if on_gpu or alone else 1, num_gpus=(BESIDE if alone else GPU) if on_gpu else 0,
                    scheduling_strategy="SPREAD", max_restarts=ATTEMPTS, max_task_retries=ATTEMPTS,
                )  # fmt: skip
                self._actors.append(kind.remote(payload, self._archive, number, "cuda:0" if on_gpu else "cpu"))
            self._start()
        except BaseException:
            self.close()
            raise
        finally:
            program.close()
        self.realised = read_back(job, [int(device in order) for device in range(job.problem.n_devices)])

    @property
    def processes(self) -> list[int]:
        """The process of every stage, on its node."""
        return self._get([actor.process.remote() for actor in self._actors])

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        return self.stream([inputs])[0]

    def stream(self, samples: Sequence[Arrays], *, in_flight: int = 1) -> list[dict[str, npt.NDArray[Any]]]:
        """The outputs of every sample in their order, with at most `in_flight` between the first and the last stage.

        Raises RunError for a sample that fails, or is lost with its stage more than `ATTEMPTS` times.
        """
        waiting, attempts = list(enumerate(samples))[::-1], [0] * len(samples)
        flying: dict[Any, int] = {}
        outputs: dict[int, dict[str, npt.NDArray[Any]]] = {}
        while waiting or flying:
            while waiting and len(flying) < in_flight:
                number, sample = waiting.pop()
                flying[self._submit(sample)] = number
            ready, _ = self._ray.wait(list(flying), timeout=self._seconds)
            if not ready:
                raise RunError(f"no stage on the Ray cluster answered within {self._seconds:g} s")
            number = flying.pop(ready[0])
            try:
                outputs[number] = dict(self._ray.get(ready[0]))
            except self._ray.exceptions.RayTaskError as error:
                raise RunError(f"a stage failed on the Ray cluster: {_first_line(error.cause or error)}") from None
            except self._ray.exceptions.RayError as error:  # a stage or its node died, and its results with it
                attempts[number] += 1
                if attempts[number] > ATTEMPTS:
                    raise RunError(f"a sample was lost {ATTEMPTS + 1} times ({_first_line(error)})") from None
                self.repeated += 1
                waiting.append((number, samples[number]))
        return [outputs[number] for number in range(len(samples))]

    def time(self, samples: Sequence[Arrays], *, in_flight: int = 1) -> list[float]:
        """As `PreparedPlacement.time`; inputs leave from here, and outputs come back."""
        if in_flight > 1:
            begin = time.perf_counter()
            self.stream(samples, in_flight=in_flight)
            return [(time.perf_counter() - begin) / max(len(samples), 1)]
        seconds = []
        for sample in samples:
            begin = time.perf_counter()
            self.stream([sample])
            seconds.append(time.perf_counter() - begin)
        return seconds

    def close(self) -> None:
        """End the actors; the cluster stays."""
        for actor in self._actors:
            with suppress(Exception):  # a cluster that is gone has ended them
                self._ray.kill(actor)
        self._actors = []

    def _submit(self, sample: Arrays) -> Any:
        """The coming outputs of a sample; what a stage makes goes straight to the next one."""
        values: Any = dict(sample)
        for actor in self._actors:
            values = actor.run.remote(values)
        return values

    def _require_room(self, devices: Sequence[str]) -> None:
        """Raise RunError for a cluster that has never room for all stages: its actors would wait for ever."""
        has = self._ray.cluster_resources()
        gpus = sum(device.startswith("cuda") for device in devices)
        cpus = len(devices) - gpus if len(devices) > 1 else 0
        for count, name, what in ((cpus, "CPU", "processors"), (gpus, "GPU", "GPUs")):
            if count > has.get(name, 0):
                raise RunError(
                    f"{count} stages need {what} of their own, and the Ray cluster has {has.get(name, 0):g} {what}"
                )

    def _start(self) -> None:
        """Wait until all stages have loaded. Raises RunError."""
        failures = self._get([actor.start.remote() for actor in self._actors], START + self._seconds)
        failure = next(filter(None, failures), "")
        if failure:
            raise RunError(f"a stage cannot run: {failure}")

    def _get(self, references: Sequence[Any], seconds: float = START) -> list[Any]:
        errors = self._ray.exceptions
        try:
            answers: list[Any] = self._ray.get(list(references), timeout=seconds)
        except errors.GetTimeoutError:
            raise RunError(f"the stages did not answer within {seconds:g} s: the Ray cluster is busy") from None
        except errors.RayError as error:
            raise RunError(f"a stage does not start on the Ray cluster ({_first_line(error)})") from None
        return answers


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[0][:LONGEST]}"
