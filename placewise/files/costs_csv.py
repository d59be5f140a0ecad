"""Op seconds as CSV with the columns ``op,device,seconds``: one row per op and device, in any order."""

from __future__ import annotations

import csv
import os

from placewise.files.atomic import atomic_write
from placewise.model.cluster import Cluster
from placewise.model.costs import CostTable
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
