"""The runtime `onnxruntime`: the pieces of a placement run in the workers of their devices as soon as inputs arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import ClassVar

import numpy as np
import onnx

from placewise._util.units import format_bytes
from placewise.core.precision import find_tf32
from placewise.core.split_model import cut, sub_models
from placewise.errors import InputError, MissingExtraError, RunError
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.processes.scratch import scratch_folder
from placewise.readers.onnx.submodels import Submodel
from placewise.runtimes.base import Job, Realised, RuntimeInfo, share_of_time
from placewise.runtimes.onnxruntime.dataflow import Dataflow
from placewise.runtimes.onnxruntime.memory.needs import predict_device_needs
from placewise.runtimes.onnxruntime.worker_specs import (
    DataflowSpec,
    Tasks,
    WorkerOptions,
    shares_cores,
    specify_workers,
    thread_count,
    with_tf32,
)

HAND_OVER, CALL = 5e-6, 4e-6
"""Seconds from the end of a piece to the start of a piece on another device that waits for it, and seconds of a call
besides its ops, measured between two cores of an AMD EPYC. Pieces are merged by these figures."""
LARGEST_MESSAGE = 1 << 30
"""Bytes of weights up to which a model is sent as bytes; a protobuf message may have 2 GiB."""
_OPTIONS = ("pieces", "spin", "first")


class OnnxRuntime:
    """One worker process per device holds its pieces as sub-models; tensors pass through shared memory.

    Options: `pieces` says how the placement is split (`core.split_model`); `spin` is how many seconds a worker polls
    before it sleeps (default 0.005); `first` yes gives workers Linux's real-time priority, which takes root, so that a
    busy machine measures like a quiet one. Options of a place: `threads` (one per core), session settings by their full
    name (``session.…``, ``ep.…``), and options of its execution provider.
    """

    info: ClassVar[RuntimeInfo] = RuntimeInfo(
        "onnxruntime",
        "ONNX Runtime, one worker per device; a piece starts when its inputs have arrived",
        "operator",
        ("onnx",),
        "onnxruntime",
        limits=("quota",),
    )

    def prepare(self, job: Job) -> PreparedPieces:
        """As `Runtime.prepare`. Raises RunError, InputError, MissingExtraError."""
        _check_job(job)
        return PreparedPieces(job)


class PreparedPieces(Dataflow):
    """The pieces of a placement in their workers."""

    def __init__(self, job: Job) -> None:
        self._job = job
        spec, notes = _specify(job)
        super().__init__(job.problem.graph, spec, notes, job.seconds)
        self.realised = _realise(job, spec, self.elsewhere)

    def move(self, placement: Placement) -> None:
        """As `Movable.move`, for devices of one thread each: the shared threads of a worker cannot be replaced."""
        job = self._job.on(placement)
        if any(thread_count(job.places[device]) > 1 for device in self._spec.devices):
            raise InputError("workers with several threads keep their pieces", remedy="prepare it anew")
        spec, notes = _specify(job)
        self.replace_pieces(spec, notes)
        self.realised = _realise(job, spec, self.elsewhere)


def _check_job(job: Job) -> None:
    unknown = next((name for name in job.options if name not in _OPTIONS), None)
    if unknown is not None:
        raise InputError(f"the runtime 'onnxruntime' has no option {unknown!r}", remedy=f"it has {', '.join(_OPTIONS)}")
    if find_spec("onnxruntime") is None:
        raise MissingExtraError("the runtime 'onnxruntime'", "onnxruntime")
    if job.placement.device.min(initial=0) < 0:
        raise RunError("some ops have no device, so the placement cannot run")


def _parse_options(job: Job) -> WorkerOptions:
    options = job.options
    try:
        spin = float(options.get("spin", WorkerOptions().spin))
    except ValueError:
        spin = -1.0
    if not 0 <= spin < float("inf"):
        raise InputError(f"spin is {options['spin']!r}", remedy="give seconds, as 0.002")
    if options.get("first", "no") not in ("no", "yes"):
        raise InputError(f"first is {options['first']!r}", remedy="say yes or no")
    return WorkerOptions(spin, options.get("first") == "yes")


def _stage_members(placement: Placement, device: int) -> tuple[int, ...]:
    """The devices that run the stage of a device, itself first; they take turns with the samples."""
    stage = placement.replicas
    others = [] if stage is None else np.flatnonzero(stage == stage[device]).tolist()
    return (device, *(other for other in others if other != device))


def _specify(job: Job) -> tuple[DataflowSpec, tuple[str, ...]]:
    """The workers that run a placement, and notes."""
    graph = job.problem.graph
    pieces = cut(job.problem, job.placement, job.options.get("pieces", ""), hand_over=HAND_OVER, overhead=CALL)
    members = [_stage_members(job.placement, device) for device in pieces.device.tolist()]
    parts, notes = sub_models(graph, pieces)
    unused = [parts]  # until the first load; restarted workers read the file again

    def load_models(tasks: Tasks) -> AbstractContextManager[Tasks]:
        return add_models(unused.pop() if unused else sub_models(graph, pieces)[0], tasks)

    on_host = [place.kind == "cores" for place in job.places]
    needs = predict_device_needs(graph, pieces, members, on_host)
    places = [with_tf32(place, find_tf32(graph)) for place in job.places]
    spec = specify_workers(graph, parts, members, places, load_models, _parse_options(job), needs)
    whole = [(row, place) for row, place in enumerate(spec.places) if place.quota == 1]
    crowded = [place.device for row, place in whole if shares_cores(spec.places, row)]
    if crowded:
        notes = (*notes, f"{' and '.join(crowded)} share cores, so they disturb each other")
    return spec, (*notes, *_memory_warnings(job.problem, spec))


@contextmanager
def add_models(parts: Sequence[Submodel], tasks: Tasks) -> Iterator[Tasks]:
    """The tasks of every worker with their models: as bytes, or as files that exist until the context exits."""
    with ExitStack() as stack:
        models: dict[int, bytes | str] = {}
        for number in sorted({task.number for own in tasks for task in own}):
            part = parts[number]
            if part.weight_bytes <= LARGEST_MESSAGE:
                models[number] = part.model.SerializeToString()
                continue
            path = stack.enter_context(scratch_folder()) / "model.onnx"
            onnx.save(part.model, path, save_as_external_data=True, location="weights")
            models[number] = str(path)
        yield tuple(tuple(replace(task, model=models[task.number]) for task in own) for own in tasks)


def _memory_warnings(problem: Problem, spec: DataflowSpec) -> Iterator[str]:
    """A note for every device whose sessions are predicted to need more memory than they may use."""
    for device, name, needs in zip(spec.devices, spec.names, spec.needs, strict=True):
        if needs > problem.capacity[device]:
            yield (
                f"ONNX Runtime will need {format_bytes(needs)} on {name}, by its own rules, "
                f"and {format_bytes(problem.capacity[device])} may be used"
            )


def _realise(job: Job, spec: DataflowSpec, elsewhere: Sequence[str]) -> Realised:
    names, count = job.problem.cluster.names, np.zeros(job.problem.n_devices, np.int64)
    count[list(spec.devices)] = [len(tasks) for tasks in spec.tasks]
    strays = set(elsewhere)
    in_place = np.array([name not in strays for name in job.problem.graph.ops.name], np.bool_)
    share = share_of_time(job.problem, job.placement.device, in_place)
    idle = tuple(names[device] for device in np.unique(job.placement.device).tolist() if not count[device])
    memory = np.zeros(job.problem.n_devices, np.int64)
    memory[list(spec.devices)] = spec.needs
    return Realised(tuple(count.tolist()), share, idle, tuple(elsewhere), tuple(memory.tolist()))
