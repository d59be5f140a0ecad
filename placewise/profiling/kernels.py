"""Kernels that a profiler saw → times of ops that add up to what the whole model took, and what is fused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewise.costing.measured.attribute import distribute_times
from placewise.costing.measured.load import match_rows
from placewise.costing.measured.table import TimingRow, Timings
from placewise.files.profile_file import Figures
from placewise.model.columns import Bools, Floats
from placewise.model.graph import Graph
from placewise.profiling.servers.window import Measured

Fused = tuple[tuple[int, ...], ...]


def attributed(measured: Measured, graph: Graph, estimate: Floats, idle: Bools, call: float) -> tuple[Figures, Fused]:
    """What the ops took in one window, and the sets of ops that share a kernel.

    A kernel's time is shared out over its ops as `estimate` [n_ops] says; `idle` ops run in no kernel; `call` is what
    every call costs. What a run takes besides kernels and call is the dispatch, the same for every kernel. Kernels are
    divided by what they together are more (the profiler slowed them) or less (something else disturbed the run) than
    the rest of the run without the profiler; what belongs to no op is spread over all. So ops and call together are the
    whole. Raises CostError if nothing matches.
    """
    owners, _ = match_rows(Timings("profile", measured.rows), graph, idle)
    whole, kernels = float(np.median(measured.whole)), sum(row.seconds for row in measured.rows)
    inside = max(whole - call, 0.0)
    besides = min(max(measured.besides - call, 0.0), inside / 2)
    dispatch = besides / len(measured.rows)
    slowdown = kernels / (inside - besides) if inside and kernels else 1.0
    rows = [_timed(row, row.seconds / slowdown + dispatch) for row in measured.rows]
    share = distribute_times(rows, owners, estimate)
    factor = inside / share.given if share.given else 1.0
    outside = sum(row.seconds for row, found in zip(measured.rows, owners, strict=True) if not found)
    low, high = np.percentile(measured.whole, (25, 75))
    figures = Figures(
        whole=whole, spread=float(high - low) / whole, runs=len(measured.whole), kernels=kernels, outside=outside,
        dispatch=dispatch, slowdown=slowdown,
        ops=tuple(
            seconds * factor if known else None
            for seconds, known in zip(share.seconds.tolist(), share.measured.tolist(), strict=True)
        ),
    )  # fmt: skip
    return figures, fused_sets(owners, graph, idle)


def fused_sets(owners: Sequence[Sequence[int]], graph: Graph, idle: Bools) -> Fused:
    """Sets of two ops or more of one kernel, with the views between them: idle ops whose neighbours are all inside."""
    kernel = np.full(graph.n_ops, -1, np.int64)
    for number, found in enumerate(owners):
        if len(found) > 1:
            kernel[list(found)] = number
    for op in np.flatnonzero(idle & (kernel < 0)).tolist():
        makers = {int(kernel[maker]) for maker in makers_of(graph, op)}
        readers = {int(kernel[reader]) for tensor in graph.outputs_of(op) for reader in graph.consumers_of(tensor)}
        if len(makers) == 1 and (readers <= makers) and readers:
            kernel[op] = makers.pop()
    sets: dict[int, list[int]] = {}
    for op in np.flatnonzero(kernel >= 0).tolist():
        sets.setdefault(int(kernel[op]), []).append(op)
    return tuple(tuple(ops) for ops in sets.values() if len(ops) > 1)


def makers_of(graph: Graph, op: int) -> list[int]:
    """The ops whose results `op` reads."""
    return [maker for maker in graph.tensors.producer[graph.inputs_of(op)].tolist() if maker >= 0]


def _timed(row: TimingRow, seconds: float) -> TimingRow:
    return TimingRow(row.name, seconds, row.kind, row.ops, row.device, row.place, row.aliases)
