"""Ops that only move bytes, and views, which move nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from placewise.costing.op_instance import FREE, Cost, OpInstance, Rule


def free(op: OpInstance) -> Cost:
    """A view, a constant or shape arithmetic: nothing is computed or moved."""
    del op
    return FREE


def copy(op: OpInstance) -> Cost:
    """Everything is read once and written once."""
    return op.cost(0, "movement")


def reshape(op: OpInstance) -> Cost:
    """A view, unless `copied` indicates an element order that no view can express."""
    return copy(op) if op.number("copied", 0) else FREE


def cost_unless_view(op: OpInstance, *, rule: Rule) -> Cost:
    """The cost of `rule`, unless `view` indicates that the result shares memory with its argument."""
    return FREE if op.number("view", 0) else rule(op)


def gather(op: OpInstance) -> Cost:
    """Of the first argument only the results are read: rows of a table, a slice."""
    indices = sum(value.nbytes for position, value in op.inputs.items() if position)
    return op.cost(0, "movement", nbytes=2 * op.bytes_written + indices)


def update_in_place(op: OpInstance) -> Cost:
    """Written in place: only the update (argument 1) is read and written, and the indices are read."""
    others = sum(value.nbytes for position, value in op.inputs.items() if position)
    return op.cost(0, "movement", nbytes=others + op.inputs[1].nbytes)


def transpose(op: OpInstance) -> Cost:
    """A copy in another order; a view if only dimensions of length 1 move."""
    shape = op.shape(0)
    order = op.attributes.get("perm", tuple(reversed(range(len(shape)))))
    long = [axis for axis in order if shape[axis] != 1]
    return FREE if long == sorted(long) else copy(op)


def resize(op: OpInstance) -> Cost:
    """Nearest neighbours are copied; otherwise 2 (linear) or 4 (cubic) weighted neighbours per changed dimension."""
    mode = str(op.attributes.get("mode", "nearest"))
    if mode == "nearest":
        return copy(op)
    changed = sum(a != b for a, b in zip(op.shape(0), op.outputs[0].shape, strict=True))
    neighbours = (4 if mode == "cubic" else 2) ** changed
    return op.cost(2 * neighbours * op.outputs[0].size, "elementwise")


def grid_sample(op: OpInstance) -> Cost:
    """Values at given positions, interpolated between 1, 2 or 4 neighbours per dimension."""
    mode = str(op.attributes.get("mode", "linear"))
    neighbours = {"nearest": 1, "cubic": 4, "bicubic": 4}.get(mode, 2) ** (len(op.shape(0)) - 2)
    return op.cost(2 * neighbours * op.outputs[0].size, "elementwise")


def affine_grid(op: OpInstance) -> Cost:
    """Every coordinate of the grid is a row of the matrix times a position."""
    shape = op.outputs[0].shape
    return op.cost(2 * (shape[-1] + 1) * op.outputs[0].size, "elementwise")


_FREE = """BitCast Constant Dropout Flatten Identity Optional OptionalGetElement OptionalHasElement SequenceAt
    SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Size Squeeze Unsqueeze"""
_COPIED = """Cast CastLike CenterCropPad Compress Concat ConcatFromSequence ConstantOfShape DepthToSpace EyeLike
    MaxUnpool OneHot Pad ReverseSequence Scatter ScatterElements ScatterND SpaceToDepth SplitToSequence Tile
    Trilu com.microsoft::QLinearConcat com.microsoft::Pad"""
_PICKED = "Gather GatherElements GatherND com.microsoft::GatherBlockQuantized"

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_FREE.split(), free),
    **dict.fromkeys(_COPIED.split(), copy),
    **dict.fromkeys(_PICKED.split(), gather),
    "Reshape": reshape,
    "Expand": partial(cost_unless_view, rule=copy),
    "Split": partial(cost_unless_view, rule=copy),
    "Slice": partial(cost_unless_view, rule=gather),
    "Transpose": partial(cost_unless_view, rule=transpose),
    "TensorScatter": update_in_place,
    "Resize": resize,
    "Upsample": resize,
    "GridSample": grid_sample,
    "AffineGrid": affine_grid,
}
