"""The OpenVINO reader on models that openvino wrote: counts, views, kinds, weights and FLOPs."""

import json
from collections import Counter

import numpy as np
import pytest
from folded_origins import project_back
from ir_files import edge, layer, net, small, unpacked
from locations import EXAMPLES

from placewise.costing.work import work_of
from placewise.errors import ModelFileError
from placewise.readers.onnx import read_onnx
from placewise.readers.openvino import looks_like_openvino, read_openvino
from placewise.readers.openvino.parse import parse_ir
from placewise.readers.openvino.shapes import infer_outputs
from placewise.transform.fold import fold

RECORD = json.loads((EXAMPLES / "flops.json").read_text())["models"]
PUBLISHED = {"resnet50": (396, 411), "inception_v3": (726, 762), "bert_base": (1009, 1089)}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """The raw view of each committed model, read once."""
    folder, graphs = tmp_path_factory.mktemp("ir"), {}

    def read(name):
        if name not in graphs:
            graphs[name] = read_openvino(unpacked(folder, name)).graph
        return graphs[name]

    return read


def ops_by_name(graph):
    return {name: op for op, name in enumerate(graph.ops.name)}


def weight_shapes(graph, op):
    return [graph.weights.shape[weight] for weight in graph.weights_of(op).tolist()]


@pytest.mark.parametrize(("name", "counts"), PUBLISHED.items())
def test_raw_counts(raw, name, counts):
    """One op per layer and one edge per edge of the file: the counts of the HSDAG paper, and Inception's own."""
    graph = raw(name)
    assert (graph.n_ops, graph.n_edges) == counts
    assert graph.source.format == "openvino" and graph.source.view == "raw"


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_shape_is_known(raw, name):
    """All tensors of the examples have bytes, raw and folded."""
    for graph in (raw(name), fold(raw(name))):
        assert graph.tensors.bytes.min() >= 0 and graph.weights.bytes.min() > 0


@pytest.mark.parametrize("name", PUBLISHED)
def test_folded_view(raw, name):
    """Inputs, outputs, constants and the unpacking of weights are no ops there, and each view maps to the other."""
    graph = raw(name)
    folded = fold(graph)
    kinds = Counter(folded.ops.kind)
    assert not {"Input", "Output", "Constant"} & set(kinds)
    assert set(graph.ops.kind) - set(kinds) <= {"Input", "Output", "Constant", "Cast"} | (
        {"Shape", "Range", "Slice", "Concat", "Unsqueeze", "GreaterOrEqual", "ReduceProd", "Split"}
        if name == "bert_base"
        else set()
    )
    assert folded.tensors.output.sum() == Counter(graph.ops.kind)["Output"]
    assert (folded.tensors.producer < 0).sum() == Counter(graph.ops.kind)["Input"]
    origins = [node for origin in folded.ops.origin for node in origin]
    assert len(origins) == len(set(origins)) and set(origins) <= set(range(graph.n_ops))
    device = np.arange(folded.n_ops, dtype=np.int32)
    projected = project_back(graph, folded, device)
    for op, origin in enumerate(folded.ops.origin):
        assert (projected[np.isin([raw_origin[0] for raw_origin in graph.ops.origin], origin)] == op).all()


@pytest.mark.parametrize("name", PUBLISHED)
def test_outputs_follow_their_producer(raw, name):
    """In the raw view, an output goes where the op is that makes it."""
    graph = raw(name)
    folded = fold(graph)
    projected = project_back(graph, folded, np.arange(folded.n_ops, dtype=np.int32))
    for op in np.flatnonzero(graph.ops.kind.equals("Output")):
        (tensor,) = graph.inputs_of(op)
        assert projected[op] == projected[graph.tensors.producer[tensor]]


@pytest.mark.parametrize("name", PUBLISHED)
def test_flops_are_those_of_onnx(raw, name):
    """The same models as ONNX cost as much, and products and convolutions are those that torch counts."""
    work = work_of(fold(raw(name)))
    other = work_of(fold(read_onnx(EXAMPLES / f"{name}.onnx", dims=RECORD[name]["dims"]).graph))
    assert work.flops.sum() == pytest.approx(other.flops.sum(), rel=0.01)
    assert not work.warnings
    products = sum(work.flops[work.op_class.equals(name)].sum() for name in ("conv", "matmul", "attention"))
    assert products == pytest.approx(RECORD[name]["flops"], rel=0.001)


def test_weights_are_as_the_file_holds_them(raw):
    """Half precision in the file is half precision in the folded view, and none is lost or doubled."""
    graph = raw("resnet50")
    folded = fold(graph)
    assert folded.weights.bytes.sum() == graph.weights.bytes.sum()
    assert {folded.weights.dtype_name(row) for row in range(len(folded.weights))} == {"float16", "int64"}
    stem = next(op for op, kind in enumerate(folded.ops.kind) if kind == "Conv")
    (kernel,) = folded.weights_of(stem).tolist()
    assert folded.weights.shape[kernel] == (64, 3, 7, 7) and folded.weights.bytes[kernel] == 2 * 64 * 3 * 7 * 7
    assert folded.ops.dtype_name(stem) == "float32"


def test_scopes(raw):
    """Module paths of torch are scopes; layers that the converter made itself belong to what reads them."""
    scopes = set(raw("bert_base").ops.scope)
    assert {"encoder.layer.0.attention.self", "encoder.layer.11.output.LayerNorm", "pooler.dense"} <= scopes
    graph = fold(raw("resnet50"))
    convolutions = graph.ops.kind.equals("Conv")
    assert {graph.ops.scope[op] for op in convolutions.nonzero()[0][:3]} == {"bn1", "layer1.0.bn1", "layer1.0.bn2"}
    assert not any("::" in scope for scope in scopes)


def test_packed_weights(raw):
    """Weights of four and eight bits keep their bits, with the zero points and scales that unpack them."""
    graph = fold(raw("packed_weights"))
    assert set(graph.ops.kind) == {"MatMul"} and graph.n_ops == 4
    found = {graph.weights.shape[row]: row for row in range(len(graph.weights))}
    four, eight = found[16, 64], found[32, 64]
    assert graph.weights.dtype_name(four) == "uint4"
    assert graph.weights.bytes[four] == 16 * 64 // 2 + 16 * 4 // 2 + 16 * 4 * 2  # codes, zero points, scales
    assert graph.weights.dtype_name(eight) == "int8"
    assert graph.weights.bytes[eight] == 32 * 64 + 32 * 4
    shared = [weight for op in range(4) for weight in graph.weights_of(op).tolist() if weight == found[64, 64]]
    assert len(shared) == 2


def test_operators(raw):
    """Ops whose arguments stand elsewhere than in ONNX, with FLOPs by hand."""
    graph = fold(raw("operators"))
    op, work = ops_by_name(graph), work_of(graph)
    expected = {
        "grouped": 2 * (12 * 14 * 14) * (2 * 9),
        "spread": 2 * (8 * 16 * 16) * (6 * 4),
        "spread_grouped": 2 * (8 * 16 * 16) * (3 * 4),
        "pooled": 4 * (8 * 8 * 8),
        "larger": 2 * 4 * (8 * 32 * 32),
        "quantized": 7 * (8 * 16 * 16),
        "product": 2 * 4 * 16 * 64,
        "lstm": 2 * 10 * (24 * 8 + 24 * 6) + 30 * 10 * 6,
        "gru": 2 * 10 * (18 * 8 + 18 * 6) + 23 * 10 * 6,
        "cell": 2 * 2 * (24 * 8 + 24 * 6) + 30 * 2 * 6,
        "attended": 2 * 3 * 4 * 7 * (2 * 8 + 2 * 10 + 5),
        "attended_once": 2 * 5 * 9 * (2 * 8 + 2 * 12 + 5),
        "attended_deep": 2 * 3 * 2 * 4 * 7 * (2 * 8 + 2 * 10 + 5),
        "different": 2 * 4 * 64,
        "picked": 0,
        "turned": 0,
    }
    assert {name: work.flops[op[name]] for name in expected} == expected
    assert work.known.all()
    assert work.bytes[op["picked"]] == 2 * 3 * 16 * 4 + 3 * 8 + 8  # rows read and written, ids, axis
    assert weight_shapes(graph, op["lstm"])[:2] == [(1, 24, 8), (1, 24, 6)]
    assert graph.ops.attributes[op["turned"]]["perm"] == (1, 0)


def test_quantized(raw):
    """Products of two inputs of eight bits compute in int8; one with a floating input, or of more levels, does not."""
    graph = fold(raw("quantized"))
    op = ops_by_name(graph)
    found = {name: graph.ops.dtype_name(op[name]) for name in ("conv", "eight_bits", "floating")}
    assert found == {"conv": "int8", "eight_bits": "int8", "floating": "float32"}
    assert Counter(graph.ops.kind)["openvino::FakeQuantize"] == 2  # those of weights are folded
    kernel = next(row for row in range(len(graph.weights)) if graph.weights.shape[row] == (4, 8, 3, 3))
    assert graph.weights.dtype_name(kernel) == "int8"


def test_bodies(raw):
    """If and TensorIterator are one op each, and use the weights of their bodies."""
    graph = fold(raw("bodies"))
    op = {kind: row for row, kind in enumerate(graph.ops.kind)}
    assert set(op) == {"If", "Loop"}
    assert (8, 8) in weight_shapes(graph, op["If"]) and (8, 8) in weight_shapes(graph, op["Loop"])
    assert len(work_of(graph).warnings) == 2


def test_states(raw):
    """A variable is state of the op that reads it, and stays together with the op that assigns it."""
    graph = fold(raw("states"))
    op = {kind: row for row, kind in enumerate(graph.ops.kind)}
    read, assign = op["openvino::ReadValue"], op["openvino::Assign"]
    assert graph.ops.state_bytes[read] == 4 * 16 * 8 * 4
    assert graph.ops.group[read] == graph.ops.group[assign] >= 0
    assert work_of(graph).bytes[assign] == 2 * 4 * 16 * 8 * 4


def test_small_model(tmp_path):
    """Kinds, positions, attributes, names and weights of a model written by hand."""
    path = tmp_path / "small.xml"
    path.write_bytes(small())
    graph = read_openvino(path).graph
    assert tuple(graph.ops.kind) == ("Input", "Constant", "MatMul", "Relu", "Output")
    assert graph.ops.attributes[2] == {"transA": 0, "transB": 1}
    folded = fold(graph)
    assert folded.ops.name == ("product", "relu")
    assert folded.tensors.name == ("x", "product", "relu") and folded.tensors.output.tolist() == [False, False, True]
    assert folded.weights.name == ("w",) and folded.weights.bytes.tolist() == [48]
    assert [*folded.ops.origin] == [(2, 0, 1), (3, 4)]


def test_tied_and_repeated_names(tmp_path):
    """Constants at one place of the .bin file are tied; layers of one name get names of their own."""
    constant = 'element_type="f32" shape="3" offset="{}" size="12"'
    layers = [
        layer(0, "Parameter", name="x", outputs=[(3,)]),
        *(layer(row, "Const", name="w", data=constant.format(place), outputs=[(3,)])
          for row, place in ((1, 0), (2, 0), (3, 12))),
        *(layer(row, "Add", name="sum", inputs=[(3,), (3,)], outputs=[(3,)]) for row in (4, 5, 6)),
        layer(7, "Result", name="", inputs=[(3,)]),
    ]  # fmt: skip
    edges = [edge(0, 0, 4, 0), edge(1, 0, 4, 1), edge(4, 2, 5, 0), edge(2, 0, 5, 1), edge(5, 2, 6, 0), edge(3, 0, 6, 1)]
    path = tmp_path / "tied.xml"
    path.write_bytes(net(layers, [*edges, edge(6, 2, 7, 0)], version=10))
    graph = read_openvino(path).graph
    assert graph.ops.name[-1] == "Result_7" and {"sum", "sum#2", "sum#3"} <= set(graph.ops.name)
    folded = fold(graph)
    assert len(folded.weights) == 3 and len(set(folded.weights.storage.tolist())) == 2


def test_looks_like():
    """The first bytes tell an IR from other files."""
    assert looks_like_openvino(small()[:1024]) and looks_like_openvino(b"\xef\xbb\xbf<net name='a'>")
    assert not looks_like_openvino(b"<?xml version='1.0'?><html>") and not looks_like_openvino(b"\x08\x07onnx <net")


def test_against_openvino(tmp_path):
    """Where OpenVINO is installed, it counts the same ops and edges in a model that it reads itself."""
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed")
    op = openvino.opset13
    x = op.parameter([1, 4, 8, 8], openvino.Type.f32, name="x")
    conv = op.convolution(x, op.constant(np.ones((2, 4, 3, 3), np.float32)), [1, 1], [0, 0], [0, 0], [1, 1])
    openvino.save_model(openvino.Model([op.relu(conv).output(0)], [x]), tmp_path / "model.xml")
    ops = openvino.Core().read_model(tmp_path / "model.xml").get_ops()
    graph = read_openvino(tmp_path / "model.xml").graph
    assert (graph.n_ops, graph.n_edges) == (len(ops), sum(len(node.inputs()) for node in ops))
    assert sorted(graph.ops.name) == sorted(node.get_friendly_name() for node in ops)


@pytest.mark.parametrize("dims", [{"images:0": 8}, {"batch": 8}, {"images:0": 8, "batch": 1}])
def test_open_batch(tmp_path, raw, dims):
    """An open batch takes a number by its own name, or by that of all first dimensions, and costs that often."""
    path = unpacked(tmp_path, "resnet50_open")
    graph = read_openvino(path, dims=dims).graph
    assert graph.tensors.bytes.min() >= 0 and graph.source.options == {"dims": dims}
    fixed = raw("resnet50")
    assert (graph.n_ops, graph.n_edges) == (fixed.n_ops, fixed.n_edges)
    assert work_of(fold(graph)).flops.sum() == 8 * work_of(fold(fixed)).flops.sum()
    assert Counter(graph.ops.kind) == Counter(fixed.ops.kind)


@pytest.mark.parametrize("name", [*PUBLISHED, "operators", "packed_weights", "quantized", "states"])
def test_shapes_follow(tmp_path, name):
    """Every dimension that OpenVINO wrote follows from the shapes before it, or stays open, when it is hidden."""
    net, _ = parse_ir(unpacked(tmp_path, name))
    found = hidden = 0
    for part in net.layers:
        now = [port.dims for port in part.inputs]
        assert infer_outputs(part, now, now) == [port.dims for port in part.outputs]
        for port in part.outputs:
            dims = port.dims
            for axis in range(len(dims) if now else 0):
                port.dims = (*dims[:axis], -1, *dims[axis + 1 :])
                follows = infer_outputs(part, now, now)[part.outputs.index(port)]
                assert follows in (dims, port.dims)
                found, hidden = found + (follows == dims), hidden + 1
            port.dims = dims
    assert found > (0.95 if name in PUBLISHED else 0.5) * hidden


def test_values_decide_a_shape(tmp_path):
    """Where a shape follows from the values of shapes, the model must be fixed by OpenVINO, and the error says so."""
    lengths = {f"{name}:1": 128 for name in ("input_ids", "attention_mask", "token_type_ids")}
    with pytest.raises(ModelFileError, match=r"Slice.* depends on values.*model\.reshape"):
        read_openvino(unpacked(tmp_path, "bert_open"), dims=lengths | {"batch": 1})
