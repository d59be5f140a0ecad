"""Training graphs beside PyTorch's own joint graphs: ops by family, FLOPs and bytes, on three models.

    python benchmarks/training.py        (needs torch and transformers; half a minute, no weights, no downloads)

`to_training` makes its graph from the ONNX file in examples/models. PyTorch traces forward and backward of the same
architecture on the meta device (`aot_export_module`), and `torch.utils.flop_counter` counts a real forward and
backward pass there. Writes results/training.json and prints the table of docs/training.md; exits with 1 if FLOPs
differ by more than 1 %.
"""

from __future__ import annotations

import json
import operator
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_export_module
from torch.fx import Node
from torch.utils.flop_counter import FlopCounterMode

from placewise.costing.work import work_of
from placewise.model.graph import Graph
from placewise.readers.onnx import read_onnx
from placewise.transform.fold import fold
from placewise.transform.training import to_training

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "training.json"
sys.path.insert(0, str(ROOT / "examples" / "models"))
from definitions import ResNet50  # noqa: E402  # the folder of examples is no package

FAMILIES = {
    "products": "MatMul Gemm Einsum com.microsoft::FusedMatMul / mm bmm addmm",
    "convolutions": "Conv gradient::Conv / convolution convolution_backward",
    "normalizations": "LayerNormalization BatchNormalization gradient::LayerNormalization gradient::BatchNormalization "
    "/ native_layer_norm native_layer_norm_backward _native_batch_norm_legit_functional native_batch_norm_backward "
    "_native_batch_norm_legit native_batch_norm",
    "softmax": "Softmax gradient::Softmax / _softmax _softmax_backward_data",
    "activations": "Relu Gelu Tanh gradient::Relu gradient::Gelu gradient::Tanh / relu gelu tanh threshold_backward "
    "gelu_backward tanh_backward",
    "multiplications": "Mul Div Neg Pow gradient::Pow Where gradient::Where / mul div neg pow where scalar_tensor",
    "additions": "Add / add",
    "sums": "ReduceSum ReduceMean gradient::ReduceMean / sum mean",
    "pooling": "MaxPool gradient::MaxPool / max_pool2d_with_indices max_pool2d_with_indices_backward",
    "lookups": "Gather GatherND gradient::Gather / embedding embedding_dense_backward gather",
}
"""Families of kinds: ours, and ATen's behind the stroke. Views, copies and what makes masks are in none."""
VIEWS = frozenset((
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "select", "slice",
    "alias", "detach", "split", "split_with_sizes", "getitem",
))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """An example, its PyTorch twin, the inputs of both, and which output a loss is made of."""

    build: Callable[[], nn.Module]
    dims: dict[str, int]
    inputs: Callable[[], tuple[Tensor, ...]]
    output: Callable[[Any], Tensor]


def _bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(attn_implementation="eager")).eval()


class _GPT2(nn.Module):
    """GPT-2 with its mask given: the one that it makes by itself depends on values, which meta tensors have not."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.GPT2Config(attn_implementation="eager", use_cache=False)
        self.inside = transformers.GPT2LMHeadModel(config).eval()

    def forward(self, ids: Tensor, mask: Tensor) -> Any:
        return self.inside(input_ids=ids, attention_mask=mask)


MODELS = {
    "resnet50": Model(
        build=ResNet50, dims={"batch": 4}, inputs=lambda: (torch.empty(4, 3, 224, 224),), output=lambda scores: scores
    ),
    "bert_base": Model(
        build=_bert,
        dims={"batch": 4, "seq": 128},
        inputs=lambda: (torch.zeros(4, 128, dtype=torch.long),),
        output=lambda found: found.pooler_output,
    ),
    "gpt2": Model(
        build=_GPT2,
        dims={"batch": 4, "seq": 128},
        inputs=lambda: (torch.zeros(4, 128, dtype=torch.long), torch.zeros(4, 1, 128, 128)),
        output=lambda found: found.logits,
    ),
}


class Wrapped(nn.Module):
    """A model that gives one of its outputs only."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.inside, self.output = model.build(), model.output

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.output(self.inside(*inputs))


class _Summed(Wrapped):
    """A model whose loss is the sum of an output."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor]:  # type: ignore[override]
        return (super().forward(*inputs).sum(),)


def ours(name: str, model: Model) -> dict[str, Any]:
    """What our training graph holds, without an op Loss: PyTorch's loss is a sum, which costs and keeps nothing."""
    graph = fold(read_onnx(ROOT / "examples" / "models" / f"{name}.onnx", dims=model.dims).graph)
    started = time.perf_counter()
    trained = to_training(graph, optimizer="sgd", loss=False)
    return {"seconds": time.perf_counter() - started, **measured(trained)}


def measured(trained: Graph) -> dict[str, Any]:
    """What a training graph holds."""
    work, late = work_of(trained), trained.ops.backward
    counted = sum(work.op_class.equals(name) for name in ("matmul", "conv", "attention")).astype(bool)
    return {
        "forward": _families(kind for kind, back in zip(trained.ops.kind, late, strict=True) if not back),
        "backward": _families(kind for kind, back in zip(trained.ops.kind, late, strict=True) if back),
        "forward_flops": float(work.flops[counted & ~late].sum()),
        "backward_flops": float(work.flops[counted & late].sum()),
        "saved_bytes": _saved_here(trained),
        "gradient_bytes": sum(
            int(trained.tensors.bytes[t])
            for op in np.flatnonzero(trained.ops.kind.equals("optimizer::SGD"))
            for t in trained.inputs_of(op)
        ),
    }


def _saved_here(graph: Graph) -> int:
    """Bytes of forward tensors that backward ops read, views as what they are views of."""
    views = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}
    saved = set()
    for op in np.flatnonzero(graph.ops.backward).tolist():
        for t in graph.inputs_of(op).tolist():
            while (maker := int(graph.tensors.producer[t])) >= 0 and graph.ops.kind[maker] in views:
                t = int(graph.inputs_of(maker)[0])
            if maker >= 0 and not graph.ops.backward[maker]:
                saved.add(t)
    return sum(int(graph.tensors.bytes[t]) for t in saved)


def theirs(model: Model) -> dict[str, Any]:
    """What PyTorch's joint graph holds, and what its counter counts."""
    with torch.device("meta"):
        module = _Summed(model)
        joint, _ = aot_export_module(module, model.inputs(), trace_joint=True, output_loss_index=0)
    forward_flops, backward_flops = counted(model)
    nodes = [node for node in joint.graph.nodes if node.op == "call_function"]
    late = _behind(next(node for node in nodes if _kind(node) == "ones_like"))
    return {
        "forward": _families(_kind(node) for node in nodes if node not in late),
        "backward": _families(_kind(node) for node in nodes if node in late),
        "forward_flops": forward_flops,
        "backward_flops": backward_flops,
        "saved_bytes": _saved_there(nodes, late),
        "gradient_bytes": sum(parameter.nbytes for parameter in module.parameters()),
    }


def counted(model: Model) -> tuple[float, float]:
    """FLOPs of a forward pass and of a backward pass, as torch counts them."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        (loss,) = _Summed(model)(*model.inputs())
        forward = counter.get_total_flops()
        loss.backward()
    return float(forward), float(counter.get_total_flops() - forward)


def _behind(start: Node) -> set[Node]:
    """All nodes that depend on the gradient of the loss: the backward pass."""
    found, waiting = set[Node](), [start]
    while waiting:
        node = waiting.pop()
        if node not in found and node.op == "call_function":
            found.add(node)
            waiting.extend(node.users)
    return found


def _saved_there(nodes: list[Node], late: set[Node]) -> int:
    saved = set()
    for node in nodes:
        for source in node.all_input_nodes if node in late else ():
            while source.op == "call_function" and _kind(source) in VIEWS and not _is_result(source):
                source = source.all_input_nodes[0]
            if source.op == "call_function" and source not in late:
                saved.add(source)
    return sum(source.meta["val"].nbytes for source in saved)


def _is_result(node: Node) -> bool:
    """One of several results of an op that is no view."""
    return node.target is operator.getitem and _kind(node.all_input_nodes[0]) not in VIEWS


def _kind(node: Node) -> str:
    return "getitem" if node.target is operator.getitem else str(node.target).split(".")[1]


def _families(kinds: Any) -> dict[str, int]:
    count = Counter(kinds)
    sides = {family: words.replace("/", " ").split() for family, words in FAMILIES.items()}
    found = {family: sum(count[kind] for kind in known) for family, known in sides.items()}
    found["other"] = sum(count.values()) - sum(found.values())
    return found


def main() -> int:
    """Compare all models, write the results, print the table."""
    results = {name: {"placewise": ours(name, model), "pytorch": theirs(model)} for name, model in MODELS.items()}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    RESULTS.write_text(
        json.dumps({"command": "python benchmarks/training.py", **versions, "models": results}, indent=1) + "\n"
    )
    print(table(results))
    worst = max(
        abs(found["placewise"][what] / found["pytorch"][what] - 1)
        for found in results.values()
        for what in ("forward_flops", "backward_flops")
    )
    return int(worst > 0.01)


def table(results: dict[str, Any]) -> str:
    """Markdown: a pair of numbers, ours / PyTorch's, per model."""
    rows = [f"| | {' | '.join(results)} |", "|---|" + "---|" * len(results)]
    for way in ("forward", "backward"):
        for family in (*FAMILIES, "other"):
            pairs = [(found["placewise"][way][family], found["pytorch"][way][family]) for found in results.values()]
            if any(map(any, pairs)):
                rows.append(f"| {way}: {family} | {' | '.join(f'{a} / {b}' for a, b in pairs)} |")
    for what, unit, scale in (
        ("forward_flops", "GFLOP", 1e9), ("backward_flops", "GFLOP", 1e9),
        ("saved_bytes", "MB", 1e6), ("gradient_bytes", "MB", 1e6),
    ):  # fmt: skip
        pairs = [(found["placewise"][what] / scale, found["pytorch"][what] / scale) for found in results.values()]
        rows.append(f"| {what.replace('_', ' ')}, {unit} | {' | '.join(f'{a:,.2f} / {b:,.2f}' for a, b in pairs)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    raise SystemExit(main())
