"""profile(): measure every op of a model on the devices of this machine while the whole model runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version

import numpy as np

from placewise.catalog.detect import processor_title
from placewise.core.precision import find_tf32
from placewise.costing.work import work_of
from placewise.errors import InputError, RunError
from placewise.files.cluster_record import cluster_record
from placewise.files.graph_file import source_record
from placewise.files.plan_file import ToolRecord
from placewise.files.profile_file import DeviceProfile, Figures, ProfileFile, RunsRecord
from placewise.model.dtypes import DTYPES
from placewise.model.graph import Source
from placewise.model.problem import Problem
from placewise.processes.worker import Worker
from placewise.profiling.borders import measure_borders
from placewise.profiling.llama_cpp import RUNTIME as LLAMA
from placewise.profiling.llama_cpp import profile_llama
from placewise.profiling.op_times import Fused, attribute_times
from placewise.profiling.pilots import run_pilots
from placewise.profiling.profile_cache import (
    EMPTY,
    ProfileCache,
    add_figures,
    average_contexts,
    find_figures,
    op_contexts,
)
from placewise.profiling.servers.registry import OPS_OF, installed_version, start_profiler
from placewise.profiling.servers.window import ProfiledRuns, TimeWindow
from placewise.runtimes.base import require_as_written, warn_of_trust
from placewise.runtimes.binding import Place, bind, require_limits
from placewise.runtimes.gpus import Gpu, list_gpus
from placewise.runtimes.inputs import Arrays, fresh_inputs
from placewise.runtimes.registry import create, default_for
from placewise.transform.training import is_training

CALLS = 200
"""Calls of a tiny model, which give the overhead of a call."""
LEAD = 0.2
"""Seconds before a shared window starts, in which its workers receive it."""
SUSTAINED = 0.15
"""Seconds per repeat of a shared window at least: processors are faster in the first second than under lasting load."""
DISTURBED = 0.8
"""If kernels are a smaller share of a run than this, without dispatch, the machine was busy with something else."""
FORMATS: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": ("onnx",), "openvino": ("onnx", "openvino"), "torch": ("torch-export",),
    "pipelining": ("torch-export",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Profiling:
    """How to profile.

    `runtime`: "" for the default of the model's format. `binding`: where devices are. `repeats`: the least number of
    runs. `loaded`: measure also with all devices busy. `cache`: None for none; `afresh` measures again and replaces
    what is cached. A worker that does not answer within `seconds` has failed. With `trust_model`, loading the model may
    run code that its file holds. `pilots`: how many placements over several devices teach what borders cost, before
    chosen plans are run (`profiling.pilots`); None: no whole placement is run, not even the plain runtime.
    """

    runtime: str = ""
    binding: Mapping[str, str] = field(default_factory=dict)
    repeats: int = 20
    loaded: bool = False
    cache: ProfileCache | None = None
    afresh: bool = False
    seed: int = 0
    seconds: float = 300.0
    trust_model: bool = False
    pilots: int | None = None

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise InputError("nothing would be measured", remedy="give repeats from 1")


@dataclass(slots=True)
class _DeviceState:
    """One device while it is profiled: figures, fused ops and seconds of a call by state, cached or just measured."""

    place: Place
    about: tuple[str, ...]
    results: dict[str, tuple[Figures, Fused, float]] = field(default_factory=dict)
    ran: bool = False
    failure: str = ""
    notes: tuple[str, ...] = ()


def profile(problem: Problem, how: Profiling = Profiling()) -> ProfileFile:
    """The profile of a problem's model on those of its devices on which it runs.

    The problem's costs decide how the ops of one kernel share its time. Raises InputError, or a subclass of it, for a
    model or devices that cannot be profiled here, and RunError if the model runs on none of them.
    """
    graph = problem.graph
    source = graph.source
    if how.runtime == LLAMA or (not how.runtime and source is not None and source.format == "gguf"):
        places = bind(problem.cluster, how.binding)
        require_limits(places, LLAMA)
        host = next((place for place in places if place.kind != "rpc"), None)
        return profile_llama(problem, places, how.repeats, describe_processor(host, ()) if host else "")
    runtime = how.runtime or ("" if source is None else default_for(source.format))
    release = installed_version(runtime)
    source = _require_file(source, runtime)
    require_as_written(graph)
    places = bind(problem.cluster, how.binding)
    require_limits(places, runtime, create(runtime).info.limits)
    states = ("idle", "loaded") if how.loaded and len(places) > 1 else ("idle",)
    contexts = op_contexts(graph)
    gpus, ops_of = _list_gpus(places), OPS_OF.get(runtime, runtime)
    trains = is_training(graph)
    if trains and ops_of != "torch":
        raise InputError(f"{runtime} does not train", remedy="profile a PyTorch program, with --runtime pipelining")
    what = f"{ops_of}, training" if trains else ops_of
    devices = [
        _DeviceState(place, (what, release, describe_processor(place, gpus, find_tf32(graph)))) for place in places
    ]
    beside = " ".join(sorted(device.about[2] for device in devices))
    cache = how.cache
    for device in devices:
        for state in states:
            cached = EMPTY if cache is None or how.afresh else cache.read(*_cache_key(device, state, beside))
            match = find_figures(graph, contexts, cached)
            if match is not None:
                device.results[state] = (*match, cached.call)
    _measure(problem, source, ops_of, devices, states, how)
    for device in devices:
        for state, (figures, fused, call) in device.results.items() if device.ran and cache else ():
            figures = average_contexts(contexts, figures)
            device.results[state] = figures, fused, call
            if cache is not None:
                added = partial(add_figures, graph=graph, contexts=contexts, figures=figures, fused=fused, call=call)
                cache.update(added, *_cache_key(device, state, beside))
    made = _profile_file(problem, runtime, release, devices)
    if ops_of != runtime:
        made = made.model_copy(update={"borders": measure_borders(places, seconds=how.seconds)})
        how = replace(how, pilots=how.pilots and 0)  # borders are known, and pilots are single samples
    if trains:
        how = replace(how, pilots=None)
    return made if how.pilots is None else _with_runs(problem, made, places, how, (runtime, release, beside))


def _with_runs(
    problem: Problem, made: ProfileFile, places: Sequence[Place], how: Profiling, about: tuple[str, ...]
) -> ProfileFile:
    """The profile with runs of whole placements: those that are cached for this model, unless it was measured anew."""
    pilots, cache = how.pilots or 0, how.cache
    key = (*about, "runs with errors", str(pilots))
    fresh = any(not device.cached for device in made.devices)
    cached = None if cache is None or how.afresh or fresh else cache.read(*key).models.get(made.graph_hash)
    if cached is not None:
        with suppress(ValueError):
            return made.model_copy(update={"runs": RunsRecord.model_validate(cached)})
    runs = run_pilots(problem, made, places, pilots, seed=how.seed, seconds=how.seconds, trust_model=how.trust_model)
    if cache is not None and runs is not None:
        record = runs.model_dump()
        cache.update(lambda old: replace(old, models={**old.models, made.graph_hash: record}), *key)
    return made.model_copy(update={"runs": runs})


def _measure(
    problem: Problem, source: Source, runtime: str, devices: Sequence[_DeviceState], states: Sequence[str],
    how: Profiling,
) -> None:  # fmt: skip
    """Measure what is not cached: each device alone, then all at once if a loaded time is missing."""
    alone = [device for device in devices if "idle" not in device.results]
    missing = any(state not in device.results for device in devices for state in states)
    if how.trust_model and missing and runtime == "torch":
        warn_of_trust(source.path)
    with ExitStack() as stack:
        workers: dict[int, Worker] = {}
        for number, device in enumerate(devices) if missing else ():
            if device in alone or len(states) > 1:
                try:
                    worker = start_profiler(
                        runtime, problem.graph, source, device.place, start=how.seconds, trust_model=how.trust_model
                    )
                    workers[number] = stack.enter_context(worker)
                    device.notes = worker.ask("about")
                except RunError as error:
                    device.failure = str(error)
        inputs = fresh_inputs(problem.graph, how.seed)
        for number in [number for number in workers if devices[number] in alone]:
            _measure_state(problem, devices, {number: workers[number]}, "idle", inputs, TimeWindow(how.repeats), how)
        needs_loaded = len(states) > 1 and any("loaded" not in device.results for device in devices)
        running = {number: worker for number, worker in workers.items() if not devices[number].failure}
        if needs_loaded and len(running) > 1:
            longest = max(devices[number].results["idle"][0].whole or 0.0 for number in running)
            lasts = how.repeats * max(2 * longest, SUSTAINED)
            window = TimeWindow(how.repeats, time.monotonic() + LEAD, lasts)
            _measure_state(problem, devices, running, "loaded", inputs, window, how)


def _measure_state(
    problem: Problem, devices: Sequence[_DeviceState], workers: Mapping[int, Worker], state: str, inputs: Arrays,
    window: TimeWindow, how: Profiling,
) -> None:  # fmt: skip
    """Let workers measure in one window and record the results; a failure of a worker is recorded on its device."""
    idle = np.asarray(~(problem.costs.op_seconds > 0).any(axis=1))
    calls: dict[int, float] = {}
    for number, worker in workers.items():
        try:
            if state == "idle":
                calls[number] = float(np.median(worker.ask("call_seconds", CALLS, timeout=how.seconds)))
            else:
                calls[number] = devices[number].results["idle"][2]
            worker.tell("measure", dict(inputs), window)
        except RunError as error:
            devices[number].failure = str(error)
    for number, worker in workers.items():
        device = devices[number]
        if device.failure:
            continue
        try:
            measured: ProfiledRuns = worker.answer(how.seconds)
        except RunError as error:
            device.failure = str(error)
            continue
        device.notes = (*device.notes, *measured.notes)
        estimate = problem.costs.op_seconds[:, number]
        device.results[state] = (
            *attribute_times(measured, problem.graph, estimate, idle, calls[number]),
            calls[number],
        )
        device.ran = True


def _profile_file(problem: Problem, runtime: str, release: str, devices: Sequence[_DeviceState]) -> ProfileFile:
    graph, work = problem.graph, work_of(problem.graph)
    records = tuple(_record(device) for device in devices if "idle" in device.results)
    if not records:
        raise RunError(next(device.failure for device in devices if device.failure))
    return ProfileFile(
        borders=(),
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
        runs=None,
        notes=tuple(dict.fromkeys(_notes(devices))),
        tool=ToolRecord(name="placewise", version=version("placewise")),
    )


def _record(device: _DeviceState) -> DeviceProfile:
    figures, fused, call = device.results["idle"]
    return DeviceProfile(
        name=device.place.device,
        place=str(device.place),
        processor=device.about[2],
        call_overhead=call,
        measured="" if not device.ran else datetime.now(UTC).isoformat(timespec="seconds"),
        cached=not device.ran,
        fused=fused,
        idle=figures,
        loaded=device.results["loaded"][0] if "loaded" in device.results else None,
        llama=None,
    )


def _notes(devices: Sequence[_DeviceState]) -> Iterator[str]:
    for device in devices:
        yield from device.notes
        for state, (figures, _, _) in device.results.items():
            if figures.slowdown < DISTURBED:
                yield (
                    f"{device.place.device}, {state}: kernels are only {figures.slowdown:.0%} of the run: something "
                    f"else used the machine; measure {'again' if device.ran else 'afresh'} when it is idle"
                )
        if device.failure:
            yield f"{device.place.device}: no times: {device.failure}"
        elif not device.ran and device.results["idle"][0].whole is None:
            yield f"{device.place.device}: the model did not run: all its ops were measured in other models"


def _require_file(source: Source | None, runtime: str) -> Source:
    if source is None or not source.path or source.format not in FORMATS[runtime]:
        what = "a model that is no file" if source is None or not source.path else f"a model of {source.format!r}"
        remedy = f"give a file ({', '.join(FORMATS[runtime])}), or another --runtime"
        raise InputError(f"{runtime} cannot profile {what}", remedy=remedy)
    return source


def _list_gpus(places: Sequence[Place]) -> tuple[Gpu, ...]:
    """The GPUs of this machine; none where no place needs them. What does not run is reported where it is started."""
    if all(place.kind != "cuda" for place in places):
        return ()
    try:
        return list_gpus()
    except RunError:
        return ()


def describe_processor(place: Place, gpus: Sequence[Gpu], tf32: str = "nothing") -> str:
    """The processor of a place, with its cores and options; of a GPU also which one, its driver, and what is TF32."""
    cores = ", ".join(map(str, place.cores))
    where = f"cores {cores}" if place.kind == "cores" else f"{place.kind}:{place.name}"
    if place.kind == "cuda":
        gpu = next((gpu for gpu in gpus if str(gpu.number) == place.name), None)
        where = f"{where} ({gpu or 'unknown'}), {tf32} in TF32"
    options = "".join(f"; {name}={value}" for name, value in sorted({**place.options, **place.limits}.items()))
    return f"{processor_title()}; {where}{options}"


def _cache_key(device: _DeviceState, state: str, beside: str) -> tuple[str, ...]:
    return (*device.about, state, beside if state == "loaded" else "")
