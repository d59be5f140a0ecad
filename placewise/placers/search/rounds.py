"""Rounds of annealing on two cores: walks side by side, cut in slices so that clocks and Ctrl-C are heard.

Work may be limited by moves, then the same moves are made every time, or by a clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.placers.search.clusters import Clusters
from placewise.placers.search.costs import Costs
from placewise.placers.search.walk import NO_PAIRS, Walk, evaluated, go, quality, walk_from

WALKS = 2
"""Walks at once: one per core of a small machine. More would not give the same answer on fewer cores."""
SLICE_STEPS = 1 << 14
SLICE_SECONDS = 0.004
_FIRST_SLICE = 64
_LISTEN = 0.05

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Round:
    """How long a round of annealing is, in moves or until a moment of the clock, and how hot it begins and ends."""

    hot: float
    cold: float
    steps: int | None = None
    until: float = np.inf


@dataclass(slots=True)
class Field:
    """What walks share: costs and clusters, the clock, devices that may trade all they have, and probabilities."""

    costs: Costs
    clusters: Clusters
    clock: Clock
    pairs: Ints = field(default_factory=lambda: NO_PAIRS)
    likely: Floats | None = None
    moves: int = 0

    def run(
        self,
        starts: Sequence[tuple[Ints, Ints | None]],
        round_: Round,
        seeds: Sequence[int],
        tell: Callable[[int], None],
    ) -> list[Walk]:
        """One walk from each start (homes [n] and the order of devices), side by side; `tell` hears the best value.

        Ctrl-C raises Stopped, a KeyboardInterrupt that has the walks.
        """
        walks = [
            walk_from(self.costs, home, seed, order=order, pairs=self.pairs, likely=self.likely)
            for (home, order), seed in zip(starts, seeds, strict=True)
        ]
        stop = threading.Event()
        with ThreadPoolExecutor(len(walks)) as pool:
            jobs = [pool.submit(self._walk, walk, round_, stop) for walk in walks]
            try:
                for job in jobs:
                    while not wait([job], _LISTEN).done:
                        feasible = [value for short, value in map(quality, walks) if not short]
                        if feasible:
                            tell(min(feasible))
            except KeyboardInterrupt:
                stop.set()
                raise Stopped(walks) from None
            finally:
                stop.set()
        for job in jobs:
            job.result()
        self.moves += sum(map(evaluated, walks))
        return walks

    def _walk(self, walk: Walk, round_: Round, stop: threading.Event) -> None:
        falls = round_.cold / round_.hot
        if round_.steps is not None:
            for done in range(0, round_.steps, SLICE_STEPS):
                steps = min(SLICE_STEPS, round_.steps - done)
                if stop.is_set() or self.clock() >= round_.until:
                    return
                heat = [round_.hot * falls ** (at / round_.steps) for at in (done, done + steps)]
                go(self.costs, self.clusters, walk, steps, *heat)
            return
        begun, steps, now = self.clock(), _FIRST_SLICE, self.clock()
        length = max(round_.until - begun, 1e-9)
        while now < round_.until and not stop.is_set():
            went = min((now - begun) / length, 1.0)
            heat = [round_.hot * falls**went, round_.hot * falls ** min(went + SLICE_SECONDS / length, 1.0)]
            go(self.costs, self.clusters, walk, steps, *heat)
            before, now = now, self.clock()
            steps = max(16, int(steps * min(2.0, SLICE_SECONDS / max(now - before, 1e-6))))


class Stopped(KeyboardInterrupt):
    """Ctrl-C during a round, with the walks as they were when they stopped."""

    def __init__(self, walks: list[Walk]) -> None:
        super().__init__()
        self.walks = walks
