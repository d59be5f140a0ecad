"""Graphs, clusters and problems as notebooks show them: what they consist of, in tables."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from placewise._util.units import format_bytes, format_count, format_seconds
from placewise.model.cluster import Cluster, Device
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.reporting.console import rows_table
from placewise.reporting.notebook import render_html
from placewise.reporting.plain import shown_text

MAX_KINDS, MAX_LINKS, MAX_ENDS = 12, 12, 4
"""How many kinds of op, links, and inputs or outputs are shown."""
_DTYPES = ("float32", "float16")


def graph_html(graph: Graph) -> str:
    """A graph for notebooks."""
    return render_html(_graph_view(graph))


def cluster_html(cluster: Cluster) -> str:
    """A cluster for notebooks."""
    return render_html(_cluster_view(cluster))


def problem_html(problem: Problem) -> str:
    """A problem for notebooks: objective and rules, cluster, graph, and where the costs come from."""
    rules, costs = problem.constraints, problem.costs
    lines = [f"pin {rule.pattern!r} to {rule.device}" for rule in rules.pins]
    lines += [f"keep {rule.pattern!r} off {rule.device}" for rule in rules.forbidden]
    lines += ["stages form a chain"] * rules.contiguous + ["no path returns to a device"] * rules.convex
    lines += [f"{len(rules.together)} sets of ops stay together"] if rules.together else []
    counts = np.bincount(costs.op_source.ravel(), minlength=len(costs.sources))
    sources = ", ".join(f"{name} {n / counts.sum():.0%}" for name, n in zip(costs.sources, counts, strict=True) if n)
    return render_html(
        shown_text(f"minimize {problem.objective}", style="bold"),
        *(shown_text(line) for line in lines),
        shown_text(f"op times: {sources or 'none'}"),
        _cluster_view(problem.cluster),
        _graph_view(problem.graph),
    )


def _graph_view(graph: Graph) -> RenderableType:
    column = graph.ops.kind
    ops = np.bincount(column.codes, minlength=len(column.values))
    made = np.flatnonzero(graph.tensors.producer >= 0)
    outputs = np.bincount(
        column.codes[graph.tensors.producer[made]],
        np.maximum(graph.tensors.bytes[made], 0).astype(np.float64),
        len(column.values),
    )
    order = [code for code in np.argsort(-ops, kind="stable").tolist() if ops[code]]
    rows = [(column.values[code], str(ops[code]), format_bytes(outputs[code])) for code in order[:MAX_KINDS]]
    _, first = np.unique(graph.weights.storage, return_index=True)
    weights = format_bytes(float(np.maximum(graph.weights.bytes[first], 0).sum(dtype=np.float64)))
    counts = f"{graph.n_ops} ops, {graph.n_tensors} tensors, {graph.n_edges} edges, {weights} of weights"
    lines = [f"phase {phase.name}, ×{phase.repeats}" for phase in graph.phases]
    lines += _describe_ends(graph, "input", np.flatnonzero(graph.tensors.producer < 0).tolist())
    lines += _describe_ends(graph, "output", np.flatnonzero(graph.tensors.output).tolist())
    more = [f"… and {len(order) - MAX_KINDS} more kinds"] if len(order) > MAX_KINDS else []
    return Group(
        shown_text(counts, style="bold"), *map(shown_text, lines), rows_table(("kind", "ops ", "outputs "), rows),
        *map(shown_text, more),
    )  # fmt: skip


def _describe_ends(graph: Graph, what: str, tensors: list[int]) -> list[str]:
    lines = []
    for tensor in tensors[:MAX_ENDS]:
        shape = "×".join("?" if size < 0 else str(size) for size in graph.tensors.shape[tensor]) or "scalar"
        lines.append(f"{what} {graph.tensors.name[tensor]}: {shape} {graph.tensors.dtype_name(tensor)}")
    return lines + ([f"… and {len(tensors) - MAX_ENDS} more {what}s"] if len(tensors) > MAX_ENDS else [])


def _cluster_view(cluster: Cluster) -> RenderableType:
    speeds = rows_table(
        ("device", "kind", "memory ", "bandwidth ", *(f"{dtype} " for dtype in _DTYPES)), [*map(_device_row, cluster)]
    )
    rows = [
        (link.source, link.target, f"{format_bytes(link.bandwidth)}/s", format_seconds(link.latency), link.shared)
        for link in cluster.links[:MAX_LINKS]
    ]
    parts = [rows_table(("from", "to", "bandwidth ", "latency ", "shared wire"), rows)] if rows else []
    more = len(cluster.links) - MAX_LINKS
    return Group(
        shown_text(f"{len(cluster)} devices, transfers {cluster.transfers}", style="bold"), speeds, *parts,
        *([Text(f"… and {more} more links")] if more > 0 else []),
    )  # fmt: skip


def _device_row(device: Device) -> tuple[str, ...]:
    peak = device.peak_flops
    speeds = [f"{format_count(peak[dtype])}FLOP/s" if dtype in peak else "–" for dtype in _DTYPES]
    return device.name, device.kind, format_bytes(device.memory), f"{format_bytes(device.memory_bandwidth)}/s", *speeds
