"""Where the plan cuts the graph: what each way between two memories carries, and what it costs."""

from __future__ import annotations

from typing import Any

from placewise.model.cluster import HOST
from placewise.model.dtypes import DTYPES
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Timeline
from placewise.report.copies import Copies, copies_of, ways_of
from placewise.report.page.packed import shown

MOST_CUTS, MOST_TENSORS, MOST_READERS = 24, 12, 3
"""How many cuts a page lists, tensors of each, and readers of a tensor."""


def cuts_part(problem: Problem, placement: Placement, timeline: Timeline | None) -> dict[str, Any]:
    """The dearest ways first: `cuts` with their dearest tensors; `left` other ways; the `seconds` of all."""
    copies = copies_of(problem, placement, timeline)
    ways, names = ways_of(problem, copies), (*problem.cluster.names, HOST)
    cuts = [
        {
            "source": shown(names[way.source]),
            "target": shown(names[way.target]),
            "count": len(way.rows),
            "bytes": way.bytes,
            "seconds": way.seconds,
            "tensors": [_tensor(problem, placement, copies, row) for row in way.rows[:MOST_TENSORS].tolist()],
        }
        for way in ways[:MOST_CUTS]
    ]
    return {"cuts": cuts, "left": max(len(ways) - MOST_CUTS, 0), "seconds": float(copies.seconds.sum())}


def _tensor(problem: Problem, placement: Placement, copies: Copies, row: int) -> dict[str, Any]:
    graph, tensor, target = problem.graph, int(copies.tensor[row]), int(copies.target[row])
    readers = graph.consumers_of(tensor)
    there = readers[problem.cluster.location[placement.device[readers]] == target]
    readers = there if len(there) else readers
    start, stop = graph.tensors.shape.offsets[tensor : tensor + 2].tolist()
    shape = ["?" if size < 0 else str(size) for size in graph.tensors.shape.values[start:stop].tolist()]
    return {
        "name": shown(graph.tensors.name[tensor]),
        "shape": " × ".join(shape),
        "dtype": DTYPES[int(graph.tensors.dtype[tensor])],
        "bytes": max(int(graph.tensors.bytes[tensor]), 0),
        "seconds": float(copies.seconds[row]),
        "maker": int(graph.tensors.producer[tensor]),
        "readers": readers[:MOST_READERS].tolist(),
        "more": max(len(readers) - MOST_READERS, 0),
    }
