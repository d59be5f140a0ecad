"""What each device holds under a placement, as few parts with names: "layers 0–12", "experts of layers 0–31".

Scopes make a tree of modules. A module on one device is a part; one on several is described by what is in it. Numbered
siblings whose parts are alike share a part, whose name has their numbers as ranges. Where most ops have no scope, parts
are ranges of ops in topological order. Every op that has a device is in exactly one part.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from placewise._util.text import shortened
from placewise.coarsen.scopes import split_scope
from placewise.model.columns import Floats, Ints, Longs, firsts_of
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem

MOST_PARTS = 100
"""The most parts of a device; the last one contains all that are smaller."""
MOST_SCOPES = 50_000
"""In graphs with more scopes, parts are ranges of ops: the tree of modules would take seconds."""
RANGES, ALL_RANGES = 3, 24
"""How many ranges of numbers a short name and a full name have."""
LONGEST = 80
"""Letters of a short name; what is longer names a split module without its parts."""
FEW, NAMED = 2, 3
"""How many pieces "except" leaves out of a split module, and how many pieces a part of it names."""
PATTERNS = 4
"""If numbered siblings are split in more ways than that, their parts are not named."""
KINDS = 2
"""How many kinds of op describe a range of ops."""

WHOLE, OWN, SOME, EXCEPT, PHASE, RANGE, REST = "", "own ops", "parts", "except", "phase", "range", "rest"
_NUMBERED = re.compile(r"(.*?)(?<!\d)(0|[1-9]\d{0,8})", re.DOTALL)
_NUMBERS = re.compile(r"(?<!\d)(?:0|[1-9]\d{0,8})(?=[./]|$)")
_LISTS = {word: f"{word}s" for word in ("block", "cell", "expert", "group", "layer", "op", "row", "stage", "step")}
_LISTS |= {plural: plural for plural in _LISTS.values()} | {"h": "layers", "blk": "layers"}
"""Words for lists of modules, and their plurals."""


class _Segment(NamedTuple):
    """A module, or numbered siblings: `path` relative to the segment after it, `numbers` of the siblings.

    `compact` siblings end in their numbers (``layer1``); others are children of a list (``layers.1``). `form` says
    which of its ops are meant, `others` what EXCEPT leaves out and what SOME contains, if that is named.
    """

    form: str = WHOLE
    path: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    compact: bool = False
    others: tuple[tuple[_Segment, ...], ...] = ()


_Label = tuple[_Segment, ...]
"""A part by its segments, innermost first."""
_ALL: _Label = (_Segment(),)
_OWN: _Label = (_Segment(OWN),)
_PARTS: _Label = (_Segment(SOME),)


class _Piece(NamedTuple):
    """Ops of one device: a label relative to the module at hand, their groups, and how many ops they are."""

    device: int
    label: _Label
    groups: list[int]
    ops: int


class _Member(NamedTuple):
    """A submodule: its name, its number (−1: none), and its pieces."""

    name: str
    number: int
    pieces: list[_Piece]


class _ModuleNode:
    """A module: its only device (−1: several), its submodules, and its own groups of ops."""

    __slots__ = ("home", "inside", "own")

    def __init__(self, home: int) -> None:
        self.home = home
        self.inside: dict[str, _ModuleNode] = {}
        self.own: list[int] = []

    def all_groups(self) -> list[int]:
        """The groups of ops in the module and its submodules."""
        found, waiting = list[int](), [self]
        for module in waiting:
            found += module.own
            waiting += module.inside.values()
        return found


@dataclass(frozen=True, slots=True)
class ModulePart:
    """Ops of one device under one name.

    `short` is the name with at most three ranges of numbers and `LONGEST` letters. `seconds` is per sample; `bytes` are
    distinct weights and state. `first` is the first of the ops in topological order. `parts` counts what a part of
    small ones contains.
    """

    device: int
    name: str
    short: str
    ops: int
    seconds: float
    bytes: int
    first: int
    parts: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class ModuleParts:
    """The parts of a placement, by device and largest first, and the part `of` [n_ops] each op (−1: on no device)."""

    parts: tuple[ModulePart, ...]
    of: Ints

    def on(self, device: int) -> list[ModulePart]:
        """The parts of a device, largest first."""
        first, end = (bisect_left(self.parts, home, key=attrgetter("device")) for home in (device, device + 1))
        return list(self.parts[first:end])


def find_parts(graph: Graph, device: Ints, seconds: Floats | None = None) -> ModuleParts:
    """The parts of ops placed by `device` [n_ops]; larger are those of more `seconds` [n_ops], then of more ops."""
    spent = np.zeros(graph.n_ops) if seconds is None else seconds
    scoped = np.array([bool(scope) for scope in graph.ops.scope.values] or [False])[graph.ops.scope.codes]
    by_scope = 2 * int(scoped.sum()) >= graph.n_ops > 0 and len(graph.ops.scope.values) <= MOST_SCOPES
    group, labels = _name_modules(graph, device) if by_scope else _name_ranges(device)
    placed = device >= 0
    kept, of = _keep_largest(group, labels, device, spent)
    count = len(kept)
    first = np.full(count, graph.n_ops, np.int64)
    np.minimum.at(first, of[placed], np.flatnonzero(placed))
    ops = np.bincount(of[placed], minlength=count)
    took = np.bincount(of[placed], weights=spent[placed], minlength=count)
    size = held_bytes(graph, of[placed].astype(np.int64), np.flatnonzero(placed), count)
    namer = _Namer(graph, of, _distinct_paths(graph) if by_scope else set())
    parts = []
    for part, (owner, label, merged) in enumerate(kept):
        names = [namer.name(part, label, merged, limit) for limit in (ALL_RANGES, RANGES)]
        names[1] = shortened(names[1], LONGEST)
        figures = int(ops[part]), float(took[part]), int(size[part]), int(first[part])
        parts.append(ModulePart(owner, names[0], names[1], *figures, merged))
    return ModuleParts(tuple(parts), of)


def parts_of(problem: Problem, placement: Placement) -> ModuleParts:
    """The parts of a placement, larger ones by seconds per sample."""
    return find_parts(problem.graph, placement.device, problem.costs.seconds_on(placement.device))


def list_parts(problem: Problem, placement: Placement) -> dict[str, list[dict[str, Any]]]:
    """Device name → its parts, largest first, as plain data: name, ops, bytes, seconds, the node of the device."""
    parts, nodes = parts_of(problem, placement), problem.cluster.nodes
    return {
        name: [
            {
                "name": part.name,
                "ops": part.ops,
                "bytes": part.bytes,
                "seconds": part.seconds,
                "node": nodes[device],
            }
            for part in parts.on(device)
        ]
        for device, name in enumerate(problem.cluster.names)
    }


def held_bytes(graph: Graph, group: Longs, op: Longs, count: int) -> Longs:
    """Bytes of the state and of the distinct weights of each of `count` groups, given as rows (group, op in it)."""
    uses = np.diff(graph.weight_offsets)[op]
    start = np.repeat(graph.weight_offsets[:-1][op] - np.cumsum(uses) + uses, uses)
    weight = graph.weight_edges.value[start + np.arange(len(start))]
    storage = graph.weights.storage.astype(np.int64)
    span = int(storage.max(initial=0)) + 1
    kept, first = np.unique(np.repeat(group, uses) * span + storage[weight], return_index=True)
    total = np.zeros(count, np.int64)
    np.add.at(total, kept // span, np.maximum(graph.weights.bytes[weight[first]], 0))
    np.add.at(total, group, graph.ops.state_bytes[op])
    return total


def _keep_largest(
    group: Ints, labels: Sequence[_Label], device: Ints, seconds: Floats
) -> tuple[list[tuple[int, _Label, int]], Ints]:
    """(device, label, how many parts it contains) of every part that is kept, and the part of each op."""
    placed = group >= 0
    count = len(labels)
    ops = np.bincount(group[placed], minlength=count)
    took = np.bincount(group[placed], weights=seconds[placed], minlength=count)
    owner = np.zeros(count, np.int64)
    owner[group[placed]] = device[placed]
    order = np.lexsort((np.arange(count), -ops, -took, owner))
    kept: list[tuple[int, _Label, int]] = []
    number = np.full(count + 1, -1, np.int32)
    for home, each in groupby(order.tolist(), lambda part: int(owner[part])):
        members = list(each)
        shown = members if len(members) <= MOST_PARTS else members[: MOST_PARTS - 1]
        for part in shown:
            number[part] = len(kept)
            kept.append((home, labels[part], 1))
        if len(shown) < len(members):
            number[members[len(shown) :]] = len(kept)
            kept.append((home, (_Segment(REST),), len(members) - len(shown)))
    return kept, number[group]


def _name_ranges(device: Ints) -> tuple[Ints, list[_Label]]:
    """Runs of consecutive ops on one device: the run of each op, −1 on no device, and labels."""
    starts = np.ones(len(device), np.bool_)
    starts[1:] = device[1:] != device[:-1]
    run = np.cumsum(starts & (device >= 0)) - 1
    count = int((starts & (device >= 0)).sum())
    return np.where(device >= 0, run, -1).astype(np.int32), [(_Segment(RANGE),)] * count


def _name_modules(graph: Graph, device: Ints) -> tuple[Ints, list[_Label]]:
    """Parts by the tree of modules: the part of each op, −1 on no device, and labels."""
    phase, phases = _split_phases(graph, device)
    key = (phase * len(graph.ops.scope.values) + graph.ops.scope.codes) * (int(device.max(initial=0)) + 2) + device + 1
    _, group = np.unique(key, return_inverse=True)
    first = firsts_of(group)
    owner, sizes = device[first].tolist(), np.bincount(group, minlength=len(first)).tolist()
    roots = [_ModuleNode(int(device.max(initial=-1))) for _ in phases]
    paths = [split_scope(scope) for scope in graph.ops.scope.values]
    codes, of_phase = graph.ops.scope.codes[first].tolist(), phase[first].tolist()
    for number in np.argsort(first, kind="stable").tolist():
        if owner[number] >= 0:
            _add_group(roots[of_phase[number]], paths[codes[number]], number, owner[number])
    pieces = [
        piece._replace(label=(*piece.label, *suffix))
        for root, suffix in zip(roots, phases, strict=True)
        for piece in _describe_module(root, owner, sizes)
        if piece.groups
    ]
    part = np.full(len(first), -1, np.int32)
    for number, piece in enumerate(pieces):
        part[piece.groups] = number
    return part[group], [piece.label for piece in pieces]


def _add_group(root: _ModuleNode, path: Iterable[str], group: int, home: int) -> None:
    """Add a group of ops of one device to its module, making it and those around it if need be."""
    module = root
    if root.home != home:
        root.home = -1 if root.inside or root.own else home
    for name in path:
        inside = module.inside.get(name)
        if inside is None:
            inside = module.inside[name] = _ModuleNode(home)
        elif inside.home != home:
            inside.home = -1
        module = inside
    module.own.append(group)


def _split_phases(graph: Graph, device: Ints) -> tuple[Longs, list[_Label]]:
    """The phase (or direction) of each op and a label per phase, if it is phases that split modules; else one phase."""
    many = bool(graph.phases)
    code = graph.ops.phase.astype(np.int64) if many else graph.ops.backward.astype(np.int64)
    if code.any():
        scope = graph.ops.scope.codes.astype(np.int64)
        used, split = _count_split(scope, device)
        _, split_inside = _count_split(scope * (int(code.max()) + 1) + code, device)
        if 4 * split >= used and 2 * split_inside <= split and split:
            names = [phase.name for phase in graph.phases] if many else ["the forward pass", "the backward pass"]
            return code, [(_Segment(PHASE, (name,)),) for name in names]
    return np.zeros(graph.n_ops, np.int64), [()]


def _count_split(group: Longs, device: Ints) -> tuple[int, int]:
    """How many groups there are, and how many of them are on several devices."""
    pairs = np.unique(group * (int(device.max(initial=0)) + 2) + device + 1) // (int(device.max(initial=0)) + 2)
    _, count = np.unique(pairs, return_counts=True)
    return len(count), int((count > 1).sum())


def _describe_module(module: _ModuleNode, owner: Sequence[int], sizes: Sequence[int]) -> list[_Piece]:
    """The pieces of a module, labelled relative to it; one without a path if all of it is on one device."""
    if module.home >= 0:
        groups = module.all_groups()
        return [_Piece(module.home, _ALL, groups, sum([sizes[group] for group in groups]))]
    own: dict[int, list[int]] = {}
    for group in module.own:
        own.setdefault(owner[group], []).append(group)
    label = _OWN if module.inside else _PARTS
    pieces = [_Piece(home, label, groups, sum([sizes[group] for group in groups])) for home, groups in own.items()]
    families: dict[tuple[str, bool], list[_Member]] = {}
    for name, inside in module.inside.items():
        match = _NUMBERED.fullmatch(name)
        found = _describe_module(inside, owner, sizes)
        key = (match[1], True) if match else (name, False)
        families.setdefault(key, []).append(_Member(name, int(match[2]) if match else -1, found))
    for (prefix, numbered), members in families.items():
        alone = not numbered or (prefix and len(members) == 1)
        pieces += _prefix_names(members) if alone else _join_siblings(prefix, members)
    return pieces


def _merge_pieces(pieces: Sequence[_Piece], label: _Label) -> _Piece:
    if len(pieces) == 1:
        return pieces[0]._replace(label=label)
    groups = [group for piece in pieces for group in piece.groups]
    return _Piece(pieces[0].device, label, groups, sum([piece.ops for piece in pieces]))


def _prefix_names(members: Iterable[_Member]) -> Iterator[_Piece]:
    """The pieces of modules with their names before the labels."""
    for name, _, pieces in members:
        for piece in pieces:
            last = piece.label[-1]
            yield piece._replace(label=(*piece.label[:-1], last._replace(path=(name, *last.path))))


def _join_siblings(prefix: str, members: Iterable[_Member]) -> Iterator[_Piece]:
    """The pieces of numbered siblings: those with one label and device are one."""
    condensed = [(member.number, piece) for member in members for piece in _condense_pieces(member.pieces)]
    unnamed = len({piece.label for _, piece in condensed if piece.label[0].form == SOME}) > PATTERNS
    alike: dict[tuple[int, _Label], tuple[list[int], list[_Piece]]] = {}
    for number, piece in condensed:
        label = () if piece.label == _ALL else piece.label
        if unnamed and label and label[0].form == SOME and len(label) == 1:
            label = (label[0]._replace(others=()),)
        numbers, found = alike.setdefault((piece.device, label), ([], []))
        numbers.append(number)
        found.append(piece)
    for (_, label), (numbers, found) in alike.items():
        siblings = _Segment(WHOLE, (prefix,) if prefix else (), tuple(sorted(numbers)), bool(prefix))
        yield _merge_pieces(found, (*label, siblings))


def _condense_pieces(pieces: list[_Piece]) -> list[_Piece]:
    """Few pieces of a module: the device with most ops may hold all "except" some, and others hold several as one."""
    if len(pieces) <= FEW:
        return pieces
    by_device: dict[int, list[_Piece]] = {}
    for piece in pieces:
        by_device.setdefault(piece.device, []).append(piece)
    most = max(by_device, key=lambda home: sum([piece.ops for piece in by_device[home]]))
    condensed = []
    for home, found in by_device.items():
        others = len(pieces) - len(found)
        if home == most and 0 < others <= FEW and others < len(found):
            left_out = tuple(piece.label for piece in pieces if piece.device != home)
            condensed.append(_merge_pieces(found, (_Segment(EXCEPT, others=left_out),)))
        elif len(found) > 1:
            found.sort(key=lambda piece: -piece.ops)
            condensed.append(_merge_pieces(found, (_Segment(SOME, others=tuple(piece.label for piece in found)),)))
        else:
            condensed += found
    return condensed


class _Namer:
    """Names of parts: paths are as short as they can be told apart."""

    def __init__(self, graph: Graph, of: Ints, paths: set[tuple[str, ...]]) -> None:
        self._graph = graph
        self._order = np.argsort(of, kind="stable")
        self._starts = np.searchsorted(of[self._order], np.arange(int(of.max(initial=-1)) + 2))
        self._ends, self._clashing = _count_endings(paths), _find_clashes(paths)

    def name(self, part: int, label: _Label, merged: int, limit: int) -> str:
        """The name of a part, with at most so many ranges of numbers."""
        form = label[0].form
        if form == REST:
            return f"{merged} smaller parts"
        if form == RANGE:
            return self._name_range(self._ops(part))
        if label[-1].form == PHASE:
            phase = label[-1].path[0]
            return (
                f"all of {phase}" if label[:-1] == _ALL else f"{self.name(part, label[:-1], merged, limit)} in {phase}"
            )
        if label == _ALL:
            return "the whole model"
        if label == _OWN:
            ops = self._ops(part)
            return f"{count_ops(len(ops))} in no module ({self._list_kinds(ops)})"
        name = self._render(label, limit)
        return name if limit > RANGES or len(name) <= LONGEST else self._render(label, limit, brief=True)

    def _ops(self, part: int) -> Longs:
        return self._order[self._starts[part] : self._starts[part + 1]]

    def _name_range(self, ops: Longs) -> str:
        first, last = int(ops[0]), int(ops[-1])
        if first == last:
            return f"op {self._graph.ops.name[first]} ({self._list_kinds(ops)})"
        return f"ops {first}–{last} ({self._list_kinds(ops)})"

    def _list_kinds(self, ops: Longs) -> str:
        """The most frequent kinds of op."""
        kinds = Counter(self._graph.ops.kind.codes[ops].tolist()).most_common()
        names = [self._graph.ops.kind.values[code].rpartition(":")[2] for code, _ in kinds[:KINDS]]
        return ", ".join([*names, "…"] if len(kinds) > KINDS else names)

    def _render(self, label: _Label, limit: int, outer: str = "", *, brief: bool = False) -> str:
        """A label in words; `outer` is the module that it is in, if its name is to be seen in there."""
        words = ""
        places = list(self._places(label, limit, outer))
        for number, (segment, place) in enumerate(places):
            if segment.form == EXCEPT and brief:
                words = f"most of {place}"
            elif segment.form == EXCEPT:
                left_out = " and ".join(self._render(other, limit, place) for other in segment.others)
                nested = outer or number < len(places) - 1
                words = f"{place} (except {left_out})" if nested else f"{place} except {left_out}"
            elif segment.form == OWN:
                words = f"own ops of {place}"
            elif segment.form == SOME:
                words = f"parts of {place}" if brief or outer else self._list_some(segment, place, limit)
            else:
                words = f"{words} of {place}" if words else place
        return words.removesuffix(" of ")

    def _list_some(self, segment: _Segment, place: str, limit: int) -> str:
        """The largest of the modules that a part contains, those that are split themselves last."""
        names = [self._render(other, limit, place) for other in segment.others[:NAMED]] or ["parts"]
        names.sort(key=lambda name: " of " in name)
        if any(place and place in name for name in names):
            names = [name if place in name else f"{name} of {place}" for name in names]
            place = ""
        more = len(segment.others) - len(names)
        names += [f"{more} more"] if more > 0 else []
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        return f"{listed} of {place}" if place else listed

    def _places(self, label: _Label, limit: int, outer: str) -> Iterator[tuple[_Segment, str]]:
        """The segments with their modules in words. One without a path is told by the next: ``layer1.2``."""
        before: list[tuple[_Segment, str]] = []
        for segment in label:
            place = self._render_place(segment, limit)
            if not segment.path:
                before.append((segment, place))
                continue
            numbers = "".join(f".{text}" for _, text in reversed(before) if text)
            yield before[0][0] if before else segment, place + numbers
            before = []
        if before:
            numbers = ".".join(text for _, text in reversed(before) if text)
            yield before[0][0], f"{outer}.{numbers}" if outer and numbers else numbers

    def _render_place(self, segment: _Segment, limit: int) -> str:
        """A module or a list with numbers."""
        path = self._shorten(segment.path)
        word = self._list_word(path)
        if not segment.numbers:
            is_list = word and self._ends[(*map(_plain_name, path), "#")]
            return " ".join((*path[:-1], word)) if is_list else ".".join(path)
        numbers = _format_numbers(segment.numbers, limit)
        if segment.compact or not path:
            return f"{'.'.join(path)}{numbers}"
        if not word:
            return f"{'.'.join(path)}.{numbers}"
        word = word if len(segment.numbers) > 1 else word[:-1]
        return f"{' '.join((*path[:-1], word))} {numbers}"

    def _shorten(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """The shortest end of a path that is the end of no other, and no bare number."""
        plain = tuple(map(_plain_name, path))
        for length in range(1, len(path)):
            if self._ends[plain[-length:]] == 1 and not path[-length].isdecimal():
                return path[-length:]
        return path

    def _list_word(self, path: Sequence[str]) -> str:
        """The plural that a list goes by; "" if it has none, or if a list beside it goes by the same."""
        word = _LISTS.get(path[-1].lower(), "") if path else ""
        return "" if path and path[-1] in self._clashing else word


def _count_endings(paths: Iterable[tuple[str, ...]]) -> Mapping[tuple[str, ...], int]:
    """How many modules end in these names."""
    plain = [tuple(map(_plain_name, path)) for path in paths]
    return Counter(path[start:] for path in plain for start in range(len(path)))


def _find_clashes(paths: Iterable[tuple[str, ...]]) -> set[str]:
    """Names of lists that stand beside another list with the same plural."""
    beside: dict[tuple[str, ...], set[str]] = {}
    for path in paths:
        beside.setdefault((*path[:-1], _plain_name(path[-1])), set()).add(path[-1])
    return {name for names in beside.values() if len(names) > 1 for name in names}


def _distinct_paths(graph: Graph) -> set[tuple[str, ...]]:
    """The modules of a graph without their numbers."""
    known: set[tuple[str, ...]] = set()
    for scope in {_NUMBERS.sub("#", scope) for scope in graph.ops.scope.values}:
        path = split_scope(scope)
        while path and path not in known:
            known.add(path)
            path = path[:-1]
    return known


def _plain_name(name: str) -> str:
    """A name without its number; a word for lists is its plural."""
    return _LISTS.get(name.lower()) or _NUMBERS.sub("#", name)


def count_ops(count: int) -> str:
    """A number of ops with its noun."""
    return f"{count:,} op{'' if count == 1 else 's'}"


def _format_numbers(numbers: Sequence[int], limit: int) -> str:
    """Numbers as ranges, the first of them if there are more than `limit`."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    if len(words) > limit:
        return f"{', '.join(words[:limit])} and {sum(len(run) for run in runs[limit:])} more"
    return ", ".join(words)
