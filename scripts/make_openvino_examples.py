"""Write tests/data/openvino: IR files of published architectures and of single operators, XML only, packed.

    python scripts/make_openvino_examples.py [NAME …]        (needs openvino, torch, transformers; about two minutes)

The three architectures are those of HSDAG (Duan et al., NeurIPS 2024, arXiv 2405.14185). Their op counts come out only
if nothing is folded away: batch and layer normalization have statistics and biases as after training, BERT is traced
with open shapes and fixed to 128 tokens afterwards, and Inception-V3 transforms its input as the published checkpoint
does.
The .bin files, which the reader never opens, are not kept.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino
import torch
import transformers
from openvino import opset13 as op
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "data" / "openvino"
sys.path.insert(0, str(ROOT / "examples" / "models"))
from definitions import InceptionV3, ResNet50  # noqa: E402  # the folder of examples is no package


class TransformedInput(nn.Module):
    """Images normalized for one set of weights, brought to the range of another, channel by channel."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.scales, self.shifts = (0.458, 0.448, 0.45), (-0.030, -0.088, -0.188)

    def forward(self, images: Tensor) -> Tensor:
        channels = zip(self.scales, self.shifts, strict=True)
        parts = [images[:, row].unsqueeze(1) * scale + shift for row, (scale, shift) in enumerate(channels)]
        return self.net(torch.cat(parts, 1))


def trained(module: nn.Module) -> nn.Module:
    """The module with statistics, scales and biases that are not those of a fresh one."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
        if isinstance(part, (nn.BatchNorm2d, nn.LayerNorm)):
            nn.init.uniform_(part.weight, 0.5, 1.5)
        if isinstance(part, (nn.BatchNorm2d, nn.LayerNorm, nn.Linear)) and part.bias is not None:
            nn.init.normal_(part.bias)
    return module.eval()


def images(module: nn.Module, side: int) -> openvino.Model:
    shape = [1, 3, side, side]
    return openvino.convert_model(trained(module), example_input=torch.randn(shape), input=shape)


def bert(*, fixed: bool) -> openvino.Model:
    ids = torch.randint(0, 1000, (1, 128))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    module = trained(transformers.BertModel(transformers.BertConfig()))
    model = openvino.convert_model(module, example_input=inputs)
    if fixed:
        model.reshape({name: [1, 128] for name in inputs})
    return model


def open_resnet() -> openvino.Model:
    """ResNet-50 with an open batch."""
    return openvino.convert_model(
        trained(ResNet50()), example_input=torch.randn(2, 3, 224, 224), input=[-1, 3, 224, 224]
    )


def given(*shape: int, dtype: type = np.float32, name: str = "x") -> openvino.Node:
    return op.parameter(shape, dtype, name=name)


def weight(*shape: int, dtype: type = np.float32) -> openvino.Node:
    return op.constant(np.random.default_rng(0).uniform(1, 2, shape).astype(dtype))


def whole(*values: int) -> openvino.Node:
    return op.constant(np.array(values, np.int64))


def operators() -> openvino.Model:
    """Convolutions, recurrent layers, attention and others whose arguments stand elsewhere than in ONNX."""
    image, rows, steps = given(1, 8, 16, 16, name="image"), given(4, 64, name="rows"), given(2, 5, 8, name="steps")
    heads, lengths = given(2, 3, 4, 8, name="heads"), op.constant(np.array([5, 5], np.int32))
    state = weight(2, 1, 6)
    pair, ones = ([1, 1], [0, 0], [0, 0]), [1, 1]
    results = {
        "grouped": op.group_convolution(image, weight(4, 3, 2, 3, 3), *pair, ones),
        "spread": op.convolution_backprop_data(image, weight(8, 6, 2, 2), [2, 2], None, [0, 0], [0, 0], ones),
        "spread_grouped": op.group_convolution_backprop_data(
            image, weight(4, 2, 3, 2, 2), [2, 2], None, [0, 0], [0, 0], ones
        ),
        "pooled": op.avg_pool(image, [2, 2], [0, 0], [0, 0], [2, 2], exclude_pad=True),
        "larger": op.interpolate(
            image, whole(32, 32), mode="linear_onnx", shape_calculation_mode="sizes", axes=whole(2, 3)
        ),
        "quantized": op.fake_quantize(image, weight(1), weight(1), weight(1), weight(1), 256),
        "normalized": op.mvn(image, whole(2, 3), True, 1e-5, "inside_sqrt"),
        "unit": op.normalize_l2(image, whole(1), 1e-5, "add"),
        "product": op.matmul(given(64, 4, name="columns"), weight(16, 64), True, True),
        "lstm": op.lstm_sequence(
            steps, state, weight(2, 1, 6), lengths, weight(1, 24, 8), weight(1, 24, 6), weight(1, 24), 6, "forward"
        ),
        "gru": op.gru_sequence(
            steps, state, lengths, weight(1, 18, 8), weight(1, 18, 6), weight(1, 18), 6, "forward"
        ),
        "cell": op.lstm_cell(
            given(2, 8, name="step"), weight(2, 6), weight(2, 6), weight(24, 8), weight(24, 6), weight(24), 6
        ),
        "attended": op.scaled_dot_product_attention(heads, weight(2, 3, 7, 8), weight(2, 3, 7, 10)),
        "attended_once": op.scaled_dot_product_attention(steps, weight(2, 9, 8), weight(2, 9, 12)),
        "attended_deep": op.scaled_dot_product_attention(
            given(2, 3, 2, 4, 8, name="deep"), weight(2, 3, 2, 7, 8), weight(2, 3, 2, 7, 10)
        ),
        "picked": op.gather(weight(100, 16), given(3, dtype=np.int64, name="ids"), whole(0)),
        "different": op.squared_difference(rows, weight(4, 64)),
        "best": op.topk(rows, op.constant(np.int64(5)), 1, "max", "value"),
        "turned": op.transpose(rows, whole(1, 0)),
    }  # fmt: skip
    for name, node in results.items():
        node.set_friendly_name(name)
    return openvino.Model([node.output(0) for node in results.values()], parameters(results.values()), "operators")


def packed_weights() -> openvino.Model:
    """A matrix of four bits with zero points and scales in groups, one of eight bits, and one that two ops share."""
    x = given(4, 64)
    four = openvino.op.Constant(openvino.Type.u4, openvino.Shape([16, 4, 16]), [9] * 1024)
    zero = openvino.op.Constant(openvino.Type.u4, openvino.Shape([16, 4, 1]), [8] * 64)
    unpacked = op.multiply(
        op.subtract(op.convert(four, np.float16), op.convert(zero, np.float16)), weight(16, 4, 1, dtype=np.float16)
    )
    matrix = op.convert(op.reshape(unpacked, whole(16, 64), False), np.float32)
    bytes_ = op.multiply(op.convert(weight(32, 64, dtype=np.int8), np.float32), weight(32, 1))
    half = op.convert(weight(64, 64, dtype=np.float16), np.float32)
    shared = op.matmul(op.matmul(x, half, False, True), half, False, True)
    products = [op.matmul(shared, part, False, True) for part in (matrix, bytes_)]
    return openvino.Model([product.output(0) for product in products], [x], "packed_weights")


def quantized() -> openvino.Model:
    """A convolution with weights of eight bits, a product with quantized ones, and one with floating inputs."""
    limits = [weight(1) for _ in range(4)]

    def rounded(node: openvino.Node, levels: int = 256) -> openvino.Node:
        return op.fake_quantize(node, *limits, levels)

    image = given(1, 8, 6, 6, name="image")
    kernel = op.multiply(op.convert(weight(4, 8, 3, 3, dtype=np.int8), np.float32), weight(4, 1, 1, 1))
    maps = op.convolution(rounded(image), kernel, [1, 1], [0, 0], [0, 0], [1, 1])
    flat = op.reshape(rounded(op.relu(maps)), whole(1, 64), False)
    first = op.matmul(flat, rounded(weight(16, 64)), False, True)
    last = op.matmul(first, rounded(weight(5, 16), 65536), False, True)
    for name, node in {"conv": maps, "eight_bits": first, "floating": last}.items():
        node.set_friendly_name(name)
    return openvino.Model([last.output(0)], [image], "quantized")


def bodies() -> openvino.Model:
    """An If whose branches hold weights, and a TensorIterator over the steps of a sequence."""
    x, flag = given(2, 8), op.parameter([], openvino.Type.boolean, name="flag")
    branch_x, other_x = given(2, 8), given(2, 8)
    yes = openvino.Model([op.matmul(branch_x, weight(8, 8), False, False)], [branch_x], "yes")
    no = openvino.Model([op.relu(other_x)], [other_x], "no")
    chosen = op.if_op(flag)
    chosen.set_then_body(yes)
    chosen.set_else_body(no)
    chosen.set_input(x.output(0), branch_x, other_x)
    result = chosen.set_output(yes.results[0], no.results[0])
    steps, step, sum_in = given(2, 5, 8, name="steps"), given(2, 1, 8), given(2, 8)
    total = op.add(op.matmul(op.squeeze(step, whole(1)), weight(8, 8), False, False), sum_in)
    inner = openvino.Model([op.result(total)], [step, sum_in], "inner")
    loop = op.tensor_iterator()
    loop.set_body(inner)
    loop.set_sliced_input(step, steps.output(0), 0, 1, 1, -1, 1)
    loop.set_merged_input(sum_in, result, total.output(0))
    last = loop.get_iter_value(total.output(0), -1)
    return openvino.Model([last], [x, flag, steps], "bodies")


def states() -> openvino.Model:
    """A variable that is read, added to and assigned: what a key-value cache is made of."""
    x = given(1, 4, 16, 8)
    held = op.read_value(weight(1, 4, 16, 8), "cache", openvino.Type.f32, openvino.Shape([1, 4, 16, 8]))
    added = op.add(held, x)
    kept = op.assign(added, "cache")
    return openvino.Model([op.result(op.relu(added))], [kept], [x], "states")


def parameters(results: object) -> list[openvino.Node]:
    """The inputs of a model, by a walk up from its results."""
    seen: dict[str, openvino.Node] = {}
    stack = list(results)
    known = set()
    while stack:
        node = stack.pop()
        if node.get_name() in known:
            continue
        known.add(node.get_name())
        if node.get_type_name() == "Parameter":
            seen[node.get_name()] = node
        stack.extend(source.get_source_output().get_node() for source in node.inputs())
    return list(seen.values())


MODELS: dict[str, Callable[[], openvino.Model]] = {
    "resnet50": lambda: images(ResNet50(), 224),
    "inception_v3": lambda: images(TransformedInput(InceptionV3()), 299),
    "bert_base": lambda: bert(fixed=True),
    "bert_open": lambda: bert(fixed=False),
    "resnet50_open": open_resnet,
    "operators": operators,
    "packed_weights": packed_weights,
    "quantized": quantized,
    "bodies": bodies,
    "states": states,
}


def main(names: list[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or MODELS:
        torch.manual_seed(0)
        with torch.no_grad():
            model = MODELS[name]()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{name}.xml"
            openvino.save_model(model, file)
            nodes, text = openvino.Core().read_model(file).get_ops(), file.read_bytes()
        (FOLDER / f"{name}.xml.gz").write_bytes(gzip.compress(text, mtime=0))
        print(name, len(nodes), "ops", sum(len(node.inputs()) for node in nodes), "edges", len(text), "bytes of XML")


if __name__ == "__main__":
    main(sys.argv[1:])
