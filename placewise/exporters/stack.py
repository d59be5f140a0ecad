"""Finds the layers of a model from the numbers in the scopes of its ops, for tools that split by layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewise.model.columns import Floats, Ints, frozen
from placewise.model.problem import Problem, cached_per_problem

FEWEST = 2
"""The least number of layers of a stack."""
_ATTENDS = re.compile("attention|attn|softmax", re.IGNORECASE)
_STEPS = frozenset({"step", "steps", "time", "timestep"})


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """The list of layers that takes most of the time: ``model.layers`` of ``model.layers.3.self_attn``.

    `of` [n_ops] is the layer of every op, −1 for ops before the first layer (embeddings), `count` for ops after the
    last one (norm, head). All ops of a block are in one layer. `inside` are the scopes below the layer, such as
    ``self_attn``, "" for an op whose scope is in no layer. `share` is the stack's share of the seconds of all layers,
    `ops_share` that of its own ops in those of the model. `others` are the other lists of layers; `attends` says
    whether it contains attention.
    """

    path: str
    count: int
    of: Ints
    inside: tuple[str, ...]
    share: float
    ops_share: float
    others: tuple[str, ...]
    attends: bool


def op_seconds_on(problem: Problem, device: Ints) -> Floats:
    """Seconds per sample of each op [n_ops] on its `device`; on its fastest device if it has none or cannot run there.

    0 for an op that runs nowhere.
    """
    table = problem.costs.op_seconds
    best = table.min(axis=1, initial=np.inf)
    own = np.where(device >= 0, table[np.arange(problem.n_ops), device], np.inf)
    seconds = np.where(np.isfinite(own), own, best)
    return np.where(np.isfinite(seconds), seconds, 0.0)


@cached_per_problem
def find_stack(problem: Problem) -> Stack | None:
    """The stack of a model; None if the scopes contain no list of `FEWEST` or more layers.

    An op whose scope has no layer goes to the highest layer that it reads from in its phase; beyond the last layer it
    is *after* the stack if no layer needs it. A backward op goes to the lowest layer that it reads from.
    """
    graph = problem.graph
    parts = [_split_scope(scope) for scope in graph.ops.scope.values]
    seconds, numbers = _weigh_lists(problem, parts)
    stacks = [path for path, layers in numbers.items() if len(layers) >= FEWEST]
    if not stacks:
        return None
    path = max(stacks, key=lambda path: (seconds[path], -len(path)))
    count = max(numbers[path]) + 1
    own = np.array([part[1] if part and part[0] == path else -1 for part in parts], np.int32)[graph.ops.scope.codes]
    inside = [part[2] if part and part[0] == path else "" for part in parts]
    of = _unify_blocks(problem, _complete_layers(problem, own, count))
    within = tuple(inside[code] for code in graph.ops.scope.codes.tolist())
    layered = np.flatnonzero(own >= 0).tolist()
    attends = any(_ATTENDS.search(f"{graph.ops.kind[op]} {within[op]}") for op in layered)
    share = seconds[path] / sum(seconds.values())
    others = tuple(other for other in stacks if other != path)
    return Stack(path, count, frozen(of, np.int32), within, share, len(layered) / problem.n_ops, others, attends)


def _weigh_lists(
    problem: Problem, parts: Sequence[tuple[str, int, str] | None]
) -> tuple[dict[str, float], dict[str, set[int]]]:
    """The seconds of every list of layers (the ops, if nothing takes time), and its layer numbers."""
    weight = op_seconds_on(problem, np.full(problem.n_ops, -1))
    if not weight.any():
        weight = np.ones(problem.n_ops)
    total = np.bincount(problem.graph.ops.scope.codes, weights=weight, minlength=len(parts)).tolist()
    seconds: dict[str, float] = {}
    numbers: dict[str, set[int]] = {}
    for part, share in zip(parts, total, strict=True):
        if part is not None:
            seconds[part[0]] = seconds.get(part[0], 0.0) + share
            numbers.setdefault(part[0], set()).add(part[1])
    if not any(seconds.values()):
        seconds = dict.fromkeys(seconds, 1.0)
    return seconds, numbers


def _split_scope(scope: str) -> tuple[str, int, str] | None:
    """A scope as (path of the outermost list, number, the rest); None if it has no number."""
    words = re.split(r"[./]", scope)
    for place, word in enumerate(words):
        if word.isdecimal() and len(word) < 7 and place and words[place - 1].lower() not in _STEPS:
            return ".".join(words[:place]), int(word), ".".join(words[place + 1 :])
    return None


def _complete_layers(problem: Problem, own: Ints, count: int) -> list[int]:
    """The layer of every op: by its own scope, or else by what it reads."""
    graph = problem.graph
    phase, backward = graph.ops.phase.tolist(), graph.ops.backward.tolist()
    maker = graph.tensors.producer.tolist()
    layer: list[int] = own.tolist()
    needed = [number >= 0 for number in layer]
    sources = [
        [maker[t] for t in graph.inputs_of(op).tolist() if maker[t] >= 0 and phase[maker[t]] == phase[op]]
        for op in range(graph.n_ops)
    ]
    for op in reversed(range(graph.n_ops)):
        if needed[op]:
            for source in sources[op]:
                needed[source] = needed[source] or backward[source] == backward[op]
    for op in range(graph.n_ops):
        if own[op] < 0 and sources[op]:
            if backward[op]:
                layer[op] = min(layer[source] for source in sources[op])
            else:
                highest = max(layer[source] for source in sources[op])
                layer[op] = count if highest >= count - 1 and not needed[op] else highest
    return layer


def _unify_blocks(problem: Problem, layer: list[int]) -> Ints:
    """One layer per block: the one with most of its seconds (the first of equals)."""
    graph = problem.graph
    if problem.n_blocks == graph.n_ops:
        return np.array(layer, np.int32)
    column, block = np.array(layer, np.int64), problem.block.astype(np.int64)
    low, span = int(column.min(initial=0)), int(column.max(initial=0) - column.min(initial=0)) + 1
    pairs, first, inverse = np.unique(block * span + column - low, return_index=True, return_inverse=True)
    seconds = np.bincount(inverse, weights=op_seconds_on(problem, np.full(problem.n_ops, -1)))
    order = np.lexsort((first, -seconds, pairs // span))
    _, best = np.unique(pairs[order] // span, return_index=True)
    chosen: Ints = (pairs[order][best] % span + low).astype(np.int32)[block]
    return chosen
