"""Measures placements on this machine: prepared, checked against the single-device run, and timed in turns.

Beside every placement run the answers that need no placer: the best single device, the runtime's own threads on all
cores, and, for a stream, copies of the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from placewise.analysis.compare import LeaderboardEntry
from placewise.core.precision import product_precision
from placewise.errors import InputError, RunError
from placewise.model.columns import Ints
from placewise.model.cost_error import describe_estimates, expected_seconds
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.verdict import CORE_COPIES, HARDLY, OWN_THREADS, REPLICAS, SINGLE_DEVICE
from placewise.reporting.leaderboard import LeaderboardRow, LeaderboardTable, finite
from placewise.reporting.measured import MeasuredRow, MeasurementTable
from placewise.runtimes import registry
from placewise.runtimes.base import (
    Job,
    PreparedPlacement,
    Realised,
    Runtime,
    RuntimeInfo,
    match_execution,
    require_as_written,
)
from placewise.runtimes.binding import Place, bind, bind_remotely, require_limits
from placewise.runtimes.equal import require_equal
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.measure import (
    InputSource,
    Measurement,
    Protocol,
    input_source,
    measure,
    report_failure,
    reproducible_outputs,
)
from placewise.runtimes.paired import PairedRatio, compare_rounds, least_rounds
from placewise.runtimes.plain import Copies, copies_by_core, copies_by_device, on_all_cores
from placewise.simulate import judge_placement
from placewise.transform.stage_times import stage_times
from placewise.transform.stages import stage_order, stages_in_line
from placewise.transform.stream_time import steady_seconds, stream_seconds

SINGLE = SINGLE_DEVICE
"""What every measured placement is compared with."""
PLAN = "plan"
"""The name under which a plan is measured."""
PLAIN = (SINGLE, OWN_THREADS, REPLICAS, CORE_COPIES)
"""The names of what runs beside every placement, as far as it applies."""
STANDARD = Protocol()


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """How to measure placements.

    `runtime` defaults to the usual one for the model's format. `binding` maps the plan's devices to those of this
    machine (see `runtimes.binding`). `inputs` default to random ones. `model` and `example` are the live model and its
    example inputs, if there is one. A worker has `seconds` for any one reply. With `trust_model`, loading the model
    file may run code that it holds.
    """

    runtime: str | None = None
    binding: Mapping[str, str] = field(default_factory=dict)
    inputs: Arrays | None = None
    protocol: Protocol = STANDARD
    model: Any = None
    example: Any = None
    options: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    seconds: float = 300.0
    trust_model: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredPlacement:
    """One placement: what the judge predicts for the runtime's execution, and what was measured, in seconds.

    `difference` is the largest deviation of its outputs from those of the single device, as a share of the tolerance.
    `steady` is what the judge predicts of a full pipeline, where the runtime's streams begin and end with an empty one.
    `copies` counts the copies of the whole model that serve a stream together. What neither the judge nor a profile
    knows has no prediction (inf).
    """

    name: str
    placement: Placement
    predicted: float
    measurement: Measurement
    steady: float | None = None
    realised: Realised | None = None
    difference: float = 0.0
    notes: tuple[str, ...] = ()
    copies: int = 1

    @property
    def seconds(self) -> float:
        return self.measurement.seconds


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredPlacements:
    """The measured placements, the runtime, the bound devices, and the problem as the runtime executes it."""

    runtime: RuntimeInfo
    places: tuple[Place, ...]
    problem: Problem
    protocol: Protocol
    placements: tuple[MeasuredPlacement, ...]

    def of(self, name: str) -> MeasuredPlacement:
        """The placement of this name."""
        return next(measured for measured in self.placements if measured.name == name)

    @property
    def single(self) -> MeasuredPlacement:
        return self.of(SINGLE)


@dataclass(frozen=True, slots=True, eq=False)
class MeasurementContext:
    """What placements of a problem run on: the runtime, the problem as it executes it, and inputs for every sample.

    `job` runs the best single device, the reference of all comparisons.
    """

    runtime: Runtime
    problem: Problem
    job: Job
    fresh: InputSource

    @property
    def places(self) -> tuple[Place, ...]:
        return self.job.places

    def check_outputs(self, prepared: PreparedPlacement, expected: Arrays, who: str) -> float:
        """The largest deviation from the expected outputs, as a share of the tolerance. Raises RunError beyond it."""
        return require_equal(
            expected, prepared.run(self.fresh(0)), who=who, precision=lowest_precision(self.problem, self.places)
        )


def prepare_measurement(problem: Problem, setting: Setting) -> MeasurementContext:
    """Set up a measurement. Raises InputError and its kin if this machine cannot run the model, or not like this."""
    runtime = _choose_runtime(problem, setting)
    executed = match_execution(problem, runtime.info, pipelined=setting.protocol.in_flight > 1)
    if runtime.info.emulates:
        places = tuple(Place(name, "a process") for name in problem.cluster.names)
        fresh: InputSource = lambda number: {}  # noqa: E731
    else:
        if runtime.info.remote and setting.binding:
            raise InputError(f"the runtime {runtime.info.name!r} chooses places itself", remedy="leave out --bind")
        places = bind_remotely(problem.cluster) if runtime.info.remote else bind(problem.cluster, setting.binding)
        require_limits(places, runtime.info.name, runtime.info.limits)
        fresh = input_source(problem.graph, setting.seed, setting.inputs)
    alone = Placement(_place_on_one_device(executed))
    job = Job(
        executed, alone, places, setting.model, setting.example, setting.options, setting.seconds, setting.trust_model
    )
    return MeasurementContext(runtime, executed, job, fresh)


def measure_placements(
    problem: Problem, placements: Mapping[str, Placement], setting: Setting = Setting()
) -> MeasuredPlacements:
    """Run and time every placement in turns with the best single device and the other answers that need no placer.

    A placement that fails, or whose outputs differ from those of the single device, has a failure and no times.
    Raises InputError and its kin for devices that this machine lacks, a model that it cannot run or whose outputs are
    random, and inputs that do not fit; RunError if the single device itself fails, or if a runtime of stages can run
    none of the placements.
    """
    context = prepare_measurement(problem, setting)
    runtime, job, executed = context.runtime, context.job, context.problem
    if runtime.info.emulates:
        return _measure_emulated(context, placements, setting.protocol)
    if runtime.info.stages:
        _require_line(executed, placements)
    notes = (*_note_transfers(problem, executed), *_note_estimates(job, runtime.info))
    with ExitStack() as stack:
        reference = runtime.prepare(job)
        stack.callback(reference.close)
        expected = reproducible_outputs(reference, context.fresh)
        ready: dict[str, PreparedPlacement] = {SINGLE: reference}
        predict = partial(_predict, problem=executed, info=runtime.info, protocol=setting.protocol)
        measured = {SINGLE: predict(SINGLE, job.placement)}
        makers: dict[str, Callable[[], PreparedPlacement]] = {}
        plain = {} if runtime.info.remote else _plain_jobs(job, stream=setting.protocol.in_flight > 1)
        for name, jobs in plain.items():
            known = executed.costs.runs.own_threads if name == OWN_THREADS else float("inf")
            measured[name] = MeasuredPlacement(name, job.placement, known, Measurement(name), copies=len(jobs))
            makers[name] = partial(runtime.prepare, jobs[0]) if len(jobs) == 1 else partial(Copies, runtime, jobs)
        for name, placement in placements.items():
            measured[name] = predict(name, placement)
            makers[name] = partial(runtime.prepare, job.on(placement))
        ready |= _prepare(makers, measured, stack, lambda one, who: context.check_outputs(one, expected, who))
        for name, prepared in ready.items():
            measured[name] = replace(measured[name], realised=prepared.realised, notes=(*notes, *prepared.notes))
        for measurement in measure(ready, context.fresh, setting.protocol):
            measured[measurement.name] = replace(measured[measurement.name], measurement=measurement)
    return MeasuredPlacements(runtime.info, context.places, executed, setting.protocol, tuple(measured.values()))


def _require_line(problem: Problem, placements: Mapping[str, Placement]) -> None:
    """Raise RunError if there are placements and none is a line of stages, before anything is measured."""
    faults: list[RunError] = []
    for placement in placements.values():
        try:
            stages_in_line(problem, placement)
        except RunError as error:
            faults.append(error)
    if faults and len(faults) == len(placements):
        raise faults[0]


def _prepare(
    makers: Mapping[str, Callable[[], PreparedPlacement]],
    measured: dict[str, MeasuredPlacement],
    stack: ExitStack,
    check: Callable[[PreparedPlacement, str], float],
) -> dict[str, PreparedPlacement]:
    """The placements that are ready; `measured` gets what `check` says of their outputs, or why they failed."""
    ready: dict[str, PreparedPlacement] = {}
    for name, prepare in makers.items():
        try:
            prepared = prepare()
            stack.callback(prepared.close)
            difference = check(prepared, f"the placement {name!r}")
        except RunError as error:
            measured[name] = replace(measured[name], measurement=Measurement(name, failure=report_failure(name, error)))
            continue
        ready[name] = prepared
        measured[name] = replace(measured[name], difference=difference)
    return ready


def _predict(
    name: str, placement: Placement, problem: Problem, info: RuntimeInfo, protocol: Protocol
) -> MeasuredPlacement:
    """A placement with what the judge predicts for the runtime's execution, and what runs of such plans took longer."""
    value, none = judge_placement(problem, placement).value, Measurement(name)
    order, back = stage_order(problem.graph, placement.device) if info.stages else ([], 0)
    if back is not None or not math.isfinite(value):
        used = len(np.unique(placement.device))
        return MeasuredPlacement(name, placement, expected_seconds(problem, value, used), none)
    times, streamed = stage_times(problem, placement, order), protocol.in_flight > 1
    samples = protocol.samples if streamed else 1
    steady = steady_seconds(times) if streamed else None
    return MeasuredPlacement(name, placement, stream_seconds(times, samples) / samples, none, steady=steady)


def _plain_jobs(job: Job, *, stream: bool) -> dict[str, list[Job]]:
    """What a runtime does on the cores of a job by itself, beside the best single device; several jobs are copies."""
    whole = on_all_cores(job)
    jobs = {OWN_THREADS: [] if whole is None else [whole]}
    if stream:
        jobs |= {REPLICAS: copies_by_device(job), CORE_COPIES: copies_by_core(job)}
    return {name: own for name, own in jobs.items() if own}


def _measure_emulated(
    context: MeasurementContext, placements: Mapping[str, Placement], protocol: Protocol
) -> MeasuredPlacements:
    """As `measure_placements`, on a runtime that checks its outputs itself and has no need to warm up.

    The best single device may fail here, since a published workload may have ops for accelerators only.
    """
    runtime, job = context.runtime, context.job
    protocol = replace(protocol, warm_up=0, ramp=0.0, samples=protocol.samples if protocol.in_flight > 1 else 1)
    measured = {
        name: MeasuredPlacement(name, placement, judge_placement(context.problem, placement).value, Measurement(name))
        for name, placement in {SINGLE: job.placement, **placements}.items()
    }
    with ExitStack() as stack:
        makers = {name: partial(runtime.prepare, job.on(row.placement)) for name, row in measured.items()}
        ready = _prepare(makers, measured, stack, lambda *_: 0.0)
        for measurement in measure(ready, context.fresh, protocol):
            measured[measurement.name] = replace(measured[measurement.name], measurement=measurement)
        for name, prepared in ready.items():  # what it held is known by now
            measured[name] = replace(measured[name], realised=prepared.realised, notes=prepared.notes)
    return MeasuredPlacements(runtime.info, context.places, context.problem, protocol, tuple(measured.values()))


def choose_protocol(problem: Problem, in_flight: int | None, rounds: int, seconds: float) -> Protocol:
    """How to measure: by default, a pipeline has two samples per device in flight. Raises InputError."""
    if rounds < 1 or (in_flight is not None and in_flight < 1):
        raise InputError("nothing would be measured", remedy="give at least one round and one sample in flight")
    if in_flight is None:
        in_flight = 2 * len(problem.cluster) if problem.objective.kind == "throughput" else 1
    samples = max(8 * in_flight, 16) if in_flight > 1 else STANDARD.samples
    return Protocol(rounds=rounds, samples=samples, in_flight=in_flight, seconds=seconds)


def _choose_runtime(problem: Problem, setting: Setting) -> Runtime:
    """The runtime of the setting, or the usual one. Raises InputError if it cannot run the model as set."""
    source = problem.graph.source
    if setting.runtime is not None and (runtime := registry.create(setting.runtime)).info.emulates:
        return runtime
    if source is None or (setting.model is None and source.format.startswith("torch-module")):
        raise InputError("the model of this plan is not at hand", remedy="give the model as well")
    runtime = registry.create(setting.runtime or registry.default_for(source.format))
    info = runtime.info
    if source.format not in info.formats:
        raise InputError(
            f"the runtime {info.name!r} runs no model of the format {source.format!r}",
            remedy=f"it runs {', '.join(info.formats)}",
        )
    require_as_written(problem.graph)
    return runtime


def _note_transfers(problem: Problem, executed: Problem) -> tuple[str, ...]:
    """A note for a plan whose transfers overlap with compute, on a runtime where they do not."""
    said, real = problem.objective, executed.objective
    if said.kind != "throughput" or real.kind != "throughput" or said.communication == real.communication:
        return ()
    return (
        f"the plan lets transfers overlap with compute ({said.communication}), which they hardly do here: predictions "
        f"are {real.communication}; place it --for pipelining",
    )


def _note_estimates(job: Job, info: RuntimeInfo) -> tuple[str, ...]:
    """A note where predictions are by no measurement of this machine, with the command that makes one."""
    options = [] if info.remote else [f"--runtime {info.name}"]
    options += ["--loaded"] if job.problem.objective.kind == "throughput" else []
    note = describe_estimates(job.problem, job.placement, " ".join(options))
    return (note,) if note else ()


def _place_on_one_device(problem: Problem) -> Ints:
    """Every op [n_ops] on the device that runs the whole model fastest; if none may, on the fastest accelerator."""
    seconds = np.where(problem.allowed, problem.costs.op_seconds, np.inf).sum(axis=0)
    if not np.isfinite(seconds).any():
        costs = np.where(np.isfinite(problem.costs.op_seconds), problem.costs.op_seconds, 0.0)
        seconds = np.where(problem.cluster.is_host, 0.0, costs.sum(axis=0) + 1.0)
    return np.full(problem.n_ops, int(np.argmin(seconds)), np.int32)


def lowest_precision(problem: Problem, places: Sequence[Place]) -> str:
    """The lowest precision in which a device computes by its options, or a GPU by the problem's; "" by default."""
    words = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
    values = [words.get(value, value) for place in places for value in place.options.values()]
    values.append(product_precision(problem.graph, on_gpus=any(place.kind == "cuda" for place in places)))
    return next((name for name in ("bfloat16", "float16", "tf32") if name in values), "")


def measured_verdict(measured: MeasuredPlacements, name: str) -> str:
    """Whether a measured placement is worth it beside everything that needs no placer, in one sentence.

    It is where it is faster than each of them by more than `HARDLY`, and the interval of the paired rounds lies above
    1 for each of them; where one did not run, nothing is.
    """
    plan, single = measured.of(name), measured.single
    if plan.measurement.failure:
        return "It does not run."
    if len(np.unique(plan.placement.device)) == 1 and len(np.unique(single.placement.device)) == 1:
        return "Nothing is split: one device runs everything."
    rivals = {rival.name: rival for rival in measured.placements if rival.name in PLAIN}
    ratios = {
        rival: compare_rounds(timed.measurement.rounds, plan.measurement.rounds)
        for rival, timed in rivals.items()
        if timed.measurement.rounds
    }
    over, found = min(ratios.items(), key=lambda item: item[1].ratio)
    called, verb = _describe_rival(rivals[over])
    rounds = len(plan.measurement.rounds)
    if not found.bounded:
        few = f"{rounds} round{'s are' if rounds > 1 else ' is'} too few to tell"
        return f"{few}: measured {found.ratio:.2f}× as fast as {called}; {least_rounds()} or more give an interval."
    if found.high < 1:
        return f"Do not split: {called} {verb} {1 / found.ratio:.2f}× as fast ({_bounds(found, inverse=True)})."
    if found.ratio <= 1 + HARDLY or min(ratio.low for ratio in ratios.values()) <= 1:
        return f"Do not split: measured {found.ratio:.2f}× as fast as {called} ({_bounds(found)}), which shows no gain."
    missing = next((name for name in rivals if name not in ratios), "")
    if missing:
        fast = f"Measured {found.ratio:.2f}× as fast as {called} ({_bounds(found)})"
        return f"{fast}, but {missing} did not run: no verdict."
    return f"The split is worth it: measured {found.ratio:.2f}× as fast as {called} ({_bounds(found)})."


def _describe_rival(rival: MeasuredPlacement) -> tuple[str, str]:
    """What a rival is called in a sentence, and its verb."""
    if rival.copies > 1:
        return f"{rival.copies} copies of the model", "are"
    return (OWN_THREADS, "are") if rival.name == OWN_THREADS else (f"the {rival.name}", "is")


def _bounds(found: PairedRatio, *, inverse: bool = False) -> str:
    low, high = (1 / found.high, 1 / found.low) if inverse else (found.low, found.high)
    return f"95 %: {low:.2f} to {high:.2f}"


def tabulate_measurements(measured: MeasuredPlacements, name: str = "") -> MeasurementTable:
    """The measurements as a table, with the verdict on the placement called `name`, if given."""
    protocol, rounds = measured.protocol, max((len(p.measurement.rounds) for p in measured.placements), default=0)
    each = f"{protocol.samples} sample{'s' if protocol.samples != 1 else ''} each"
    if protocol.in_flight > 1:
        each = f"streams of {protocol.samples} samples, {protocol.in_flight} in flight"
    return MeasurementTable(
        runtime=measured.runtime.name,
        execution=str(measured.problem.objective),
        how=f"{rounds} round{'s' if rounds != 1 else ''} in turns, {each}, medians",
        places=tuple(map(str, measured.places)),
        rows=tuple(map(_make_row, measured.placements)),
        base=SINGLE,
        verdict=measured_verdict(measured, name) if name else "",
    )


def _make_row(measured: MeasuredPlacement) -> MeasuredRow:
    ran, measurement = measured.realised, measured.measurement
    return MeasuredRow(
        name=measured.name,
        devices=measured.copies * len(np.unique(measured.placement.device)),
        predicted=measured.predicted,
        steady=measured.steady,
        measured=measured.seconds,
        spread=measurement.spread,
        rounds=measurement.rounds,
        pieces=ran.pieces if ran else (),
        share=ran.share if ran else 1.0,
        idle=ran.idle if ran else (),
        memory=ran.memory if ran else (),
        failure=measurement.failure,
        notes=measured.notes,
    )


def add_measurements(
    board: LeaderboardTable, entries: Sequence[LeaderboardEntry], most: int, setting: Setting
) -> LeaderboardTable:
    """The leaderboard with the measured times of the best `most` placements and of the best single device.

    Placers with the same placement share its figures. Raises as `measure_placements` does.
    """
    candidates: list[tuple[str, Placement]] = []
    shares_with: dict[str, str] = {}
    for entry in entries:
        placement = None if entry.result is None else entry.result.placement
        if entry.result is None or placement is None:
            continue
        twin = next((name for name, other in candidates if other == placement), None)
        if twin is None and len(candidates) < most:
            candidates.append((entry.placer, placement))
        shares_with[entry.placer] = twin or entry.placer
        problem = entry.result.problem
    if not candidates:
        return board
    measured = measure_placements(problem, dict(candidates), setting)
    by_name = {placement.name: placement for placement in measured.placements}
    rows = [_add_measurement(row, by_name.get(shares_with.get(row.placer, ""))) for row in board.rows]
    single = measured.single
    plain = {
        one.name: one.seconds
        for one in measured.placements
        if one.name in PLAIN and one.name != SINGLE and one.measurement.rounds
    }
    return replace(
        board,
        rows=tuple(rows),
        single_measured=single.seconds,
        single_spread=finite(single.measurement.spread),
        plain_measured=plain,
    )


def _add_measurement(row: LeaderboardRow, measured: MeasuredPlacement | None) -> LeaderboardRow:
    if measured is None:
        return row
    measurement = measured.measurement
    return replace(
        row, measured=finite(measured.seconds), spread=finite(measurement.spread), failure=measurement.failure
    )
