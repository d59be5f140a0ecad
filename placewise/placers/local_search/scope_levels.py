"""Sets of blocks that belong to one part of a model, by the scopes of their ops, on several levels."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from placewise.model.columns import Ints, Longs, frozen, offsets_of
from placewise.model.problem import Problem
from placewise.simulate.blocks import block_firsts

DEPTH = 6
MOST_SCOPES = 50_000
"""Graphs with more scopes get no levels: it would take too long."""


class ScopeLevels(NamedTuple):
    """Group of every block on each level, −1 for none; the blocks of group g on level l start at `offsets[l, g]`."""

    group: Ints  # [n_levels, n_blocks]
    offsets: Longs  # [n_levels, most groups + 1]
    blocks: Ints  # [n_levels, n_blocks] sorted by group, those in none first


def scope_levels(problem: Problem) -> ScopeLevels:
    """Levels by prefixes of the scope of a block's first op, and by scopes without one or all of their numbers.

    Scopes without numbers join what a model repeats: one layer in all steps, or one step in all layers. Levels with a
    single group and levels equal to another one are left out.
    """
    scope, n = problem.graph.ops.scope, problem.n_blocks
    first = block_firsts(problem)
    rows: list[Ints] = []
    if 1 < len(scope.values) <= MOST_SCOPES:
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
