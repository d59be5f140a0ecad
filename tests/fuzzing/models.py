"""Small ONNX models with one of everything: bodies, functions, open sizes, sparse, quantized and external tensors."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import NodeProto
from onnx.helper import make_function, make_graph, make_node, make_opsetid, make_tensor_value_info
from onnx_branches import branching
from onnx_files import FLOAT, INT64, integers, model, weight


def onnx_models() -> dict[str, onnx.ModelProto]:
    """The models by name."""
    return {
        "branches": branching(batch="batch"),
        "bodies": _bodies(),
        "functions": _functions(),
        "shapes": _shapes(),
        "convolutions": _convolutions(),
        "tensors": _tensors(),
        "attention": _attention(),
    }


def _bodies() -> onnx.ModelProto:
    def body(name: str, *nodes: NodeProto) -> onnx.GraphProto:
        return make_graph(nodes, name, [], [make_tensor_value_info(nodes[-1].output[0], FLOAT, [2, 3])])

    steps = make_graph(
        [make_node("Add", ["state", "x"], ["next"]), make_node("Identity", ["go"], ["on"])],
        "steps",
        [make_tensor_value_info("turn", INT64, []), make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
         make_tensor_value_info("state", FLOAT, [2, 3])],
        [make_tensor_value_info("on", onnx.TensorProto.BOOL, []), make_tensor_value_info("next", FLOAT, [2, 3])],
    )  # fmt: skip
    scanned = make_graph(
        [make_node("Add", ["sum", "row"], ["more"]), make_node("Identity", ["more"], ["out"])],
        "scanned",
        [make_tensor_value_info("sum", FLOAT, [3]), make_tensor_value_info("row", FLOAT, [3])],
        [make_tensor_value_info("more", FLOAT, [3]), make_tensor_value_info("out", FLOAT, [3])],
    )
    inner = make_node("If", ["yes"], ["i"], then_branch=body("a", make_node("Relu", ["x"], ["r"])),
                      else_branch=body("b", make_node("Tanh", ["x"], ["t"])))  # fmt: skip
    nodes = [
        make_node("If", ["yes"], ["p"], "pick", then_branch=body("c", make_node("Neg", ["x"], ["n"]), inner),
                  else_branch=body("d", make_node("Abs", ["x"], ["o"]))),
        make_node("Loop", ["five", "yes", "p"], ["q"], "loop", body=steps),
        make_node("Scan", ["zeros", "q"], ["s", "y"], "scan", body=scanned, num_scan_inputs=1),
    ]  # fmt: skip
    yes = onnx.numpy_helper.from_array(np.array(True), "yes")
    return model(nodes, {"x": [2, 3]}, ["y"], [yes, integers("five", 5), weight("zeros", 3)])


def _functions() -> onnx.ModelProto:
    opsets = [make_opsetid("", 18), make_opsetid("mine", 1)]
    twice = make_function("mine", "Twice", ["a"], ["b"], [make_node("Add", ["a", "a"], ["b"])], opsets)
    called = [make_node("Twice", ["a"], ["h"], domain="mine"), make_node("Gemm", ["h", "w"], ["b"])]
    block = make_function("mine", "Block", ["a", "w"], ["b"], called, opsets)
    nodes = [make_node("Block", ["x", "w"], ["y"], "one", domain="mine"),
             make_node("Block", ["y", "v"], ["z"], "two", domain="mine")]  # fmt: skip
    weights = [weight("w", 3, 4), weight("v", 4, 2)]
    return model(nodes, {"x": ["rows", 3]}, ["z"], weights, domains=["mine"], functions=[twice, block])


def _shapes() -> onnx.ModelProto:
    """Arithmetic on open sizes, as exporters write it."""
    nodes = [
        make_node("Shape", ["x"], ["whole"]),
        make_node("Gather", ["whole", "zero"], ["rows"]),
        make_node("Mul", ["rows", "four"], ["wider"]),
        make_node("Div", ["wider", "two"], ["halved"]),
        make_node("Sub", ["halved", "rows"], ["same"]),
        make_node("Concat", ["same", "minus"], ["target"], axis=0),
        make_node("Reshape", ["x", "target"], ["flat"]),
        make_node("Expand", ["flat", "large"], ["wide"]),
        make_node("ConstantOfShape", ["target_"], ["full"]),
        make_node("Concat", ["rows", "wider"], ["target_"], axis=0),
        make_node("Tile", ["flat", "twice"], ["tiled"]),
        make_node("Range", ["start", "stop", "step"], ["count"]),
        make_node("Slice", ["x", "zero", "two", "zero"], ["head"]),
        make_node("Pad", ["x", "pads"], ["padded"]),
        make_node("Split", ["x"], ["left", "right"], axis=1, num_outputs=2),
        make_node("Resize", ["image", "", "", "sizes"], ["resized"]),
    ]
    weights = [integers(name, value) for name, value in {
        "zero": [0], "four": [4], "two": [2], "minus": [-1], "large": [3, 1, 1], "twice": [2, 2], "start": 0, "stop": 9,
        "step": 2, "pads": [0, 1, 0, 1], "sizes": [1, 3, 16, 16],
    }.items()]  # fmt: skip
    outputs = ["wide", "full", "tiled", "count", "head", "padded", "left", "right", "resized"]
    return model(nodes, {"x": ["batch", "2*seq"], "image": [1, 3, "h", "w"]}, outputs, weights)


def _convolutions() -> onnx.ModelProto:
    nodes = [
        make_node("Conv", ["x", "w", "b"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2], group=1),
        make_node("BatchNormalization", ["a", "b", "b", "b", "b"], ["n"]),
        make_node("MaxPool", ["n"], ["p"], kernel_shape=[2, 2], dilations=[1, 1], ceil_mode=1),
        make_node("ConvTranspose", ["p", "u"], ["t"], output_padding=[1, 1], strides=[2, 2]),
        make_node("GlobalAveragePool", ["t"], ["g"]),
        make_node("Flatten", ["g"], ["f"], axis=1),
        make_node("Softmax", ["f"], ["y"], axis=-1),
    ]
    weights = [weight("w", 8, 3, 3, 3), weight("b", 8), weight("u", 8, 4, 2, 2)]
    return model(nodes, {"x": ["batch", 3, 32, 32]}, ["y"], weights)


def _tensors() -> onnx.ModelProto:
    """Weights that are elsewhere, sparse, or quantized."""
    nodes = [
        make_node("MatMul", ["x", "far"], ["a"]),
        make_node("Add", ["a", "thin"], ["b"]),
        make_node("QuantizeLinear", ["b", "scale", "zero"], ["q"]),
        make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    far = onnx.TensorProto(name="far", data_type=FLOAT, dims=[4, 4], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", "weights.bin"), ("offset", "4096"), ("length", "64")):
        far.external_data.add(key=key, value=value)
    scale = onnx.numpy_helper.from_array(np.float32(0.1), "scale")
    content = model(nodes, {"x": [2, 4]}, ["y"], [far, scale, onnx.numpy_helper.from_array(np.uint8(0), "zero")])
    sparse = content.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(weight("thin", 2))
    sparse.indices.CopyFrom(integers("", [1, 3]))
    content.graph.value_info.append(make_tensor_value_info("b", FLOAT, [2, 4]))
    return content


def _attention() -> onnx.ModelProto:
    nodes = [
        make_node("Einsum", ["x", "w"], ["q"], equation="bsd,dh->bsh"),
        make_node("Transpose", ["q"], ["k"], perm=[0, 2, 1]),
        make_node("MatMul", ["q", "k"], ["s"]),
        make_node("Softmax", ["s"], ["p"]),
        make_node("MatMul", ["p", "q"], ["o"]),
        make_node("LSTM", ["o", "lw", "lr"], ["h"], hidden_size=4),
        make_node("ReduceMean", ["h", "axes"], ["m"], keepdims=0),
        make_node("TopK", ["m", "k3"], ["y", "i"], axis=-1),
    ]
    weights = [weight("w", 8, 8), weight("lw", 1, 16, 8), weight("lr", 1, 16, 4), integers("axes", [1]),
               integers("k3", [3])]  # fmt: skip
    return model(nodes, {"x": ["batch", "seq", 8]}, ["y", "i"], weights)
