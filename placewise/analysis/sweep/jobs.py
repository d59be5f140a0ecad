"""Evaluates many points: in this process, in processes on all cores, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pickle import PicklingError

from placewise._util.cores import usable_cores
from placewise.analysis.sweep.clusters import SweptCluster
from placewise.analysis.sweep.evaluate import PointEvaluator, SweepTask
from placewise.errors import PlacerError, RunError
from placewise.files.sweep_file import PointRecord
from placewise.processes.backends import ProcessBackend, RayBackend
from placewise.processes.pool import Backend, Pool, PoolMember, TaskOutcome
from placewise.processes.ray_cluster import join_cluster

_SERVED = "placewise.analysis.sweep.evaluate:PointEvaluator"
_WAIT = 3600.0
"""Seconds of one wait; searches may take longer."""


@dataclass(frozen=True, slots=True, eq=False)
class PointJob:
    """A point to evaluate; `probe` if bisection asks for it."""

    sizes: dict[str, int]
    cluster: SweptCluster
    probe: bool = False


OnPoint = Callable[[PointJob, PointRecord], None]
Runner = Callable[[Sequence[PointJob], OnPoint], None]
"""Evaluates jobs and reports each point when it is done."""


@contextmanager
def open_runner(task: SweepTask, *, workers: int | None, ray: str | None, most: int) -> Iterator[Runner]:
    """The runner for at most `most` jobs at a time: `workers` processes (None: one per core), or a Ray cluster.

    Models that are objects, and sweeps with one worker, stay in this process. Raises RunError, MissingExtraError.
    """
    if ray is not None:
        cluster = join_cluster(ray, "a sweep on a Ray cluster", may_start=True)
        count = workers or max(int(cluster.cluster_resources().get("CPU", 1)), 1)
        backend: Backend = RayBackend(cluster, 1.0)
    else:
        count, backend = workers or usable_cores(), ProcessBackend()
    count = min(count, max(most, 1))
    if ray is None and (count == 1 or not isinstance(task.model, str)):
        yield _Here(task)
        return
    threads = task.budget.threads or max(usable_cores() // count, 1) if ray is None else 1
    shared = replace(task, budget=replace(task.budget, threads=threads))
    try:
        pool = Pool(backend, count, lambda _: (_SERVED, shared), "sweep", measures=True)
    except (PicklingError, AttributeError, TypeError, PlacerError) as error:
        problem = f"this sweep cannot be sent to other processes ({error})"
        raise RunError(f"{problem}; give one worker") from None
    try:
        yield _Pooled(pool)
    finally:
        pool.close()


class _Here:
    """Evaluates in this process."""

    def __init__(self, task: SweepTask) -> None:
        self._evaluator = PointEvaluator(task)

    def __call__(self, jobs: Sequence[PointJob], on_point: OnPoint) -> None:
        for job in jobs:
            on_point(job, self._evaluator.evaluate(job.sizes, job.cluster.devices, job.cluster.label))


class _Pooled:
    """Evaluates in the workers of a pool. Points of equal sizes go to one worker, which has read the model.

    A point whose worker died is evaluated once more: on a cluster, its node may have gone.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._last: dict[int, dict[str, int]] = {}

    def __call__(self, jobs: Sequence[PointJob], on_point: OnPoint) -> None:
        lost = [outcome.task for outcome in self._scatter(jobs, on_point)]
        for outcome in self._scatter(lost, on_point):
            on_point(outcome.task, _point_of(outcome))

    def _scatter(self, jobs: Sequence[PointJob], on_point: OnPoint) -> list[TaskOutcome]:
        """Evaluate jobs and report those that end; the outcomes of those whose worker died."""

        def give(member: PoolMember, waiting: list[int]) -> None:
            busy = [task.sizes for task in self._pool.tasks()]
            left = [jobs[place] for place in waiting]
            job = jobs[waiting.pop(choose_job(left, self._last.get(id(member)), busy))]
            self._last[id(member)] = job.sizes
            self._pool.give(member, job, "evaluate", job.sizes, job.cluster.devices, job.cluster.label)

        dead = []
        for outcome in self._pool.scatter(len(jobs), give, _WAIT):
            if outcome.task is not None and outcome.status == "died":
                dead.append(outcome)
            elif outcome.task is not None:
                on_point(outcome.task, _point_of(outcome))
            if outcome.status == "refused":
                raise RunError(outcome.why)
        if self._pool.stop_reason:
            raise RunError(self._pool.stop_reason)
        return dead


def choose_job(waiting: Sequence[PointJob], last: dict[str, int] | None, busy: Sequence[dict[str, int]]) -> int:
    """The place of the job for a worker that read the model at sizes `last`, while others read it at those of `busy`.

    One of its own sizes, else of sizes that nobody reads, else the first.
    """
    own = (place for place, job in enumerate(waiting) if job.sizes == last)
    free = (place for place, job in enumerate(waiting) if job.sizes not in busy)
    return next(own, next(free, 0))


def _point_of(outcome: TaskOutcome) -> PointRecord:
    job: PointJob = outcome.task
    if outcome.status == "done":
        point: PointRecord = outcome.value
        return point
    return PointRecord(sizes=job.sizes, devices=job.cluster.label, status="error", reason=outcome.why)
