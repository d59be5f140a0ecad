"""Shapes and values that the TensorFlow reader works out, against hand-worked ones and against numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_files import INT, F, constant, graph, node, placeholder, saved

from placewise.errors import ModelFileError
from placewise.readers.tensorflow import read_tensorflow
from placewise.readers.tensorflow.abstract_values import AbstractValue, NodeCall
from placewise.readers.tensorflow.constant_folding import evaluate
from placewise.readers.tensorflow.infer import infer_types
from placewise.readers.tensorflow.nodes import parse_nodes

NHWC = {"data_format": "NHWC", "T": F}
NCHW = {"data_format": "NCHW", "T": F}
SAME, VALID = {"padding": "SAME", **NHWC}, {"padding": "VALID", **NHWC}
EXPLICIT = {"padding": "EXPLICIT", "explicit_paddings": [0, 0, 1, 2, 0, 0, 0, 0], **NHWC}
ONE, TWO = {"strides": [1, 1, 1, 1]}, {"strides": [1, 2, 2, 1]}
DEEP = {"strides": [1, 1, 2, 2, 1], "padding": "SAME", "data_format": "NDHWC"}


def given_call(op, shapes, values, **attrs):
    """A call of `op` on tensors of these shapes, then on these constants."""
    proto = node("op", op, *(f"a{i}" for i in range(len(shapes) + len(values))), **attrs)
    args = [AbstractValue("float32", tuple(shape)) for shape in shapes]
    args += [AbstractValue(str(np.asarray(v).dtype), np.shape(v), np.asarray(v)) for v in values]
    return NodeCall(parse_nodes([proto])[0], tuple(args))


def shapes_of(op, shapes, *values, **attrs):
    return [kind.shape for kind in infer_types(given_call(op, shapes, values, **attrs), 1)]


@pytest.mark.parametrize(
    ("op", "shapes", "values", "attrs", "expected"),
    [
        ("MatMul", [(4, 3), (5, 3)], [], {"transpose_b": True}, (4, 5)),
        ("BatchMatMulV2", [(2, 1, 4, 3), (7, 3, 5)], [], {}, (2, 7, 4, 5)),
        ("BatchMatMulV2", [(2, 3, 4), (2, 3, 5)], [], {"adj_x": True}, (2, 4, 5)),
        ("Einsum", [(2, 5, 8), (8, 3, 4)], [], {"equation": "btd,dhw->bhtw"}, (2, 3, 5, 4)),
        ("Einsum", [(2, 3, 5, 8), (8, 4)], [], {"equation": "...td,dw->...wt"}, (2, 3, 4, 5)),
        ("Conv2D", [(1, 224, 224, 3), (7, 7, 3, 64)], [], {**TWO, **SAME}, (1, 112, 112, 64)),
        ("Conv2D", [(1, 230, 230, 3), (7, 7, 3, 64)], [], {**TWO, **VALID}, (1, 112, 112, 64)),
        ("Conv2D", [(1, 3, 32, 32), (3, 3, 3, 8)], [], {**ONE, "padding": "VALID", **NCHW}, (1, 8, 30, 30)),
        ("Conv2D", [(1, 32, 32, 3), (3, 3, 3, 8)], [], {**ONE, "dilations": [1, 2, 2, 1], **VALID}, (1, 28, 28, 8)),
        ("Conv2D", [(1, 9, 9, 3), (3, 3, 3, 8)], [], {**TWO, **EXPLICIT}, (1, 5, 4, 8)),
        ("DepthwiseConv2dNative", [(1, 16, 16, 8), (3, 3, 8, 2)], [], {**TWO, **SAME}, (1, 8, 8, 16)),
        ("Conv3D", [(1, 8, 16, 16, 3), (3, 3, 3, 3, 8)], [], DEEP, (1, 8, 8, 8, 8)),
        ("MaxPool", [(1, 112, 112, 64)], [], {"ksize": [1, 3, 3, 1], **TWO, **SAME}, (1, 56, 56, 64)),
        ("AvgPool", [(1, 7, 7, 64)], [], {"ksize": [1, 7, 7, 1], **ONE, **VALID}, (1, 1, 1, 64)),
        ("Mean", [(2, 7, 7, 64)], [[1, 2]], {}, (2, 64)),
        ("Sum", [(2, 7, 64)], [-1], {"keep_dims": True}, (2, 7, 1)),
        ("Reshape", [(2, 3, 4)], [[-1, 6]], {}, (4, 6)),
        ("Transpose", [(2, 3, 4)], [[2, 0, 1]], {}, (4, 2, 3)),
        ("ConcatV2", [(2, 3), (2, 5)], [1], {}, (2, 8)),
        ("Pack", [(2, 3), (2, 3)], [], {"axis": 1}, (2, 2, 3)),
        ("ExpandDims", [(2, 3)], [-1], {}, (2, 3, 1)),
        ("Squeeze", [(2, 1, 3, 1)], [], {"squeeze_dims": [1]}, (2, 3, 1)),
        ("Squeeze", [(2, 1, 3, 1)], [], {}, (2, 3)),
        ("Slice", [(4, 6)], [[1, 2], [2, -1]], {}, (2, 4)),
        ("GatherV2", [(9, 4), (2, 3)], [0], {}, (2, 3, 4)),
        ("GatherNd", [(9, 4, 5), (7, 2)], [], {}, (7, 5)),
        ("Tile", [(2, 3)], [[2, 3]], {}, (4, 9)),
        ("Pad", [(2, 3)], [[[1, 1], [0, 2]]], {}, (4, 5)),
        ("OneHot", [(4, 2)], [10], {}, (4, 2, 10)),
        ("ArgMax", [(4, 10)], [1], {}, (4,)),
        ("AddV2", [(4, 1, 3), (5, 1)], [], {}, (4, 5, 3)),
        ("SelectV2", [(4, 1), (3,), ()], [], {}, (4, 3)),
        ("SpaceToDepth", [(1, 8, 8, 3)], [], {"block_size": 2}, (1, 4, 4, 12)),
        ("SpaceToBatchND", [(1, 8, 8, 3)], [[2, 2], [[0, 0], [0, 0]]], {}, (4, 4, 4, 3)),
        ("BatchToSpaceND", [(4, 4, 4, 3)], [[2, 2], [[0, 1], [0, 0]]], {}, (1, 7, 8, 3)),
        ("BiasAddGrad", [(8, 7, 7, 32)], [], NHWC, (32,)),
        ("LSTMBlockCell", [(8, 16), (8, 32), (8, 32)], [], {"T": F}, (8, 32)),
        ("BlockLSTM", [(), (5, 8, 16), (8, 32)], [], {"T": F}, (5, 8, 32)),
        ("ResizeBilinear", [(1, 8, 8, 3)], [[16, 20]], {"T": F}, (1, 16, 20, 3)),
        ("CropAndResize", [(2, 32, 32, 8), (7, 4), (7,)], [[5, 6]], {}, (7, 5, 6, 8)),
        ("BatchNormWithGlobalNormalization", [(2, 4, 4, 8), (8,), (8,), (8,), (8,)], [], {"T": F}, (2, 4, 4, 8)),
        ("TensorListReserve", [], [[-1, 8], 5], {"element_dtype": F}, (5, -1, 8)),
    ],
)  # fmt: skip
def test_shapes(op, shapes, values, attrs, expected):
    """One shape per op, worked by hand."""
    assert shapes_of(op, shapes, *values, **attrs)[0] == expected


def test_several_results():
    """Ops with several results, of the shapes that each of them has."""
    assert shapes_of("Unpack", [(2, 3, 4)], axis=1, num=3, T=F) == [(2, 4)] * 3
    assert shapes_of("SplitV", [(2, 10)], [3, -1, 2], 1, num_split=3, T=F) == [(2, 3), (2, 5), (2, 2)]
    assert shapes_of("TopKV2", [(2, 10)], 3, T=F) == [(2, 3), (2, 3)]
    assert shapes_of("SparseSoftmaxCrossEntropyWithLogits", [(8, 10), (8,)], T=F) == [(8,), (8, 10)]
    norm = shapes_of("FusedBatchNormV3", [(2, 4, 4, 8), (8,), (8,), (8,), (8,)], T=F, U=F)
    assert norm[:5] == [(2, 4, 4, 8)] + [(8,)] * 4


def test_open_dimensions_stay_open():
    """What is not known of an argument is not known of the result, and the rest is."""
    assert shapes_of("MatMul", [(-1, 3), (3, 5)], T=F) == [(-1, 5)]
    assert shapes_of("Reshape", [(-1, 3)], [-1, 6], T=F) == [(-1, 6)]
    assert shapes_of("AddV2", [(-1, 3), (3,)], T=F) == [(-1, 3)]
    assert shapes_of("Relu", [(-1, 3)], T=F) == [(-1, 3)]
    assert (
        infer_types(NodeCall(parse_nodes([node("a", "Relu", "x", T=F)])[0], (AbstractValue("float32", None),)), 1)[
            0
        ].shape
        is None
    )


def test_what_rules_miss_is_unknown():
    """Rules that lack an argument or a number say nothing."""
    for op, shapes in (("Reshape", [(3, 4)]), ("ConcatV2", [(3, 4)]), ("Conv2D", [(3, 4)]), ("Mean", [(3, 4)])):
        assert shapes_of(op, shapes, T=F)[0] is None


@pytest.mark.parametrize(
    ("op", "shapes", "values", "attrs", "match"),
    [
        ("AddV2", [(4, 5), (6, 7)], [], {}, "sizes 4 and 6 are in the same place"),
        ("Less", [(3,), (4,)], [], {}, "sizes 3 and 4"),
        ("Equal", [(3,), (4,)], [], {}, "sizes 3 and 4"),
        ("AddN", [(3, 4), (3, 5)], [], {}, "sizes 4 and 5"),
        ("MatMul", [(4, 5), (6, 7)], [], {}, "rows of 5 meet columns of 6"),
        ("MatMul", [(4, 5), (6, 7)], [], {"transpose_a": True}, "rows of 4 meet columns of 6"),
        ("MatMul", [(4, 5), (6, 7)], [], {"transpose_b": True}, "rows of 5 meet columns of 7"),
        ("MatMul", [(3,), (4,)], [], {}, "two dimensions"),
        ("BatchMatMulV2", [(2, 4, 5), (2, 6, 7)], [], {}, "rows of 5 meet columns of 6"),
        ("BatchMatMulV2", [(2, 4, 5), (3, 5, 7)], [], {}, "sizes 2 and 3"),
        ("Einsum", [(2, 5), (6, 7)], [], {"equation": "ab,bc->ac"}, "'b' is 5 and 6"),
        ("Conv2D", [(2, 9, 9, 3), (3, 3, 5, 8)], [], {**ONE, **SAME}, "a kernel for 5 channels meets 3"),
        ("Conv2D", [(2, 3, 9, 9), (3, 3, 5, 8)], [], {**ONE, "padding": "SAME", **NCHW}, "5 channels meets 3"),
        ("DepthwiseConv2dNative", [(1, 9, 9, 8), (3, 3, 4, 2)], [], {**ONE, **SAME}, "4 channels meets 8"),
        ("Conv2D", [(2, 2, 2, 3), (5, 5, 3, 8)], [], {**ONE, **VALID}, "a window of 5 does not fit into 2"),
        ("Conv2D", [(2, 9, 9, 3), (3, 3, 3, 8)], [], {"strides": [0, 0], **VALID}, "'strides' is 0, 0, not 4"),
        ("MaxPool", [(1, 9, 9, 3)], [], {"ksize": [1, 3, 3, 1], "strides": [1, 0, 2, 1], **SAME}, "'strides' is"),
        ("ConcatV2", [(4, 5), (6, 7)], [0], {}, "sizes 5 and 7"),
        ("ConcatV2", [(4, 5), (4,)], [1], {}, "their ranks differ"),
        ("Pack", [(4, 5), (4, 6)], [], {}, "sizes 5 and 6"),
        ("Reshape", [(4, 5)], [[3, 7]], {}, "20 elements cannot be 3×7"),
        ("Reshape", [(4, 5)], [[3, -1]], {}, "20 elements cannot be 3×-1"),
        ("Transpose", [(4, 5)], [[0, 0]], {}, "0, 0 is not a permutation of 2 axes"),
        ("Transpose", [(4, 5)], [[0, 5]], {}, "2 dimensions have no axis 5"),
        ("Sum", [(4, 8)], [77], {}, "2 dimensions have no axis 77"),
        ("Unpack", [(4, 8)], [], {"num": -3}, "'num' is -3"),
    ],
)
def test_contradictions_are_refused(op, shapes, values, attrs, match):
    """Where all that a rule needs is known and does not fit, the op, its shapes and the clash are named."""
    with pytest.raises(ModelFileError, match=match) as caught:
        shapes_of(op, shapes, *values, **{"T": F, **attrs})
    text = str(caught.value)
    assert text.startswith(f"op 'op' ({op})") and "×".join(map(str, shapes[0])) in text and caught.value.remedy


@pytest.mark.parametrize(
    ("op", "shapes", "values", "attrs", "expected"),
    [
        ("MatMul", [(4, -1), (6, 7)], [], {}, (4, 7)),
        ("Conv2D", [(2, 9, 9, -1), (3, 3, 5, 8)], [], {**ONE, **SAME}, (2, 9, 9, 8)),
        ("Conv2D", [(1, 9, 9, 4), (3, 3, 2, 8)], [], {**ONE, **SAME}, (1, 9, 9, 8)),
        ("ConcatV2", [(4, -1), (6, 7)], [0], {}, (10, 7)),
        ("Reshape", [(-1, 5)], [[3, 7]], {}, (3, 7)),
        ("Reshape", [(0, 5)], [[0, -1]], {}, (0, -1)),
        ("AddV2", [(-1, 5), (6, 1)], [], {}, (6, 5)),
        ("NotEqual", [(3,), (4,)], [], {"incompatible_shape_error": False}, ()),
        ("Merge", [(3, 4), (5, 4)], [], {}, (5, 4)),
    ],
)
def test_unknown_sizes_contradict_nothing(op, shapes, values, attrs, expected):
    """What is open may fit; groups of channels, and what is allowed to differ, do."""
    assert shapes_of(op, shapes, *values, **{"T": F, **attrs})[0] == expected


slices = st.tuples(st.integers(-6, 6), st.integers(-6, 6), st.sampled_from([-3, -2, -1, 1, 2, 3]), st.integers(0, 31))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.lists(slices, min_size=1, max_size=5))
def test_strided_slices_are_numpys(dims, rows):
    """Shapes and values of StridedSlice agree with numpy's indexing, masks and all."""
    begin, end, step, flags = zip(*rows, strict=True)
    masks = dict.fromkeys(("begin", "end", "ellipsis", "new_axis", "shrink_axis"), 0)
    index = []
    for place, (b, e, s, flag) in enumerate(zip(begin, end, step, flags, strict=True)):
        if flag & 4 and ... not in index:
            masks["ellipsis"] |= 1 << place
            index.append(...)
        elif flag & 8:
            masks["new_axis"] |= 1 << place
            index.append(None)
        elif flag & 16 and s > 0:
            masks["shrink_axis"] |= 1 << place
            index.append(b)
        else:
            masks["begin"] |= (flag & 1) << place
            masks["end"] |= (flag >> 1 & 1) << place
            index.append(slice(None if flag & 1 else b, None if flag & 2 else e, s))
    data = np.arange(np.prod(dims)).reshape(dims)
    attrs = {f"{name}_mask": mask for name, mask in masks.items()}
    call = given_call("StridedSlice", [], [data, np.array(begin), np.array(end), np.array(step)], **attrs)
    kinds = infer_types(call, 1)
    try:
        expected = data[tuple(index)]
    except IndexError:
        return
    assert kinds[0].shape == expected.shape
    assert (evaluate(call, kinds)[0] == expected).all()


@pytest.mark.parametrize(
    ("op", "values", "attrs", "expected"),
    [
        ("Sub", [7, 3], {}, 4),
        ("FloorDiv", [-7, 2], {}, -4),
        ("Less", [3, 4], {}, True),
        ("Range", [0, 10, 3], {}, [0, 3, 6, 9]),
        ("Pack", [1, 2], {}, [1, 2]),
        ("Prod", [[2, 3, 4], 0], {}, 24),
        ("GatherV2", [[5, 6, 7], [2, 0], 0], {}, [7, 5]),
        ("Fill", [[2], 3], {}, [3, 3]),
        ("ConcatV2", [[1, 2], [3], 0], {}, [1, 2, 3]),
        ("DynamicStitch", [[0, 2], [1], [10, 30], [20]], {}, [10, 20, 30]),
        ("Size", [[1, 2, 3]], {}, 3),
    ],
)
def test_values(op, values, attrs, expected):
    """The arithmetic with which graphs compute shapes."""
    call = given_call(op, [], [np.asarray(value, np.int32) for value in values], T=INT, **attrs)
    assert np.array_equal(evaluate(call, infer_types(call, 1))[0], expected)


def test_axes_of_broadcast_gradients():
    """[8, 1, 4] with [3, 4]: the first is summed over its axis 1, the second over axis 0 of the result."""
    call = given_call("BroadcastGradientArgs", [], [np.array([8, 1, 4]), np.array([3, 4])], T=INT)
    first, second = evaluate(call, infer_types(call, 2))
    assert first.tolist() == [1] and second.tolist() == [0]


def test_long_values_are_not_worked_out(tmp_path):
    """A tensor of a billion elements has a shape and no value."""
    nodes = [constant("dims", [1000, 1000, 1000]), constant("one", 1), node("big", "Fill", "dims", "one", T=INT)]
    found = read_tensorflow(saved(tmp_path, graph(*nodes, node("y", "Neg", "big", T=INT)))).graph
    assert found.tensors.bytes.tolist() == [4_000_000_000] * 2


def test_shapes_through_arithmetic(tmp_path):
    """A reshape to [batch, −1], where the batch is cut out of a shape, as exporters write it."""
    nodes = [
        placeholder("x", [-1, 7, 8]),
        node("shape", "Shape", "x", T=F),
        *(constant(name, value) for name, value in (("b", [0]), ("e", [1]), ("s", [1]), ("rest", -1))),
        node("batch", "StridedSlice", "shape", "b", "e", "s", shrink_axis_mask=1, T=INT),
        node("to", "Pack", "batch", "rest", T=INT),
        node("y", "Reshape", "x", "to", T=F),
    ]
    found = read_tensorflow(saved(tmp_path, graph(*nodes)), dims={"batch": 3}).graph
    assert found.tensors.shape[found.tensors.name.index("y")] == (3, 56)
