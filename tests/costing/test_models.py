"""Whole models: torch's counter, totals worked out layer by layer, and no kind without a rule."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from locations import EXAMPLES

from placewise.catalog import read_cluster
from placewise.costing.roofline import cost_table
from placewise.costing.work import work_of
from placewise.readers.onnx import read_onnx
from placewise.transform.fold import fold

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
COUNTED = json.loads((EXAMPLES / "flops.json").read_text("utf-8"))["models"]


def products(graph):
    """FLOPs of matrix products, convolutions and attention: what torch's counter counts."""
    work = work_of(graph)
    return sum(float(work.flops[work.op_class.equals(name)].sum()) for name in ("matmul", "conv", "attention"))


def example(name):
    return read_onnx(EXAMPLES / f"{name}.onnx", dims=COUNTED[name]["dims"]).graph


def resnet50():
    """He et al. 2016, table 1, 50 layers, with the stride on the 3×3 convolution; 224×224."""
    total = 2 * 112 * 112 * 64 * 3 * 49
    channels, size = 64, 56
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            out = size // 2 if block == 0 and width > 64 else size
            total += 2 * size**2 * channels * width + 2 * out**2 * width * width * 9 + 2 * out**2 * width * 4 * width
            if block == 0:
                total += 2 * out**2 * channels * 4 * width
            channels, size = 4 * width, out
    return total + 2 * 2048 * 1000


def transformer(layers, length, width):
    """Four products with width², a feed-forward of four times the width, scores and their use."""
    return layers * (2 * length * (4 + 8) * width**2 + 2 * 2 * length**2 * width)


def vgg19():
    """Simonyan and Zisserman 2015, table 1, column E; 224×224."""
    total, channels, size = 0, 3, 224
    for width, layers in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(layers):
            total += 2 * size**2 * channels * width * 9
            channels = width
        size //= 2
    return total + 2 * (512 * 49 * 4096 + 4096 * 4096 + 4096 * 1000)


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_examples_agree_with_torch(name):
    """Products, convolutions and attention within 1 % of torch's counter, and every kind has a rule."""
    graph = fold(example(name))
    assert products(graph) == pytest.approx(COUNTED[name]["flops"], rel=0.01)
    assert work_of(graph).known.all()


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("resnet50", resnet50()),
        ("bert_base", transformer(12, 128, 768) + 2 * 768**2),
        ("gpt2", transformer(12, 128, 768) + 2 * 128 * 768 * 50257),
    ],
)
def test_examples_agree_with_layer_formulas(name, by_hand):
    """To the last FLOP, raw and folded."""
    assert products(example(name)) == products(fold(example(name))) == by_hand


@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
def test_light_models_are_known(path):
    """Every op of the onnx package's nine light models has a rule, raw and folded."""
    raw = read_onnx(path).graph
    assert work_of(raw).known.all()
    assert work_of(fold(raw)).known.all()
    assert products(fold(raw)) > 1e8


def test_nine_light_models_and_two_totals_by_hand():
    """VGG-19 and ResNet-50 of the onnx package cost what their papers' tables say."""
    assert len(list(LIGHT.glob("*.onnx"))) == 9
    assert products(read_onnx(LIGHT / "light_vgg19.onnx").graph) == vgg19()
    assert products(read_onnx(LIGHT / "light_resnet50.onnx").graph) == resnet50()


def test_a_cost_table_of_a_real_model():
    """Positive where something is computed, ordered by device, and nearly all of it by the roofline."""
    graph, cluster = fold(example("bert_base")), read_cluster("H100,2xA100-80GB,i9-12900K")
    table = cost_table(graph, cluster)
    table.validate(graph, cluster)
    total = table.op_seconds.sum(0)
    assert total[0] < total[1] == total[2] < total[3]
    assert ((table.op_seconds > 0).any(1) == (work_of(graph).op_class.codes != 0)).all()
    assert (table.op_source[:, 0] == table.sources.index("roofline")).mean() > 0.99
