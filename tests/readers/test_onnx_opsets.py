"""The ONNX reader from opset 3 to the newest: the same network has the same shapes and FLOPs in every one."""

import onnx
import pytest
from onnx.helper import make_node
from onnx.version_converter import convert_version
from onnx_files import integers, model, saved, weight

from placewise.costing.work import work_of
from placewise.readers.onnx import read_onnx
from placewise.transform.fold import fold

NEWEST = onnx.defs.onnx_opset_version()


def cnn():
    """A small convolutional network as exporters wrote it for opset 9."""
    nodes = [
        make_node("Pad", ["x"], ["p"], pads=[0, 0, 1, 1, 0, 0, 1, 1]),
        make_node("Conv", ["p", "k", "b"], ["c"], strides=[2, 2]),
        make_node("BatchNormalization", ["c", "b", "b", "b", "b"], ["n"]),
        make_node("Clip", ["n"], ["r"], min=0.0, max=6.0),
        make_node("MaxPool", ["r"], ["m"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        make_node("Conv", ["m", "d"], ["e"], group=8, pads=[1, 1, 1, 1]),
        make_node("LeakyRelu", ["e"], ["l"]),
        make_node("Add", ["l", "m"], ["s"]),
        make_node("ReduceMean", ["s"], ["g"], axes=[2, 3], keepdims=0),
        make_node("Dropout", ["g"], ["o"]),
        make_node("Gemm", ["o", "f", "h"], ["y"], transB=1),
        make_node("Softmax", ["y"], ["z"], axis=1),
    ]
    weights = [weight("k", 8, 3, 3, 3), weight("b", 8), weight("d", 8, 1, 3, 3), weight("f", 10, 8), weight("h", 10)]
    return model(nodes, {"x": ["batch", 3, 32, 32]}, ["z"], weights, opset=9)


def block():
    """A transformer block in the ops of opset 9: normalizations and GELU in parts, shapes computed."""

    def norm(data, name):
        return [
            make_node("ReduceMean", [data], [f"{name}_m"], axes=[-1]),
            make_node("Sub", [data, f"{name}_m"], [f"{name}_d"]),
            make_node("Pow", [f"{name}_d", "two"], [f"{name}_q"]),
            make_node("ReduceMean", [f"{name}_q"], [f"{name}_v"], axes=[-1]),
            make_node("Sqrt", [f"{name}_v"], [f"{name}_s"]),
            make_node("Div", [f"{name}_d", f"{name}_s"], [name]),
        ]

    def headed(word, order):
        return [
            make_node("MatMul", ["n1", "w"], [f"{word}_p"]),
            make_node("Reshape", [f"{word}_p", "split"], [f"{word}_r"]),
            make_node("Transpose", [f"{word}_r"], [word], perm=order),
        ]

    nodes = [
        *norm("x", "n1"),
        make_node("Shape", ["x"], ["shape"]),
        make_node("Slice", ["shape"], ["front"], starts=[0], ends=[2], axes=[0]),
        make_node("Concat", ["front", "heads"], ["split"], axis=0),
        *headed("q", [0, 2, 1, 3]), *headed("key", [0, 2, 3, 1]), *headed("v", [0, 2, 1, 3]),
        make_node("MatMul", ["q", "key"], ["scores"]),
        make_node("Softmax", ["scores"], ["shares"], axis=3),
        make_node("MatMul", ["shares", "v"], ["mixed"]),
        make_node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        make_node("Reshape", ["back", "shape"], ["joined"]),
        make_node("Add", ["joined", "x"], ["a"]),
        *norm("a", "n2"),
        make_node("MatMul", ["n2", "up"], ["u"]),
        make_node("Erf", ["u"], ["gate"]),
        make_node("Mul", ["u", "gate"], ["g"]),
        make_node("MatMul", ["g", "down"], ["f"]),
        make_node("Unsqueeze", ["f"], ["h"], axes=[0]),
        make_node("Squeeze", ["h"], ["i"], axes=[0]),
        make_node("Add", ["i", "a"], ["y"]),
    ]  # fmt: skip
    weights = [
        weight("w", 16, 16),
        weight("up", 16, 64),
        weight("down", 64, 16),
        weight("two"),
        integers("heads", [4, 4]),
    ]
    return model(nodes, {"x": ["batch", "length", 16]}, ["y"], weights, opset=9)


def told(folder, content, dims):
    """FLOPs of the folded view by class, and the shape of the result."""
    reading = read_onnx(saved(folder, content), dims=dims)
    assert reading.warnings == () and reading.graph.tensors.bytes.min() >= 0
    graph = fold(reading.graph)
    work = work_of(graph)
    assert work.known.all()
    flops = {name: float(work.flops[work.op_class.equals(name)].sum()) for name in ("matmul", "conv", "reduction")}
    return float(work.flops.sum()), flops, graph.tensors.shape[graph.n_tensors - 1]


@pytest.mark.parametrize(("made", "dims"), [(cnn, {"batch": 2}), (block, {"batch": 2, "length": 6})])
def test_every_opset_says_the_same(tmp_path, made, dims):
    """Converted by onnx to each opset: attributes become inputs, axes move, defaults change, and nothing else."""
    first = made()
    expected = told(tmp_path, first, dims)
    assert NEWEST >= 23 and expected[0] > 5e4
    for opset in range(10, NEWEST + 1):
        assert told(tmp_path, convert_version(first, opset), dims) == expected, opset


def test_the_first_opsets_say_the_same(tmp_path):
    """Where onnx itself has no rules for shapes: hints about memory, and attributes that became inputs later."""

    def net(opset):
        old, hinted = opset < 5, opset < 6
        hint = {"consumed_inputs": [0, 0, 0, 1, 1]} if hinted else {}
        inference = {"is_test": 1} if opset < 7 else {}
        sizes = {"shape": [0, -1]} if old else {}
        nodes = [
            make_node("Conv", ["x", "k", "b"], ["c"]),
            make_node("BatchNormalization", ["c", "b", "b", "b", "b"], ["n"], **hint, **inference),
            make_node("Relu", ["n"], ["r"], **({"consumed_inputs": [0]} if hinted else {})),
            make_node("Sum", ["r", "c"], ["s"], **({"consumed_inputs": [0, 0]} if hinted else {})),
            make_node("Split", ["s"], ["s1", "s2"], axis=1, split=[2, 6]),
            make_node("Concat", ["s2", "s1"], ["j"], axis=1),
            make_node("Dropout", ["j"], ["o", "mask"], **inference),
            make_node("Reshape", ["o"] if old else ["o", "sizes"], ["f"], **sizes),
            make_node("Gemm", ["f", "w", "h"], ["y"], **({"broadcast": 1} if opset < 7 else {})),
        ]
        weights = [weight("k", 8, 3, 3, 3), weight("b", 8), weight("w", 288, 10), weight("h", 10)]
        weights += [] if old else [integers("sizes", [0, -1])]
        return model(nodes, {"x": ["batch", 3, 8, 8]}, ["y"], weights, opset=opset)

    expected = told(tmp_path, net(9), {"batch": 2})
    assert expected[0] > 1e4 and expected[2] == (2, 10)
    for opset in (3, 4, 5, 6, 7):
        assert told(tmp_path, net(opset), {"batch": 2}) == expected, opset
