"""Rounds of annealing: walks side by side in threads, which hear clocks and Ctrl-C.

Work may be limited by moves, then the same moves are made every time, however many threads there are; or by a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints, frozen
from placewise.placers.shared.priors import empty_priors

WALKS = 2
"""Walks at once where work is limited by moves, whatever machine it is: others would not give the same answer."""
NO_PAIRS = frozen(np.zeros((0, 2)), np.int32)
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
    """What walks share: costs and clusters, the clock, devices that may trade all they have, and probabilities.

    Up to `threads` walks run at once.
    """

    costs: _native.ThroughputCosts
    clusters: _native.Clusters
    clock: Clock
    pairs: Ints = field(default_factory=lambda: NO_PAIRS)
    likely: Floats | None = None
    threads: int = 1
    moves: int = 0

    def run(
        self,
        starts: Sequence[tuple[Ints, Ints | None]],
        round_: Round,
        seeds: Sequence[int],
        tell: Callable[[int], None],
    ) -> list[_native.ThroughputWalk]:
        """One walk from each start (homes [n] and the order of devices), side by side; `tell` hears the best value.

        Ctrl-C raises Stopped, a KeyboardInterrupt that has the walks.
        """
        walks = [self._walk_from(home, order, seed) for (home, order), seed in zip(starts, seeds, strict=True)]
        stop, threads = _native.StopFlag(), min(self.threads, len(walks))
        with ThreadPoolExecutor(threads) as pool:
            turns = [1 + (len(walks) - 1 - i) // threads for i in range(len(walks))]
            jobs = [pool.submit(self._run, walk, round_, left, stop) for walk, left in zip(walks, turns, strict=True)]
            try:
                for job in jobs:
                    while not wait([job], _LISTEN).done:
                        feasible = [walk.feasible_max_load for walk in walks if walk.feasible_max_load is not None]
                        if feasible:
                            tell(min(feasible))
            except KeyboardInterrupt:
                raise Stopped(walks) from None
            finally:
                stop.set()
        for job in jobs:
            job.result()
        self.moves += sum(walk.n_evaluated for walk in walks)
        return walks

    def _walk_from(self, home: Ints, order: Ints | None, seed: int) -> _native.ThroughputWalk:
        n_devices = self.costs.n_devices
        along = np.arange(n_devices, dtype=np.int32) if order is None else order
        likely = empty_priors(n_devices) if self.likely is None else self.likely
        return _native.ThroughputWalk(self.costs, self.clusters, home, seed, along, self.pairs, likely)

    def _run(self, walk: _native.ThroughputWalk, round_: Round, turns: int, stop: _native.StopFlag) -> None:
        """Run a walk until the round's end; by the clock it takes one of the `turns` that its thread still has."""
        seconds = max(round_.until - self.clock(), 0.0)
        if round_.steps is None:
            walk.run_for(seconds / turns, round_.hot, round_.cold, stop=stop)
        else:
            walk.run(round_.steps, round_.hot, round_.cold, seconds=seconds, stop=stop)


class Stopped(KeyboardInterrupt):
    """Ctrl-C during a round, with the walks as they were when they stopped."""

    def __init__(self, walks: list[_native.ThroughputWalk]) -> None:
        super().__init__()
        self.walks = walks
