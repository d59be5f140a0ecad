"""Views and copies map a split dimension to another one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import pairwise

from placewise.costing.sharding.strategies import (
    SUMMAND,
    WHOLE,
    Answer,
    Indivisible,
    Rule,
    Shape,
    ShardingStrategy,
    SplitOp,
    follow,
)
from placewise.model.tables import RESHAPES

MOST_PARTS = 4096
"""The most parts of a split dimension that are tracked."""


def reshape(op: SplitOp) -> list[Answer]:
    """Each split dimension goes to the dimension that holds its leading factor.

    A dimension that is divided into heads and their width must be split by heads. One that follows others in a merged
    dimension is split part by part (queries, keys and values side by side).
    """
    place = op.leading_split()
    if place is None or not op.results:
        return []
    source, result = op.shapes[0], op.results[0]
    if 0 in source or 0 in result or math.prod(source) != math.prod(result):
        return []
    factors = _refine(source, result)
    if factors is None:
        return []
    own = [(length, of_result) for length, of_source, of_result in factors if of_source == place]
    answers: list[Answer] = []
    before = 1
    for number, (length, target) in enumerate(own):
        if op.divides(length):
            preceding = _preceding(factors, place, number)
            parts = (1,) * preceding if preceding > 1 else None
            cuts = (1,) * before if len(own) > 1 else (1,) if parts else None
            is_last = number and number == len(own) - 1
            if max(before, preceding) <= MOST_PARTS:
                answers.append(follow(op, {0: place}, (target,), cuts=cuts, joins=parts, strict=bool(is_last)))
        before *= length
    if own and (not answers or answers[0].strict):  # type: ignore[union-attr]
        answers.append(Indivisible(own[0][0], "blocks"))
    return answers


def _refine(source: Shape, result: Shape) -> list[tuple[int, int, int]] | None:
    """The common factors of two shapes, from the front: (length, dimension of the source, of the result).

    They lie between the boundaries of both, counted in elements from the back. None if a factor would cross one.
    """
    bounds = sorted({*_suffixes(source), *_suffixes(result)}, reverse=True)
    factors = []
    for high, low in pairwise(bounds):
        if high % low:
            return None
        factors.append((high // low, _owner(source, high), _owner(result, high)))
    return factors


def _suffixes(shape: Shape) -> list[int]:
    products = [1]
    for length in reversed(shape):
        products.append(products[-1] * length)
    return products


def _owner(shape: Shape, high: int) -> int:
    """The dimension whose elements reach from below up to `high`."""
    size = 1
    for place in range(len(shape) - 1, -1, -1):
        if size < high <= size * shape[place]:
            return place
        size *= shape[place]
    return 0


def _preceding(factors: list[tuple[int, int, int]], place: int, number: int) -> int:
    """The product of the factors that precede the `number`th one of dimension `place` in its result dimension."""
    at = [k for k, (_, of_source, _) in enumerate(factors) if of_source == place][number]
    target = factors[at][2]
    return math.prod(length for length, _, of_result in factors[:at] if of_result == target)


def transpose(op: SplitOp) -> list[Answer]:
    """Dimensions change their places."""
    split = op.first_split()
    if split is None:
        return []
    order = op.attributes.get("perm") or tuple(reversed(range(len(op.shapes[0]))))
    order = [int(axis) % len(order) for axis in order]
    return [follow(op, {0: split[1]}, (order.index(split[1]),))]


def expand(op: SplitOp) -> list[Answer]:
    """Dimensions of length 1 are repeated; the others keep their places from the back."""
    own = op.leading_split()
    if own is None or not op.results:
        return []
    place = own + len(op.results[0]) - len(op.shapes[0])
    return [follow(op, {0: own}, (place,))] if op.results[0][place] == op.shapes[0][own] else []


def keep_equal(op: SplitOp) -> list[Answer]:
    """Argument 0 keeps a split dimension if the results have it in full: slices, padding, resizing, tiling."""
    place = op.leading_split()
    if place is None:
        return []
    if any(len(shape) != len(op.shapes[0]) or shape[place] != op.shapes[0][place] for shape in op.results):
        return []
    return [follow(op, {0: place}, (place,) * len(op.results))]


def slice_part(op: SplitOp) -> list[Answer]:
    """As `keep_equal`; a slice that is one of several matrices side by side is split itself; an index drops its
    dimension.
    """
    place = op.leading_split()
    if place is None or not op.results:
        return []
    source, result = op.shapes[0], op.results[0]
    if "index" in op.attributes and len(result) == len(source) - 1:
        axis = op.axis(0, len(source))
        return [] if axis == place else [follow(op, {0: place}, (place - (place > axis),))]
    if len(source) != len(result):
        return []
    if source[place] == result[place]:
        return [follow(op, {0: place}, (place,))]
    start, length = op.attributes.get("start"), result[place]
    if start is None or op.axis(0, len(source)) != place or op.number("step", 1) != 1 or not op.divides(length):
        return []
    start = int(start) % source[place]
    if source[place] % length or start % length:
        return []
    return [follow(op, {0: place}, (place,), cuts=(1,) * (source[place] // length))]


def split(op: SplitOp) -> list[Answer]:
    """Results side by side; if they are split along that dimension, each one is split."""
    place = op.leading_split()
    if place is None:
        return []
    source, axis = op.shapes[0], op.axis(0, len(op.shapes[0]))
    if axis != place:
        return [follow(op, {0: place}, (place,) * len(op.results))]
    lengths = tuple(shape[axis] for shape in op.results if len(shape) == len(source))
    if len(lengths) != len(op.results) or not all(op.divides(length) for length in lengths):
        return []
    return [follow(op, {0: place}, (place,) * len(op.results), cuts=simplify(lengths))]


def simplify(parts: tuple[int, ...]) -> tuple[int, ...]:
    """A ratio in lowest terms."""
    shared = math.gcd(*parts)
    return tuple(part // shared for part in parts)


def concat(op: SplitOp) -> list[Answer]:
    """Arguments side by side: all are split in the same way; along the dimension itself, part by part."""
    found = op.first_split()
    if found is None or not op.results:
        return []
    place, rank = found[1], len(op.results[0])
    axis = op.axis(0, rank)
    if any(len(shape) != rank for shape in op.shapes.values()):
        return []
    reads = dict.fromkeys(op.shapes, place)
    if axis != place:
        return [follow(op, reads, (place,))]
    lengths = tuple(shape[axis] for _, shape in sorted(op.shapes.items()))
    if op.tokens or not all(op.divides(length) for length in lengths):
        return []
    return [follow(op, reads, (place,), cuts=(1,), joins=simplify(lengths))]


def gather(op: SplitOp) -> list[Answer]:
    """Rows of a table of weights are split if they are many (a vocabulary); elsewhere a split dimension stays.

    Vocabulary-parallel embeddings (Megatron-LM, section 3): every device looks up its rows, and zeros stand for the
    others. The vocabulary is padded where t does not divide it.
    """
    if 0 not in op.shapes or 1 not in op.shapes or not op.results:
        return []
    table, index = op.shapes[0], op.shapes[1]
    axis = op.axis(0, len(table))
    if op.forms[1] >= 0:
        return [follow(op, {1: op.forms[1]}, (axis + op.forms[1],))]
    form = op.forms[0]
    if form >= 0:
        if form == axis:
            return []
        return [follow(op, {0: form}, (form if form < axis else form + len(index) - 1,))]
    if 0 not in op.weights or axis or len(table) != 2 or op.forms[1] != WHOLE or not _is_vocabulary(table):
        return []
    return [ShardingStrategy("embedding", {0: 0}, (SUMMAND,), -(-table[0] // op.degree) / table[0])]


def _is_vocabulary(table: Shape) -> bool:
    return table[0] >= 2 * table[1] and math.prod(table) >= SMALL_TABLE


SMALL_TABLE = 1 << 10
"""Tables with fewer elements (kinds of tokens, buckets of distances) stay whole."""


def gather_elements(op: SplitOp) -> list[Answer]:
    """Argument and indices have the same rank; what is not picked from stays split."""
    found = op.first_split()
    if found is None:
        return []
    place, axis = found[1], op.axis(0, len(op.shapes[0]))
    reads = dict.fromkeys(op.shapes, place)
    lengths = {op.shapes[at][place] for at in op.shapes if len(op.shapes[at]) > place}
    return [follow(op, reads, (place,))] if axis != place and len(lengths) == 1 else []


def keep_batch(op: SplitOp) -> list[Answer]:
    """Only the first dimension may be split."""
    if op.leading_split() != 0:
        return []
    return [follow(op, {0: 0}, tuple(0 if shape and shape[0] == op.shapes[0][0] else WHOLE for shape in op.results))]


def glue(op: SplitOp) -> list[Answer]:
    """Halves of a dimension meet: any other may be split."""
    place = op.leading_split()
    if place is None or place == op.axis(-1, len(op.shapes[0])):
        return []
    return [follow(op, {0: place}, (place,))]


def along(op: SplitOp, *, default: int) -> list[Answer]:
    """Works along one axis of argument 0; the others may be split, in all results of the same rank."""
    place = op.leading_split()
    return [] if place is None or place == op.axis(default, len(op.shapes[0])) else keep_equal(op)


_KEPT = "Pad Resize Upsample Tile Trilu aten::flip aten::roll com.microsoft::Pad com.microsoft::Trilu"

RULES: Mapping[str, Rule] = {
    **dict.fromkeys((*RESHAPES, "com.microsoft::ExpandDims"), reshape),
    **dict.fromkeys(_KEPT.split(), keep_equal),
    "Transpose": transpose,
    "Expand": expand,
    "aten::expand_copy": expand,
    "Slice": slice_part,
    "aten::slice_copy": slice_part,
    "Split": split,
    "aten::split_with_sizes_copy": split,
    "Concat": concat,
    "Gather": gather,
    "GatherElements": gather_elements,
    "DepthToSpace": keep_batch,
    "SpaceToDepth": keep_batch,
    "aten::glu": glue,
    "CumSum": partial(along, default=0),
    "TopK": partial(along, default=-1),
    "aten::sort": partial(along, default=-1),
}
