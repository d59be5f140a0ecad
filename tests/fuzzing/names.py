"""Hostile names of ops, tensors, modules and devices, followed through everything that Placewise writes."""

from __future__ import annotations

import ast
import csv
import io
import json
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from random import Random

from fuzzing.case_result import Unsound
from fuzzing.seeds import Seed
from fuzzing.tokens import TEXTS
from placewise.analysis.compare import compare, tabulate_entries
from placewise.analysis.explain import explain
from placewise.analysis.inspect import inspect
from placewise.analysis.report import open_result, render_page
from placewise.core.build import build
from placewise.core.place import place
from placewise.errors import ExportError, MissingExtraError
from placewise.exporters import registry
from placewise.exporters.writing import export_placement
from placewise.files.plan_file import load_plan, save_plan
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device, Link
from placewise.model.graph import Graph
from placewise.placers.base import Budget
from placewise.readers.base import ImportedModel
from placewise.reporting.console import result_view
from placewise.reporting.leaderboard import render_leaderboard
from placewise.reporting.plain import plain

NAMES = (
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "javascript:alert(1)", "=cmd|' /C calc'!A0",
    "+1+1", "@SUM(1)", "-2+3", '"; touch pwned; "', "$(touch pwned)", "`touch pwned`", "'; import os; '", '"""',
    "\\\n# stage 0", "*/ alert(1) /*", "a\n\nb", "é\u202e\u2028", "{{7*7}}", "${7*7}", "%(name)s", "{0.__class__}",
    "@data@", "&lt;", *(text for text in TEXTS if text.strip()),
)  # fmt: skip
MEGABYTE = "m" * (1 << 20)


class _Page(HTMLParser):
    """The tags of a page, and whether one of them acts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if any(name.startswith("on") or "javascript:" in (value or "") for name, value in attrs):
            raise Unsound(f"the page has a tag that acts: {tag} {attrs}")


def tags_of(page: str) -> list[str]:
    parser = _Page()
    parser.feed(page)
    return parser.tags


def graph_named(rng: Random, names: tuple[str, ...]) -> Graph:
    """A stack of layers whose ops, tensors, weights and modules have these names."""
    builder = GraphBuilder()
    value = builder.add_tensor(-1, name=rng.choice(names), shape=(2, 4), dtype="float32")
    for layer in range(4):
        scope = f"layers.{layer}.{rng.choice(names)}"
        op = builder.add_op(f"{rng.choice(names)}{layer}", "MatMul", scope=scope)
        weight = builder.add_weight(f"{rng.choice(names)}{layer}", shape=(4, 4), dtype="float32")
        builder.add_edge(value, op)
        builder.use_weight(weight, op)
        value = builder.add_tensor(
            op, name=f"{rng.choice(names)}{layer}", shape=(2, 4), dtype="float32", output=layer == 3
        )
    return builder.build()


def cluster_named(names: tuple[str, ...]) -> Cluster:
    devices = tuple(
        Device(name, peak_flops={"float32": 1e12}, memory_bandwidth=1e11, memory=1e9) for name in dict.fromkeys(names)
    )
    ends = [*(device.name for device in devices), "host"]
    links = tuple(Link(a, b, 1e10) for a in ends for b in ends if a != b)
    return Cluster(devices, links, "direct")


def has_megabyte(rng: Random) -> bool:
    """Whether one of the names of a journey is as long."""
    return rng.random() < 0.02


def journey(path: Path, seed: Seed, rng: Random) -> None:
    """Place, save, print, report and export, and read what was written with the parsers of its formats."""
    names = (MEGABYTE,) * has_megabyte(rng) + tuple(rng.sample(NAMES, 6))
    graph, cluster = graph_named(rng, names), cluster_named(tuple(name[:300] for name in rng.sample(names, 2)))
    problem = build(ImportedModel(graph), cluster)
    result = place(problem, "heft", Budget())
    entries = compare(problem, ["single", "heft"], Budget())
    board = tabulate_entries(entries)
    for text in (plain(result_view(result)), *(render_leaderboard(board, form) for form in ("table", "markdown"))):
        if any(ord(letter) < 0x20 and letter != "\n" for letter in text):
            raise Unsound("control characters are printed")
    json.loads(render_leaderboard(board, "json"))
    for row in csv.reader(io.StringIO(render_leaderboard(board, "csv"))):
        if any(cell[:1] in ("=", "@") for cell in row):
            raise Unsound(f"a spreadsheet would compute {row}")
    inspect(ImportedModel(graph))
    explain(problem, result.placement, graph.ops.name[0]) if rng.random() < 0.3 else None
    save_plan(result, path)
    if list(load_plan(path).assignment) != list(graph.ops.name):
        raise Unsound("the plan has other names")
    tags = tags_of(render_page(open_result(result)))
    if tags.count("script") != 2 or "img" in tags:
        raise Unsound(f"the page has tags of names: {tags}")
    for target in registry.names():
        try:
            made = export_placement(problem, result.placement, target)
        except (ExportError, MissingExtraError):
            continue
        for name, content in made.exported.files.items():
            _require_parsed(name if "." in name else f"{name}{made.info.suffix}", content)


def _require_parsed(name: str, content: str | bytes) -> None:
    """Raise an error of its parser for what is no text of its format."""
    if name.endswith(".json"):
        json.loads(content)
    elif name.endswith(".py"):
        ast.parse(content)
    elif name.endswith(".sh"):
        subprocess.run(["bash", "-n"], input=content if isinstance(content, bytes) else content.encode(), check=True)
