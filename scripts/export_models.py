"""Write examples/models: four published architectures as ONNX without weights, and their FLOPs as torch counts them.

    python scripts/export_models.py [NAME …]        (needs torch, transformers, onnxscript; about a minute)

Weights are random and are not written: every parameter points into an external file that does not exist, at a place
of its own, so that tied weights stay tied and sizes stay true. Batch (and sequence length) are symbolic. The
exporter's optimizer runs while the parameters are inputs, whose values it does not know: so transposes of weights
are not folded, convolutions not fused with batch normalization, parameters not merged, and names stay. Attention is
`eager`: matrix products and a softmax, one op each.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers
from torch import nn
from torch.export import Dim
from torch.utils.flop_counter import FlopCounterMode

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "models"
sys.path.insert(0, str(FOLDER))
from definitions import InceptionV3, ResNet50  # noqa: E402  # the folder of examples is no package

SCOPES = "pkg.torch.onnx.name_scopes"
LONGEST_INLINE = 1024  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A model, the symbolic dimensions of each of its inputs, and the numbers at which FLOPs are counted."""

    build: Callable[[], nn.Module]
    inputs: Callable[[Mapping[str, int]], dict[str, torch.Tensor]]
    symbols: Mapping[str, Mapping[int, str]]
    outputs: tuple[str, ...]
    dims: Mapping[str, int]
    parameters: int
    note: str = ""


def images(side: int) -> Callable[[Mapping[str, int]], dict[str, torch.Tensor]]:
    return lambda dims: {"images": torch.randn(dims["batch"], 3, side, side)}


def tokens(dims: Mapping[str, int]) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 1000, (dims["batch"], dims["seq"]))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(attn_implementation="eager"))


def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(attn_implementation="eager", use_cache=False))


TEXT = {name: {0: "batch", 1: "seq"} for name in ("input_ids", "attention_mask")}
EXAMPLES = {
    "resnet50": Example(
        build=ResNet50, inputs=images(224), symbols={"images": {0: "batch"}}, outputs=("scores",),
        dims={"batch": 1}, parameters=25_557_032,
    ),
    "inception_v3": Example(
        build=InceptionV3, inputs=images(299), symbols={"images": {0: "batch"}}, outputs=("scores",),
        dims={"batch": 1}, parameters=27_161_264,
        note="parameters include the 3,326,696 of the auxiliary head, which the exported inference graph leaves out",
    ),
    "bert_base": Example(
        build=bert, inputs=tokens, symbols=TEXT, outputs=("last_hidden_state", "pooler_output"),
        dims={"batch": 1, "seq": 128}, parameters=109_482_240,
    ),
    "gpt2": Example(
        build=gpt2, inputs=tokens, symbols=TEXT, outputs=("logits",),
        dims={"batch": 1, "seq": 128}, parameters=124_439_808,
    ),
}  # fmt: skip


def main(names: list[str]) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    table = FOLDER / "flops.json"
    record = json.loads(table.read_text()) if table.exists() else {"models": {}}
    record["command"] = "python scripts/export_models.py"
    record["counted_by"] = "torch.utils.flop_counter.FlopCounterMode, 2 FLOPs per multiply-add, inference"
    packages = ("torch", "transformers", "onnx", "onnxscript")
    record["versions"] = {name: importlib.metadata.version(name) for name in packages}
    for name in names or EXAMPLES:
        example = EXAMPLES[name]
        torch.manual_seed(0)
        module = example.build().eval()
        count = sum(parameter.numel() for parameter in module.parameters())
        assert count == example.parameters, (name, count)
        model = stripped(exported(module, example), f"{name}.weights", set(module.state_dict()))
        (FOLDER / f"{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))
        record["models"][name] = {
            "dims": dict(example.dims),
            "inputs": {key: list(value.shape) for key, value in example.inputs(example.dims).items()},
            "parameters": count,
            "flops": flops(module, example),
        } | ({"note": example.note} if example.note else {})
        print(name, record["models"][name], (FOLDER / f"{name}.onnx").stat().st_size, "bytes")
    record["models"] = {name: record["models"][name] for name in EXAMPLES if name in record["models"]}
    table.write_text(json.dumps(record, indent=2) + "\n")


def exported(module: nn.Module, example: Example) -> onnx.ModelProto:
    """The module as an ONNX model with symbolic dimensions (a size of 1 would be taken as fixed, hence batch 2)."""
    inputs = example.inputs({"batch": 2, "seq": 128})
    symbols = {symbol: Dim(symbol) for axes in example.symbols.values() for symbol in axes.values()}
    dynamic = {name: {axis: symbols[s] for axis, s in axes.items()} for name, axes in example.symbols.items()}
    program: Any = torch.onnx.export(
        module, (), kwargs=inputs, dynamo=True, dynamic_shapes=dynamic, optimize=False, verbose=False,
        input_names=list(inputs), output_names=list(example.outputs),
    )  # fmt: skip
    return program.model_proto


def stripped(model: onnx.ModelProto, file: str, parameters: set[str]) -> onnx.ModelProto:
    """Optimized, and without weights, inner shapes and notes other than module paths."""
    from onnxscript import optimizer  # not needed by programs that take a module from here

    weights, rest = [], []
    for tensor in model.graph.initializer:
        (weights if tensor.name in parameters else rest).append(tensor)
    offset = 0
    for tensor in weights:
        offset = externalize(tensor, file, offset)
    n_inputs = len(model.graph.input)
    del model.graph.initializer[:]
    model.graph.initializer.extend(rest)
    model.graph.input.extend(onnx.helper.make_tensor_value_info(w.name, w.data_type, w.dims) for w in weights)
    model = optimizer.optimize(model)
    del model.graph.input[n_inputs:]
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) > LONGEST_INLINE:
            offset = externalize(tensor, file, offset)
    model.graph.initializer.extend(weights)
    return plain(model)


def externalize(tensor: onnx.TensorProto, file: str, offset: int) -> int:
    """Replace values by a reference to `offset` in `file`; returns the next free offset."""
    length = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", file), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return offset + length


def plain(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without stack traces and other notes; module paths stay."""
    graph = model.graph
    del graph.value_info[:], graph.metadata_props[:], model.metadata_props[:]
    for part in (model, graph, *graph.input, *graph.output, *graph.initializer, *graph.node):
        part.ClearField("doc_string")
    for part in (*graph.input, *graph.output, *graph.initializer, *graph.node):
        scopes = [entry.value for entry in part.metadata_props if entry.key == SCOPES]
        del part.metadata_props[:]
        if scopes and isinstance(part, onnx.NodeProto):
            part.metadata_props.add(key=SCOPES, value=scopes[0])
    return model


def flops(module: nn.Module, example: Example) -> int:
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        module(**example.inputs(example.dims))
    return counter.get_total_flops()


if __name__ == "__main__":
    main(sys.argv[1:])
