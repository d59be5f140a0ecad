"""Graph files: the columns of a graph in a columnar file; dtypes, phases and source in its header.

Traced models are such files of the cache, with the reader's warnings and modules in the header.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from placewise.errors import GraphError, ModelFileError, locate_errors
from placewise.files.attributes import attributes_from_json, attributes_to_json
from placewise.files.columns import Array, ColumnReader, ragged_arrays, read_columns, string_arrays, write_columns
from placewise.files.records import Record, Whole
from placewise.model.builder import plain
from placewise.model.dtypes import DTYPES, dtype_code
from placewise.model.graph import Graph, Source
from placewise.model.tables import Edges, Interned, Ops, Phase, Tensors, Weights

_COLUMNS: Mapping[str, Mapping[str, type[np.generic]]] = {
    "ops": {"backward": np.bool_, "group": np.int32, "state_bytes": np.int64},
    "tensors": {"producer": np.int32, "bytes": np.int64, "output": np.bool_},
    "weights": {"bytes": np.int64, "storage": np.int32},
    "edges": {"value": np.int32, "consumer": np.int32, "position": np.int32},
}


class SourceRecord(Record):
    """The model file of a graph."""

    path: str
    sha256: str = Field(description="of the model file")
    format: str
    options: Annotated[dict[str, Any], BeforeValidator(plain)] = Field({}, description="options of the reader")
    view: str = Field("folded", description="raw or folded")
    transforms: tuple[str, ...] = Field((), description="in order of application")


class PhaseRecord(Record):
    """A phase of a graph: its ops run `repeats` times per sample, after the previous phases."""

    name: str
    repeats: Whole = Field(1, ge=1)


class GraphHeader(Record):
    """The header of a graph file."""

    format: Literal["placewise-graph"] = "placewise-graph"
    version: Literal[1] = 1
    n_ops: int = Field(ge=0)
    n_tensors: int = Field(ge=0)
    n_weights: int = Field(ge=0)
    dtypes: tuple[str, ...] = Field(description="names of the codes in the dtype columns")
    source: SourceRecord | None = None
    phases: tuple[PhaseRecord, ...] = Field((), description="phases that the column ops.phase indexes; empty: none")
    frozen: bool = Field(False, description="whether the column weights.trainable exists; without it all train")
    digest: str = Field(
        "", description="sha256 of the model, where a target counts its state anew; empty: of the columns"
    )


def save_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph file. Raises OutputError."""
    write_columns(path, *encode_graph(graph))


def load_graph(path: str | os.PathLike[str]) -> Graph:
    """The graph of a graph file. Raises ModelFileError or GraphError."""
    header, arrays = read_columns(path, GraphHeader)
    with locate_errors(path):
        return decode_graph(header, arrays)


def encode_graph(graph: Graph) -> tuple[GraphHeader, dict[str, Array]]:
    """The header and the arrays of a graph."""
    ops = graph.ops
    arrays: dict[str, Array] = {
        **string_arrays("ops.name", ops.name),
        **string_arrays("ops.kind", ops.kind.values),
        **string_arrays("ops.scope", ops.scope.values),
        "ops.attributes.json": np.frombuffer(attributes_to_json(ops.attributes.values), np.uint8),
        **{f"ops.{name}.codes": getattr(ops, name).codes for name in ("kind", "scope", "attributes")},
        **ragged_arrays("ops.origin", ops.origin),
    }
    for name, table in (("tensors", graph.tensors), ("weights", graph.weights)):
        arrays |= string_arrays(f"{name}.name", table.name) | ragged_arrays(f"{name}.shape", table.shape)
    for name in ("ops", "tensors", "weights"):
        arrays[f"{name}.dtype"] = getattr(graph, name).dtype
    for name, columns in (*_COLUMNS.items(), ("weight_edges", _COLUMNS["edges"])):
        arrays |= {f"{name}.{column}": getattr(getattr(graph, name), column) for column in columns}
    header = GraphHeader(
        n_ops=graph.n_ops,
        n_tensors=graph.n_tensors,
        n_weights=len(graph.weights),
        dtypes=DTYPES,
        source=source_record(graph.source),
        phases=tuple(PhaseRecord(name=phase.name, repeats=phase.repeats) for phase in graph.phases),
        frozen=not graph.weights.trainable.all(),
        digest=graph.known_digest,
    )
    if header.frozen:
        arrays["weights.trainable"] = graph.weights.trainable
    if graph.phases:
        arrays["ops.phase"] = ops.phase
    return header, arrays


def decode_graph(header: GraphHeader, arrays: ColumnReader) -> Graph:
    """The graph in header and arrays. Raises ModelFileError or GraphError."""
    n_ops, n_tensors, n_weights = header.n_ops, header.n_tensors, header.n_weights
    codes = np.array([dtype_code(name) for name in header.dtypes], np.int8)
    attributes = attributes_from_json(arrays.take("ops.attributes.json", np.uint8, None).tobytes())
    ops = Ops(
        name=arrays.strings("ops.name", n_ops),
        kind=_read_interned(arrays, "ops.kind", _read_vocabulary(arrays, "ops.kind"), n_ops),
        scope=_read_interned(arrays, "ops.scope", _read_vocabulary(arrays, "ops.scope"), n_ops),
        attributes=_read_interned(arrays, "ops.attributes", attributes, n_ops),
        dtype=_read_dtypes(arrays, "ops", n_ops, codes),
        origin=arrays.ragged("ops.origin", n_ops),
        phase=arrays.take("ops.phase", np.int8, n_ops) if header.phases else np.zeros(n_ops, np.int8),
        **_read_plain_columns(arrays, "ops", n_ops),
    )
    tensors = Tensors(
        name=arrays.strings("tensors.name", n_tensors),
        dtype=_read_dtypes(arrays, "tensors", n_tensors, codes),
        shape=arrays.ragged("tensors.shape", n_tensors),
        **_read_plain_columns(arrays, "tensors", n_tensors),
    )
    weights = Weights(
        name=arrays.strings("weights.name", n_weights),
        dtype=_read_dtypes(arrays, "weights", n_weights, codes),
        shape=arrays.ragged("weights.shape", n_weights),
        trainable=_read_trainable(header, arrays),
        **_read_plain_columns(arrays, "weights", n_weights),
    )
    edges, weight_edges = _read_edges(arrays, "edges"), _read_edges(arrays, "weight_edges")
    phases = tuple(Phase(phase.name, phase.repeats) for phase in header.phases)
    source = None if header.source is None else Source(**dict(header.source))
    graph = Graph(ops, tensors, weights, edges, weight_edges, source, phases)
    return graph.with_digest(header.digest) if header.digest else graph


def _read_trainable(header: GraphHeader, arrays: ColumnReader) -> Array:
    if not header.frozen:
        return np.ones(header.n_weights, np.bool_)
    return arrays.take("weights.trainable", np.bool_, header.n_weights)


def source_record(source: Source | None) -> SourceRecord | None:
    """The record of a source."""
    return None if source is None else SourceRecord.model_validate(source)


def _read_vocabulary(arrays: ColumnReader, name: str) -> tuple[str, ...]:
    values = arrays.strings(name, None)
    if len(set(values)) < len(values):
        raise ModelFileError(f"the vocabulary {name!r} holds a word twice", remedy="make the file again")
    return values


def _read_interned(arrays: ColumnReader, name: str, values: tuple[Any, ...], rows: int) -> Interned[Any]:
    return Interned(values, arrays.take(f"{name}.codes", np.int32, rows))


def _read_dtypes(arrays: ColumnReader, table: str, rows: int, codes: Array) -> Array:
    column = arrays.take(f"{table}.dtype", np.int8, rows)
    if len(column) and not 0 <= column.min() <= column.max() < len(codes):
        raise ModelFileError(f"'{table}.dtype' holds a code outside the header's list", remedy="make the file again")
    return codes[column]


def _read_plain_columns(arrays: ColumnReader, table: str, rows: int) -> dict[str, Array]:
    return {name: arrays.take(f"{table}.{name}", dtype, rows) for name, dtype in _COLUMNS[table].items()}


def _read_edges(arrays: ColumnReader, table: str) -> Edges:
    value = arrays.take(f"{table}.value", np.int32, None)
    columns = {name: arrays.take(f"{table}.{name}", np.int32, len(value)) for name in _COLUMNS["edges"]}
    if columns["position"].min(initial=0) < 0:
        raise GraphError(f"'{table}.position' holds a negative position", remedy="check the edge list")
    return Edges(**columns)


class TracedHeader(Record):
    """The header of a traced model."""

    format: Literal["placewise-traced"] = "placewise-traced"
    version: Literal[1] = 1
    key: str = Field(description="of everything that the graph depends on")
    graph: GraphHeader
    warnings: tuple[str, ...]
    modules: dict[str, str]


TracedModel = tuple[Graph, tuple[str, ...], dict[str, str]]
"""A graph, the warnings of its reader, and the class names of its modules by path."""


def save_traced(path: str | os.PathLike[str], key: str, model: TracedModel) -> None:
    """Write a traced model. Raises OutputError."""
    graph, warnings, modules = model
    header, arrays = encode_graph(graph)
    write_columns(path, TracedHeader(key=key, graph=header, warnings=warnings, modules=modules), arrays)


def load_traced(path: str | os.PathLike[str], key: str) -> TracedModel:
    """The traced model in a file. Raises ModelFileError or GraphError for any other file, and for another key."""
    header, arrays = read_columns(path, TracedHeader)
    if header.key != key:
        raise ModelFileError("belongs to another model", where=str(path), remedy="trace it again")
    return decode_graph(header.graph, arrays), header.warnings, header.modules
