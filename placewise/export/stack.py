"""The layers of a model, as tools that split by layer number them: from the numbers in the scopes of its ops."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewise.model.columns import Floats, Ints, frozen
from placewise.model.problem import Problem

FEWEST = 2
"""A stack has so many layers at least."""
_ATTENDS = re.compile("attention|attn|softmax", re.IGNORECASE)
_STEPS = frozenset({"step", "steps", "time", "timestep"})


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """The list of layers that takes most of the time: ``model.layers`` of ``model.layers.3.self_attn``.

    `of` [n_ops] is the layer of every op, −1 for what runs before the first one (embeddings), `count` for what runs
    after the last one (norm, head). The ops of a block have one layer. `inside` are the scopes below the layer,
    ``self_attn``, "" for an op that is in no layer by its scope. `share` is the stack's part of the seconds of all
    layers, `others` are the other lists of layers; `attends`: there is attention in it.
    """

    path: str
    count: int
    of: Ints
    inside: tuple[str, ...]
    share: float
    others: tuple[str, ...]
    attends: bool


def seconds_of(problem: Problem, device: Ints) -> Floats:
    """Seconds per sample of each op [n_ops] on its `device`, on its best device where it has none or cannot run there.

    0 for an op that runs nowhere.
    """
    table = problem.costs.op_seconds
    best = table.min(axis=1, initial=np.inf)
    own = np.where(device >= 0, table[np.arange(problem.n_ops), device], np.inf)
    seconds = np.where(np.isfinite(own), own, best)
    known: Floats = np.where(np.isfinite(seconds), seconds, 0.0)
    return known


def stack_of(problem: Problem) -> Stack | None:
    """The stack of a model; None where no list of `FEWEST` or more layers can be seen in the scopes.

    An op without a layer of its own goes with the highest layer of what it reads in its phase; behind the last one it
    is *after* the stack if nothing in a layer needs it. A backward op goes with the lowest one.
    """
    graph = problem.graph
    parts = [_parts(scope) for scope in graph.ops.scope.values]
    seconds, numbers = _lists(problem, parts)
    stacks = [path for path, found in numbers.items() if len(found) >= FEWEST]
    if not stacks:
        return None
    path = max(stacks, key=lambda path: (seconds[path], -len(path)))
    count = max(numbers[path]) + 1
    own = np.array([part[1] if part and part[0] == path else -1 for part in parts], np.int32)[graph.ops.scope.codes]
    inside = [part[2] if part and part[0] == path else "" for part in parts]
    of = _by_block(problem, _filled(problem, own, count))
    within = tuple(inside[code] for code in graph.ops.scope.codes.tolist())
    layered = np.flatnonzero(own >= 0).tolist()
    attends = any(_ATTENDS.search(f"{graph.ops.kind[op]} {within[op]}") for op in layered)
    share = seconds[path] / sum(seconds.values())
    others = tuple(other for other in stacks if other != path)
    return Stack(path, count, frozen(of, np.int32), within, share, others, attends)


def _lists(
    problem: Problem, parts: Sequence[tuple[str, int, str] | None]
) -> tuple[dict[str, float], dict[str, set[int]]]:
    """Of every list of layers, the seconds (or the ops, where none takes time) and the numbers."""
    weight = seconds_of(problem, np.full(problem.n_ops, -1))
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


def _parts(scope: str) -> tuple[str, int, str] | None:
    """A scope as (path of the outermost list, number, the rest); None if it has no number."""
    words = re.split(r"[./]", scope)
    for place, word in enumerate(words):
        if word.isdecimal() and len(word) < 7 and place and words[place - 1].lower() not in _STEPS:
            return ".".join(words[:place]), int(word), ".".join(words[place + 1 :])
    return None


def _filled(problem: Problem, own: Ints, count: int) -> list[int]:
    """The layer of every op: its own, or that of its surroundings."""
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
                found = max(layer[source] for source in sources[op])
                layer[op] = count if found >= count - 1 and not needed[op] else found
    return layer


def _by_block(problem: Problem, layer: list[int]) -> Ints:
    """One layer per block: the one that most seconds of it are in (the first of equals)."""
    graph = problem.graph
    if problem.n_blocks == graph.n_ops:
        return np.array(layer, np.int32)
    column, block = np.array(layer, np.int64), problem.block.astype(np.int64)
    low, span = int(column.min(initial=0)), int(column.max(initial=0) - column.min(initial=0)) + 1
    pairs, first, inverse = np.unique(block * span + column - low, return_index=True, return_inverse=True)
    seconds = np.bincount(inverse, weights=seconds_of(problem, np.full(problem.n_ops, -1)))
    order = np.lexsort((first, -seconds, pairs // span))
    _, best = np.unique(pairs[order] // span, return_index=True)
    chosen: Ints = (pairs[order][best] % span + low).astype(np.int32)[block]
    return chosen
