"""Times of ops from the kernels of a profiler: they add up to the time of the whole model. And sets of fused ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewise.costing.measured.attribute import distribute_times
from placewise.costing.measured.load import match_rows
from placewise.costing.measured.table import TimingRow, Timings
from placewise.files.profile_file import Figures
from placewise.model.columns import Bools, Floats
from placewise.model.graph import Graph
from placewise.profiling.servers.window import ProfiledRuns

Fused = tuple[tuple[int, ...], ...]


def attribute_times(
    measured: ProfiledRuns, graph: Graph, estimate: Floats, idle: Bools, call: float
) -> tuple[Figures, Fused]:
    """The seconds of the ops in one window, and the sets of ops that share a kernel.

    The time of a kernel is divided among its ops in proportion to `estimate` [n_ops]; `idle` ops [n_ops] run in no
    kernel; `call` is the overhead of a call. The rest of a run is dispatch, the same for every kernel. Kernel times are
    scaled to fill the run without the profiler, since the profiler slows kernels down and other programs disturb runs;
    time of no op is spread over all ops. So the ops and the call add up to the whole. Raises CostError if no kernel
    matches an op.
    """
    owners, _ = match_rows(Timings("profile", measured.rows), graph, idle)
    whole, kernels = float(np.median(measured.whole)), sum(row.seconds for row in measured.rows)
    inside = max(whole - call, 0.0)
    besides = min(max(measured.besides - call, 0.0), inside / 2)
    dispatch = besides / len(measured.rows)
    slowdown = kernels / (inside - besides) if inside and kernels else 1.0
    rows = [_with_seconds(row, row.seconds / slowdown + dispatch) for row in measured.rows]
    share = distribute_times(rows, owners, estimate)
    factor = inside / share.given if share.given else 1.0
    outside = sum(row.seconds for row, ops in zip(measured.rows, owners, strict=True) if not ops)
    low, high = np.percentile(measured.whole, (25, 75))
    figures = Figures(
        whole=whole, spread=float(high - low) / whole, runs=len(measured.whole), kernels=kernels, outside=outside,
        dispatch=dispatch, slowdown=slowdown,
        ops=tuple(
            seconds * factor if known else None
            for seconds, known in zip(share.seconds.tolist(), share.measured.tolist(), strict=True)
        ),
    )  # fmt: skip
    return figures, find_fused(owners, graph, idle)


def find_fused(owners: Sequence[Sequence[int]], graph: Graph, idle: Bools) -> Fused:
    """Sets of two or more ops of one kernel, with the views between them: idle ops whose neighbours are all inside."""
    kernel = np.full(graph.n_ops, -1, np.int64)
    for number, ops in enumerate(owners):
        if len(ops) > 1:
            kernel[list(ops)] = number
    for op in np.flatnonzero(idle & (kernel < 0)).tolist():
        producers = graph.tensors.producer[graph.inputs_of(op)].tolist()
        makers = {int(kernel[maker]) for maker in producers if maker >= 0}
        readers = {int(kernel[reader]) for tensor in graph.outputs_of(op) for reader in graph.consumers_of(tensor)}
        if len(makers) == 1 and (readers <= makers) and readers:
            kernel[op] = makers.pop()
    sets: dict[int, list[int]] = {}
    for op in np.flatnonzero(kernel >= 0).tolist():
        sets.setdefault(int(kernel[op]), []).append(op)
    return tuple(tuple(ops) for ops in sets.values() if len(ops) > 1)


def _with_seconds(row: TimingRow, seconds: float) -> TimingRow:
    return TimingRow(row.name, seconds, row.kind, row.ops, row.device, row.place, row.aliases)
