"""read_tensorflow: the steps from a file to a reading."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from placewise.errors import InputError, ModelFileError
from placewise.model.graph import Graph, Source
from placewise.readers.base import ImportedModel
from placewise.readers.tensorflow.cost_graph import read_cost_graph
from placewise.readers.tensorflow.draft import OpRecord
from placewise.readers.tensorflow.file import load, resolve_file
from placewise.readers.tensorflow.groups import find_colocation_groups
from placewise.readers.tensorflow.importer import MOST_NODES, GraphImporter
from placewise.readers.tensorflow.inputs import InputDims
from placewise.readers.tensorflow.kinds import is_backward_kind
from placewise.readers.tensorflow.library import Library, sort_nodes
from placewise.readers.tensorflow.nodes import FunctionBody, OutputRef, parse_nodes, parse_reference
from placewise.readers.tensorflow.reachable import select_nodes
from placewise.readers.tensorflow.tf1_loops import collapse_loops
from placewise.readers.unknown import unknown_shapes

_NO_DIMS: Mapping[str, int] = MappingProxyType({})
DEFAULT_SIGNATURE = "serving_default"


def read_tensorflow(path: Path, *, dims: Mapping[str, int] = _NO_DIMS) -> ImportedModel:
    """Read a GraphDef, MetaGraphDef, SavedModel or CostGraphDef (``.pb``, ``.pbtxt``) as the raw view.

    One op per node that runs with the model, except placeholders, which are the model's inputs, and constants and
    variables, which are weights. Calls of functions are written out, and loops whose number of rounds follows from
    constants; other loops and conditions stay one op. What only initializes, saves or restores is left out.
    `dims` gives open dimensions of inputs their numbers: ``{"batch": 8}`` for the first one, ``{"input:1": 128}``
    for others. `origin` holds indices into the nodes of the file's graph (none for ops of functions). Ops keep the
    file's colocation and its devices (attribute ``device``); a training graph's backward ops are marked.

    Raises ModelFileError or GraphError, naming the file.
    """
    path = resolve_file(Path(path))
    try:
        message, kind, sha256 = load(path)
        source = Source(str(path), sha256, "tensorflow", options={"dims": dict(dims)}, view="raw")
        if kind in ("CostGraphDef", "RunMetadata"):
            if dims:
                raise ModelFileError("a CostGraphDef has no open dimensions", remedy="leave out --dim")
            return read_cost_graph(message.cost_graph if kind == "RunMetadata" else message, source)
        graph, outputs, notes = _select_graph(message, kind)
        return _import_graph(graph, outputs, InputDims(dims), source, notes)
    except InputError as error:
        raise error.at(str(path)) from None


def _select_graph(message: Any, kind: str) -> tuple[Any, list[OutputRef] | None, list[str]]:
    """The graph of a message, the outputs that a signature names, and notes."""
    if kind == "GraphDef":
        return message, None, []
    notes = []
    if kind == "SavedModel":
        if not message.meta_graphs:
            raise ModelFileError("there is no graph in it", remedy="save the model again")
        if len(message.meta_graphs) > 1:
            notes.append(f"the first of {len(message.meta_graphs)} graphs is read")
        message = message.meta_graphs[0]
    signatures = {
        name: s for name, s in sorted(message.signature_def.items()) if s.outputs and not name.startswith("__")
    }
    if not signatures:
        return message.graph_def, None, notes
    name = DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in signatures else next(iter(signatures))
    if len(signatures) > 1:
        others = ", ".join(map(repr, [other for other in signatures if other != name][:5]))
        notes.append(f"the outputs are those of the signature {name!r}, not of {others}")
    infos = sorted(signatures[name].outputs.items())
    return message.graph_def, [parse_reference(info.name, f"signature {name}") for _, info in infos if info.name], notes


def _import_graph(
    proto: Any, outputs: list[OutputRef] | None, dims: InputDims, source: Source, notes: list[str]
) -> ImportedModel:
    if not proto.node:
        raise ModelFileError("the graph has no nodes", remedy="export the model again")
    if len(proto.node) > MOST_NODES:
        raise ModelFileError(f"the graph has more than {MOST_NODES:,} nodes", remedy="export a smaller part of it")
    library = Library(proto.library)
    library.check_unfolded_size(proto.node, MOST_NODES)
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
    graph = _closed(_assign_groups(builder.build(source), importer.draft.ops))
    counted = [f"{note} ({times} times)" if times > 1 else note for note, times in importer.notes.items()]
    return ImportedModel(graph, warnings=(*notes, *counted, *unknown_shapes(graph)))


def _assign_groups(graph: Graph, ops: Sequence[OpRecord]) -> Graph:
    """The graph with its colocation groups, which are known only when all ops are."""
    group = dict(zip((made.name for made in ops), find_colocation_groups(ops), strict=True))
    column = np.array([group[name] for name in graph.ops.name], np.int32)
    return replace(graph, ops=replace(graph.ops, group=column))


def _closed(graph: Graph) -> Graph:
    """The graph with every op that reads what a backward op makes, or waits for one, as a backward op too.

    Groups do not follow: the counters that an optimizer changes at the end would join all updates in one.
    """
    if not graph.ops.backward.any():
        return graph
    backward = graph.ops.backward.tolist()
    producers = graph.tensors.producer[graph.edges.value].tolist()
    for consumer, producer in zip(graph.edges.consumer.tolist(), producers, strict=True):
        backward[consumer] = backward[consumer] or (producer >= 0 and backward[producer])
    return replace(graph, ops=replace(graph.ops, backward=np.array(backward, np.bool_)))
