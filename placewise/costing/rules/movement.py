"""Ops that only move bytes, and views, which move nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from placewise.costing.case import FREE, Case, Cost, Rule


def free(case: Case) -> Cost:
    """A view, a constant or something about shapes: nothing is computed and nothing is moved."""
    del case
    return FREE


def copied(case: Case) -> Cost:
    """Everything is read once and written once."""
    return case.cost(0, "movement")


def reshaped(case: Case) -> Cost:
    """A view, unless `copied` says that the elements lie in an order that no view can give."""
    return copied(case) if case.number("copied", 0) else FREE


def unless_view(case: Case, *, rule: Rule) -> Cost:
    """What `rule` says, unless `view` says that the result shares the memory of what it is made from."""
    return FREE if case.number("view", 0) else rule(case)


def picked(case: Case) -> Cost:
    """Only what goes out is read of the first argument: rows of a table, a slice."""
    indices = sum(value.nbytes for position, value in case.inputs.items() if position)
    return case.cost(0, "movement", nbytes=2 * case.written + indices)


def updated(case: Case) -> Cost:
    """Written in place: only the update (argument 1) is read and written, and the indices are read."""
    others = sum(value.nbytes for position, value in case.inputs.items() if position)
    return case.cost(0, "movement", nbytes=others + case.inputs[1].nbytes)


def transposed(case: Case) -> Cost:
    """A copy in another order; a view where only dimensions of length 1 change places."""
    shape = case.shape(0)
    order = case.attributes.get("perm", tuple(reversed(range(len(shape)))))
    long = [axis for axis in order if shape[axis] != 1]
    return FREE if long == sorted(long) else copied(case)


def resized(case: Case) -> Cost:
    """Nearest neighbours are copied; otherwise 2 (linear) or 4 (cubic) weighted neighbours per changed dimension."""
    mode = str(case.attributes.get("mode", "nearest"))
    if mode == "nearest":
        return copied(case)
    changed = sum(a != b for a, b in zip(case.shape(0), case.outputs[0].shape, strict=True))
    neighbours = (4 if mode == "cubic" else 2) ** changed
    return case.cost(2 * neighbours * case.outputs[0].size, "elementwise")


def sampled(case: Case) -> Cost:
    """Values at given places, interpolated between 1, 2 or 4 neighbours per dimension."""
    mode = str(case.attributes.get("mode", "linear"))
    neighbours = {"nearest": 1, "cubic": 4, "bicubic": 4}.get(mode, 2) ** (len(case.shape(0)) - 2)
    return case.cost(2 * neighbours * case.outputs[0].size, "elementwise")


def affine_grid(case: Case) -> Cost:
    """Every coordinate of the grid is a row of the matrix times a place."""
    shape = case.outputs[0].shape
    return case.cost(2 * (shape[-1] + 1) * case.outputs[0].size, "elementwise")


_FREE = """BitCast Constant Dropout Flatten Identity Optional OptionalGetElement OptionalHasElement SequenceAt
    SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Size Squeeze Unsqueeze"""
_COPIED = """Cast CastLike CenterCropPad Compress Concat ConcatFromSequence ConstantOfShape DepthToSpace EyeLike
    MaxUnpool OneHot Pad ReverseSequence Scatter ScatterElements ScatterND SpaceToDepth SplitToSequence Tile
    Trilu com.microsoft::QLinearConcat com.microsoft::Pad"""
_PICKED = "Gather GatherElements GatherND com.microsoft::GatherBlockQuantized"

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_FREE.split(), free),
    **dict.fromkeys(_COPIED.split(), copied),
    **dict.fromkeys(_PICKED.split(), picked),
    "Reshape": reshaped,
    "Expand": partial(unless_view, rule=copied),
    "Split": partial(unless_view, rule=copied),
    "Slice": partial(unless_view, rule=picked),
    "Transpose": partial(unless_view, rule=transposed),
    "TensorScatter": updated,
    "Resize": resized,
    "Upsample": resized,
    "GridSample": sampled,
    "AffineGrid": affine_grid,
}
