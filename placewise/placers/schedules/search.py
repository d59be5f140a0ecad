"""Chains of moves for `operator` execution at several temperatures, on two cores: what `temper` and `local` run.

Parallel tempering as in `tempering.py`, except that each chain prices its moves itself, from the first moment that
they touch (`events.py`), and takes most of them from the critical path of its own schedule (`steps.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.placers.schedules.desk import AWAITS, BEST, HEAT, TRIED, VALUE, WORK, Board, Desk, board_of, desk_of
from placewise.placers.schedules.tempering import CHECK, Found, Keeps
from placewise.placers.schedules.walk import AFRESH, DROP, KEEP, walk

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
    likely: Floats | None = None,
) -> Iterator[Found]:
    """One `Found` per round, for as long as it is asked. `starts` [S, n_blocks] are valid, with their finite values.

    `keeps` judges the shape of stages; memory is counted here. `most` is how many placements may be priced; `likely`
    are probabilities of blocks.
    """
    board, rng = board_of(problem, likely), np.random.default_rng(seed)
    order = np.argsort(values, kind="stable")
    count = int(np.clip(ENOUGH_WORK // max(problem.n_ops, 1), 2, CHAINS))
    heats = np.geomspace(COLDEST, HOTTEST, CHAINS)[:count]
    best, value, done = starts[order[0]].astype(np.int32), float(values[order[0]]), 0
    desks: list[Desk] = []
    due = CATCH_UP_WORK
    with ThreadPoolExecutor(_cores()) as pool:
        for k in range(count):
            home = starts[order[k % len(order)]].astype(np.int32)
            desks.append(desk_of(board, home, int(rng.integers(0, 1 << 62))))
            desks[-1].flat[BEST] = np.inf
        list(pool.map(lambda desk: _begin(board, desk, desk.home), desks))
        while (moves := ROUND_MOVES if most is None else min((most - done) // count, ROUND_MOVES)) > 0:
            heat = np.maximum(heats * value, 1e-300)
            for desk, share in zip(desks, heat.tolist(), strict=True):
                desk.flat[HEAT], desk.tally[TRIED] = share, 0
            work = max(ROUND_WORK // count, 1)
            jobs = [pool.submit(_walk, board, desk, moves, work, keeps) for desk in desks]
            done += sum(job.result() for job in jobs)
            leader = min(desks, key=lambda desk: float(desk.flat[BEST]))
            if leader.flat[BEST] < value:
                best, value = leader.best.copy(), float(leader.flat[BEST])
            _trade(desks, heat, rng)
            simulated = sum(int(desk.tally[WORK]) for desk in desks)
            if simulated >= due:
                due = simulated + CATCH_UP_WORK
                _catch_up(board, desks, heat, best, value)
            yield Found(best, value, done)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin(board: Board, desk: Desk, home: Ints) -> None:
    """A chain begins anew from `home` [n_blocks]."""
    desk.fresh[:] = home
    walk(*board, desk, 0, 0, AFRESH)


def _walk(board: Board, desk: Desk, moves: int, work: int, keeps: Keeps | None) -> int:
    """Let a chain make its moves; what it cost, in placements priced."""
    verdict, asked, until = DROP, 0, int(desk.tally[WORK]) + work
    while walk(*board, desk, moves, until, verdict):
        verdict = KEEP if keeps is None or keeps(desk.home) else DROP
        asked += 1
    return int(desk.tally[TRIED]) + CHECK * asked


def _trade(desks: list[Desk], heat: Floats, rng: np.random.Generator) -> None:
    """Neighbouring temperatures exchange their chains, as if both moves were one."""
    for cold in range(int(rng.integers(2)), len(desks) - 1, 2):
        gain = (desks[cold].flat[VALUE] - desks[cold + 1].flat[VALUE]) * (1 / heat[cold] - 1 / heat[cold + 1])
        if gain >= -rng.exponential():
            desks[cold], desks[cold + 1] = desks[cold + 1], desks[cold]


def _catch_up(board: Board, desks: Sequence[Desk], heat: Floats, best: Ints, value: float) -> None:
    """Chains that have fallen too far behind go on from the best."""
    for desk, share in zip(desks, heat.tolist(), strict=True):
        if desk.flat[VALUE] > value + max(BEHIND * share, FAR * value) and not desk.tally[AWAITS]:
            _begin(board, desk, best)
