"""The ONNX reader on real models: the examples of this project and those in the onnx package."""

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from locations import EXAMPLES

from placewise.readers.onnx import read_onnx
from placewise.transform.fold import fold

RECORD = json.loads((EXAMPLES / "flops.json").read_text())["models"]
LIGHT = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("*.onnx"))


def example(name, **dims):
    return read_onnx(EXAMPLES / f"{name}.onnx", dims=RECORD[name]["dims"] | dims)


def shapes_of(graph, op):
    """The shape of each argument of an op, by position."""
    found = {}
    for table, edges in ((graph.tensors, graph.edges), (graph.weights, graph.weight_edges)):
        for row in np.flatnonzero(edges.consumer == op):
            found[int(edges.position[row])] = table.shape[edges.value[row]]
    return found


def product_flops(graph):
    """Two FLOPs per multiply-add of every matrix product and convolution, from shapes alone."""
    total = 0
    for op, kind in enumerate(graph.ops.kind):
        result = math.prod(graph.tensors.shape[graph.outputs_of(op)[0]])
        if kind in ("MatMul", "Gemm"):
            total += 2 * result * shapes_of(graph, op)[0][-1]
        elif kind == "Conv":
            total += 2 * result * math.prod(shapes_of(graph, op)[1][1:])
    return total


def parameters(graph):
    """Elements of the floating weights, each storage once, without the running statistics of normalization."""
    statistics = np.zeros(len(graph.weights), bool)
    rows = graph.weight_edges
    normalizes = graph.ops.kind.equals("BatchNormalization")[rows.consumer] & (rows.position >= 3)
    statistics[rows.value[normalizes]] = True
    first = np.unique(graph.weights.storage, return_index=True)[1]
    return sum(
        math.prod(graph.weights.shape[row])
        for row in first
        if graph.weights.dtype_name(row).startswith("float") and graph.weights.shape[row] and not statistics[row]
    )


@pytest.mark.parametrize("name", RECORD)
def test_examples_have_all_shapes(name):
    """Every tensor of the examples has known bytes, at other dims too, without a warning."""
    for batch in (1, 3):
        reading = example(name, batch=batch)
        assert reading.warnings == () and reading.graph.tensors.bytes.min() >= 0
        assert reading.graph.tensors.shape[0][0] == batch


@pytest.mark.parametrize("name", RECORD)
def test_examples_agree_with_torch_on_flops(name):
    """Matrix products and convolutions come to exactly the FLOPs that torch counted on the same module."""
    assert product_flops(example(name).graph) == RECORD[name]["flops"]
    assert product_flops(fold(example(name).graph)) == RECORD[name]["flops"]


@pytest.mark.parametrize(
    ("name", "published", "left_out"),
    [
        ("resnet50", 25_557_032, 0),
        ("inception_v3", 27_161_264, 3_326_696),  # the auxiliary head, which inference does not run
        ("bert_base", 109_482_240, 0),
        ("gpt2", 124_439_808, 0),
    ],
)
def test_examples_have_the_published_parameters(name, published, left_out):
    """The weights table adds up to the published number of parameters, tied ones once."""
    assert parameters(example(name).graph) == published - left_out and RECORD[name]["parameters"] == published


@pytest.mark.parametrize("batch", [1, 256])
@pytest.mark.parametrize("name", RECORD)
def test_folding_keeps_the_parameters(name, batch):
    """At any batch the folded view has the parameters of the file, and no constant has grown with the batch."""
    raw = example(name, batch=batch).graph
    folded = fold(raw)
    assert parameters(folded) == parameters(raw) and folded.n_ops <= raw.n_ops
    stored = [np.unique(graph.weights.storage, return_index=True)[1] for graph in (raw, folded)]
    extra = folded.weights.bytes[stored[1]].sum() - raw.weights.bytes[stored[0]].sum()
    assert extra < 1 << 16


def test_tied_weights_are_one():
    """GPT-2's token embedding is one weight with two consumers: the lookup and the transpose for the head."""
    graph = example("gpt2").graph
    row = graph.weights.name.index("lm_head.weight")
    users = graph.weight_edges.consumer[graph.weight_edges.value == row]
    assert sorted(graph.ops.kind[user] for user in users) == ["Gather", "Transpose"]


def test_scopes_of_the_examples():
    """Module paths are those of the torch modules."""
    assert {"encoder.layer.0.attention.self.query", "encoder.layer.11.output.dense", "pooler.dense"} <= set(
        example("bert_base").graph.ops.scope
    )
    assert {"transformer.h.3.mlp.c_fc", "lm_head"} <= set(example("gpt2").graph.ops.scope)
    assert {"layer1.0.conv2", "layer4.2.bn3", "fc"} <= set(example("resnet50").graph.ops.scope)
    assert "blocks_c.1.branch3x3.1.wide.conv" in set(example("inception_v3").graph.ops.scope)


@pytest.mark.parametrize("name", RECORD)
def test_examples_stay_small(name):
    """The files carry no weights."""
    assert (EXAMPLES / f"{name}.onnx").stat().st_size < 400_000


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_models_have_all_shapes(path):
    """The architectures in the onnx package are read without a warning; what generates their weights stays an op."""
    reading = read_onnx(path)
    graph = reading.graph
    assert reading.warnings == () and graph.tensors.bytes.min() >= 0
    assert graph.n_ops == len(onnx.load(path, load_external_data=False).graph.node)
    folded = fold(graph)
    assert "ConstantOfShape" in set(folded.ops.kind) and folded.weights.bytes.sum() < 1 << 18


def test_there_are_nine_light_models():
    """The list above is not empty by accident."""
    assert len(LIGHT) == 9
