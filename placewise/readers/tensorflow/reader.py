"""read_tensorflow: the steps from a file to an imported model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from placewise.errors import ModelFileError, locate_errors
from placewise.model.graph import Graph, Source
from placewise.readers.base import ImportedModel, describe_unknown_shapes
from placewise.readers.tensorflow.cost_graph import read_cost_graph
from placewise.readers.tensorflow.draft import OpRecord, mark_backward
from placewise.readers.tensorflow.file import load, resolve_file
from placewise.readers.tensorflow.groups import find_colocation_groups
from placewise.readers.tensorflow.importer import MAX_NODES, GraphImporter
from placewise.readers.tensorflow.inputs import InputDims
from placewise.readers.tensorflow.kinds import is_backward_kind
from placewise.readers.tensorflow.library import Library, sort_nodes
from placewise.readers.tensorflow.nodes import FunctionBody, OutputRef, parse_nodes, parse_reference
from placewise.readers.tensorflow.reachable import select_nodes
from placewise.readers.tensorflow.tf1_loops import collapse_loops

_NO_DIMS: Mapping[str, int] = MappingProxyType({})
DEFAULT_SIGNATURE = "serving_default"


def read_tensorflow(path: Path, *, dims: Mapping[str, int] = _NO_DIMS) -> ImportedModel:
    """Read a GraphDef, MetaGraphDef, SavedModel or CostGraphDef (``.pb``, ``.pbtxt``) as the raw view.

    Every node that runs with the model becomes an op, except placeholders, which become inputs, and constants and
    variables, which become weights. Function calls are inlined. Loops are unrolled if constants determine their trip
    count; other loops and conditions remain one op. Nodes that only initialize, save or restore are dropped. `dims`
    gives sizes for open dimensions of inputs: ``{"batch": 8}`` for the first one, ``{"input:1": 128}`` for others.
    `origin` holds indices into the nodes of the file's graph (none for ops of functions). Ops keep the colocation and
    the devices of the file (attribute ``device``); backward ops of a training graph are marked.

    Raises ModelFileError or GraphError, naming the file.
    """
    path = resolve_file(Path(path))
    with locate_errors(path):
        message, kind, sha256 = load(path)
        source = Source(str(path), sha256, "tensorflow", options={"dims": dict(dims)}, view="raw")
        if kind in ("CostGraphDef", "RunMetadata"):
            if dims:
                raise ModelFileError("a CostGraphDef has no open dimensions", remedy="leave out --dim")
            return read_cost_graph(message.cost_graph if kind == "RunMetadata" else message, source)
        graph, outputs, notes = _select_graph(message, kind)
        return _import_graph(graph, outputs, InputDims(dims), source, notes)


def _select_graph(message: Any, kind: str) -> tuple[Any, list[OutputRef] | None, list[str]]:
    """The graph of a message, the outputs that a signature names, and notes for the user."""
    if kind == "GraphDef":
        return message, None, []
    notes = []
    if kind == "SavedModel":
        if not message.meta_graphs:
            raise ModelFileError("the file holds no graph", remedy="save the model again")
        if len(message.meta_graphs) > 1:
            notes.append(f"only the first of {len(message.meta_graphs)} graphs is read")
        message = message.meta_graphs[0]
    signatures = {
        name: s for name, s in sorted(message.signature_def.items()) if s.outputs and not name.startswith("__")
    }
    if not signatures:
        return message.graph_def, None, notes
    name = DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in signatures else next(iter(signatures))
    if len(signatures) > 1:
        others = ", ".join(map(repr, [other for other in signatures if other != name][:5]))
        notes.append(f"the outputs are those of signature {name!r}; {others} are not read")
    infos = sorted(signatures[name].outputs.items())
    return message.graph_def, [parse_reference(info.name, f"signature {name}") for _, info in infos if info.name], notes


def _import_graph(
    proto: Any, outputs: list[OutputRef] | None, dims: InputDims, source: Source, notes: list[str]
) -> ImportedModel:
    if not proto.node:
        raise ModelFileError("the graph has no nodes", remedy="export the model again")
    if len(proto.node) > MAX_NODES:
        raise ModelFileError(f"the graph has more than {MAX_NODES:,} nodes", remedy="export a smaller part of it")
    library = Library(proto.library)
    library.check_unfolded_size(proto.node, MAX_NODES)
    collapsed, renamed = collapse_loops(parse_nodes(proto.node))
    refs = None if outputs is None else [renamed.get(ref, ref) for ref in outputs]
    nodes, ends = select_nodes(sort_nodes(collapsed), refs)
    if not nodes:
        raise ModelFileError("nothing in it computes a result", remedy="export the model again")
    inner = (node for function in proto.library.function for node in function.node_def)
    training = any(is_backward_kind(node.op) for node in itertools.chain(nodes, inner))
    importer = GraphImporter(library, dims, training=training)
    results = importer.import_graph(FunctionBody("", (), tuple(nodes), ends), strict=outputs is not None)
    dims.check()
    builder = importer.draft.builder
    for value in results:
        if value.tensor >= 0 and value.data is None:
            builder.set_output(value.tensor)
    if not builder.n_ops:
        raise ModelFileError("nothing in it computes a result", remedy="export the model again")
    graph = _assign_groups(builder.build(source), importer.draft.ops)
    # Groups do not follow: the counters that an optimizer updates last would merge all updates into one group.
    graph = mark_backward(graph, graph.ops.backward.tolist())
    counted = [f"{note} ({times} times)" if times > 1 else note for note, times in importer.notes.items()]
    return ImportedModel(graph, warnings=(*notes, *counted, *describe_unknown_shapes(graph)))


def _assign_groups(graph: Graph, ops: Sequence[OpRecord]) -> Graph:
    """Set the colocation groups, which are known only once all ops are."""
    group = dict(zip((record.name for record in ops), find_colocation_groups(ops), strict=True))
    column = np.array([group[name] for name in graph.ops.name], np.int32)
    return replace(graph, ops=replace(graph.ops, group=column))
