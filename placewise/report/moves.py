"""Which ops moved from device to device, told by modules: as few lines as say it, and none about what stayed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

MOST_LINES, MOST_PAIRS = 24, 12
"""Lines in all, and pairs of devices that get lines of their own."""
_NUMBERED = re.compile(r"(.*?)(\d{1,9})$")

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """So many `ops` went from one device to another: all `of` the ops of a module, or some of them.

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
class _Node:
    """A module: how many ops it has, how many of them moved, and the modules in it."""

    path: Path
    ops: int = 0
    moved: int = 0
    inside: dict[str, _Node] = field(default_factory=dict)


def moves_of(paths: Sequence[Path], before: Sequence[str], after: Sequence[str]) -> tuple[Move, ...]:
    """The moves between two placements, the most ops first; `paths` are the modules of the ops."""
    pairs: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for path, source, target in zip(paths, before, after, strict=True):
        if source != target:
            pairs[source, target].append(path)
    ranked = sorted(pairs.items(), key=lambda item: (-len(item[1]), item[0]))
    room = max(1, MOST_LINES // max(1, min(len(ranked), MOST_PAIRS)))
    sizes = _sizes(paths)
    found: list[Move] = []
    for number, ((source, target), moved) in enumerate(ranked):
        lines = room if number < MOST_PAIRS else 1
        found += [Move(source, target, *told) for told in _told(sizes, moved, lines)]
    return tuple(found)


def module_paths(names: Sequence[str], scopes: Iterable[str] | None = None) -> list[Path]:
    """The module of each op: its scope, where the model has scopes, else its name up to the last "/" or "."."""
    known = list(scopes) if scopes is not None else [""] * len(names)
    if any(known):
        return [_parts(scope) for scope in known]
    return [_parts(name)[:-1] for name in names]


def _parts(name: str) -> Path:
    return tuple(part for part in re.split(r"[/.]", name) if part)


def _sizes(paths: Iterable[Path]) -> Mapping[Path, int]:
    """How many ops every module has, those of the modules in it included."""
    sizes: dict[Path, int] = defaultdict(int)
    for path in paths:
        for depth in range(len(path) + 1):
            sizes[path[:depth]] += 1
    return sizes


def _told(sizes: Mapping[Path, int], moved: Iterable[Path], room: int) -> list[tuple[str, int, int]]:
    """(module, moved ops, all ops) for each line: modules that moved in part are opened while there is room."""
    root = _Node((), sizes[()])
    own: dict[Path, int] = defaultdict(int)
    for path in moved:
        own[path] += 1
        node = root
        node.moved += 1
        for depth, part in enumerate(path, 1):
            node = node.inside.setdefault(part, _Node(path[:depth], sizes[path[:depth]]))
            node.moved += 1
    shown = [root]
    while True:
        inner = [node for node in shown if node.moved < node.ops and node.inside]
        fits = [node for node in inner if len(_runs(_opened(shown, node, own))) <= room]
        if not fits:
            break
        shown = _opened(shown, max(fits, key=lambda node: node.moved), own)
    return _runs(shown)


def _opened(shown: Sequence[_Node], node: _Node, own: Mapping[Path, int]) -> list[_Node]:
    """The nodes with the modules in one of them in its place, and its own ops, if some moved, as a leaf."""
    left = [_Node((*node.path, ""), node.ops, own[node.path])] if own.get(node.path) else []
    return [part for known in shown for part in ([*node.inside.values(), *left] if known is node else [known])]


def _runs(nodes: Iterable[_Node]) -> list[tuple[str, int, int]]:
    """The lines of some modules: neighbours that are numbered one after the other and moved whole are one line."""
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
