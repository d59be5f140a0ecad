"""The controllers as the server sees them: which are idle, what they return, and whether too many of them die."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewise.errors import RunError
from placewise.model.columns import Floats, Ints
from placewise.placers.learned.pricing import LOST
from placewise.placers.learned.workers.measuring import DEATHS_IN_A_ROW
from placewise.placers.learned.workers.messages import ControllerResult, ControllerSpec, ControllerTask
from placewise.processes.pool import Pool, PoolMember, TaskOutcome

_PRICE = "price"


class ControllerPool:
    """All controllers. It is an `Evaluate` too: one controller prices, and lost placements are priced again.

    `lost` counts placements of workers that died, `deaths` the deaths of controllers and workers. `stop_reason` is set
    after `DEATHS_IN_A_ROW` deaths without a result in between. `reference`: see `Measuring`.
    """

    def __init__(self, spec: ControllerSpec, seed: int) -> None:
        self._spec, self._seed = spec, seed
        self._pool = Pool(spec.config.backend(), spec.config.controllers, self._served_by, "controller", measures=False)
        self._late: list[TaskOutcome] = []
        self.failure, self.stop_reason, self.reference = "", "", np.nan
        self.lost = self.deaths = self._row = 0

    def _served_by(self, number: int) -> tuple[object, ...]:
        seed = np.random.SeedSequence([self._seed, number]).generate_state(1, np.uint64)
        served = "placewise.placers.learned.workers.controller:Controller"
        return served, self._spec, int(seed[0] >> np.uint64(1)), number

    @property
    def size(self) -> int:
        """The number of controllers."""
        return self._pool.size

    @property
    def members(self) -> Sequence[PoolMember]:
        """All controllers, idle or busy."""
        return tuple(self._pool.members)

    def idle(self) -> list[PoolMember]:
        return self._pool.idle()

    def tasks(self) -> list[ControllerTask]:
        """Learning tasks in progress."""
        return [task for task in self._pool.tasks() if isinstance(task, ControllerTask)]

    def send(self, member: PoolMember, task: ControllerTask) -> None:
        self._pool.give(member, task, "learn", task)

    def results(self, seconds: float) -> list[tuple[ControllerTask, ControllerResult]]:
        """Wait up to `seconds` for the first learning tasks to end. The list may be empty."""
        late, self._late = self._late, []
        outcomes = late or self._wait(seconds)
        return [(outcome.task, outcome.value) for outcome in outcomes if outcome.status == "done"]

    def __call__(self, placements: Ints) -> Floats:
        seconds = np.full(len(placements), LOST)
        while (left := np.flatnonzero(seconds == LOST)).size:
            if self.stop_reason:
                raise RunError(self.stop_reason)
            if not any(task == _PRICE for task in self._pool.tasks() if isinstance(task, str)):
                for member in self._pool.idle()[:1]:
                    self._pool.give(member, _PRICE, "price", placements[left], self.reference)
            for outcome in self._wait(60.0):
                if isinstance(outcome.task, ControllerTask):
                    self._late.append(outcome)
                elif outcome.status == "done":
                    seconds[left], self.failure = outcome.value.seconds, outcome.value.failure
        return seconds

    def close(self) -> None:
        self._pool.close()

    def _wait(self, seconds: float) -> list[TaskOutcome]:
        outcomes = self._pool.wait(seconds)
        for outcome in outcomes:
            if outcome.status == "done":
                self._count_result(outcome.value)
            else:
                self._count_deaths(1, f"a controller failed: {outcome.why}")
        return outcomes

    def _count_result(self, result: ControllerResult) -> None:
        self.lost += result.lost
        self.reference = self.reference if np.isfinite(self.reference) else result.reference
        if result.results:
            self._row = 0
        recent = result.row if result.results else result.deaths
        self._count_deaths(recent, result.failure)
        self.deaths += result.deaths - recent

    def _count_deaths(self, deaths: int, why: str) -> None:
        self.deaths += deaths
        self._row += deaths
        if self._row >= DEATHS_IN_A_ROW:
            self.stop_reason = f"{self._row} workers died one after the other without a result; the last one: {why}"
