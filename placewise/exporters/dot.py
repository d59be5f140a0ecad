"""Graphviz: the graph in the DOT language, a cluster of boxes per device, arrows between devices with their bytes.

In a large graph, ops of one device share a box if their scopes begin alike. The attribute `comment` of a box names its
ops.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from urllib.parse import quote, unquote

import numpy as np

from placewise._util.units import format_bytes, format_seconds
from placewise.errors import ExportError
from placewise.exporters.base import Exported, ExportInfo, ExportOption, OptionValues
from placewise.exporters.commands import printable
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate import judge_placement
from placewise.transform.precision import PRECISIONS

FILE = "plan.dot"
FEWEST = 0.1
"""If scopes make fewer boxes than this share of the maximum, runs of consecutive ops make the boxes instead."""
_COLOURS = (
    "#a6cee3", "#b2df8a", "#fdbf6f", "#cab2d6", "#fb9a99", "#ffff99", "#80cdc1", "#dfc27d", "#d9d9d9", "#fccde5",
)  # fmt: skip
_CLUSTER = re.compile(r'^  subgraph "cluster_(\d+)" \{')
_BOX = re.compile(r'^    n\d+ \[.*comment="([^"]*)"\];')


class DotExporter:
    """A directed graph from top to bottom."""

    info = ExportInfo(
        "dot",
        writes="a graph in the DOT language",
        loaded_by="Graphviz 2.42 (dot -Tsvg plan.dot)",
        verified="parsed by the tool's own code",
        cannot_say="the order of ops, and replicas of stages",
        suffix=".dot",
        splits=True,
        sequence_parallel=True,
        precisions=tuple(PRECISIONS),
        disk=True,
        options={"most": ExportOption(200, "the most boxes before ops are drawn together, 1 or more")},
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        most = int(options["most"])
        if most < 1:
            raise ExportError(f"most is {most}", remedy="allow one box or more")
        projected = replace(placement, call=None, order=None, replicas=None)
        label, texts = _group_boxes(problem, projected.device, most)
        lines = ["digraph plan {", '  graph [rankdir=TB, fontname="Helvetica"];']
        lines += [
            '  node [shape=box, style="filled,rounded", fontname="Helvetica"];',
            '  edge [color="#555555", fontname="Helvetica"];',
        ]
        lines += [
            *_draw_clusters(problem, projected, label, texts),
            *_draw_edges(problem, projected.device, label),
            "}",
            "",
        ]
        return Exported({FILE: "\n".join(lines)}, projected)

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        index = {name: op for op, name in enumerate(problem.graph.ops.name)}
        read, device = np.full(problem.n_ops, -1, np.int32), -1
        for line in str(exported.files[FILE]).splitlines():
            cluster, box = _CLUSTER.match(line), _BOX.match(line)
            device = int(cluster[1]) if cluster else device
            for word in box[1].split() if box else ():
                op = index.get(unquote(word), -1)
                if op < 0 or read[op] >= 0:
                    raise ExportError(f"op {unquote(word)!r} is in two boxes, or is not in the model")
                read[op] = device
        return read


def _group_boxes(problem: Problem, device: Ints, most: int) -> tuple[Ints, list[str]]:
    """The box [n_ops] of every op, numbered by first op, and the texts of the boxes."""
    graph, count = problem.graph, problem.n_ops
    if count <= most:
        return np.arange(count, dtype=np.int32), [
            f"{name}\n{kind}" for name, kind in zip(graph.ops.name, graph.ops.kind, strict=True)
        ]
    words = [re.split(r"[./]", scope) if scope else [] for scope in graph.ops.scope.values]
    for depth in range(max(map(len, words), default=0), 0, -1):
        stems = [".".join(parts[:depth]) for parts in words]
        keys = [(stems[code], place) for code, place in zip(graph.ops.scope.codes.tolist(), device, strict=True)]
        if len(set(keys)) <= most:
            if len(set(keys)) >= FEWEST * most:
                return _number_boxes(keys)
            break
    return _number_boxes(_group_runs(problem, device, most))


def _group_runs(problem: Problem, device: Ints, most: int) -> list[tuple[str, int]]:
    """Runs of consecutive ops of a device, of equal length, so that there are at most `most` boxes."""
    names, size = problem.graph.ops.name, -(-problem.n_ops // max(most - problem.n_devices, 1))
    keys: list[tuple[str, int]] = [("", 0)] * problem.n_ops
    for place in np.unique(device).tolist():
        ops = np.flatnonzero(device == place).tolist()
        for start in range(0, len(ops), size):
            some = ops[start : start + size]
            text = names[some[0]] if len(some) == 1 else f"{names[some[0]]} … {names[some[-1]]}"
            for op in some:
                keys[op] = (text, place)
    return keys


def _number_boxes(keys: Sequence[tuple[str, int]]) -> tuple[Ints, list[str]]:
    number: dict[tuple[str, int], int] = {}
    label = np.array([number.setdefault(key, len(number)) for key in keys], np.int32)
    ops = np.bincount(label).tolist()
    return label, [f"{text or 'no scope'}\n{ops[box]} ops" for box, (text, _) in enumerate(number)]


def _draw_clusters(problem: Problem, placement: Placement, label: Ints, texts: Sequence[str]) -> Iterator[str]:
    device, names = placement.device, problem.graph.ops.name
    members: list[list[str]] = [[] for _ in texts]
    for name, box in zip(names, label.tolist(), strict=True):
        members[box].append(quote(name, safe="/:._-"))
    home = np.zeros(len(texts), np.int32)
    home[label] = device
    for place, use in enumerate(judge_placement(problem, placement).devices):
        about = f"{use.device}\n{format_seconds(use.load)} of work, {format_bytes(use.peak)}"
        colour = _COLOURS[place % len(_COLOURS)]
        yield f'  subgraph "cluster_{place}" {{'
        yield f'    graph [label="{_escape_label(about)}", style=rounded, color="{colour}"];'
        for box in np.flatnonzero(home == place).tolist():
            named = f'label="{_escape_label(texts[box])}", fillcolor="{colour}", comment="{" ".join(members[box])}"'
            yield f"    n{box} [{named}];"
        yield "  }"


def _draw_edges(problem: Problem, device: Ints, label: Ints) -> Iterator[str]:
    """An arrow per pair of boxes: with its bytes between devices, dashed between phases of the model."""
    graph = problem.graph
    phase, nbytes = graph.ops.phase, np.maximum(graph.tensors.bytes, 0).tolist()
    carried: dict[tuple[int, int], set[int]] = {}
    crosses, later = set[tuple[int, int]](), set[tuple[int, int]]()
    uses = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets)).tolist()
    for tensor, reader in zip(uses, graph.consumers.tolist(), strict=True):
        maker = int(graph.tensors.producer[tensor])
        pair = (int(label[maker]), int(label[reader]))
        if maker >= 0 and pair[0] != pair[1]:
            carried.setdefault(pair, set()).add(tensor)
            crosses |= {pair} if device[maker] != device[reader] else set()
            later |= {pair} if phase[maker] != phase[reader] else set()
    for pair, tensors in carried.items():
        text = format_bytes(sum(nbytes[tensor] for tensor in tensors))
        about = f'label="{text}", color="#cc0000", penwidth=2' if pair in crosses else 'label=""'
        yield f"  n{pair[0]} -> n{pair[1]} [{about}{', style=dashed, constraint=false' if pair in later else ''}];"


def _escape_label(text: str) -> str:
    lines = (printable(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n"))
    return "\\n".join(lines)
