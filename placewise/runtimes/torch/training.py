"""Training runs: a process per device and replica, checkpoints, and restarts after the death of a process."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise.errors import InputError, RunError
from placewise.files.training_checkpoint import WEIGHTS, TrainingCheckpoint
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.processes.limits import Network
from placewise.processes.scratch import ScratchFolder
from placewise.processes.worker import START, Worker, collect_answers, find_dead, waited_seconds
from placewise.readers.torch.backends import choose_backend
from placewise.runtimes.base import Closing, Job
from placewise.runtimes.binding import require_no_options
from placewise.runtimes.inputs import Arrays, input_tensors
from placewise.runtimes.torch.job_payload import ProgramFile, assign_calls
from placewise.runtimes.torch.payload import Payload
from placewise.runtimes.torch.runtime import require_torch, torch_device
from placewise.simulate.step.orders import SPLITS_BACKWARD
from placewise.transform.virtual_stages import VirtualStages, find_virtual_stages

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
OPTIMIZERS = ("sgd", "momentum", "adam")
_RANK = "placewise.runtimes.torch.training_rank:TrainingRank"
_WHOLE = "placewise.runtimes.torch.training_rank:WholeProgram"


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How to train: `steps` of `microbatches`, each of the plan's shapes, with a schedule and an optimizer.

    A checkpoint is written into the folder `checkpoint` every so many steps (`every`) and after the last one. After the
    death of a process, training restarts from the last checkpoint, at most `restarts` times. `compared` steps are
    repeated by the whole program in one process. Raises InputError.
    """

    steps: int = 20
    schedule: str = "1f1b"
    microbatches: int = 4
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    checkpoint: Path | None = None
    every: int = 10
    restarts: int = 3
    resume: bool = False
    compared: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, known in (("schedule", self.schedule, SCHEDULES), ("optimizer", self.optimizer, OPTIMIZERS)):
            if value not in known:
                raise InputError(f"there is no {name} {value!r} of training", remedy=f"choose {', '.join(known)}")
        counts = {"steps": self.steps, "micro-batches": self.microbatches, "steps per checkpoint": self.every}
        for name, count in counts.items():
            if count < 1:
                raise InputError(f"{count} {name} train nothing", remedy="give one or more")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise InputError(f"the learning rate is {self.learning_rate}", remedy="give a positive number, like 1e-3")
        if self.restarts < 0 or self.compared < 0:
            raise InputError("the number of restarts or of compared steps is negative", remedy="give 0 or more")
        if self.resume and self.checkpoint is None:
            raise InputError("there is nothing to resume from", remedy="name the folder with --checkpoint")


@dataclass(frozen=True, slots=True, eq=False)
class TrainingJob:
    """A placement of the forward ops to train: the `job`, its stages, and the devices of each of their replicas.

    `data` are rows of inputs and of a target by name; `frozen` are regular expressions of weights that do not train.
    """

    job: Job
    options: TrainingOptions
    stages: VirtualStages
    replicas: tuple[tuple[int, ...], ...]
    data: Arrays = field(default_factory=dict)
    frozen: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[int, ...]:
        """The device of every process."""
        return tuple(device for replica in self.replicas for device in replica)

    @property
    def on_gpus(self) -> bool:
        """Whether every process has a GPU of its own, so that NCCL connects them and not gloo."""
        return choose_backend(self.document()["devices"]) == "nccl"

    def document(self) -> dict[str, Any]:
        """What every process receives (`readers.torch.pipeline_trainer.PipelineTrainer`)."""
        graph, options = self.job.problem.graph, self.options
        return {
            "stage_ranks": list(self.stages.ranks),
            "replicas": len(self.replicas),
            "calls": list_calls(self.job.problem, self.stages),
            "devices": [torch_device(self.job.places[device]) for device in self.devices],
            "schedule": options.schedule,
            "microbatches": options.microbatches,
            "optimizer": options.optimizer,
            "learning_rate": options.learning_rate,
            "seed": options.seed,
            "frozen": list(self.frozen),
            "shapes": {graph.tensors.name[t]: list(map(int, graph.tensors.shape[t])) for t in input_tensors(graph)},
        }

    def digest(self) -> str:
        """sha256 of all that decides the losses of a run."""
        found = hashlib.sha256(self.job.problem.graph.digest().encode())
        found.update(json.dumps(self.document(), sort_keys=True).encode())
        for name in sorted(self.data):
            found.update(name.encode() + np.ascontiguousarray(self.data[name]).tobytes())
        return found.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRecord:
    """What a training run did: the loss of every step, the seconds of the steps of this run, and bytes by process.

    `runtime` is the part of these bytes that processes took before the first step, beyond their weights. `order` is
    what every process of a replica does in a step: stage, kind of action and micro-batch. `restarts` says what ended a
    process, once per restart. `waited` are the seconds that threads waited for a processor, by step. `compared` are the
    losses of the whole program in one process, `alone` its seconds, and the differences the largest ones: of losses as
    a share, of gradients as a share of the largest entry.
    """

    losses: tuple[float, ...]
    seconds: tuple[float, ...]
    memory: tuple[int, ...]
    order: tuple[tuple[tuple[int, str, int], ...], ...]
    first: int = 1
    restarts: tuple[str, ...] = ()
    compared: tuple[float, ...] = ()
    alone: tuple[float, ...] = ()
    loss_difference: float = 0.0
    gradient_difference: float = 0.0
    notes: tuple[str, ...] = ()
    runtime: tuple[int, ...] = ()
    waited: tuple[float, ...] = ()


OnStep = Callable[[int, float, float], None]
"""Is told the number, the loss and the seconds of every step."""


def plan_training(
    job: Job, options: TrainingOptions, data: Arrays | None = None, frozen: Sequence[str] = ()
) -> TrainingJob:
    """The stages and replicas of a placement of forward ops. Raises RunError or InputError if they cannot train."""
    require_torch()
    require_no_options(job.places)
    problem, placement = job.problem, job.placement
    require_whole_placement(placement)
    stages = find_training_stages(problem, placement, options.schedule)
    replicas = list_replicas(problem, placement, stages.devices)
    if options.microbatches % len(replicas):
        raise InputError(
            f"{options.microbatches} micro-batches do not divide among {len(replicas)} replicas",
            remedy=f"give a multiple of {len(replicas)} with --microbatches",
        )
    return TrainingJob(job, options, stages, replicas, data or {}, tuple(frozen))


def require_whole_placement(placement: Placement) -> None:
    """Raise RunError for a plan whose stages split, replicate or recompute ops."""
    if placement.way is not None:
        raise RunError("this plan may split ops over devices: train it with the files of placewise export --to torch")


def find_training_stages(problem: Problem, placement: Placement, schedule: str) -> VirtualStages:
    """The stages of a placement under a schedule: its own, if it has some for this schedule, else those of its devices.

    Raises RunError if the schedule cannot run them.
    """
    if placement.stage is not None and schedule_name(placement.schedule) == schedule:
        devices = tuple(dict.fromkeys(group.devices[0] for group in placement.stages))
        ranks = tuple(devices.index(group.devices[0]) for group in placement.stages)
        return VirtualStages(devices, ranks, placement.stage)
    device_of = assign_calls(problem, placement)
    origins = problem.graph.ops.origin
    device = np.array([device_of[origin[0]] if origin else home
                       for origin, home in zip(origins, placement.device.tolist(), strict=True)], np.int32)  # fmt: skip
    stages = find_virtual_stages(problem.graph, device, there_and_back=schedule == "zero-bubble")
    names = problem.cluster.names
    if stages is None:
        raise RunError("the devices of this placement feed each other too often to be stages: place with --contiguous")
    if len(stages.ranks) > len(stages.devices) and schedule in ("gpipe", "1f1b"):
        turns = ", ".join(names[stages.devices[rank]] for rank in stages.ranks)
        raise RunError(
            f"{schedule} runs one stage per device, and this placement has {len(stages.ranks)} ({turns}): train it "
            "with --schedule interleaved or zero-bubble, or place with --contiguous"
        )
    return stages


def schedule_name(planned: str) -> str:
    """What a schedule of the objective `step` is called here."""
    return "zero-bubble" if planned in SPLITS_BACKWARD else planned


def list_replicas(problem: Problem, placement: Placement, devices: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The devices of every replica of a pipeline. Raises RunError for stages of different numbers of replicas."""
    if placement.replicas is None:
        return (tuple(devices),)
    source = placement.replicas.tolist()
    groups = [[d, *(e for e in range(problem.n_devices) if source[e] == d and e != d)] for d in devices]
    counts = {len(group) for group in groups}
    if len(counts) > 1:
        numbers = ", ".join(str(len(group)) for group in groups)
        raise RunError(
            f"the stages of this plan have different numbers of replicas ({numbers}), and training takes equal ones"
        )
    return tuple(zip(*groups, strict=True))


def list_calls(problem: Problem, stages: VirtualStages) -> list[dict[str, Any]]:
    """The stage of every call of the program; that of a call of several ops is the latest of theirs."""
    calls: dict[int, dict[str, Any]] = {}
    ops = problem.graph.ops
    for name, origin, stage in zip(ops.name, ops.origin, stages.stage.tolist(), strict=True):
        if origin:
            entry = calls.setdefault(origin[0], {"number": origin[0], "name": name, "stage": stage})
            entry["stage"] = max(entry["stage"], stage)
    return [calls[number] for number in sorted(calls)]


def train_plan(training: TrainingJob, on_step: OnStep = lambda *_: None) -> TrainingRecord:
    """Train, compare with the whole program in one process, and restart from checkpoints where processes die.

    Raises RunError if the program cannot train so, or processes keep dying; InputError and its kin for the checkpoint.
    """
    options = training.options
    checkpoint = None
    with ExitStack() as ends:
        if options.checkpoint is not None:
            ranks = len(training.stages.devices)
            checkpoint = TrainingCheckpoint(options.checkpoint, training.digest(), ranks, resume=options.resume)
            ends.callback(checkpoint.abandon)
        program = ProgramFile(training.job)
        ends.callback(program.close)
        payload = program.payload(training.job.problem, training.job.placement)
        payload = replace(payload, device={}, start={})
        run = _Run(training, payload, checkpoint, on_step)
        return run.finish()


class _Run:
    """The state of a run between restarts."""

    def __init__(
        self, training: TrainingJob, payload: Payload, checkpoint: TrainingCheckpoint | None, on_step: OnStep
    ) -> None:
        self._training, self._payload, self._checkpoint, self._on_step = training, payload, checkpoint, on_step
        self._losses: list[float] = list(checkpoint.last.losses) if checkpoint and checkpoint.last else []
        self._first = len(self._losses) + 1
        self._seconds: list[float] = []
        self._waited: list[float] = []
        self._restarts: list[str] = []
        self._order: Any = ()
        self._memory: list[int] = []
        self._runtime: list[int] = []
        self._gradients: dict[str, npt.NDArray[Any]] = {}

    def finish(self) -> TrainingRecord:
        options = self._training.options
        while True:
            try:
                with TrainingProcesses(self._training, self._payload) as processes:
                    self._train(processes)
                break
            except DeadProcess as death:
                if self._checkpoint is None:
                    raise RunError(f"{death}; with --checkpoint, training would go on from the last one") from None
                if len(self._restarts) >= options.restarts:
                    raise RunError(f"{death}, after {len(self._restarts)} restarts") from None
                self._restarts.append(str(death))
                done = self._checkpoint.last.step if self._checkpoint.last else 0
                self._losses = self._losses[:done]
                logging.getLogger("placewise").warning(f"warning: {death}; training goes on after step {done}")
        record = TrainingRecord(
            losses=tuple(self._losses),
            seconds=tuple(self._seconds),
            memory=tuple(self._memory),
            runtime=tuple(self._runtime),
            waited=tuple(self._waited),
            order=self._order,
            first=self._first,
            restarts=tuple(self._restarts),
            notes=() if self._seconds else (self._describe_idleness(),),
        )
        return self._compare(record)

    def _describe_idleness(self) -> str:
        steps = self._training.options.steps
        return f"nothing was trained: the checkpoint has {len(self._losses)} steps, and --steps asks for {steps} in all"

    def _train(self, processes: TrainingProcesses) -> None:
        checkpoint, options = self._checkpoint, self._training.options
        if checkpoint is not None and checkpoint.last is not None:
            processes.load(checkpoint.files(checkpoint.last.step))
        self._order = processes.order()
        while len(self._losses) < options.steps:
            number = len(self._losses) + 1
            before = waited_seconds()
            loss, seconds = processes.step(number)
            self._waited.append(max(waited_seconds() - before, 0.0))  # threads that ended no longer count
            if not math.isfinite(loss):
                raise RunError(f"the loss of step {number} is {loss}: give a smaller --learning-rate")
            self._losses.append(loss)
            self._seconds.append(seconds)
            self._on_step(number, loss, seconds)
            if number == 1 and options.compared and not self._gradients:
                self._gradients = processes.gradients()
            if checkpoint is not None and (number % options.every == 0 or number == options.steps):
                processes.save(checkpoint.files(number))
                checkpoint.commit(number, self._losses)
        self._memory, self._runtime = processes.peak_memory(), processes.runtime_memory()
        if checkpoint is not None and checkpoint.last is not None:
            processes.merge(checkpoint.files(checkpoint.last.step), str(checkpoint.path / WEIGHTS))

    def _compare(self, record: TrainingRecord) -> TrainingRecord:
        """The record with what the whole program says in one process. Raises RunError where losses differ."""
        options = self._training.options
        count = min(options.compared, len(record.losses)) if self._first == 1 else 0
        if not count:
            return record
        job = self._training.job
        place = job.places[self._training.stages.devices[0]]
        with Worker(
            _WHOLE, self._payload, self._training.document(), torch_device(place), dict(self._training.data),
            name="the whole program", cores=place.cores, quota=place.quota,
        ) as whole:  # fmt: skip
            if whole.ask("is_random", timeout=job.seconds):
                note = "the program draws random numbers, so its losses are not compared with those of one process"
                return replace(record, notes=(*record.notes, note))
            steps = [whole.ask("step", 1, timeout=job.seconds)]
            gradients = whole.ask("gradients", timeout=job.seconds)
            steps += [whole.ask("step", number, timeout=job.seconds) for number in range(2, count + 1)]
        wanted = [loss for loss, _ in steps]
        losses = max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(record.losses, wanted, strict=False))
        return replace(
            record,
            compared=tuple(wanted),
            alone=tuple(seconds for _, seconds in steps),
            loss_difference=losses,
            gradient_difference=_gradient_difference(self._gradients, gradients),
        )


class DeadProcess(RunError):
    """A process of a training run that has died."""


class TrainingProcesses(Closing):
    """A worker for each device of each replica, connected by gloo, or by NCCL if each has a GPU of its own.

    After a failure all of them are ended. Raises DeadProcess if one has died, and RunError for other failures.
    """

    def __init__(self, training: TrainingJob, payload: Payload) -> None:
        job = training.job
        self._seconds, self._ranks = job.seconds, len(training.stages.devices)
        self._workers: list[Worker] = []
        self._folder = ScratchFolder()
        self._network: Network | None = None
        meeting, document = str(self._folder.path / "meeting"), training.document()
        names = job.problem.cluster.names
        with self._all_or_none():
            network = self._network = Network([job.places[device].bandwidth for device in training.devices])
            for rank, device in enumerate(training.devices):
                place = job.places[device]
                self._workers.append(
                    Worker(
                        _RANK, payload, document, rank, len(training.devices), meeting, job.seconds,
                        dict(training.data), name=f"process {rank} ({names[device]})", cores=place.cores,
                        quota=place.quota, network=network.namespaces[rank], environment=network.environment,
                        start=None,
                    )
                )  # fmt: skip
            collect_answers(self._workers, START + job.seconds)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes, by rank."""
        return tuple(worker.pid for worker in self._workers)

    def step(self, number: int) -> tuple[float, float]:
        """The loss and the seconds of a step."""
        steps = self._ask("step", number)
        return steps[0][0], max(seconds for _, seconds in steps)

    def gradients(self) -> dict[str, npt.NDArray[Any]]:
        """The gradients of the last step, by parameter."""
        found: dict[str, npt.NDArray[Any]] = {}
        for gradients in self._ask("gradients")[: self._ranks]:
            found |= gradients
        return found

    def order(self) -> tuple[tuple[tuple[int, str, int], ...], ...]:
        """What every process of a replica does in a step."""
        return tuple(map(tuple, self._ask("order")[0]))

    def peak_memory(self) -> list[int]:
        """Bytes that training took in every process."""
        return self._ask("peak_memory")

    def runtime_memory(self) -> list[int]:
        """Bytes that every process took beyond its weights before the first step."""
        return self._ask("runtime_memory")

    def save(self, files: Sequence[str]) -> None:
        """Write the state of the first replica."""
        self._ask_each("save", [(name,) for name in files])

    def load(self, files: Sequence[str]) -> None:
        """Take over a state in every replica."""
        self._ask_each("load", [(name,) for name in files] * (len(self._workers) // self._ranks))

    def merge(self, files: Sequence[str], path: str) -> None:
        """Write the weights in the files of all processes as one state of the model."""
        self._ask_each("merge", [(list(files), path)])

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.kill()
        if self._network is not None:
            self._network.close()
        self._folder.close()

    def _ask(self, method: str, *args: Any) -> list[Any]:
        return self._ask_each(method, [args] * len(self._workers))

    def _ask_each(self, method: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The answers of the first workers, each to its own request."""
        workers = self._workers[: len(args)]
        with self._all_or_none():
            for worker, own in zip(workers, args, strict=True):
                worker.tell(method, *own)
            return collect_answers(workers, self._seconds)

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """End all processes after a failure, and name one that died."""
        try:
            yield
        except BaseException as error:
            dead = find_dead(self._workers) if isinstance(error, RunError) else None
            self.close()
            if dead is not None:
                raise DeadProcess(f"{dead.name} died, and the others were ended ({error})") from None
            raise


def _gradient_difference(one: Mapping[str, npt.NDArray[Any]], other: Mapping[str, npt.NDArray[Any]]) -> float:
    """The largest difference of two sets of gradients, as a share of the largest entry; inf for other parameters."""
    if one.keys() != other.keys():
        return math.inf
    scale = max((float(np.abs(value).max(initial=0)) for value in other.values()), default=0.0) or 1.0
    return max((float(np.abs(one[name] - other[name]).max(initial=0)) for name in one), default=0.0) / scale
