"""Chains of moves for latency in `operator` execution, at several temperatures and in threads.

Parallel tempering as in `parallel_tempering.py`, but each chain prices its own moves, from the first moment that they
affect, and takes most of them from the critical path of its schedule (`native/latency_search`). Moves may take all
blocks of one part of a model, by the scopes of their ops (`scope_levels`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints, Longs, frozen, offsets_of
from placewise.model.problem import Problem, cached_per_problem
from placewise.model.quantized import held_bytes
from placewise.placers.local_search.parallel_tempering import CHECK, KeepsRules, TemperingState, exchanges
from placewise.placers.shared.move_space import build_move_space
from placewise.simulate.blocks import block_firsts
from placewise.simulate.in_place import in_place_ops
from placewise.simulate.judge.schedule import schedule_inputs
from placewise.simulate.problem_arrays import arrays_of

COLDEST, HOTTEST = 1e-5, 1e-2
"""Temperatures as shares of the best value known; fewer chains have the colder ones."""
DEPTH, MAX_SCOPES = 6, 50_000
"""The longest prefixes of scopes that form groups; graphs with more scopes get no groups, which would take too long."""
CHAINS, CHAIN_OPS = 8, 24_000
"""The most chains, and how many ops they may have together: on larger graphs many chains would hardly move each. At
least two chains run."""
ROUND_WORK, ROUND_MOVES = 300_000, 64
"""Ops that all chains simulate together between two exchanges, and the moves of each."""
BEHIND, FAR, CATCH_UP_WORK = 20.0, 0.01, 600_000
"""A chain restarts from the best placement once it is this many temperatures, and at least this share, above it. The
check comes after every `CATCH_UP_WORK` simulated ops."""


def run_chains(
    problem: Problem,
    starts: Ints,
    values: Floats,
    keeps_rules: KeepsRules | None,
    *,
    seed: int,
    most: int | None = None,
    threads: int = 1,
    count_seconds: Callable[[], float] = lambda: np.inf,
) -> Iterator[TemperingState]:
    """Yield the state after each round. `starts` [S, n_blocks] are valid, with their finite values.

    `keeps_rules` judges the shape of stages; memory is checked here. At most `most` placements are priced. Up to
    `threads` chains move at once; the result does not depend on them. A round ends early after the seconds that
    `count_seconds` says are left.
    """
    shared, rng = latency_search_problem(problem), np.random.default_rng(seed)
    order = np.argsort(values, kind="stable")
    count = int(np.clip(CHAIN_OPS // max(problem.n_ops, 1), 2, CHAINS))
    shares = np.geomspace(COLDEST, HOTTEST, CHAINS)[:count]
    best, value, work = starts[order[0]].astype(np.int32), float(values[order[0]]), 0
    chains = [
        _native.LatencyChain(shared, starts[order[k % len(order)]].astype(np.int32), int(rng.integers(0, 1 << 62)))
        for k in range(count)
    ]
    next_catch_up, stop = CATCH_UP_WORK, _native.StopFlag()
    with ThreadPoolExecutor(min(threads, count)) as pool:
        try:
            while (moves := ROUND_MOVES if most is None else min((most - work) // count, ROUND_MOVES)) > 0:
                temperatures = np.maximum(shares * value, 1e-300)
                for chain, temperature in zip(chains, temperatures.tolist(), strict=True):
                    chain.temperature = temperature
                ops = max(ROUND_WORK // count, 1)
                jobs = [
                    pool.submit(_run_chain, chain, moves, ops, keeps_rules, count_seconds, stop) for chain in chains
                ]
                work += sum(job.result() for job in jobs)
                leader = min(chains, key=lambda chain: float(chain.best_value))
                if leader.best_value < value:
                    best, value = leader.best, leader.best_value
                if count_seconds() > 0:
                    for cold, warm in exchanges(np.array([chain.value for chain in chains]), temperatures, rng):
                        chains[cold], chains[warm] = chains[warm], chains[cold]
                    simulated = sum(chain.n_simulated for chain in chains)
                    if simulated >= next_catch_up:
                        next_catch_up = simulated + CATCH_UP_WORK
                        _restart_chains_behind(chains, temperatures, best, value)
                yield TemperingState(best, value, work)
        finally:
            stop.set()


def _restart_chains_behind(chains: list[_native.LatencyChain], temperatures: Floats, best: Ints, value: float) -> None:
    """Let chains that are far above the best placement start from it again."""
    for chain, temperature in zip(chains, temperatures.tolist(), strict=True):
        behind = chain.value > value + max(BEHIND * temperature, FAR * value)
        if behind and not chain.awaits_verdict:
            chain.begin(best)


def _run_chain(
    chain: _native.LatencyChain,
    moves: int,
    ops: int,
    keeps_rules: KeepsRules | None,
    count_seconds: Callable[[], float],
    stop: _native.StopFlag,
) -> int:
    """Let a chain make its moves; the work, in placements priced."""
    tried, checks = chain.n_tried, 0
    waits = chain.run(moves, ops, count_seconds(), stop)
    while waits:
        checks += 1
        waits = chain.resolve(keeps_rules is None or keeps_rules(chain.assignment), count_seconds(), stop)
    return chain.n_tried - tried + CHECK * checks


def latency_search_problem(problem: Problem) -> _native.LatencySearchProblem:
    """What all chains share; linear in the problem but for sorting."""
    a, levels = arrays_of(problem), scope_levels(problem)
    inputs = schedule_inputs(problem)
    tensor_bytes = held_bytes(problem)
    return _native.LatencySearchProblem(
        inputs.native,
        build_move_space(problem),
        priority=inputs.priority,
        by_priority=inputs.by_priority,
        block=frozen(problem.block, np.int32),
        least_seconds=frozen(np.where(problem.allowed, a.op_seconds, np.inf).min(axis=1), np.float64),
        in_place_bytes=_in_place_bytes(problem, tensor_bytes),
        tensor_bytes=frozen(tensor_bytes, np.int64),
        is_host=frozen(problem.cluster.is_host, np.bool_),
        part=levels.group,
        part_offsets=levels.offsets,
        part_blocks=levels.blocks,
        live=problem.objective.memory == "live",
        shaped=problem.constraints.shaped,
    )


def _in_place_bytes(problem: Problem, tensor_bytes: Longs) -> Longs:
    """Bytes [n_ops] of the first result if it may take the place of an operand, −1 if not."""
    graph, sizes = problem.graph, np.full(problem.n_ops, -1, np.int64)
    first = graph.out_offsets[:-1]
    ops = np.flatnonzero(in_place_ops(graph) & (first < graph.out_offsets[1:]))
    sizes[ops] = tensor_bytes[first[ops]]
    return frozen(sizes, np.int64)


class ScopeLevels(NamedTuple):
    """Group of every block on each level, −1 for none; the blocks of group g on level l start at `offsets[l, g]`."""

    group: Ints  # [n_levels, n_blocks]
    offsets: Longs  # [n_levels, most groups + 1]
    blocks: Ints  # [n_levels, n_blocks] sorted by group, those in none first


@cached_per_problem
def scope_levels(problem: Problem) -> ScopeLevels:
    """Levels by prefixes of the scope of a block's first op, and by scopes without one or all of their numbers.

    Scopes without numbers join what a model repeats: one layer in all steps, or one step in all layers. Levels with a
    single group and levels equal to another one are left out.
    """
    scope, n = problem.graph.ops.scope, problem.n_blocks
    first = block_firsts(problem)
    rows: list[Ints] = []
    if 1 < len(scope.values) <= MAX_SCOPES:
        parts = [tuple(value.split(".")) if value else () for value in scope.values]
        numbers: list[Ints] = []
        for key in _keys():
            code: dict[tuple[str, ...], int] = {}
            number = np.array([code.setdefault(key(part), len(code)) if part else -1 for part in parts], np.int32)
            if 1 < len(code) < n and not any(np.array_equal(number, other) for other in numbers):
                numbers.append(number)
                rows.append(number[scope.codes[first]])
    group = np.array(rows, np.int32).reshape(len(rows), n)
    blocks = np.argsort(group, axis=1, kind="stable")
    most = int(group.max(initial=-1)) + 1
    offsets = [offsets_of(row[order], most) for row, order in zip(group, blocks, strict=True)]
    return ScopeLevels(
        frozen(group, np.int32),
        frozen(np.array(offsets, np.int64).reshape(len(rows), most + 1), np.int64),
        frozen(blocks, np.int32),
    )


def _keys() -> list[Callable[[tuple[str, ...]], tuple[str, ...]]]:
    """Functions that map the parts of a scope to a coarser key."""

    def prefix(depth: int) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
        return lambda part: part[:depth]

    def without(which: slice) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
        def key(part: tuple[str, ...]) -> tuple[str, ...]:
            numbers = set([at for at, word in enumerate(part) if word.isdigit()][which])
            return tuple("" if at in numbers else word for at, word in enumerate(part))

        return key

    prefixes = [prefix(depth) for depth in range(1, DEPTH + 1)]
    return [lambda part: part, without(slice(-1, None)), without(slice(0, 1)), without(slice(None)), *prefixes]
