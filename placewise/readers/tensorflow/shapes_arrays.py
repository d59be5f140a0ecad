"""Types of the results of ops that reshape, join, slice and look up."""

from __future__ import annotations

import math
from collections.abc import Mapping

from placewise.readers.tensorflow.abstract_values import (
    NodeCall,
    Rule,
    ShapeConflict,
    Type,
    Unknown,
    agree_shapes,
    axis_of,
    broadcast,
    count_of,
)
from placewise.readers.tensorflow.types import Shape

MAX_OUTPUTS = 65_536
"""The most outputs of one op."""


def reshape(call: NodeCall) -> list[Type]:
    shape = call.args[0].shape
    target = list(call.numbers(1))
    count = count_of(shape) if shape is not None else -1
    rest = math.prod(size for size in target if size >= 0)
    if count >= 0 and (count != rest if min(target, default=0) >= 0 else rest > 0 and count % rest):
        raise ShapeConflict(f"{count} elements cannot be {'×'.join(map(str, target[:8])) or 'one'}")
    if -1 in target:
        target[target.index(-1)] = count // rest if count >= 0 and rest > 0 else -1
    return [Type(call.dtype(), tuple(target))]


def squeeze(call: NodeCall) -> list[Type]:
    shape = call.dims(0)
    axes = {axis_of(axis, len(shape)) for axis in (call.node.ints("squeeze_dims") or call.node.ints("axis"))}
    kept = [size for axis, size in enumerate(shape) if not (axis in axes if axes else size == 1)]
    return [Type(call.dtype(), tuple(kept))]


def expand_dims(call: NodeCall) -> list[Type]:
    shape = call.dims(0)
    axis = axis_of(call.number(1), len(shape) + 1)
    return [Type(call.dtype(), (*shape[:axis], 1, *shape[axis:]))]


def transpose(call: NodeCall) -> list[Type]:
    shape, order = call.dims(0), call.numbers(1)
    axes = [axis_of(axis, len(shape)) for axis in order]
    if sorted(axes) != list(range(len(shape))):
        raise ShapeConflict(f"{', '.join(map(str, order[:8]))} is not a permutation of {len(shape)} axes")
    return [Type(call.dtype(), tuple(shape[axis] for axis in axes))]


def concat(call: NodeCall) -> list[Type]:
    """ConcatV2 has its axis last, Concat has it first."""
    last = call.node.op == "ConcatV2"
    axis_at = len(call.args) - 1 if last else 0
    shapes = [call.dims(place) for place in range(len(call.args)) if place != axis_at]
    axis = axis_of(call.number(axis_at), len(shapes[0]))
    rest = agree_shapes(*(tuple(-1 if place == axis else size for place, size in enumerate(shape)) for shape in shapes))
    sizes = [shape[axis] for shape in shapes]
    whole = -1 if min(sizes) < 0 else sum(sizes)
    return [Type(call.dtype(0 if last else 1), (*rest[:axis], whole, *rest[axis + 1 :]))]


def pack(call: NodeCall) -> list[Type]:
    shape = agree_shapes(*(call.dims(place) for place in range(len(call.args))))
    axis = axis_of(call.node.whole("axis"), len(shape) + 1)
    return [Type(call.dtype(), (*shape[:axis], len(call.args), *shape[axis:]))]


def unpack(call: NodeCall) -> list[Type]:
    shape = call.dims(0)
    axis = axis_of(call.node.whole("axis"), len(shape))
    return [Type(call.dtype(), shape[:axis] + shape[axis + 1 :])] * _count_outputs(call, "num")


def split(call: NodeCall) -> list[Type]:
    shape, parts = call.dims(1), _count_outputs(call, "num_split")
    axis = axis_of(call.number(0), len(shape))
    if shape[axis] >= 0 and shape[axis] % parts:
        raise ShapeConflict(f"{shape[axis]} cannot be split in {parts}")
    size = shape[axis] // parts if shape[axis] >= 0 else -1
    return [Type(call.dtype(1), (*shape[:axis], size, *shape[axis + 1 :]))] * parts


def _count_outputs(call: NodeCall, name: str) -> int:
    """The number of outputs; raises ShapeConflict if it is out of range."""
    parts = call.node.whole(name)
    if not 1 <= parts <= MAX_OUTPUTS:
        raise ShapeConflict(f"{name!r} is {parts}, not from 1 to {MAX_OUTPUTS}")
    return parts


def split_sizes(call: NodeCall) -> list[Type]:
    shape, sizes = call.dims(0), list(call.numbers(1))
    axis = axis_of(call.number(2), len(shape))
    if -1 in sizes:
        sizes[sizes.index(-1)] = shape[axis] - sum(size for size in sizes if size >= 0)
    return [Type(call.dtype(), (*shape[:axis], size, *shape[axis + 1 :])) for size in sizes]


def slice_(call: NodeCall) -> list[Type]:
    """Slice: `size` elements from `begin`, −1 for all remaining ones."""
    shape, size = call.dims(0), call.numbers(2)
    if -1 not in size:
        return [Type(call.dtype(), size)]
    begin = call.numbers(1)
    whole = [
        n if n >= 0 else (dim - start if dim >= 0 else -1) for dim, start, n in zip(shape, begin, size, strict=True)
    ]
    return [Type(call.dtype(), tuple(whole))]


def _slice_shape(call: NodeCall, shape: Shape) -> list[int]:
    """Python's slicing, with masks for ``...``, new axes, open ends and single indices."""
    begin, end, step = call.numbers(1), call.numbers(2), call.numbers(3)
    mask = {name: call.node.whole(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    kept: list[int] = []
    axis = 0
    indexed = sum(1 for place in range(len(begin)) if not (mask["new_axis"] | mask["ellipsis"]) >> place & 1)
    for place in range(len(begin)):
        if mask["ellipsis"] >> place & 1:
            kept += shape[axis : axis + len(shape) - indexed]
            axis += len(shape) - indexed
        elif mask["new_axis"] >> place & 1:
            kept.append(1)
        else:
            size, axis = shape[axis], axis + 1
            if mask["shrink_axis"] >> place & 1:
                continue
            first = None if mask["begin"] >> place & 1 else begin[place]
            last = None if mask["end"] >> place & 1 else end[place]
            kept.append(len(range(*slice(first, last, step[place]).indices(size))) if size >= 0 else -1)
    return [*kept, *shape[axis:]]


def gather(call: NodeCall) -> list[Type]:
    """Gather, GatherV2 (with an axis) and ResourceGather."""
    table, indices, batch = call.dims(0), call.dims(1), call.node.whole("batch_dims")
    axis = axis_of(call.number(2), len(table)) if len(call.args) > 2 else batch
    dtype = call.node.dtype("dtype") if call.node.op == "ResourceGather" else call.args[0].dtype
    return [Type(dtype, (*table[:axis], *indices[batch:], *table[axis + 1 :]))]


def gather_nd(call: NodeCall) -> list[Type]:
    table, indices = call.dims(0), call.dims(1)
    return [Type(call.args[0].dtype, (*indices[:-1], *table[indices[-1] :]))]


def tile(call: NodeCall) -> list[Type]:
    pairs = zip(call.dims(0), call.numbers(1), strict=True)
    return [Type(call.dtype(), tuple(size * times if size >= 0 else -1 for size, times in pairs))]


def pad(call: NodeCall) -> list[Type]:
    shape, pads = call.dims(0), call.data(1).reshape(-1, 2).tolist()
    grown = (size + int(low) + int(high) if size >= 0 else -1 for size, (low, high) in zip(shape, pads, strict=True))
    return [Type(call.dtype(), tuple(grown))]


def one_hot(call: NodeCall) -> list[Type]:
    shape, depth = call.dims(0), call.number(1)
    axis = axis_of(call.node.whole("axis", -1), len(shape) + 1)
    return [Type(call.dtype(2), (*shape[:axis], depth, *shape[axis:]))]


def range_(call: NodeCall) -> list[Type]:
    start, limit, delta = (float(call.data(place).reshape(())) for place in range(3))
    dtype = call.node.dtype("Tidx", call.args[0].dtype)
    return [Type(dtype, (max(math.ceil((limit - start) / delta), 0),))]


def shape(call: NodeCall) -> list[Type]:
    dtype = call.node.dtype("out_type", "int32")
    return [Type(dtype, (len(call.dims(place)),)) for place in range(len(call.args))]


def top_k(call: NodeCall) -> list[Type]:
    k = call.number(1) if call.node.op == "TopKV2" else call.node.whole("k")
    shape = (*call.dims(0)[:-1], k)
    return [Type(call.dtype(), shape), Type(call.node.dtype("index_type", "int32"), shape)]


def unsorted_segments(call: NodeCall) -> list[Type]:
    return [Type(call.dtype(), (call.number(2), *call.dims(0)[len(call.dims(1)) :]))]


def broadcast_gradient_axes(call: NodeCall) -> list[Type]:
    """The lengths of the results follow from the values only."""
    dtype = call.args[0].dtype
    return [Type(dtype, (-1,)), Type(dtype, (-1,))]


def dynamic_stitch(call: NodeCall) -> list[Type]:
    """As many rows as the largest index demands."""
    half = len(call.args) // 2
    rows = 1 + max(max(call.numbers(place), default=-1) for place in range(half))
    return [Type(call.dtype(half), (rows, *call.dims(half)[len(call.dims(0)) :]))]


def space_to_depth(call: NodeCall) -> list[Type]:
    batch, height, width, channels = call.dims(0)
    size = call.node.whole("block_size")
    if call.node.text("data_format", "NHWC") != "NHWC" or min(height, width, channels) < 0:
        raise Unknown
    if call.node.op == "SpaceToDepth":
        return [Type(call.dtype(), (batch, height // size, width // size, channels * size * size))]
    return [Type(call.dtype(), (batch, height * size, width * size, channels // (size * size)))]


def space_to_batch(call: NodeCall) -> list[Type]:
    """SpaceToBatchND and its inverse, which express dilated convolutions."""
    shape, block, pads = call.dims(0), call.numbers(1), call.data(2).reshape(-1, 2).tolist()
    inner = shape[1 : 1 + len(block)]
    if min(inner, default=0) < 0 or shape[0] < 0:
        raise Unknown
    if call.node.op == "SpaceToBatchND":
        sizes = [(n + int(a) + int(b)) // k for n, k, (a, b) in zip(inner, block, pads, strict=True)]
        return [Type(call.dtype(), (shape[0] * math.prod(block), *sizes, *shape[1 + len(block) :]))]
    sizes = [n * k - int(a) - int(b) for n, k, (a, b) in zip(inner, block, pads, strict=True)]
    return [Type(call.dtype(), (shape[0] // math.prod(block), *sizes, *shape[1 + len(block) :]))]


def select(call: NodeCall) -> list[Type]:
    """The condition of Select has its branches' shape or one dimension; SelectV2 broadcasts."""
    if call.node.op == "Select":
        return [Type(call.dtype(1), call.dims(1))]
    return [Type(call.dtype(1), broadcast(call.dims(0), call.dims(1), call.dims(2)))]


RULES: Mapping[str, Rule] = {
    "Reshape": reshape, "Squeeze": squeeze, "ExpandDims": expand_dims, "Transpose": transpose,
    "ConjugateTranspose": transpose, "Concat": concat, "ConcatV2": concat, "Pack": pack, "Unpack": unpack,
    "Split": split, "SplitV": split_sizes, "Slice": slice_,
    "Gather": gather, "GatherV2": gather, "ResourceGather": gather, "GatherNd": gather_nd,
    "Tile": tile, "Pad": pad, "PadV2": pad, "MirrorPad": pad,
    "OneHot": one_hot, "Range": range_, "Shape": shape, "ShapeN": shape,
    "VariableShape": shape,
    "TopKV2": top_k, "TopK": top_k,
    "UnsortedSegmentSum": unsorted_segments, "UnsortedSegmentMax": unsorted_segments,
    "BroadcastGradientArgs": broadcast_gradient_axes,
    "DynamicStitch": dynamic_stitch, "ParallelDynamicStitch": dynamic_stitch,
    "SpaceToDepth": space_to_depth, "DepthToSpace": space_to_depth,
    "SpaceToBatchND": space_to_batch, "BatchToSpaceND": space_to_batch,
    "Select": select, "SelectV2": select,
    "StridedSlice": lambda call: [Type(call.dtype(), tuple(_slice_shape(call, call.dims(0))))],
    "ScatterNd": lambda call: [Type(call.args[1].dtype, call.numbers(2))],
    "Fill": lambda call: [Type(call.dtype(1), call.numbers(0))],
    "BroadcastTo": lambda call: [Type(call.dtype(), call.numbers(1))],
    "LinSpace": lambda call: [Type(call.dtype(), (call.number(2),))],
    **dict.fromkeys(("Size", "Rank"), lambda call: [Type(call.node.dtype("out_type", "int32"), ())]),
    "ConcatOffset": lambda call: [Type("int32", call.dims(place)) for place in range(1, len(call.args))],
    "InvertPermutation": lambda call: [Type(call.dtype(), call.dims(0))],
}  # fmt: skip
