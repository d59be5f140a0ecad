"""The zoo against the literature: parameters and products as published, counted by hand, or as exported."""

import math
import re

import pytest
from locations import EXAMPLES

from placewise.costing.work import work_of
from placewise.readers.onnx import read_onnx
from placewise.transform.fold import fold
from placewise.zoo import describe, generate


def products(graph):
    """FLOPs of convolutions and matrix products."""
    work = work_of(graph)
    heavy = work.op_class.equals("conv") | work.op_class.equals("matmul")
    return float(work.flops[heavy].sum())


def sizes(graph, pattern):
    """Elements of the weights whose names match."""
    weights = graph.weights
    return [math.prod(weights.shape[w]) for w, name in enumerate(weights.name) if re.search(pattern, name)]


def parameters(graph, *, trained=True):
    """Elements of all weights but constants; `trained` also without running means and variances."""
    return sum(sizes(graph, r"^(?!constant|.*running_)" if trained else "^(?!constant)"))


@pytest.mark.parametrize(
    ("name", "millions", "giga"),
    [
        ("resnet-50", 25.6, 4.1),
        ("inception-v3", 23.8, 5.7),
        ("amoebanet", 86.7, 23.1),
        ("nasnet", 88.8, 23.8),
    ],
)
def test_image_networks_have_the_published_size(name, millions, giga):
    """Parameters and multiply-adds per image, as precisely as they are published.

    He et al. and Szegedy et al. by their published checkpoints; table 2 of Real et al.; table 2 of Zoph et al., whose
    88.9 M counts running means too.
    """
    graph = generate(name, {"batch": 1})
    assert round(parameters(graph) / 1e6, 1) == millions
    assert round(products(graph) / 2e9, 1) == giga


def test_nasnet_has_every_parameter_of_the_published_checkpoint():
    """88,949,818, of which 88,753,150 are trained (1000 classes)."""
    graph = generate("nasnet", {"batch": 1})
    assert (parameters(graph), parameters(graph, trained=False)) == (88_753_150, 88_949_818)


def test_bert_has_every_parameter_of_the_published_checkpoint():
    """109,482,240 and 335,141,888 with the pooler."""
    assert parameters(generate("bert-base")) == 109_482_240
    assert parameters(generate("bert-large")) == 335_141_888


def test_transformer_xl_of_12_layers_has_41_million_parameters():
    """Table 2 of Dai et al., enwik8."""
    assert round(parameters(generate("transformer-xl-8", {"layers": 12})) / 1e6) == 41


@pytest.mark.parametrize(
    ("name", "dims", "file", "file_dims"),
    [
        ("resnet-50", {"batch": 2}, "resnet50", {"batch": 2}),
        ("inception-v3", {"batch": 2}, "inception_v3", {"batch": 2}),
        ("bert-base", {"batch": 2, "length": 96}, "bert_base", {"batch": 2, "seq": 96}),
    ],
)
def test_zoo_and_exported_models_do_the_same_work(name, dims, file, file_dims):
    """Parameters and products are those of the ONNX files of the same architectures; of image networks every op."""
    zoo, exported = generate(name, dims), fold(read_onnx(EXAMPLES / f"{file}.onnx", dims=file_dims).graph)
    assert products(zoo) == products(exported)
    assert sorted(sizes(zoo, r"^(?!constant|.*running_)")) == sorted(sizes(exported, r"\.(weight|bias)$"))
    if "image" in describe(name).dims:
        assert work_of(zoo).flops.sum() == work_of(exported).flops.sum()
        assert zoo.n_ops == exported.n_ops
        assert sorted(zoo.ops.kind) == sorted(exported.ops.kind)


def test_rnnlm_by_hand():
    """Each step of each layer: [64, 512 + 512] · [1024, 4 · 2048] and the projection; 8192 sampled words behind."""
    graph = generate("rnnlm-2")
    cell = 2 * 64 * 1024 * 8192 + 2 * 64 * 2048 * 512
    assert products(graph) == 2 * 20 * cell + 2 * (20 * 64) * 512 * 8192
    lstm = 1024 * 8192 + 8192 + 2048 * 512
    assert parameters(graph) == 793_470 * (512 + 512 + 1) + 2 * lstm


def test_gnmt_by_hand():
    """Inputs of 1024 (words, states), 2048 (both ways, or with the context), 75 steps, attention over 75 places."""
    batch, steps, hidden, words = 128, 75, 1024, 32_000
    graph = generate("gnmt-8")
    inputs = [1024, 1024, 2048, *[1024] * 6, *[2048] * 8]
    cells = sum((each + hidden) * 4 * hidden for each in inputs)
    attention = 2 * batch * hidden * hidden + 2 * batch * steps * hidden
    keys, softmax = 2 * batch * steps * hidden * hidden, 2 * batch * steps * hidden * words
    assert products(graph) == 2 * batch * steps * cells + steps * attention + keys + softmax
    biases = 17 * 4 * hidden
    assert parameters(graph) == cells + biases + 3 * words * hidden + 2 * hidden * hidden + hidden


def test_gnmt_ops_by_hand():
    """14 ops per LSTM step; masks, contexts, residuals and attention on top."""
    source, target, layers = 5, 7, 4
    graph = generate("gnmt-4", {"source_steps": source, "target_steps": target})
    encoder = source * (5 * (14 + 2) + 1 + 2) - 1  # both ways and 3 layers, masked; side by side; 2 residuals
    attention = 3 + target * 11
    decoder = target * (layers * (14 + 1) + 2)
    ends = (1 + source) + (2 + source) + (2 + target) + 6  # masks, words, words, loss
    assert graph.n_ops == encoder + attention + decoder + ends


def test_wavenet_by_hand():
    """Two convolutions of 3 samples and two of 1 per layer, the last without a residual one."""
    samples, width, skip = 4 * 7680, 512, 256
    layer = 2 * 3 * width * width + width * width + width * skip
    macs = samples * (3 * 256 * width + 18 * layer - width * width + skip * skip + skip * 256)
    assert products(generate("wavenet-2x18")) == 2 * macs
    ops = generate("wavenet-2x18").ops
    wide = [each for each, kind in zip(ops.attributes, ops.kind, strict=True) if kind == "Conv"]
    dilations = [each["dilations"][0] for each in wide if each["kernel_shape"] == (3,)]
    assert dilations == [1, *(2 * [1 << place for place in range(9) for _ in range(2)])]


def test_transformer_xl_layer_by_hand():
    """Queries, keys and values over memory and segment; contents and distances; the inner layer."""
    batch, length, seen, width, inner = 22, 512, 1024, 512, 2048
    two, four = (products(generate(f"transformer-xl-{layers}")) for layers in (2, 4))
    projections = batch * seen * width * 3 * width + seen * width * width + batch * length * width * width
    scores = 3 * batch * length * seen * width
    assert four - two == 2 * 2 * (projections + scores + 2 * batch * length * width * inner)


def longest_chain(graph):
    """LSTM steps on the path that has most of them: each splits its gates once."""
    depth = [0] * graph.n_ops
    for op, kind in enumerate(graph.ops.kind):
        makers = graph.tensors.producer[graph.inputs_of(op)].tolist()
        gates = kind == "Split" and ".step." in graph.ops.scope[op]
        depth[op] = max((depth[maker] for maker in makers if maker >= 0), default=0) + gates
    return max(depth)


@pytest.mark.parametrize("layers", [2, 3, 5])
def test_steps_depend_on_each_other_as_the_models_say(layers):
    """By hand: a grid of steps and layers; attention that is fed back puts the decoder's cells in line.

    Decoder layers start from the encoder's last states, so the first step does not wait for attention. Above a layer
    that runs both ways, the first step waits for all steps below.
    """
    source, target = 7, 4
    lengths = {"source_steps": source, "target_steps": target, "layers": layers}
    assert longest_chain(generate("rnnlm-2", {"steps": 9, "layers": layers})) == 9 + layers - 1
    assert longest_chain(generate("nmt", lengths)) == source + target * layers
    encoder = source + (source + layers - 2)
    assert longest_chain(generate("gnmt-2", lengths)) == encoder + target - 1 + layers - 1
