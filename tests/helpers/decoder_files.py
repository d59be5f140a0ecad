"""ONNX decoders of any size, without the data of their weights: embedding, layers in a line, head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import NodeProto, TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

HALF = TensorProto.FLOAT16
MIB = 2**20


def dataless(name: str, *shape: int) -> TensorProto:
    """A float16 weight of this shape; its data is in a file of its own that is not there."""
    weight = TensorProto(name=name, data_type=HALF, dims=shape, data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=f"{name}.bin")
    return weight


def decoder(
    path: Path, layers: Sequence[float], *, width: int = 1024, vocab: int = 1024, tied: bool = False, last: bool = False
) -> Path:
    """A decoder whose layers have so many MiB of weights each, over ids [batch, tokens].

    A layer is two products (``/layers.3/up``, ``/layers.3/down``) around a Relu, and a sum. The head makes logits
    [batch, tokens, vocab] of every row, or of the last one alone; `tied`: with the matrix of the embedding.
    """
    nodes = [make_node("Gather", ["embed.weight", "ids"], ["h0"], "/embed")]
    weights = [dataless("embed.weight", vocab, width)]
    for n, size in enumerate(layers):
        inner = round(size * MIB / 4 / width)
        weights += [dataless(f"layers.{n}.up", width, inner), dataless(f"layers.{n}.down", inner, width)]
        nodes += [
            make_node("MatMul", [f"h{n}", f"layers.{n}.up"], [f"u{n}"], f"/layers.{n}/up"),
            make_node("Relu", [f"u{n}"], [f"r{n}"], f"/layers.{n}/act"),
            make_node("MatMul", [f"r{n}", f"layers.{n}.down"], [f"d{n}"], f"/layers.{n}/down"),
            make_node("Add", [f"h{n}", f"d{n}"], [f"h{n + 1}"], f"/layers.{n}/sum"),
        ]
    nodes += head(f"h{len(layers)}", width, tied=tied, last=last)
    weights += [] if tied else [dataless("head.weight", width, vocab)]
    ids = make_tensor_value_info("ids", TensorProto.INT64, ["batch", "tokens"])
    graph = make_graph(nodes, "decoder", [ids], [onnx.ValueInfoProto(name="logits")], weights)
    path.write_bytes(make_model(graph, opset_imports=[make_opsetid("", 18)]).SerializeToString())
    return path


def head(hidden: str, width: int, *, tied: bool, last: bool) -> list[NodeProto]:
    """The last rows alone if asked for; then the product with the vocabulary."""
    nodes: list[NodeProto] = []
    if last:
        place = onnx.helper.make_tensor("last", TensorProto.INT64, [1], [-1])
        nodes = [
            make_node("Constant", [], ["last"], "/last", value=place),
            make_node("Gather", [hidden, "last"], ["end"], "/end", axis=1),
        ]
    matrix = "head.weight"
    if tied:
        nodes.append(make_node("Transpose", ["embed.weight"], ["embed.turned"], "/head/turn", perm=[1, 0]))
        matrix = "embed.turned"
    return [*nodes, make_node("MatMul", ["end" if last else hidden, matrix], ["logits"], "/head/product")]
