"""Which ops moved between two placements, in as few lines per module as possible; ops that stayed are left out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placewise.model.cluster import Cluster, Device
from placewise.model.columns import Ints, Longs

MAX_LINES, MAX_PAIRS = 24, 12
"""Lines in all, and pairs of devices that get lines of their own."""
_NUMBERED = re.compile(r"(.*?)(\d{1,9})$")

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """`ops` of the `of` ops of a module went from one device to another.

    `module` is a name, or the first and last name of a run ("layer.3 – layer.7"); "" is the whole model.
    """

    source: str
    target: str
    module: str
    ops: int
    of: int

    @property
    def whole(self) -> bool:
        return self.ops == self.of


@dataclass(slots=True)
class _ModuleNode:
    """A module: how many ops it has, how many of them moved, and its submodules."""

    path: Path
    ops: int = 0
    moved: int = 0
    inside: dict[str, _ModuleNode] = field(default_factory=dict)


def list_moves(paths: Sequence[Path], before: Sequence[str], after: Sequence[str]) -> tuple[Move, ...]:
    """The moves between two placements, most ops first; `paths` are the modules of the ops."""
    pairs: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for path, source, target in zip(paths, before, after, strict=True):
        if source != target:
            pairs[source, target].append(path)
    ranked = sorted(pairs.items(), key=lambda item: (-len(item[1]), item[0]))
    room = max(1, MAX_LINES // max(1, min(len(ranked), MAX_PAIRS)))
    sizes = _count_ops(paths)
    moves: list[Move] = []
    for number, ((source, target), moved) in enumerate(ranked):
        lines = room if number < MAX_PAIRS else 1
        moves += [Move(source, target, *line) for line in _summarize_moves(sizes, moved, lines)]
    return tuple(moves)


def module_paths(names: Sequence[str], scopes: Iterable[str] | None = None) -> list[Path]:
    """The module of each op: its scope, where the model has scopes, else its name up to the last "/" or "."."""
    known = list(scopes) if scopes is not None else [""] * len(names)
    if any(known):
        return [_split_name(scope) for scope in known]
    return [_split_name(name)[:-1] for name in names]


def match_interchangeable(cluster: Cluster, before: Ints, after: Ints) -> tuple[str, int]:
    """Which equal devices swap places between two placements [n_ops], and how many ops move apart from that.

    The text is "" where swaps explain less than half of the moves.
    """
    count = np.zeros((len(cluster), len(cluster)), np.int64)
    np.add.at(count, (before, after), 1)
    partner = _match_devices(cluster, count)
    moved = int(count.sum() - count.trace())
    left = int(count.sum() - count[np.arange(len(cluster)), partner].sum())
    if not moved or left > moved / 2:
        return "", moved
    names = cluster.names
    return ", ".join(f"{names[d]} → {names[e]}" for d, e in enumerate(partner) if d != e), left


def _match_devices(cluster: Cluster, count: Longs) -> list[int]:
    """For each device an equal one that holds most of its ops afterwards; each is matched once, most ops first."""
    figures = [_device_figures(device) for device in cluster]
    pairs = [
        (-int(count[d, e]), d != e, d, e)
        for d in range(len(cluster))
        for e in range(len(cluster))
        if figures[d] == figures[e]
    ]
    partner: dict[int, int] = {}
    taken: set[int] = set()
    for _, _, d, e in sorted(pairs):
        if d not in partner and e not in taken:
            partner[d] = e
            taken.add(e)
    return [partner[d] for d in range(len(cluster))]


def _device_figures(device: Device) -> tuple[Any, ...]:
    """Everything that distinguishes devices except their names and links."""
    speeds = tuple(sorted(device.peak_flops.items())), tuple(sorted(device.efficiency.items()))
    overheads = device.op_overhead, device.call_overhead, device.streams
    memory = device.memory, device.reserved, device.memory_bandwidth
    return device.kind, memory, speeds, overheads, device.unsupported, device.supported, device.available


def _split_name(name: str) -> Path:
    return tuple(part for part in re.split(r"[/.]", name) if part)


def _count_ops(paths: Iterable[Path]) -> Mapping[Path, int]:
    """The number of ops of every module, submodules included."""
    sizes: dict[Path, int] = defaultdict(int)
    for path in paths:
        for depth in range(len(path) + 1):
            sizes[path[:depth]] += 1
    return sizes


def _summarize_moves(sizes: Mapping[Path, int], moved: Iterable[Path], room: int) -> list[tuple[str, int, int]]:
    """(module, moved ops, all ops) per line; modules that moved in part are expanded while there is room."""
    root = _ModuleNode((), sizes[()])
    own: dict[Path, int] = defaultdict(int)
    for path in moved:
        own[path] += 1
        node = root
        node.moved += 1
        for depth, part in enumerate(path, 1):
            node = node.inside.setdefault(part, _ModuleNode(path[:depth], sizes[path[:depth]]))
            node.moved += 1
    nodes = [root]
    while True:
        inner = [node for node in nodes if node.moved < node.ops and node.inside]
        fits = [node for node in inner if len(_merge_runs(_expand_node(nodes, node, own))) <= room]
        if not fits:
            return _merge_runs(nodes)
        nodes = _expand_node(nodes, max(fits, key=lambda node: node.moved), own)


def _expand_node(nodes: Sequence[_ModuleNode], node: _ModuleNode, own: Mapping[Path, int]) -> list[_ModuleNode]:
    """The nodes with one of them replaced by its submodules, and by a leaf for its own ops if any moved."""
    leaf = [_ModuleNode((*node.path, ""), node.ops, own[node.path])] if own.get(node.path) else []
    return [part for known in nodes for part in ([*node.inside.values(), *leaf] if known is node else [known])]


def _merge_runs(nodes: Iterable[_ModuleNode]) -> list[tuple[str, int, int]]:
    """A line per module; consecutively numbered modules that moved as a whole share one."""
    lines: list[tuple[str, int, int]] = []
    last: tuple[str, int] | None = None
    first = ""
    for node in nodes:
        name = ".".join(part for part in node.path if part)
        numbered = _NUMBERED.match(name) if node.moved == node.ops else None
        key = (numbered[1], int(numbered[2])) if numbered else None
        if key is not None and last == (key[0], key[1] - 1):
            _, moved, ops = lines.pop()
            lines.append((f"{first} – {name}", moved + node.moved, ops + node.ops))
        else:
            first = name
            lines.append((name, node.moved, node.ops))
        last = key
    return lines
