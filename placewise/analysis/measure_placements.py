"""Placements on this machine, side by side: prepared, checked against the single-device run, and timed in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from placewise.analysis.compare import Entry
from placewise.errors import InputError, RunError
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import SINGLE_DEVICE
from placewise.report.leaderboard import Board, Row, finite
from placewise.report.measured import Line, Sheet
from placewise.runtimes import registry
from placewise.runtimes.base import Job, PreparedPlacement, Realised, Runtime, RuntimeInfo
from placewise.runtimes.binding import Place, bind
from placewise.runtimes.equal import require_equal
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.measure import InputSource, Measurement, Protocol, input_source, measure, reproducible_outputs
from placewise.simulate import judge_placement

SINGLE = SINGLE_DEVICE
"""What every measured placement is compared with."""
PLAN = "plan"
"""What a plan that is run is called beside it."""
WORTH = 3.0
"""A gain counts if it is this many times the spread of the runs."""


STANDARD = Protocol()


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """How a race is run: the runtime (None: the usual one of the model's format), where the devices are (`binding`, as
    in `runtimes.binding`), given inputs, how to measure, and the live model with its example inputs, if it is one.

    `seconds` is how long any one answer of a worker may take.
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


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """One placement of a race: what the judge predicts under the runtime's execution, and what was measured, in
    seconds. `difference` is how near its outputs are to the single-device run's, as a share of what is allowed.
    """

    name: str
    placement: Placement
    predicted: float
    measurement: Measurement
    realised: Realised | None = None
    difference: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return self.measurement.seconds


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredPlacements:
    """What a race found: the runtime, where the devices were, the problem as it is executed, and every placement."""

    runtime: RuntimeInfo
    places: tuple[Place, ...]
    problem: Problem
    protocol: Protocol
    timed: tuple[Timed, ...]

    def of(self, name: str) -> Timed:
        """The placement that was entered under this name."""
        return next(timed for timed in self.timed if timed.name == name)

    @property
    def single(self) -> Timed:
        return self.of(SINGLE)


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """What placements of a problem run on: the runtime, the problem as it executes it, and inputs for every sample.

    `job` is the best single device, which everything is compared with.
    """

    runtime: Runtime
    problem: Problem
    job: Job
    fresh: InputSource

    @property
    def places(self) -> tuple[Place, ...]:
        return self.job.places

    def checked(self, prepared: PreparedPlacement, wanted: Arrays, who: str) -> float:
        """How near a placement's outputs are to those that are `wanted`, as `equal` says. Raises RunError."""
        return require_equal(wanted, prepared.run(self.fresh(0)), who=who, precision=_precision(self.places))


def course_of(problem: Problem, setting: Setting) -> Course:
    """Where placements of a problem are to run. Raises InputError and its kin for what cannot be run here or so."""
    runtime = _runtime_for(problem, setting)
    executed = as_executed(problem, runtime.info, pipelined=setting.protocol.in_flight > 1)
    places = bind(problem.cluster, setting.binding)
    fresh = input_source(problem.graph, setting.seed, setting.inputs)
    alone = Placement(_best_alone(executed))
    job = Job(executed, alone, places, setting.model, setting.example, setting.options, setting.seconds)
    return Course(runtime, executed, job, fresh)


def race(problem: Problem, placements: Mapping[str, Placement], setting: Setting = Setting()) -> MeasuredPlacements:
    """Run every placement, and the best single device beside them.

    A placement that fails, or whose outputs differ from those of the single device, has a failure and no times.
    Raises InputError and its kin for devices that are not here, a model that cannot be run here or has random outputs,
    and inputs that do not fit; RunError if the single device itself fails.
    """
    course = course_of(problem, setting)
    runtime, job, executed = course.runtime, course.job, course.problem
    with ExitStack() as stack:
        reference = runtime.prepare(job)
        stack.callback(reference.close)
        wanted = reproducible_outputs(reference, course.fresh)
        ready: dict[str, PreparedPlacement] = {SINGLE: reference}
        entered = {SINGLE: job.placement, **placements}
        found = {name: _entered(executed, name, placement) for name, placement in entered.items()}
        for name, placement in placements.items():
            try:
                prepared = runtime.prepare(job.on(placement))
                stack.callback(prepared.close)
                near = course.checked(prepared, wanted, f"the placement {name!r}")
            except RunError as error:
                found[name] = replace(found[name], measurement=Measurement(name, failure=str(error)))
                continue
            ready[name] = prepared
            found[name] = replace(found[name], difference=near)
        for name, prepared in ready.items():
            found[name] = replace(found[name], realised=prepared.realised, notes=prepared.notes)
        for measurement in measure(ready, course.fresh, setting.protocol):
            found[measurement.name] = replace(found[measurement.name], measurement=measurement)
    return MeasuredPlacements(runtime.info, course.places, executed, setting.protocol, tuple(found.values()))


def _entered(problem: Problem, name: str, placement: Placement) -> Timed:
    return Timed(name, placement, judge_placement(problem, placement).value, Measurement(name))


def protocol_of(problem: Problem, in_flight: int | None, rounds: int, seconds: float) -> Protocol:
    """How to measure a problem's placements; a pipeline has two samples per device in flight. Raises InputError."""
    if rounds < 1 or (in_flight is not None and in_flight < 1):
        raise InputError("nothing would be measured", remedy="give rounds and samples in flight from 1")
    if in_flight is None:
        in_flight = 2 * len(problem.cluster) if problem.objective.kind == "throughput" else 1
    samples = max(8 * in_flight, 16) if in_flight > 1 else STANDARD.samples
    return Protocol(rounds=rounds, samples=samples, in_flight=in_flight, seconds=seconds)


def _runtime_for(problem: Problem, setting: Setting) -> Runtime:
    """The runtime that is asked for, or the usual one. Raises InputError where it cannot run the model so."""
    source = problem.graph.source
    if source is None or (setting.model is None and source.format.startswith("torch-module")):
        raise InputError("the model of this plan is not at hand", remedy="give the model as well")
    runtime = registry.create(setting.runtime or registry.default_for(source.format))
    info = runtime.info
    if source.format not in info.formats:
        problem_ = f"the runtime {info.name!r} runs no model of the format {source.format!r}"
        raise InputError(problem_, remedy=f"it runs {', '.join(info.formats)}")
    if setting.protocol.in_flight > 1 and not info.pipelines:
        raise InputError(f"the runtime {info.name!r} takes one sample at a time", remedy="leave out --in-flight")
    return runtime


def as_executed(problem: Problem, info: RuntimeInfo, *, pipelined: bool) -> Problem:
    """The problem with the objective that a runtime's measurement is the value of: what predictions are judged by."""
    objective = problem.objective
    if pipelined:
        return problem.with_(objective=replace(objective, kind="throughput"))
    return problem.with_(objective=replace(objective, kind="latency", execution=info.execution))


def _best_alone(problem: Problem) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Every op on the device that runs the whole model fastest, by the costs; where none may, on one that computes."""
    seconds = np.where(problem.allowed, problem.costs.op_seconds, np.inf).sum(axis=0)
    if not np.isfinite(seconds).any():
        costs = np.where(np.isfinite(problem.costs.op_seconds), problem.costs.op_seconds, 0.0)
        seconds = np.where(problem.cluster.is_host, 0.0, costs.sum(axis=0) + 1.0)
    return np.full(problem.n_ops, int(np.argmin(seconds)), np.int32)


def _precision(places: tuple[Place, ...]) -> str:
    """The lowest precision that a device was told to compute in."""
    words = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
    said = [words.get(value, value) for place in places for value in place.options.values()]
    return next((name for name in ("bfloat16", "float16") if name in said), "")


def verdict(race: MeasuredPlacements, name: str) -> str:
    """Whether a measured placement is worth it against the best single device, in one sentence."""
    plan, single = race.of(name), race.single
    if plan.measurement.failure:
        return "It does not run."
    if len(np.unique(plan.placement.device)) == 1 and len(np.unique(single.placement.device)) == 1:
        return "Nothing is split: one device runs everything."
    gain = single.seconds / plan.seconds - 1
    noise = max(plan.measurement.spread, single.measurement.spread)
    if gain <= 0:
        return f"Do not split: the best single device is {1 / (1 + gain):.2f}× as fast."
    if gain < WORTH * noise:
        return f"Do not split: the gain of {gain:.1%} is below {WORTH:g} times the spread of the runs ({noise:.1%})."
    return f"The split is worth it: measured {1 + gain:.2f}× as fast as the best single device."


def sheet_of(race: MeasuredPlacements, name: str = "") -> Sheet:
    """The race as lines of numbers and words; with what is to be said of the placement called `name`, if one is."""
    return Sheet(
        runtime=race.runtime.name,
        execution=str(race.problem.objective),
        how=_how(race.protocol),
        places=tuple(map(str, race.places)),
        lines=tuple(map(_line, race.timed)),
        base=SINGLE,
        verdict=verdict(race, name) if name else "",
    )


def _how(protocol: Protocol) -> str:
    each = f"streams of {protocol.samples} samples, {protocol.in_flight} in flight"
    each = each if protocol.in_flight > 1 else f"{protocol.samples} samples each"
    return f"{protocol.rounds} rounds in turns, {each}, medians"


def _line(timed: Timed) -> Line:
    ran = timed.realised
    return Line(
        name=timed.name,
        devices=len(np.unique(timed.placement.device)),
        predicted=timed.predicted,
        measured=timed.seconds,
        spread=timed.measurement.spread,
        rounds=timed.measurement.rounds,
        pieces=ran.pieces if ran else (),
        share=ran.share if ran else 1.0,
        idle=ran.idle if ran else (),
        memory=ran.memory if ran else (),
        failure=timed.measurement.failure,
        notes=timed.notes,
    )


def measured(board: Board, entries: Sequence[Entry], most: int, setting: Setting) -> Board:
    """The leaderboard with what the best `most` placements, and the best single device, took when they ran.

    Placers that found the same placement share its figures. Raises as `race` does.
    """
    chosen: list[tuple[str, Placement]] = []
    twins: dict[str, str] = {}
    for entry in entries:
        placement = None if entry.result is None else entry.result.placement
        if entry.result is None or placement is None:
            continue
        twin = next((name for name, other in chosen if other == placement), None)
        if twin is None and len(chosen) < most:
            chosen.append((entry.placer, placement))
        twins[entry.placer] = twin or entry.placer
        problem = entry.result.problem
    if not chosen:
        return board
    found = {timed.name: timed for timed in race(problem, dict(chosen), setting).timed}
    rows = [_with_measured(row, found.get(twins.get(row.placer, ""))) for row in board.rows]
    single = found[SINGLE]
    return replace(board, rows=tuple(rows), single_measured=single.seconds, single_spread=single.measurement.spread)


def _with_measured(row: Row, timed: Timed | None) -> Row:
    if timed is None:
        return row
    taken = timed.measurement
    spread = finite(taken.spread) if taken.rounds else None
    return replace(row, measured=finite(timed.seconds), spread=spread, failure=taken.failure)
