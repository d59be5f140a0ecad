"""profile(): every op of a model on the devices of this machine, measured while the whole model runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version

import numpy as np

from placewise.catalog.detect import processor_title
from placewise.costing.work import work_of
from placewise.errors import InputError, RunError
from placewise.files.cluster_record import cluster_record
from placewise.files.graph_file import source_record
from placewise.files.plan_file import ToolRecord
from placewise.files.profile_file import DeviceProfile, Figures, ProfileFile
from placewise.model.dtypes import DTYPES
from placewise.model.graph import Source
from placewise.model.problem import Problem
from placewise.processes.worker import Worker
from placewise.profiling.kernels import Fused, attributed
from placewise.profiling.profile_cache import NOTHING, Shelf, contexts, pooled, remembered, with_measured
from placewise.profiling.servers.registry import installed, profiler
from placewise.profiling.servers.window import Measured, Window
from placewise.runtimes.binding import Place, bind
from placewise.runtimes.inputs import Arrays, fresh_inputs
from placewise.runtimes.registry import default_for

CALLS = 200
"""Calls that do nothing, to see what a call costs."""
LEAD = 0.2
"""Seconds before a window that several workers share, so that all of them have heard of it."""
DISTURBED = 0.8
"""Kernels that make up less of a run than this, dispatch apart, were measured on a machine that did something else."""
FORMATS: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": ("onnx",), "openvino": ("onnx", "openvino"), "torch": ("torch-export",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Profiling:
    """How to profile: the `runtime` ("": the usual one of the model's format), where devices are (`binding`), at least
    how many `repeats` of the model, whether also with all devices `loaded` at once, and what is remembered (`shelf`;
    None: nothing), which is replaced where it is measured `afresh`. `seconds` is how long any one answer of a worker
    may take.
    """

    runtime: str = ""
    binding: Mapping[str, str] = field(default_factory=dict)
    repeats: int = 20
    loaded: bool = False
    shelf: Shelf | None = None
    afresh: bool = False
    seed: int = 0
    seconds: float = 300.0

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise InputError("nothing would be measured", remedy="give repeats from 1")


@dataclass(slots=True)
class _Device:
    """One device while it is being profiled: what is known of it (or was just measured) in each state."""

    place: Place
    about: tuple[str, ...]
    found: dict[str, tuple[Figures, Fused, float]] = field(default_factory=dict)
    ran: bool = False
    failure: str = ""
    notes: tuple[str, ...] = ()


def profile(problem: Problem, how: Profiling = Profiling()) -> ProfileFile:
    """The profile of a problem's model on those of its devices on which it runs.

    Its costs say in which shares the ops of one kernel divide its time. Raises InputError and its kin for a model or
    devices that cannot be profiled here, RunError if it runs on none of them.
    """
    graph = problem.graph
    source = graph.source
    runtime = how.runtime or ("" if source is None else default_for(source.format))
    release = installed(runtime)
    source = _runnable(source, runtime)
    places = bind(problem.cluster, how.binding)
    states = ("idle", "loaded") if how.loaded and len(places) > 1 else ("idle",)
    words = contexts(graph)
    devices = [_Device(place, (runtime, release, _processor(place))) for place in places]
    beside = " ".join(sorted(device.about[2] for device in devices))
    shelf = how.shelf
    for device in devices:
        for state in states:
            known = NOTHING if shelf is None or how.afresh else shelf.read(*_key(device, state, beside))
            again = remembered(graph, words, known)
            if again is not None:
                device.found[state] = (*again, known.call)
    _measure(problem, source, runtime, devices, states, how)
    for device in devices:
        for state, (figures, fused, call) in device.found.items() if device.ran and shelf else ():
            figures = pooled(graph, words, figures)
            device.found[state] = figures, fused, call
            if shelf is not None:
                key = _key(device, state, beside)
                shelf.write(with_measured(shelf.read(*key), graph, words, figures, fused, call), *key)
    return _file(problem, runtime, release, devices)


def _measure(
    problem: Problem, source: Source, runtime: str, devices: Sequence[_Device], states: Sequence[str], how: Profiling
) -> None:
    """Measure what is not known: each device alone, then all of them at once where a loaded time is missing."""
    alone = [device for device in devices if "idle" not in device.found]
    missing = any(state not in device.found for device in devices for state in states)
    with ExitStack() as stack:
        workers: dict[int, Worker] = {}
        for number, device in enumerate(devices) if missing else ():
            if device in alone or len(states) > 1:
                try:
                    worker = profiler(runtime, problem.graph, source, device.place, start=how.seconds)
                    workers[number] = stack.enter_context(worker)
                    device.notes = worker.ask("about")
                except RunError as error:
                    device.failure = str(error)
        inputs = fresh_inputs(problem.graph, how.seed)
        for number in [number for number in workers if devices[number] in alone]:
            _answered(problem, devices, {number: workers[number]}, "idle", inputs, Window(how.repeats), how)
        wanted = len(states) > 1 and any("loaded" not in device.found for device in devices)
        running = {number: worker for number, worker in workers.items() if not devices[number].failure}
        if wanted and len(running) > 1:
            longest = max(devices[number].found["idle"][0].whole or 0.0 for number in running)
            window = Window(how.repeats, time.monotonic() + LEAD, 2 * how.repeats * longest)
            _answered(problem, devices, running, "loaded", inputs, window, how)


def _answered(
    problem: Problem, devices: Sequence[_Device], workers: Mapping[int, Worker], state: str, inputs: Arrays,
    window: Window, how: Profiling,
) -> None:  # fmt: skip
    """Let workers measure in one window, and write down what they found; one that fails is a device that failed."""
    idle = np.asarray(~(problem.costs.op_seconds > 0).any(axis=1))
    calls: dict[int, float] = {}
    for number, worker in workers.items():
        try:
            if state == "idle":
                calls[number] = float(np.median(worker.ask("call_seconds", CALLS, timeout=how.seconds)))
            else:
                calls[number] = devices[number].found["idle"][2]
            worker.tell("measure", dict(inputs), window)
        except RunError as error:
            devices[number].failure = str(error)
    for number, worker in workers.items():
        device = devices[number]
        if device.failure:
            continue
        try:
            measured: Measured = worker.answer(how.seconds)
        except RunError as error:
            device.failure = str(error)
            continue
        estimate = problem.costs.op_seconds[:, number]
        device.found[state] = (*attributed(measured, problem.graph, estimate, idle, calls[number]), calls[number])
        device.ran = True


def _file(problem: Problem, runtime: str, release: str, devices: Sequence[_Device]) -> ProfileFile:
    graph, work = problem.graph, work_of(problem.graph)
    records = tuple(_record(device) for device in devices if "idle" in device.found)
    if not records:
        raise RunError(next(device.failure for device in devices if device.failure))
    return ProfileFile(
        runtime=runtime,
        runtime_version=release,
        source=source_record(graph.source),
        graph_hash=graph.digest(),
        ops=graph.ops.name,
        kinds=tuple(graph.ops.kind),
        flops=tuple(work.flops.tolist()),
        bytes=tuple(work.bytes.tolist()),
        classes=tuple(work.op_class),
        dtypes=tuple(DTYPES[code] for code in work.dtype.tolist()),
        cluster=cluster_record(problem.cluster),
        devices=records,
        notes=tuple(dict.fromkeys(_notes(devices))),
        tool=ToolRecord(name="placewise", version=version("placewise")),
    )


def _record(device: _Device) -> DeviceProfile:
    figures, fused, call = device.found["idle"]
    return DeviceProfile(
        name=device.place.device,
        place=str(device.place),
        processor=device.about[2],
        call_overhead=call,
        measured="" if not device.ran else datetime.now(UTC).isoformat(timespec="seconds"),
        cached=not device.ran,
        fused=fused,
        idle=figures,
        loaded=device.found["loaded"][0] if "loaded" in device.found else None,
    )


def _notes(devices: Sequence[_Device]) -> Iterator[str]:
    for device in devices:
        yield from device.notes
        for state, (figures, _, _) in device.found.items():
            if figures.slowdown < DISTURBED:
                yield (
                    f"{device.place.device}, {state}: kernels are only {figures.slowdown:.0%} of the run: something "
                    f"else used the machine; measure {'again' if device.ran else 'afresh'} when it is calm"
                )
        if device.failure:
            yield f"{device.place.device}: no times: {device.failure}"
        elif not device.ran and device.found["idle"][0].whole is None:
            yield f"{device.place.device}: the model did not run: all its ops were measured in other models"


def _runnable(source: Source | None, runtime: str) -> Source:
    if source is None or not source.path or source.format not in FORMATS[runtime]:
        what = "a model that is no file" if source is None or not source.path else f"a model of {source.format!r}"
        remedy = f"give a file ({', '.join(FORMATS[runtime])}), or another --runtime"
        raise InputError(f"{runtime} cannot profile {what}", remedy=remedy)
    return source


def _processor(place: Place) -> str:
    """What a place is, as far as can be known from outside."""
    cores = ", ".join(map(str, place.cores))
    where = f"cores {cores}" if place.kind == "cores" else f"{place.kind}:{place.name}"
    options = "".join(f"; {name}={value}" for name, value in sorted(place.options.items()))
    return f"{processor_title()}; {where}{options}"


def _key(device: _Device, state: str, beside: str) -> tuple[str, ...]:
    return (*device.about, state, beside if state == "loaded" else "")
