"""The ONNX reader on exports of many families, and on what ONNX Runtime makes of them (tests/data/onnx)."""

import json

import pytest
from locations import DATA

import placewise as pw
from placewise.costing.work import work_of
from placewise.readers.onnx import read_onnx
from placewise.transform.fold import fold

FOLDER = DATA / "onnx"
COUNTED = json.loads((FOLDER / "flops.json").read_text("utf-8"))["models"]
TEXT, IMAGES = {"batch": 2, "seq": 16}, {"batch": 2}
DIMS = {name: record["dims"] for name, record in COUNTED.items()} | {
    "bert_traced": TEXT, "bert_fused": TEXT,
    "resnet_qdq": IMAGES, "resnet_qoperator": IMAGES, "resnet_blocks": IMAGES,
}  # fmt: skip
PRODUCTS = ("matmul", "conv", "attention")


def graph(name, **dims):
    return read_onnx(FOLDER / f"{name}.onnx", dims=DIMS[name] | dims).graph


def flops(graph, classes=None):
    work = work_of(graph)
    assert work.known.all()
    return sum(float(work.flops[work.op_class.equals(name)].sum()) for name in classes or set(work.op_class))


def test_every_file_is_read():
    """The table above is that of the folder."""
    assert {path.stem for path in FOLDER.glob("*.onnx")} == set(DIMS)
    assert all(path.stat().st_size < 100_000 for path in FOLDER.glob("*.onnx"))


@pytest.mark.parametrize("name", sorted(DIMS))
def test_all_shapes_are_known(name):
    """At other dimensions than those of the export too, without a warning, raw and folded."""
    dims = {"batch": 3, "seq": 11} if "seq" in DIMS[name] else {"batch": 3}
    reading = read_onnx(FOLDER / f"{name}.onnx", dims=dims)
    assert reading.warnings == () and reading.graph.tensors.bytes.min() >= 0
    assert fold(reading.graph).tensors.bytes.min() >= 0


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_products_are_those_that_torch_counts(name):
    """To the last FLOP, raw and folded."""
    raw = graph(name)
    assert flops(raw, PRODUCTS) == flops(fold(raw), PRODUCTS) == COUNTED[name]["flops"]


def test_fused_attention_costs_what_its_parts_cost():
    """BERT with Attention, SkipLayerNormalization and the embedding in one op each, against one op per step."""
    fused, traced = graph("bert_fused"), graph("bert_traced")
    kinds = {"com.microsoft::Attention", "com.microsoft::SkipLayerNormalization",
             "com.microsoft::EmbedLayerNormalization", "com.microsoft::BiasGelu"}  # fmt: skip
    assert kinds <= set(fused.ops.kind) and fused.n_ops < traced.n_ops / 10
    assert flops(fused) == pytest.approx(flops(traced), rel=0.01)
    softmax = 5 * 2 * 2 * 4 * 16 * 16  # layers, batch, heads, queries, keys
    assert flops(fused, PRODUCTS) - softmax == flops(traced, PRODUCTS)


def test_quantized_convolutions_cost_what_floating_ones_do():
    """The same products in QDQ, QOperator and blocks of channels; QLinear ops also quantize what they make again."""
    plain = flops(graph("resnet"), PRODUCTS)
    assert flops(graph("resnet_qdq"), PRODUCTS) == plain
    assert flops(graph("resnet_blocks"), PRODUCTS) == pytest.approx(plain, rel=0.01)
    quantized = graph("resnet_qoperator")
    again = sum(
        4 * quantized.tensors.bytes[tensor]
        for op, kind in enumerate(quantized.ops.kind)
        if kind in ("QLinearConv", "com.microsoft::QGemm")
        for tensor in quantized.outputs_of(op)
    )
    assert flops(quantized, PRODUCTS) - again == plain


@pytest.mark.parametrize("name", sorted(DIMS))
def test_every_family_is_placed(name):
    """On two GPUs and a CPU, in a moment."""
    result = pw.place(FOLDER / f"{name}.onnx", "2xL4,cpu", dims=DIMS[name], placer="etf", budget="1s")
    assert result.value > 0 and result.lower_bound <= result.value
