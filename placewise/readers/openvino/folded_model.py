"""Load a model in OpenVINO with static shapes and folded constants, and map its ops to the nodes of the file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewise.errors import InputError, MissingExtraError, RunError
from placewise.model.graph import Graph
from placewise.readers.base import unique_name
from placewise.readers.onnx.model import load_with_weights
from placewise.readers.onnx.names import op_names
from placewise.readers.openvino.parse import parse_ir

FORMATS = ("openvino", "onnx")
"""The values of `Source.format` that `load_folded` supports."""
_MAX_PROTOBUF = 1 << 31  # bytes of a protobuf message
_SOURCE_PLACES = re.compile(r"(Standard exception from compilation library: )?Exception from \S+:\d+:|^Check '.*")

Shapes = Mapping[str, Sequence[int]]
Origins = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FoldedModel:
    """The ops of a folded model [n], in topological order.

    `sources` are the ops that each op reads; `origin` the ids of its candidate nodes in the file, most likely first;
    `is_open` whether one of its output shapes is open.
    """

    name: tuple[str, ...]
    type: tuple[str, ...]
    sources: tuple[tuple[int, ...], ...]
    origin: tuple[tuple[int, ...], ...]
    is_open: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.name)


def input_shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    """The shapes of the model's inputs by name; in raw graphs, inputs are ops of kind Input."""
    is_input = graph.ops.kind.equals("Input")
    rows = [row for row, op in enumerate(graph.tensors.producer.tolist()) if op < 0 or is_input[op]]
    return {graph.tensors.name[row]: tuple(map(int, graph.tensors.shape[row])) for row in rows}


def load_folded(path: Path, file_format: str, shapes: Shapes) -> tuple[Any, FoldedModel, tuple[str, ...]]:
    """The ``openvino.Model`` of a file with these input shapes and unique op names, its ops, and notes.

    Raises InputError for an unsupported format, RunError if OpenVINO cannot read the file, MissingExtraError.
    """
    if file_format not in FORMATS:
        raise InputError(f"OpenVINO runs models of the formats {' and '.join(FORMATS)}, and this is {file_format!r}")
    ov = import_openvino()
    try:
        model, nodes, values, notes = _load_onnx(ov, path) if file_format == "onnx" else _load_ir(ov, path)
        _set_shapes(model, shapes)
        passes = ov.passes.Manager()
        passes.register_pass(ov.passes.ConstantFolding())
        passes.run_passes(model)
    except RuntimeError as error:
        raise RunError(f"OpenVINO cannot read {path}: {summarize_error(error)}") from None
    folded = _list_ops(model, nodes, values)
    _set_names(model, folded)
    return model, folded, notes


def import_openvino() -> Any:
    """The module ``openvino``. Raises MissingExtraError."""
    try:
        import openvino
        import openvino.passes
    except ImportError:
        raise MissingExtraError("OpenVINO", "openvino") from None
    return openvino


def summarize_error(error: Exception) -> str:
    """OpenVINO's error in one line. Its messages are stacks of source locations with the cause last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    messages = [line for line in (_SOURCE_PLACES.sub("", line).strip() for line in lines) if line]
    shown = messages or [line.partition(" failed at")[0] for line in lines[-1:]] or [type(error).__name__]
    return " ".join(shown)[:300].rstrip(".")


def input_names(model: Any) -> list[set[str]]:
    """The names of each input: those of the tensor and of its Parameter."""
    return [{*port.names, port.get_node().get_friendly_name()} for port in model.inputs]


def output_names(model: Any) -> list[set[str]]:
    """The names of each output: those of the tensor and of the op that produces it (``op:1`` with the port)."""
    names_by_output = []
    for port in model.outputs:
        source = port.get_node().input(0).get_source_output()
        name = source.get_node().get_friendly_name()
        names_by_output.append({*port.names, name, f"{name}:{source.get_index()}"})
    return names_by_output


def _load_onnx(ov: Any, path: Path) -> tuple[Any, Origins, Origins, tuple[str, ...]]:
    """The model, its nodes by name and by output value, and notes."""
    proto, notes = load_with_weights(path)
    nodes = proto.graph.node
    for node, name in zip(nodes, op_names(nodes), strict=True):
        node.name = name
    values = {value: index for index, node in enumerate(nodes) for value in node.output if value}
    if proto.ByteSize() >= _MAX_PROTOBUF:
        raise RunError(f"{path} is larger than 2 GiB with its weights, which OpenVINO cannot load")
    model = ov.Core().read_model(proto.SerializeToString())
    return model, {node.name: index for index, node in enumerate(nodes)}, values, notes


def _load_ir(ov: Any, path: Path) -> tuple[Any, Origins, Origins, tuple[str, ...]]:
    if not path.with_suffix(".bin").exists():
        raise RunError(f"{path}: the weights are missing: there is no {path.with_suffix('.bin').name} beside it")
    layers = parse_ir(path)[0].layers
    count = Counter(layer.name for layer in layers)
    return ov.Core().read_model(path), {each.name: each.id for each in layers if count[each.name] == 1}, {}, ()


def _set_shapes(model: Any, shapes: Shapes) -> None:
    new_shapes = {}
    for row, names in enumerate(input_names(model)):
        name = next((name for name in sorted(names) if name in shapes), None)
        if name is not None and model.input(row).partial_shape.is_dynamic:
            new_shapes[row] = list(shapes[name])
    if new_shapes:
        model.reshape(new_shapes)


def _list_ops(model: Any, nodes: Origins, values: Origins) -> FoldedModel:
    ops = model.get_ordered_ops()
    number = {op.get_name(): row for row, op in enumerate(ops)}
    names = [op.get_friendly_name() for op in ops]
    taken: set[str] = set()
    tensors = [sorted({name for port in op.outputs() for name in port.names}) for op in ops]
    return FoldedModel(
        tuple(unique_name(name, taken) for name in names),
        tuple(op.get_type_name() for op in ops),
        tuple(tuple(number[port.get_source_output().get_node().get_name()] for port in op.inputs()) for op in ops),
        tuple((*_lookup(nodes, [name]), *_lookup(values, source)) for name, source in zip(names, tensors, strict=True)),
        tuple(any(port.get_partial_shape().is_dynamic for port in op.outputs()) for op in ops),
    )


def _lookup(ids: Origins, names: Iterable[str]) -> Iterable[int]:
    return (ids[name] for name in names if name in ids)


def _set_names(model: Any, folded: FoldedModel) -> None:
    for op, name in zip(model.get_ordered_ops(), folded.name, strict=True):
        if op.get_friendly_name() != name:
            op.set_friendly_name(name)
