"""The controllers as the server sees them: who is free, what comes back, and whether there is any hope."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewise.errors import RunError
from placewise.model.columns import Floats, Ints
from placewise.placers.learned.pricing import LOST
from placewise.placers.learned.workers.measuring import IN_A_ROW
from placewise.placers.learned.workers.messages import Brief, Errand, Report
from placewise.placers.learned.workers.pool import Member, Outcome, Pool

_PRICE = "price"


class ControllerPool:
    """All controllers of a crew; also an `Evaluate`, which asks one of them and asks again where samples were lost.

    `lost` counts samples of workers that died, `deaths` controllers and workers. `trouble` says why there is no hope:
    `IN_A_ROW` deaths without a result between them. `reference`: see `Measuring`.
    """

    def __init__(self, brief: Brief, seed: int) -> None:
        self._brief, self._seed = brief, seed
        self._pool = Pool(brief.crew.house(), brief.crew.controllers, self._made_from, "controller", worker=False)
        self._late: list[Outcome] = []
        self.failure, self.trouble, self.reference = "", "", np.nan
        self.lost = self.deaths = self._row = 0

    def _made_from(self, number: int) -> tuple[object, ...]:
        chance = np.random.SeedSequence([self._seed, number]).generate_state(1, np.uint64)
        served = "placewise.placers.learned.workers.controller:Controller"
        return served, self._brief, int(chance[0] >> np.uint64(1)), number

    @property
    def size(self) -> int:
        """How many controllers there shall be."""
        return self._pool.size

    @property
    def members(self) -> Sequence[Member]:
        """The controllers, whatever they do."""
        return tuple(self._pool.members)

    def idle(self) -> list[Member]:
        return self._pool.idle()

    def errands(self) -> list[Errand]:
        """What controllers are at."""
        return [task for task in self._pool.tasks() if isinstance(task, Errand)]

    def send(self, member: Member, errand: Errand) -> None:
        self._pool.give(member, errand, "learn", errand)

    def reports(self, seconds: float) -> list[tuple[Errand, Report]]:
        """What errands led to, as soon as there is something, or nothing after so many seconds."""
        late, self._late = self._late, []
        outcomes = late or self._wait(seconds)
        return [(outcome.task, outcome.value) for outcome in outcomes if outcome.fate == "done"]

    def __call__(self, placements: Ints) -> Floats:
        found = np.full(len(placements), LOST)
        while (left := np.flatnonzero(found == LOST)).size:
            if self.trouble:
                raise RunError(self.trouble)
            if not any(task == _PRICE for task in self._pool.tasks() if isinstance(task, str)):
                for member in self._pool.idle()[:1]:
                    self._pool.give(member, _PRICE, "price", placements[left], self.reference)
            for outcome in self._wait(60.0):
                if isinstance(outcome.task, Errand):
                    self._late.append(outcome)
                elif outcome.fate == "done":
                    found[left], self.failure = outcome.value.seconds, outcome.value.failure
        return found

    def close(self) -> None:
        self._pool.close()

    def _wait(self, seconds: float) -> list[Outcome]:
        outcomes = self._pool.wait(seconds)
        for outcome in outcomes:
            if outcome.fate == "done":
                self._count(outcome.value)
            else:
                self._despair(1, f"a controller failed: {outcome.why}")
        return outcomes

    def _count(self, report: Report) -> None:
        self.lost += report.lost
        self.reference = self.reference if np.isfinite(self.reference) else report.reference
        if report.results:
            self._row = 0
        self._despair(report.row if report.results else report.deaths, report.failure)
        self.deaths += report.deaths - (report.row if report.results else report.deaths)

    def _despair(self, deaths: int, why: str) -> None:
        self.deaths += deaths
        self._row += deaths
        if self._row >= IN_A_ROW:
            self.trouble = f"{self._row} workers died one after the other without a result; the last one: {why}"
