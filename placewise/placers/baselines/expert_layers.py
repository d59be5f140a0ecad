"""Layers as people see them, found by the numbers in scopes."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from placewise import _native
from placewise.model.columns import Bools, Ints
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.simulate.contiguity import Contraction

STEPS = frozenset({"step", "steps", "time", "timestep"})
"""Scope names whose numbers count the unrolled steps of a recurrent layer; the steps are one layer."""
LAST = ("attention", "softmax")
"""Scopes that the experts of recurrent models place beside the last layer."""


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """The layer [n_ops] of every op, −1 for none; layers are in the order of their mean positions.

    `stack` and `number` name each layer. `recurrent`: the layers are unrolled in steps; `last` [n_ops] then marks the
    attention and softmax.
    """

    of: Ints
    stack: tuple[str, ...]
    number: tuple[int, ...]
    recurrent: bool
    last: Bools

    def __len__(self) -> int:
        return len(self.stack)


def find_layers(graph: Graph, wanted: int) -> Layers | None:
    """The outermost level with at least `wanted` layers, else the innermost level; None for fewer than two layers.

    A layer is a path of scope names that ends with a number: ``encoder.layer.3`` of ``encoder.layer.3.attention``.
    """
    paths = [_split_scope(scope) for scope in graph.ops.scope.values]
    deepest = max((len(numbers) for numbers, _ in paths), default=0)
    codes = graph.ops.scope.codes
    forward = ~graph.ops.backward
    for level in range(1, deepest + 1):
        names = [numbers[min(level, len(numbers)) - 1] if numbers else "" for numbers, _ in paths]
        known = sorted({names[code] for code in np.unique(codes[forward]).tolist()} - {""})
        if len(known) >= wanted or level == deepest:
            break
    else:
        return None
    if len(known) < 2:
        return None
    index = {name: number for number, name in enumerate(known)}
    raw = np.array([index.get(name, -1) for name in names], np.int32)[codes]
    placed = np.flatnonzero((raw >= 0) & forward)
    middle = np.bincount(raw[placed], weights=placed, minlength=len(known)) / np.bincount(raw[placed])
    order = np.argsort(middle, kind="stable")
    rank = np.empty(len(known) + 1, np.int32)
    rank[order], rank[-1] = np.arange(len(known)), -1
    parts = [known[place].rpartition(".") for place in order.tolist()]
    recurrent = any(steps for _, steps in paths)
    named = np.array([any(word in scope for word in LAST) for scope in graph.ops.scope.values], np.bool_)
    of = rank[raw]
    return Layers(
        of, tuple(stack for stack, _, _ in parts), tuple(int(number) for _, _, number in parts), recurrent,
        (of < 0) & named[codes] if recurrent else np.zeros(graph.n_ops, np.bool_),
    )  # fmt: skip


def _split_scope(scope: str) -> tuple[list[str], bool]:
    """The layers that contain a scope, outermost first, and whether it is a step of a recurrence."""
    layers: list[str] = []
    words: list[str] = []
    steps = False
    for word in re.split(r"[./]", scope):
        if _is_number(word) and words and words[-1].lower() in STEPS:
            steps = True
            words.pop()
            continue
        words.append(word)
        if _is_number(word):
            layers.append(".".join([*words[:-1], str(int(word))]))
    return layers, steps


def _is_number(word: str) -> bool:
    return word.isdecimal() and len(word) < 10


def fill_layers(problem: Problem, graph: Contraction, layer: Ints) -> Ints:
    """The layer [n_blocks] of every block: that of its forward ops, else of its producers, else of its readers."""
    block, backward = problem.block, problem.graph.ops.backward
    own = np.full(problem.n_blocks, -1, np.int32)
    for ops in (np.flatnonzero(layer >= 0), np.flatnonzero((layer >= 0) & ~backward)):
        own[block[ops[::-1]]] = layer[ops[::-1]]
    component = np.zeros(problem.n_blocks, np.int32)
    component[block] = graph.component
    rank = np.full(graph.n, -1, np.int32)
    np.maximum.at(rank, component, own)
    _native.fill_ranks(graph.predecessor_offsets, graph.predecessors, graph.successor_offsets, graph.successors, rank)
    return np.where(own >= 0, own, rank[component]).astype(np.int32)
