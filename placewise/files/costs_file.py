"""Cost table files in the columnar format.

Rows and columns are matched by name, so a table also serves a model or a cluster with another order of ops or devices.
"""

from __future__ import annotations

import os
from typing import Literal, TypeVar

import numpy as np
from pydantic import Field

from placewise.errors import CostError, ModelFileError, locate_errors
from placewise.files.columns import Array, ColumnReader, read_columns, string_arrays, write_columns
from placewise.files.records import Record
from placewise.model.cluster import Cluster
from placewise.model.columns import Longs
from placewise.model.costs import CostTable
from placewise.model.graph import Graph

K = TypeVar("K")


class CostSources(Record):
    """The sources of the figures in a cost table."""

    sources: tuple[str, ...] = Field(description="names of the codes in op_source")
    transfer_source: str
    spread: float = Field(0.0, ge=0, allow_inf_nan=False, description="relative spread of measured times")


class CostsHeader(CostSources):
    """The header of a cost table file."""

    format: Literal["placewise-costs"] = "placewise-costs"
    version: Literal[1] = 1
    devices: tuple[str, ...] = Field(description="names of the columns of op_seconds")


def save_costs(costs: CostTable, graph: Graph, cluster: Cluster, path: str | os.PathLike[str]) -> None:
    """Write a cost table with the names of its rows and columns. Raises OutputError or CostError."""
    costs.validate(graph, cluster)
    header = CostsHeader(devices=cluster.names, **dict(cost_sources(costs)))
    names = string_arrays("ops", graph.ops.name) | string_arrays("tensors", graph.tensors.name)
    links = {"links.bandwidth": cluster.class_bandwidth, "links.latency": cluster.class_latency}
    write_columns(path, header, {**encode_costs(costs), **names, **links})


def load_costs(path: str | os.PathLike[str], graph: Graph, cluster: Cluster) -> CostTable:
    """The table of a file, in the order of `graph` and `cluster`.

    The file may have more devices and link classes than the cluster, but its ops and tensors must be those of the
    graph. Raises ModelFileError or CostError.
    """
    header, arrays = read_columns(path, CostsHeader)
    with locate_errors(path):
        ops, tensors = arrays.strings("ops", None), arrays.strings("tensors", None)
        bandwidth = arrays.take("links.bandwidth", np.float64, None)
        links = [
            *zip(bandwidth.tolist(), arrays.take("links.latency", np.float64, len(bandwidth)).tolist(), strict=True)
        ]
        if not links:
            raise ModelFileError("has no transfer times", remedy="make the file again")
        table = decode_costs(header, arrays, (len(ops), len(header.devices)), (len(tensors), len(links)))
        op_rows = _match_rows(ops, graph.ops.name, "op", complete=True)
        columns = _match_rows(header.devices, cluster.names, "device")
        tensor_rows = _match_rows(tensors, graph.tensors.name, "tensor", complete=True)
        expected = [*zip(cluster.class_bandwidth.tolist(), cluster.class_latency.tolist(), strict=True)]
        classes = np.concatenate(([0], 1 + _match_rows(links[1:], expected[1:], "link with (bandwidth, latency)")))
        costs = CostTable(
            table.op_seconds[np.ix_(op_rows, columns)],
            table.transfer_seconds[np.ix_(tensor_rows, classes)],
            table.op_source[np.ix_(op_rows, columns)],
            header.sources,
            header.transfer_source,
            header.spread,
        )
        costs.validate(graph, cluster)
        return costs


def cost_sources(costs: CostTable) -> CostSources:
    """The sources of the figures in a table."""
    return CostSources(sources=costs.sources, transfer_source=costs.transfer_source, spread=costs.spread)


def encode_costs(costs: CostTable) -> dict[str, Array]:
    """The arrays of a table, without the names of rows and columns."""
    return {name: getattr(costs, name) for name in ("op_seconds", "op_source", "transfer_seconds")}


def decode_costs(
    header: CostSources, arrays: ColumnReader, ops: tuple[int, int], tensors: tuple[int, int]
) -> CostTable:
    """The table in header and arrays; `ops` and `tensors` are its shapes. Raises ModelFileError or CostError."""
    source = arrays.take("op_source", np.int8, *ops)
    if source.size and not 0 <= source.min() <= source.max() < len(header.sources):
        raise CostError("'op_source' holds a code outside the header's list", remedy="make the file again")
    op_seconds = arrays.take("op_seconds", np.float64, *ops)
    transfer_seconds = arrays.take("transfer_seconds", np.float64, *tensors)
    return CostTable(op_seconds, transfer_seconds, source, header.sources, header.transfer_source, header.spread)


def _match_rows(
    names: tuple[K, ...] | list[K], expected: tuple[K, ...] | list[K], what: str, *, complete: bool = False
) -> Longs:
    """The row of each `expected` name in `names`. With `complete`, `names` must not have others."""
    place = {name: row for row, name in enumerate(names)}
    if len(place) < len(names):
        raise CostError(f"the table has a {what} twice", remedy="make the file again")
    missing = next((name for name in expected if name not in place), None)
    if missing is not None:
        raise CostError(
            f"there are no costs for the {what} {missing!r}", remedy="make a table for this model and cluster"
        )
    if complete and len(names) > len(expected):
        known = set(expected)
        unexpected = next(name for name in names if name not in known)
        raise CostError(f"the model has no {what} {unexpected!r}", remedy="use the table of this model")
    return np.array([place[name] for name in expected], np.int64)
