"""Rounds of annealing for throughput: walks side by side in threads, limited by moves or by a clock.

Rounds limited by moves are deterministic, with any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np

from placewise import _native
from placewise.model.columns import Ints, frozen
from placewise.placers.shared.stages.stage_costs import NEVER
from placewise.placers.shared.throughput_search.pipeline_costs import PipelineCosts

WALKS = 2
"""Walks of a round that is limited by moves: the same on every machine, so that the result is the same."""
NO_PAIRS = frozen(np.zeros((0, 2)), np.int32)
_POLL = 0.05
_CLUSTER_SIZES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""The most work of a cluster, as shares of the average work of a device."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class AnnealingRound:
    """The length of a round, in moves or until a moment of the clock, and its first and last temperature."""

    hot: float
    cold: float
    steps: int | None = None
    until: float = np.inf


class WalksStopped(KeyboardInterrupt):
    """Ctrl-C during a round, with the walks as they were when they stopped."""

    def __init__(self, walks: list[_native.ThroughputWalk]) -> None:
        super().__init__()
        self.walks = walks


@dataclass(slots=True)
class Annealer:
    """What walks share: costs, clusters, a clock, and pairs of devices that may exchange all they have.

    Up to `threads` walks run at once. `moves` counts the moves of all rounds.
    """

    costs: _native.ThroughputCosts
    clusters: _native.Clusters
    clock: Clock
    pairs: Ints = field(default_factory=lambda: NO_PAIRS)
    threads: int = 1
    moves: int = 0

    def run(
        self,
        starts: Sequence[tuple[Ints, Ints | None]],
        round_: AnnealingRound,
        seeds: Sequence[int],
        report: Callable[[int], None],
    ) -> list[_native.ThroughputWalk]:
        """One walk per start (assignment [n] and device order), side by side; `report` gets the best value so far.

        Raises WalksStopped on Ctrl-C.
        """
        n_devices, stop = self.costs.n_devices, _native.StopFlag()
        walks = []
        for (assignment, order), seed in zip(starts, seeds, strict=True):
            along = np.arange(n_devices, dtype=np.int32) if order is None else order
            walks.append(_native.ThroughputWalk(self.costs, self.clusters, assignment, seed, along, self.pairs))
        threads = min(self.threads, len(walks))
        with ThreadPoolExecutor(threads) as pool:
            turns = [1 + (len(walks) - 1 - i) // threads for i in range(len(walks))]
            jobs = [pool.submit(self._walk, walk, round_, left, stop) for walk, left in zip(walks, turns, strict=True)]
            try:
                for job in jobs:
                    while not wait([job], _POLL).done:
                        feasible = [walk.feasible_max_load for walk in walks if walk.feasible_max_load is not None]
                        if feasible:
                            report(min(feasible))
            except KeyboardInterrupt:
                raise WalksStopped(walks) from None
            finally:
                stop.set()
        for job in jobs:
            job.result()
        self.moves += sum(walk.n_evaluated for walk in walks)
        return walks

    def _walk(self, walk: _native.ThroughputWalk, round_: AnnealingRound, turns: int, stop: _native.StopFlag) -> None:
        """Run a walk to the end of the round; by the clock, for one of the `turns` that its thread still has."""
        seconds = max(round_.until - self.clock(), 0.0)
        if round_.steps is None:
            walk.run_for(seconds / turns, round_.hot, round_.cold, stop=stop)
        else:
            walk.run(round_.steps, round_.hot, round_.cold, seconds=seconds, stop=stop)


def clusters(costs: PipelineCosts) -> _native.Clusters:
    """Clusters of groups that move as one, in several sizes, merged along the most expensive tensors first."""
    kinds = costs.seconds.reshape(len(costs.size), costs.n_phases, -1).sum(axis=1)
    work = np.where(kinds < NEVER, kinds, np.iinfo(np.int64).max).min(axis=1).astype(np.float64)
    share = float(work.sum()) / max(len(costs.capacity), 1)
    transfer = costs.transfer.max(axis=1, initial=0)
    uses = np.repeat(np.arange(len(costs.producer)), np.diff(costs.consumer_offsets))
    rows = np.argsort(-transfer[uses], kind="stable")
    rows = rows[costs.producer[uses[rows]] >= 0]
    tail, head = frozen(costs.producer[uses[rows]], np.int32), frozen(costs.consumers[rows], np.int32)
    return _native.Clusters(tail, head, work, np.array(_CLUSTER_SIZES) * share)
