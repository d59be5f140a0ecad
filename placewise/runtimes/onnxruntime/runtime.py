"""The runtime `onnxruntime`: pieces of a placement at the workers of their devices, started when inputs arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import ClassVar

import numpy as np

from placewise._util.units import format_bytes
from placewise.core.split_model import cut, sub_models
from placewise.errors import InputError, MissingExtraError, RunError
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.runtimes.base import Job, Realised, RuntimeInfo, share_of_time
from placewise.runtimes.onnxruntime.dataflow import Dataflow
from placewise.runtimes.onnxruntime.memory.needs import needs_of_devices
from placewise.runtimes.onnxruntime.packing import packed
from placewise.runtimes.onnxruntime.workers import Crew, Habits, Works, crew_of, crowded, threads_of
from placewise.transform.pieces import Pieces

HAND_OVER, CALL = 5e-6, 4e-6
"""Seconds from the end of a piece to the start of one on another device that waits for it, and of a piece besides its
ops, as measured between two cores of an AMD EPYC; pieces are joined by them."""
_OPTIONS = ("pieces", "spin", "first")


class OnnxRuntime:
    """One worker process per device holds its pieces as sub-models; tensors pass through shared memory.

    Options: `pieces` says how the placement is cut (`cutting.How`), `spin` how many seconds a worker looks out for work
    before it sleeps; `first` yes lets workers go before other programs (Linux's real-time order, which takes root), so
    that a busy machine measures like a calm one. Options of a place: `threads` (one per core), session settings by
    their full name (``session.…``, ``ep.…``), and those of its execution provider.
    """

    info: ClassVar[RuntimeInfo] = RuntimeInfo(
        "onnxruntime",
        "ONNX Runtime, one worker per device; a piece starts when its inputs have arrived",
        "operator",
        ("onnx",),
        "onnxruntime",
    )

    def prepare(self, job: Job) -> Placed:
        """As `Runtime.prepare` says. Raises RunError, InputError, MissingExtraError."""
        _check(job)
        return Placed(job)


class Placed(Dataflow):
    """The pieces of a placement at their workers."""

    def __init__(self, job: Job) -> None:
        self._job = job
        crew, notes = _placed(job)
        super().__init__(job.problem.graph, crew, notes, job.seconds)
        self.realised = _realised(job, crew, self.elsewhere)

    def move(self, placement: Placement) -> None:
        """As `Movable.move` says, for devices of one thread each: workers share threads for good."""
        job = self._job.on(placement)
        if any(threads_of(job.places[device]) > 1 for device in self._crew.devices):
            raise InputError("workers with several threads keep their pieces", remedy="prepare it anew")
        crew, notes = _placed(job)
        self.take(crew, notes)
        self.realised = _realised(job, crew, self.elsewhere)


def replicas(job: Job) -> Dataflow:
    """The whole model at every place of a job, samples dealt in turn: what a plan for throughput is compared with.

    The placement does not matter. Raises as `OnnxRuntime.prepare`.
    """
    _check(job)
    alone, everywhere = job.alone(0), tuple(range(len(job.places)))
    pieces = cut(alone.problem, alone.placement, "few")
    crew, notes = _manned(job, pieces, [everywhere] * len(pieces))
    flow = Dataflow(job.problem.graph, crew, notes, job.seconds)
    flow.realised = _realised(job, crew, flow.elsewhere)
    return flow


def _check(job: Job) -> None:
    stranger = next((name for name in job.options if name not in _OPTIONS), None)
    if stranger is not None:
        raise InputError(
            f"the runtime 'onnxruntime' has no option {stranger!r}", remedy=f"it has {', '.join(_OPTIONS)}"
        )
    if find_spec("onnxruntime") is None:
        raise MissingExtraError("the runtime 'onnxruntime'", "onnxruntime")
    if job.placement.device.min(initial=0) < 0:
        raise RunError("some ops have no device, so the placement cannot run")


def _habits(job: Job) -> Habits:
    said = job.options
    try:
        spin = float(said.get("spin", Habits().spin))
    except ValueError:
        spin = -1.0
    if not 0 <= spin < float("inf"):
        raise InputError(f"spin is {said['spin']!r}", remedy="give seconds, as 0.002")
    if said.get("first", "no") not in ("no", "yes"):
        raise InputError(f"first is {said['first']!r}", remedy="say yes or no")
    return Habits(spin, said.get("first") == "yes")


def _members(placement: Placement, device: int) -> tuple[int, ...]:
    """The devices that run a device's stage, itself first: samples are dealt to them in turn."""
    stage = placement.replicas
    others = [] if stage is None else np.flatnonzero(stage == stage[device]).tolist()
    return (device, *(other for other in others if other != device))


def _placed(job: Job) -> tuple[Crew, tuple[str, ...]]:
    """The workers that it takes to run a placement, and notes."""
    how = job.options.get("pieces", "")
    pieces = cut(job.problem, job.placement, how, hand_over=HAND_OVER, overhead=CALL)
    return _manned(job, pieces, [_members(job.placement, device) for device in pieces.device.tolist()])


def _manned(job: Job, pieces: Pieces, members: Sequence[Sequence[int]]) -> tuple[Crew, tuple[str, ...]]:
    """The workers that it takes to run these pieces, each at its members, and notes."""
    graph = job.problem.graph
    parts, notes = sub_models(graph, pieces)
    kept = [parts]  # until they are loaded; the file is read again if workers must be started again

    def loaded(works: Works) -> AbstractContextManager[Works]:
        return packed(kept.pop() if kept else sub_models(graph, pieces)[0], works)

    on_host = [place.kind == "cores" for place in job.places]
    needs = needs_of_devices(graph, pieces, members, on_host)
    crew = crew_of(graph, parts, members, job.places, loaded, _habits(job), needs)
    crowd = [place.device for row, place in enumerate(crew.places) if crowded(crew.places, row)]
    if crowd:
        notes = (*notes, f"{' and '.join(crowd)} share cores, so they disturb each other")
    return crew, (*notes, *_short(job.problem, crew))


def _short(problem: Problem, crew: Crew) -> Iterator[str]:
    """What is to be said of devices whose sessions need more memory than they may use."""
    for device, name, needs in zip(crew.devices, crew.names, crew.needs, strict=True):
        if needs > problem.capacity[device]:
            yield (
                f"ONNX Runtime will need {format_bytes(needs)} on {name}, by its own rules, "
                f"and {format_bytes(problem.capacity[device])} may be used"
            )


def _realised(job: Job, crew: Crew, elsewhere: Sequence[str]) -> Realised:
    names, count = job.problem.cluster.names, np.zeros(job.problem.n_devices, np.int64)
    count[list(crew.devices)] = [len(works) for works in crew.works]
    strays = set(elsewhere)
    asked = np.array([name not in strays for name in job.problem.graph.ops.name], np.bool_)
    share = share_of_time(job.problem, job.placement.device, asked)
    idle = tuple(names[d] for d in np.unique(job.placement.device).tolist() if not count[d])
    memory = np.zeros(job.problem.n_devices, np.int64)
    memory[list(crew.devices)] = crew.needs
    return Realised(tuple(count.tolist()), share, idle, tuple(elsewhere), tuple(memory.tolist()))
