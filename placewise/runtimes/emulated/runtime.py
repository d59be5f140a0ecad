"""The runtime `emulated`: a process per device that sleeps as long as its ops take, and sends real bytes."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from placewise._util.units import format_bytes
from placewise.errors import InputError, RunError
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.processes.worker import Worker, collect_answers
from placewise.runtimes.base import Closing, Job, Realised, RuntimeInfo
from placewise.runtimes.emulated.builder import ProgramBuilder
from placewise.runtimes.emulated.latency import add_operator_tasks, add_sequential_tasks, add_subgraph_tasks
from placewise.runtimes.emulated.pipeline import add_pipeline_tasks
from placewise.runtimes.emulated.program import PeerProgram, Report, SharedClock
from placewise.runtimes.emulated.step import add_step_tasks
from placewise.runtimes.inputs import Arrays
from placewise.simulate import judge_placement

LATENCY_SECONDS, STEP_SECONDS, TASK_SECONDS, OP_SECONDS = 1.0, 0.02, 4e-4, 5e-5
"""By default a sample alone takes the first, a pipeline's step the second, and each at least the others per task and
per op, since the processes themselves have work with them."""
GUARD, SLACK, START = 0.003, 0.025, 0.15
"""Seconds by which processes decide late, up to which they catch up, and from an order to the start of its samples."""
BYTES_PER_SECOND = 48e6
"""What all links together really move; beyond that, an equal part of every tensor moves."""
_OPTIONS = ("time-scale",)
_ADD = {"operator": add_operator_tasks, "subgraph": add_subgraph_tasks, "sequential": add_sequential_tasks}


class Emulated:
    """One process per device, one for host memory and one per shared wire, paced by the cost table.

    Option `time-scale`: how many seconds a second of the plan takes (default: so that a sample alone takes about one
    second). It needs neither the devices nor the model.
    """

    info: ClassVar[RuntimeInfo] = RuntimeInfo(
        name="emulated",
        summary="any cluster on this machine: a process per device, paced by the costs, with real messages",
        execution="operator",
        formats=(),
        extra="",
        emulates=True,
    )

    def prepare(self, job: Job) -> PreparedEmulation:
        """As `Runtime.prepare`. Raises RunError, InputError."""
        unknown = next((name for name in job.options if name not in _OPTIONS), None)
        if unknown is not None:
            raise InputError(
                f"the runtime 'emulated' has no option {unknown!r}", remedy=f"it has {', '.join(_OPTIONS)}"
            )
        return PreparedEmulation(job)


class PreparedEmulation(Closing):
    """A placement in the processes of an emulated cluster."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._load(job)
        names = (*job.problem.cluster.names, "host memory", *(f"wire {wire}" for wire in job.problem.cluster.wires))
        with ExitStack() as stack:
            self._workers = _start_processes(names, stack)
            self._tell_programs()
            self._stack = stack.pop_all()
        self.reports: tuple[Report, ...] = ()
        """What every process saw of the last run: devices, host memory, wires."""

    @property
    def notes(self) -> tuple[str, ...]:
        """The time scale, and what part of the bytes moves; after a run also memory and delays."""
        notes = [f"emulated: a second of the plan takes {self.scale:.3g} s here"]
        if self._share < 1:
            notes.append(f"emulated: {self._share:.1%} of every tensor's bytes really move")
        return (*notes, *self._describe_memory(), *self._describe_delays())

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Run one sample; what stands for its outputs. Raises RunError."""
        self._stream(1, 1)
        problem, values = self._job.problem, self.reports[self._job.problem.n_devices].values.get(0, ())
        names = [f"update {k}" for k in range(len(values))]
        if problem.objective.kind != "step":
            names = [problem.graph.tensors.name[tensor] for tensor in self._builder.outputs]
        return {name: np.array([value], np.uint64) for name, value in zip(names, values, strict=True)}

    def time(self, samples: Sequence[Arrays], *, in_flight: int = 1) -> list[float]:
        """As `PreparedPlacement.time`, in seconds of the plan.

        A pipeline is timed while it is full, in the second half of its samples: those that enter an empty one together
        leave faster than it can go on, as some of their work was done while it filled.
        """
        if in_flight > 1 and self._job.problem.objective.kind == "step":
            raise InputError("training steps come one after the other", remedy="leave out --in-flight")
        if in_flight == 1 and self._job.problem.objective.kind != "throughput":
            return [self._stream(1, 1) for _ in samples]
        self._stream(len(samples), in_flight)
        done = sorted(self.reports[self._job.problem.n_devices].done.values())
        full = len(done) > 3 * in_flight
        first, last = (len(done) // 2 - 1, len(done) - in_flight) if full else (0, len(done) - 1)
        if last <= first:
            return [done[-1] - self._began]
        return [(done[last] - done[first]) / (last - first) / self.scale]

    def move(self, placement: Placement) -> None:
        self.take(self._job.on(placement))

    def take(self, job: Job) -> None:
        """Run another job on a cluster of as many devices and wires. Raises RunError."""
        self._load(job)
        self._tell_programs()
        self._job, self.reports = job, ()

    @property
    def programs(self) -> tuple[PeerProgram, ...]:
        """What every process was told."""
        return tuple(self._programs)

    @property
    def pids(self) -> dict[str, int]:
        """The processes by the names of devices, host memory and wires."""
        return {worker.name: worker.pid for worker in self._workers}

    def peaks(self) -> tuple[int, ...]:
        """The most bytes that each device held in the last run, with its weights and state."""
        resident = [use.resident for use in self._judged.devices]
        return tuple(int(base) + report.peak for base, report in zip(resident, self.reports, strict=False))

    def close(self) -> None:
        """End the processes."""
        self._stack.close()

    def _load(self, job: Job) -> None:
        problem, placement = job.problem, job.placement
        if problem.ways is not None:
            raise RunError("stages whose ops are split cannot be emulated")
        if placement.device.min(initial=0) < 0:
            raise RunError("some ops have no device, so the placement cannot run")
        _require_finite(problem, placement)
        judged = judge_placement(problem, placement)
        if not math.isfinite(judged.value):
            raise RunError("calls wait for each other in a circle, so the placement cannot run")
        self._judged = judged
        pipelined = problem.objective.kind == "throughput"
        alone = add_step_tasks if problem.objective.kind == "step" else _ADD[problem.objective.execution]
        add = add_pipeline_tasks if pipelined else alone
        builder = ProgramBuilder(problem, placement)
        add(builder, placement)
        self._builder = builder
        tasks = builder.n_tasks
        least = max(STEP_SECONDS if pipelined else LATENCY_SECONDS, TASK_SECONDS * tasks + OP_SECONDS * problem.n_ops)
        given = job.options.get("time-scale", "")
        self.scale = _parse_scale(given) if given else least / judged.value if judged.value > 0 else 1.0
        moved = builder.bytes_moved()
        self._share = min(1.0, BYTES_PER_SECOND * judged.value * self.scale / moved) if moved else 1.0
        builder.share = self._share
        self._programs: list[PeerProgram] = builder.finish()
        pieces = tuple(len(program.tasks) for program in self._programs[: problem.n_devices])
        self.realised = Realised(pieces)

    def _tell_programs(self) -> None:
        for worker, program in zip(self._workers, self._programs, strict=True):
            worker.tell("load", program)
        collect_answers(self._workers, self._job.seconds)

    def _stream(self, samples: int, in_flight: int) -> float:
        """Run samples; the seconds of the plan from their start to the end of the last. Raises RunError."""
        clock = SharedClock(time.monotonic() + START, self.scale, GUARD, SLACK)
        for worker in self._workers:
            worker.tell("stream", clock, samples, in_flight)
        self.reports = tuple(collect_answers(self._workers, self._job.seconds))
        self._began = clock.start + clock.guard
        self._check_values(samples)
        return (max(report.ended for report in self.reports) - self._began) / self.scale

    def _check_values(self, samples: int) -> None:
        """Raise RunError if an output does not follow from the model's inputs as the graph says."""
        found = self.reports[self._job.problem.n_devices].values
        for sample in range(samples) if self._builder.outputs else ():
            if found.get(sample) != self._builder.expected_outputs(sample):
                raise RunError(f"the outputs of sample {sample} do not follow from its inputs as the graph says")

    def _describe_memory(self) -> list[str]:
        if not self.reports or self._job.problem.objective.kind == "step":  # what a stage keeps is not followed there
            return []
        uses, held = self._judged.devices, self.peaks()
        parts = [
            f"{use.device} {format_bytes(held[d])} of {format_bytes(use.peak)}" for d, use in enumerate(uses) if use.ops
        ]
        return [f"emulated: most bytes held, of those predicted: {', '.join(parts)}"]

    def _describe_delays(self) -> list[str]:
        late = max((report.late for report in self.reports), default=0.0)
        return [f"emulated: a process was {1000 * late:.0f} ms late: this machine is busy"] if late > SLACK else []


def _start_processes(names: Sequence[str], stack: ExitStack) -> list[Worker]:
    """A process for each name, every two of them joined by a socket; the stack ends them."""
    ends: list[dict[int, socket.socket]] = [{} for _ in names]
    try:
        for one in range(len(names)):
            for other in range(one):
                ends[one][other], ends[other][one] = socket.socketpair()
        host = next(number for number, name in enumerate(names) if name == "host memory")
        workers: list[Worker] = []
        for number, name in enumerate(names):
            links = {peer: link.fileno() for peer, link in ends[number].items()}
            worker = Worker(
                "placewise.runtimes.emulated.server:PeerServer", number, host, links,
                name=name, fds=tuple(links.values()), start=None,
            )  # fmt: skip
            stack.callback(worker.close)
            workers.append(worker)
        collect_answers(workers)
        return workers
    finally:
        for own in ends:
            for link in own.values():
                link.close()


def _require_finite(problem: Problem, placement: Placement) -> None:
    runs = np.isfinite(problem.costs.op_seconds[np.arange(problem.n_ops), placement.device])
    if not runs.all():
        op = int(np.argmin(runs))
        name = problem.cluster.names[int(placement.device[op])]
        raise RunError(f"{name} cannot run the op {problem.graph.ops.name[op]!r}")


def _parse_scale(text: str) -> float:
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not 0 < scale < math.inf:
        raise InputError(f"time-scale is {text!r}", remedy="give a number above zero, as 1000")
    return scale
