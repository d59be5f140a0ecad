"""Chains of moves for `operator` execution at several temperatures, in threads: what `temper` runs.

Parallel tempering as in `tempering.py`, except that each chain prices its moves itself, from the first moment that
they touch, and takes most of them from the critical path of its own schedule (`native/latency_search`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.placers.local_search.latency_problem import search_problem_of
from placewise.placers.local_search.parallel_tempering import CHECK, Found, Keeps

COLDEST, HOTTEST = 1e-5, 1e-2
"""Temperatures as shares of the best value known; where there are fewer chains, only the colder ones."""
CHAINS, ENOUGH_WORK = 8, 60_000
"""The most chains, and how many ops they have together: large graphs get fewer, but two."""
ROUND_WORK, ROUND_MOVES = 300_000, 64
"""Between two exchanges: ops that all chains simulate together, and moves of each."""
BEHIND, FAR, CATCH_UP_WORK = 20.0, 0.01, 600_000
"""A chain so many times its temperature above the best, and at least such a share, goes on from there: looked at
whenever all chains together have simulated so many ops more."""


def search(
    problem: Problem,
    starts: Ints,
    values: Floats,
    keeps: Keeps | None,
    *,
    seed: int,
    most: int | None = None,
    priors: Floats | None = None,
    threads: int = 1,
) -> Iterator[Found]:
    """One `Found` per round, for as long as it is asked. `starts` [S, n_blocks] are valid, with their finite values.

    `keeps` judges the shape of stages; memory is counted here. `most` is how many placements may be priced; `priors`
    are probabilities of blocks. Up to `threads` chains move at once; the answer does not depend on them.
    """
    shared, rng = search_problem_of(problem, priors), np.random.default_rng(seed)
    order = np.argsort(values, kind="stable")
    count = int(np.clip(ENOUGH_WORK // max(problem.n_ops, 1), 2, CHAINS))
    shares = np.geomspace(COLDEST, HOTTEST, CHAINS)[:count]
    best, value, done = starts[order[0]].astype(np.int32), float(values[order[0]]), 0
    chains = [
        _native.LatencyChain(shared, starts[order[k % len(order)]].astype(np.int32), int(rng.integers(0, 1 << 62)))
        for k in range(count)
    ]
    next_catch_up, stop = CATCH_UP_WORK, _native.StopFlag()
    with ThreadPoolExecutor(min(threads, count)) as pool:
        try:
            while (moves := ROUND_MOVES if most is None else min((most - done) // count, ROUND_MOVES)) > 0:
                temperatures = np.maximum(shares * value, 1e-300)
                for chain, temperature in zip(chains, temperatures.tolist(), strict=True):
                    chain.temperature = temperature
                work = max(ROUND_WORK // count, 1)
                jobs = [pool.submit(_run, chain, moves, work, keeps, stop) for chain in chains]
                done += sum(job.result() for job in jobs)
                leader = min(chains, key=lambda chain: float(chain.best_value))
                if leader.best_value < value:
                    best, value = leader.best, leader.best_value
                _exchange(chains, temperatures, rng)
                simulated = sum(chain.n_simulated for chain in chains)
                if simulated >= next_catch_up:
                    next_catch_up = simulated + CATCH_UP_WORK
                    _catch_up(chains, temperatures, best, value)
                yield Found(best, value, done)
        finally:
            stop.set()


def _run(chain: _native.LatencyChain, moves: int, ops: int, keeps: Keeps | None, stop: _native.StopFlag) -> int:
    """Let a chain make its moves; what it cost, in placements priced."""
    tried, asked = chain.n_tried, 0
    waits = chain.run(moves, ops, stop=stop)
    while waits:
        asked += 1
        waits = chain.resolve(keeps is None or keeps(chain.assignment), stop=stop)
    return chain.n_tried - tried + CHECK * asked


def _exchange(chains: list[_native.LatencyChain], temperatures: Floats, rng: np.random.Generator) -> None:
    """Neighbouring temperatures exchange their chains, as if both moves were one."""
    for cold in range(int(rng.integers(2)), len(chains) - 1, 2):
        one, other = chains[cold], chains[cold + 1]
        gain = (one.value - other.value) * (1 / temperatures[cold] - 1 / temperatures[cold + 1])
        if gain >= -rng.exponential():
            chains[cold], chains[cold + 1] = other, one


def _catch_up(chains: Sequence[_native.LatencyChain], temperatures: Floats, best: Ints, value: float) -> None:
    """Chains that have fallen too far behind go on from the best."""
    for chain, temperature in zip(chains, temperatures.tolist(), strict=True):
        if chain.value > value + max(BEHIND * temperature, FAR * value) and not chain.awaits_verdict:
            chain.begin(best)
