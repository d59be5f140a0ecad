"""The sweep: every point evaluated, the largest sizes sought, prices and the Pareto front added."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from placewise._util.cores import usable_cores
from placewise._util.units import parse_fraction
from placewise._util.voice import SPEAKS_FLAGS
from placewise.analysis.sweep.axes import Axis, Vary, list_sizes, parse_axes
from placewise.analysis.sweep.clusters import SweptCluster, SweptDevices, read_clusters
from placewise.analysis.sweep.evaluate import SweepTask
from placewise.analysis.sweep.goals import Goal, parse_goal
from placewise.analysis.sweep.jobs import PointJob, Runner, open_runner
from placewise.analysis.sweep.largest import largest_of, list_lines, next_probe
from placewise.analysis.sweep.pricing import SweepPrices, add_prices, mark_front, price_clusters
from placewise.core.open_model import Model, name_of
from placewise.core.options import ProblemOptions
from placewise.costing.measured.load import split_device
from placewise.errors import InputError
from placewise.files.atomic import ensure_writable
from placewise.files.cluster_record import cluster_to_dict
from placewise.files.sweep_file import AnswerRecord, PointRecord, SweepFile, points_to_reuse, save_sweep
from placewise.model.cluster import Cluster
from placewise.placers.base import Budget, OnProgress, Placer, Progress, ignore
from placewise.readers.huggingface.settings import CONFIG

READ = 1 << 26
"""Bytes of a file that tell it from others: a model begins with its graph, and weights follow."""
RESOLUTION = "4%"
"""How far apart, by default, a size that fits and one that does not may stay, as a share of the greater."""
MAX_POINTS = 256
"""Points of a sweep without a word of the user."""
SECONDS = 10.0
"""Of the search of one point, unless the user gives a limit."""


@dataclass(frozen=True, slots=True, eq=False)
class SweepPlan:
    """What is asked, once it is read."""

    axes: tuple[Axis, ...]
    clusters: tuple[SweptCluster, ...]
    goal: Goal | None
    prices: SweepPrices
    resolution: float
    task: SweepTask

    @property
    def jobs(self) -> list[PointJob]:
        """The points of the grid, cluster by cluster."""
        return [PointJob(sizes, cluster) for cluster in self.clusters for sizes in list_sizes(self.axes)]


def plan_sweep(
    model: Model,
    devices: SweptDevices | None,
    vary: Vary,
    options: ProblemOptions,
    budget: Budget,
    *,
    until: str | None = None,
    prices: Mapping[str, object] | None = None,
    resolution: float | str = RESOLUTION,
    max_points: int = MAX_POINTS,
    placer: str | Placer = "auto",
    placer_options: Mapping[str, Any] | None = None,
    target: str | None = None,
) -> SweepPlan:
    """What a sweep is asked, read and checked. Raises InputError, in one sentence, for what cannot be swept."""
    axes, clusters = parse_axes(vary, options.dims), read_clusters(devices)
    if not axes and len(clusters) == 1:
        raise InputError("nothing varies", remedy="add --vary batch=1:64, or several clusters, as -d 1..8xL4")
    _check_count(math.prod(len(axis.sizes) for axis in axes) * len(clusters), max_points)
    goal = None if until is None else parse_goal(until)
    priced = price_clusters(clusters, prices or {})
    if goal is not None and priced.given and not priced.all_known:
        remedy = f"add --price {priced.missing or 'DEVICE'}=AMOUNT, or give no prices and get the smallest cluster"
        raise InputError(f"the cheapest cluster needs the price of {priced.missing or 'its devices'}", remedy=remedy)
    if budget == replace(Budget(), gap=budget.gap, seed=budget.seed, threads=budget.threads):
        budget = replace(budget, seconds=SECONDS)
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    task = SweepTask(model, options, budget, placer, dict(placer_options or {}), target, SPEAKS_FLAGS.get())
    return SweepPlan(axes, clusters, goal, priced, parse_fraction(resolution), task)


def _check_count(count: int, most: int) -> None:
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise InputError(f"the most points are {most!r}", remedy="give a whole number from 1, as --max-points 256")
    if count > most:
        remedy = f"vary less, or allow them with --max-points {count}"
        raise InputError(f"these are {count:,} points, and {most:,} are allowed", remedy=remedy)


def run_sweep(
    plan: SweepPlan,
    *,
    workers: int | None = None,
    ray: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_progress: OnProgress = ignore,
) -> SweepFile:
    """Evaluate a sweep. Ctrl-C ends it with the points so far (`complete` is False).

    After every point it is written to `checkpoint`, if that is given; with `resume`, points that this file holds are
    not evaluated again. Raises InputError if no point can be read, RunError if workers fail.
    """
    run = digest_of(plan)
    if resume and checkpoint is None:
        raise InputError("there is no checkpoint to go on from", remedy="name it with --checkpoint sweep.json")
    known: tuple[PointRecord, ...] = ()
    if checkpoint is not None:
        if not isinstance(plan.task.model, str):
            remedy = "give a path, 'zoo:NAME' or 'hf:NAME'"
            raise InputError("a sweep with a checkpoint needs a model with a name", remedy=remedy)
        ensure_writable(checkpoint)
        known = points_to_reuse(Path(checkpoint), run, resume=resume)
    record = _Recorder(
        plan, run, {(point.devices, *point.sizes.items()): point for point in known}, checkpoint, on_progress
    )
    complete = False
    with suppress(KeyboardInterrupt):
        most = len([job for job in plan.jobs if not record.has(job)]) or 1
        with open_runner(plan.task, workers=workers, ray=ray, most=most) as runner:
            if plan.goal is None:
                record.evaluate(runner, plan.jobs)
                _refine(plan, record, runner)
            else:
                _search(plan, plan.goal, record, runner, workers or usable_cores())
            complete = True
    if record.points and all(point.status == "error" for point in record.points):
        raise InputError(record.points[0].reason)
    if not record.points and not complete:
        raise KeyboardInterrupt
    return record.finish(complete=complete)


def digest_of(plan: SweepPlan) -> str:
    """sha256 of what a point depends on besides its sizes and its cluster: the model, the options and the search.

    Files count by their size and their first `READ` bytes: those of the model, of costs and of clusters. A folder
    counts by its config.json, and a cluster that is an object by its devices and links.
    """
    state, task = hashlib.sha256(), plan.task
    model, budget = task.model, task.budget
    named = [model, *(split_device(cost)[1] for cost in task.options.costs)]
    named += [cluster.devices for cluster in plan.clusters if str(cluster.devices).endswith(".toml")]
    for path in (Path(name) for name in named if isinstance(name, (str, Path))):
        with suppress(OSError, ValueError):
            path = path / CONFIG if path.is_dir() else path
            if path.is_file():
                with path.open("rb") as file:
                    state.update(file.read(READ) + str(path.stat().st_size).encode())
    search = (budget.seconds, budget.gap, budget.iterations, budget.evaluations, budget.seed)
    placer = task.placer if isinstance(task.placer, str) else task.placer.info.name
    state.update(repr((name_of(model), task.options, search, placer, sorted(task.placer_options.items()))).encode())
    own = [(choice.label, choice.devices) for choice in plan.clusters if isinstance(choice.devices, Cluster)]
    state.update(repr((task.target, [(label, cluster_to_dict(cluster)) for label, cluster in own])).encode())
    return state.hexdigest()


@dataclass(slots=True, eq=False)
class _Recorder:
    """The points so far, of this run and of an earlier one, in memory and in the checkpoint."""

    plan: SweepPlan
    run: str
    known: dict[Any, PointRecord]
    checkpoint: str | os.PathLike[str] | None
    on_progress: OnProgress
    points: list[PointRecord] = field(default_factory=list)
    start: float = field(default_factory=time.monotonic)
    asked: int = 0

    def has(self, job: PointJob) -> bool:
        return (job.cluster.label, *job.sizes.items()) in self.known

    def evaluate(self, runner: Runner, jobs: Sequence[PointJob]) -> None:
        """Evaluate the jobs that no earlier run did."""
        self.asked += len(jobs)
        new = []
        for job in jobs:
            if self.has(job):
                self.points.append(self.known[(job.cluster.label, *job.sizes.items())])
            else:
                new.append(job)
        self._report("")
        if new:
            runner(new, self._add)

    def _add(self, job: PointJob, point: PointRecord) -> None:
        point = point.model_copy(update={"probe": job.probe})
        self.points.append(point)
        self._report(describe_point(point))
        if self.checkpoint is not None:
            save_sweep(self.finish(complete=False), self.checkpoint)

    def _report(self, what: str) -> None:
        message = f"{len(self.points)} of {self.asked} points{f', the last: {what}' if what else ''}"
        self.on_progress(Progress("sweep", time.monotonic() - self.start, message))

    def finish(self, *, complete: bool) -> SweepFile:
        """The sweep file of the points so far."""
        plan = self.plan
        rank = {cluster.label: number for number, cluster in enumerate(plan.clusters)}
        ordered = sorted(self.points, key=lambda point: (rank[point.devices], *point.sizes.values()))
        points = mark_front(add_prices(ordered, plan.prices))
        goal = plan.goal
        lines = list_lines(plan.axes, points) if goal is None else []
        sweep = SweepFile(
            model=name_of(plan.task.model),
            run=self.run,
            objective=plan.task.options.objective or "",
            varied=tuple(axis.name for axis in plan.axes),
            clusters=tuple(cluster.label for cluster in plan.clusters),
            complete=complete,
            points=points,
            largest=tuple(largest_of(line) for line in lines if len(line.axis.sizes) > 1),
            until="" if goal is None else goal.text,
            cheapest=plan.prices.all_known,
            answers=() if goal is None else answer_goal(plan, goal, points),
            list_prices=plan.prices.listed,
        )
        if complete and self.checkpoint is not None:
            save_sweep(sweep, self.checkpoint)
        return sweep


def _refine(plan: SweepPlan, record: _Recorder, runner: Runner) -> None:
    """Bisect every line until the largest size that fits is known: one probe per line and round."""
    by_label = {cluster.label: cluster for cluster in plan.clusters}
    names = [axis.name for axis in plan.axes]
    while True:
        jobs: dict[Any, PointJob] = {}
        for line in list_lines(plan.axes, record.points):
            probe = next_probe(line, plan.resolution)
            if probe is not None:
                sizes = {**line.others, line.axis.name: probe}
                job = PointJob({name: sizes[name] for name in names}, by_label[line.devices], probe=True)
                jobs[(line.devices, *job.sizes.items())] = job
        if not jobs:
            return
        record.evaluate(runner, [*jobs.values()])


def _search(plan: SweepPlan, goal: Goal, record: _Recorder, runner: Runner, at_once: int) -> None:
    """Try clusters, the cheapest or smallest first, until all combinations of sizes have one that meets the goal."""
    remaining = list_sizes(plan.axes)
    ordered = order_clusters(plan)
    while remaining and ordered:
        wave = max(-(-at_once // len(remaining)), 1)
        now, ordered = ordered[:wave], ordered[wave:]
        record.evaluate(runner, [PointJob(sizes, cluster) for cluster in now for sizes in remaining])
        met = [point.sizes for point in record.points if goal.is_met(point)]
        remaining = [sizes for sizes in remaining if sizes not in met]


def order_clusters(plan: SweepPlan) -> list[SweptCluster]:
    """The clusters from the cheapest on where all prices are known, else from the fewest accelerators, and of as many
    from those with the least memory on.
    """
    price = plan.prices.per_hour
    if plan.prices.all_known:
        return sorted(plan.clusters, key=lambda cluster: (price[cluster.label] or 0.0, *cluster.size))
    return sorted(plan.clusters, key=lambda cluster: cluster.size)


def answer_goal(plan: SweepPlan, goal: Goal, points: Sequence[PointRecord]) -> tuple[AnswerRecord, ...]:
    """The first cluster in the order of `order_clusters` that meets the goal, for each combination of sizes."""
    answers = []
    for sizes in list_sizes(plan.axes):
        tried = {point.devices: point for point in points if point.sizes == sizes}
        order = [cluster.label for cluster in order_clusters(plan)]
        met = next((label for label in order if label in tried and goal.is_met(tried[label])), None)
        untried = sum(label not in tried for label in order)
        answers.append(AnswerRecord(sizes=sizes, devices=met, untried=untried))
    return tuple(answers)


def describe_point(point: PointRecord) -> str:
    """Sizes and cluster in a few words."""
    sizes = " ".join(f"{name}={size}" for name, size in point.sizes.items())
    return " on ".join(part for part in (sizes, point.devices) if part)
