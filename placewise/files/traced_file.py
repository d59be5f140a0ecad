"""Traced models as files of the cache: the columns of a graph, and the reader's warnings and modules in the header."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field

from placewise.errors import ModelFileError
from placewise.files.columns import read_columns, write_columns
from placewise.files.graph_file import GraphHeader, decode_graph, encode_graph
from placewise.files.records import Record
from placewise.model.graph import Graph


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
