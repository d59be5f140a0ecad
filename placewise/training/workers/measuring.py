"""Measuring with workers that may die: an `Evaluate` that may lose placements, but never hangs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.placers.base import Evaluate
from placewise.placers.learned.pricing import LOST, digests
from placewise.processes.pool import DEATHS_IN_A_ROW, Backend, Pool, PoolMember, TaskOutcome

FATAL_DEATHS = 2
"""A placement counts as failed once it has killed this many workers."""

MakeEvaluate = Callable[[], Evaluate]


class Measurer:
    """Runs in a worker: measures one placement at a time with an `Evaluate`."""

    def __init__(self, make_evaluate: MakeEvaluate) -> None:
        self._evaluate = make_evaluate()

    def measure(self, row: Ints) -> tuple[float, str, float]:
        """Measure a placement [n_ops]: seconds (NaN: failed), the reason of a failure, seconds of the single device.

        The last one is NaN if the reward does not compare with a single device.
        """
        seconds = float(self._evaluate(row[None])[0])
        why = "" if np.isfinite(seconds) else str(getattr(self._evaluate, "failure", ""))
        return seconds, why, _single_seconds(self._evaluate)


class LocalMeasuring:
    """An `Evaluate` in this process, with the interface of `Measuring`."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self.reference = _single_seconds(evaluate)
        self.results = self.row = 0

    @property
    def failure(self) -> str:
        """Why the last placement failed."""
        return str(getattr(self._evaluate, "failure", ""))

    def take_deaths(self) -> int:
        return 0

    def __call__(self, placements: Ints) -> Floats:
        self.results += len(placements)
        return self._evaluate(placements) * _rescale(_single_seconds(self._evaluate), self.reference)


def _single_seconds(evaluate: Evaluate) -> float:
    return float(getattr(evaluate, "single", np.nan))


def _rescale(single: float, reference: float) -> float:
    """Factor from a worker's seconds to common ones: its single device takes `single`, the common one `reference`."""
    return reference / single if np.isfinite(reference) and single > 0 else 1.0


class Measuring:
    """An `Evaluate` over `count` workers: seconds [K], NaN for a failure, `LOST` where the worker died.

    A measurement of more than `limit` seconds has failed, and its worker is replaced. `failure` is the reason of the
    last failure, `results` counts returned results; after `DEATHS_IN_A_ROW` deaths without one the rest of a batch is
    lost. Rewards that compare with a single device measure ratios only: they are scaled as if it took every worker
    `reference` seconds, by default the time that the first worker reports.
    """

    def __init__(self, backend: Backend, make_evaluate: MakeEvaluate, count: int, limit: float, name: str) -> None:
        served = ("placewise.training.workers.measuring:Measurer", make_evaluate)
        self._pool = Pool(backend, count, lambda _: served, name, measures=True)
        self._limit = limit
        self._deaths_of: Counter[bytes] = Counter()
        self.failure, self.reference = "", np.nan
        self.results = self._reported = 0

    @property
    def row(self) -> int:
        """Deaths since the last result."""
        return self._pool.row

    def take_deaths(self) -> int:
        """The workers that died or did not start since the last call."""
        deaths, self._reported = self._pool.deaths - self._reported, self._pool.deaths
        return deaths

    def __call__(self, placements: Ints) -> Floats:
        seconds = np.full(len(placements), LOST)

        def give(member: PoolMember, waiting: list[int]) -> None:
            k = waiting.pop(0)
            self._pool.give(member, k, "measure", placements[k], seconds=self._limit)

        self._pool.row = min(self._pool.row, DEATHS_IN_A_ROW - 1)
        for outcome in self._pool.scatter(len(placements), give, self._limit):
            if outcome.task is not None:
                seconds[outcome.task] = self._seconds(outcome, placements[outcome.task])
            elif outcome.status != "done":
                self.failure = outcome.why
        self._abandon_batch()
        return seconds

    def close(self) -> None:
        self._pool.close()

    def _seconds(self, outcome: TaskOutcome, row: Ints) -> float:
        if outcome.status == "died":
            self.failure = outcome.why
            key = digests(row[None])[0]
            self._deaths_of[key] += 1
            return LOST if self._deaths_of[key] < FATAL_DEATHS else np.nan
        self.results += 1
        if outcome.status != "done":
            self.failure = outcome.why if outcome.status == "refused" else f"it took more than {self._limit:g} s"
            return np.nan
        seconds, why, single = outcome.value
        self.failure = why or self.failure
        self.reference = self.reference if np.isfinite(self.reference) else single
        return float(seconds * _rescale(single, self.reference)) if np.isfinite(seconds) else np.nan

    def _abandon_batch(self) -> None:
        """Terminate workers that still measure placements of an abandoned batch."""
        for member in [member for member in self._pool.members if member.busy and member.started]:
            self._pool.drop(member)
        self._pool.fill()
