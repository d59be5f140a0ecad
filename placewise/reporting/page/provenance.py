"""The provenance of a plan: model, devices, rules and program, and the assumptions and warnings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from placewise._util.units import format_bytes, format_count, format_seconds
from placewise.files.plan_file import PlanFile
from placewise.model.cluster import Cluster
from placewise.model.problem import Problem
from placewise.reporting.page.columns import clean_text
from placewise.reporting.page.plan_view import PlanView

AGREE = 1e-9
"""The judge's value may differ from the plan's by this share: rounding."""


def provenance(view: PlanView) -> dict[str, Any]:
    """Facts as pairs of label and text, tables of devices and links, and lists of warnings and notes."""
    cluster = view.problem.cluster if view.problem else None
    return {
        "facts": [[name, clean_text(text)] for name, text in _facts(view.plan, view.problem) if text],
        "devices": [] if cluster is None else [[clean_text(cell) for cell in row] for row in _devices(cluster)],
        "links": [] if cluster is None else [[clean_text(cell) for cell in row] for row in _links(cluster)],
        "assumed": [] if cluster is None else [clean_text(f"{d.name}: {note}") for d in cluster for note in d.notes],
        "warnings": [clean_text(text) for text in dict.fromkeys(_warnings(view))],
        "notes": [clean_text(note) for note in view.plan.notes],
    }


def _warnings(view: PlanView) -> Iterator[str]:
    plan, judged = view.plan, view.placed.judgement if view.placed else None
    if judged and math.isfinite(plan.value) and abs(judged.value - plan.value) > AGREE * plan.value:
        yield (
            f"The plan says {format_seconds(plan.value)}; priced again it takes {format_seconds(judged.value)}, and "
            "the timeline, memory and cuts are of that. Give the --costs and other options that it was placed with."
        )
    if view.missing:
        yield f"Not shown without the model: the timeline, the graph, memory over time and the cuts ({view.missing})."
    yield from plan.warnings
    if view.problem is not None:
        yield from view.problem.warnings


def _facts(plan: PlanFile, problem: Problem | None) -> Iterator[tuple[str, str]]:
    source, objective, rules, tool = plan.source, plan.objective, plan.constraints, plan.tool
    if source is not None:
        yield "model", source.path
        yield "format", source.format
        yield "sha256 of the file", source.sha256
        yield "read with", ", ".join(f"{name}={value}" for name, value in source.options.items())
        yield "view", ", ".join((source.view, *source.transforms))
    if problem is not None:
        graph = problem.graph
        yield "graph", f"{graph.n_ops:,} ops, {graph.n_tensors:,} tensors, {len(graph.weights):,} weights"
        yield "op times", ", ".join(f"{name} {share:.0%}" for name, share in _sources(problem))
        yield "transfer times", problem.costs.transfer_source
    yield "hash of the graph", plan.graph_hash
    if objective is not None:
        hows = {"throughput": objective.communication, "step": objective.schedule}
        how = hows.get(objective.kind, objective.execution)
        flushes = f", {objective.schedule}" if objective.kind == "throughput" else ""
        yield "objective", f"{objective.kind} ({how}{flushes}; memory {objective.memory})"
    if rules is not None:
        shape = "contiguous stages" if rules.contiguous else "convex sets" if rules.convex else "any placement"
        shape += " in the order of the devices" if rules.ordered else ""
        yield "shape", shape
        yield "pins", "; ".join(f"{rule.pattern} on {rule.device}" for rule in rules.pins)
        yield "forbidden", "; ".join(f"{rule.pattern} not on {rule.device}" for rule in rules.forbidden)
        share = [f"{rules.headroom:.0%} of every accelerator"] if rules.headroom else []
        some = (
            f"{format_bytes(x.bytes) if x.bytes else f'{x.share:.0%}'} of {x.device or 'every accelerator'}"
            for x in rules.spare
        )
        yield "headroom", "; ".join((*share, *some))
        yield "kept together", f"{len(rules.together):,} sets of ops" if rules.together else ""
    yield "placer", f"{plan.placer}, {format_seconds(plan.seconds)}, seed {plan.seed}" if plan.placer else ""
    yield "answer", f"{plan.status} ({plan.reason})"
    yield "made by", f"{tool.name} {tool.version}" if tool else ""
    yield "plan format", f"version {plan.version}"


def _sources(problem: Problem) -> Iterator[tuple[str, float]]:
    costs = problem.costs
    count = np.bincount(costs.op_source[np.isfinite(costs.op_seconds)].ravel(), minlength=len(costs.sources))
    for name, number in zip(costs.sources, count.tolist(), strict=True):
        if number:
            yield name, number / count.sum()


def _devices(cluster: Cluster) -> Iterator[list[str]]:
    for device in cluster:
        speed = max(device.peak_flops.items(), key=lambda item: item[1], default=None)
        yield [
            device.name,
            device.kind,
            format_bytes(device.memory),
            "" if speed is None or math.isinf(speed[1]) else f"{format_count(speed[1])}FLOP/s {speed[0]}",
            "" if math.isinf(device.memory_bandwidth) else f"{format_bytes(device.memory_bandwidth)}/s",
        ]


def _links(cluster: Cluster) -> Iterator[list[str]]:
    for link in cluster.links[:64]:
        speed = "" if math.isinf(link.bandwidth) else f"{format_bytes(link.bandwidth)}/s"
        yield [f"{link.source} → {link.target}", speed, format_seconds(link.latency), link.shared]
