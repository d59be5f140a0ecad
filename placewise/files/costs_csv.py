"""Op seconds as CSV with the columns ``op,device,seconds``: one row per op and device, in any order."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator
from io import StringIO

import numpy as np

from placewise.errors import CostError
from placewise.files.atomic import atomic_write
from placewise.files.records import naming, read_bytes
from placewise.model.cluster import Cluster
from placewise.model.columns import Bools, Floats
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.graph import Graph

COLUMNS = ["op", "device", "seconds"]


def save_costs_csv(costs: CostTable, graph: Graph, cluster: Cluster, path: str | os.PathLike[str]) -> None:
    """Write the op seconds of a table; ``inf`` where a device cannot run an op. Raises OutputError or CostError."""
    costs.validate(graph, cluster)
    with atomic_write(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for op, row in zip(graph.ops.name, costs.op_seconds.tolist(), strict=True):
            writer.writerows((op, device, repr(seconds)) for device, seconds in zip(cluster.names, row, strict=True))


def load_costs_csv(
    path: str | os.PathLike[str], graph: Graph, cluster: Cluster, *, base: CostTable | None = None
) -> CostTable:
    """The figures of a CSV file, over those of `base`; without `base` every op needs one for every device.

    Transfers are those of `base`, or follow from bytes and links. Raises CostError with the line.
    """
    text = read_bytes(path, CostError)
    with naming(path):
        seconds, given = _figures(text, graph, cluster)
        if base is None:
            if not given.all():
                op, device = np.argwhere(~given)[0]
                raise CostError(
                    f"has no time of op {graph.ops.name[op]!r} on {cluster.names[device]}", remedy="add a row for it"
                )
            costs = CostTable(
                seconds, transfer_seconds_of(graph, cluster), np.zeros(seconds.shape, np.int8), transfer_source="bytes"
            )
        else:
            base.validate(graph, cluster)
            sources = base.sources if "given" in base.sources else (*base.sources, "given")
            costs = CostTable(
                np.where(given, seconds, base.op_seconds),
                base.transfer_seconds,
                np.where(given, sources.index("given"), base.op_source),
                sources,
                base.transfer_source,
            )
        costs.validate(graph, cluster)
        return costs


def _figures(text: bytes, graph: Graph, cluster: Cluster) -> tuple[Floats, Bools]:
    seconds = np.zeros((graph.n_ops, len(cluster)))
    given = np.zeros(seconds.shape, np.bool_)
    op_of = {name: row for row, name in enumerate(graph.ops.name)}
    device_of = {name: column for column, name in enumerate(cluster.names)}
    for line, (op, device, figure) in _rows(text):
        if op not in op_of:
            raise CostError(f"the model has no op {op!r}", where=f"line {line}", remedy="use the names of this model")
        if device not in device_of:
            continue
        place = op_of[op], device_of[device]
        if given[place]:
            raise CostError(f"a second time of op {op!r} on {device}", where=f"line {line}", remedy="keep one of them")
        seconds[place], given[place] = _seconds(figure, line), True
    return seconds, given


def _rows(text: bytes) -> Iterator[tuple[int, list[str]]]:
    try:
        rows = csv.reader(StringIO(text.decode("utf-8-sig"), newline=""), strict=True)
        if [name.strip() for name in next(rows, [])] != COLUMNS:
            raise CostError("does not begin with the line op,device,seconds", where="line 1", remedy="add it")
        for row in rows:
            if row and len(row) != len(COLUMNS):
                raise CostError(
                    f"has {len(row)} fields instead of 3",
                    where=f"line {rows.line_num}",
                    remedy="quote names with commas",
                )
            if row:
                yield rows.line_num, row
    except (UnicodeDecodeError, csv.Error) as error:
        raise CostError(f"is not a CSV text ({error})", remedy="save it as UTF-8 with commas") from None


def _seconds(figure: str, line: int) -> float:
    try:
        value = float(figure)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise CostError(f"{figure!r} is not a time", where=f"line {line}", remedy="give seconds ≥ 0, or inf")
    return value
