"""Training graphs beside PyTorch's own: what its counter counts, and the ops of its joint graphs."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from locations import ROOT

pytest.importorskip("torch", reason="compares with PyTorch")
transformers = pytest.importorskip("transformers", reason="compares with models of transformers")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from placewise.readers.torch.program import graph_of_program  # noqa: E402
from placewise.transform.fold import fold  # noqa: E402
from placewise.transform.training import to_training  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def benchmark():
    """benchmarks/training.py as a module: it measures both sides."""
    path = ROOT / "benchmarks" / "training.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_training", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["resnet50", "bert_base", "gpt2"])
def test_flops_agree_with_the_counter(benchmark, name):
    """Products, convolutions and attention of whole models, forward and backward, to the last FLOP."""
    model = benchmark.MODELS[name]
    ours, theirs = benchmark.ours(name, model), benchmark.counted(model)
    assert (ours["forward_flops"], ours["backward_flops"]) == theirs
    if name == "gpt2":
        assert ours["gradient_bytes"] == (124_439_808 * 4), "the tied table has one gradient"


class Residual(nn.Module):
    """Convolutions, normalization, a residual connection, pooling and a layer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm, self.again = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(8, 5)

    def forward(self, images):
        x = torch.relu(self.norm(self.first(images)))
        x = torch.relu(self.again(self.second(x)) + x)
        return self.head(self.pool(x).mean((2, 3)))


def small_bert():
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=50,
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.BertModel(config, add_pooling_layer=True).eval()


CASES = {
    "convolutions": (Residual, lambda: (torch.ones(2, 3, 8, 8),), lambda found: found, {"convolutions": 1}),
    "bert": (small_bert, lambda: (torch.ones(2, 16, dtype=torch.long),), lambda found: found.pooler_output, {}),
}
"""Module, inputs, output, and by which families our backward pass has more ops than PyTorch's."""


@pytest.mark.parametrize("name", sorted(CASES))
def test_backward_ops_are_those_of_the_joint_graph(benchmark, name):
    """Family by family; a convolution's gradients are two ops here (of the input and of the kernel) and one there."""
    build, inputs, output, more = CASES[name]
    model = benchmark.Model(build=build, dims={}, inputs=inputs, output=output)
    theirs = benchmark.theirs(model)
    with torch.no_grad():
        program = torch.export.export(benchmark.Wrapped(model), inputs(), strict=False)
    ours = benchmark.measured(to_training(fold(graph_of_program(program)), optimizer="sgd", loss=False))
    assert {f: n - theirs["backward"][f] for f, n in ours["backward"].items() if f not in LOOSE} == {
        family: more.get(family, 0) for family in ours["backward"] if family not in LOOSE
    }
    assert ours["backward_flops"] == theirs["backward_flops"] and ours["gradient_bytes"] == theirs["gradient_bytes"]


def test_parameters_train_and_tables_do_not():
    """Of a small Llama, with tied embeddings: what PyTorch calls a parameter, and not the cosines of positions."""
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=48,
        vocab_size=50, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        program = torch.export.export(model, (torch.ones(1, 12, dtype=torch.long),), {"use_cache": False}, strict=False)
    graph = to_training(fold(graph_of_program(program)))
    of = dict(zip(graph.weights.name, graph.weights.storage.tolist(), strict=True))
    updated = [of[name.removesuffix("/update")] for name in graph.ops.name if name.endswith("/update")]
    assert sorted(updated) == sorted({of[name] for name in of if "weight" in name})
    assert len(updated) == len(list(model.parameters()))


LOOSE = ("other", "lookups", "sums", "multiplications")
"""Families that PyTorch cuts otherwise: a mean's gradient is a division, a first token's a copy into zeros."""
