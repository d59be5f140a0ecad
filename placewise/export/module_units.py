"""Whole modules on devices, as hooks on modules can say them: which ops have to be together, and what keys say it.

A *unit* is what gets a device: a module that holds weights, a module that may not be split, or a weight that its
module holds beside such modules. Inputs of a unit are moved to it. All other ops happen between units, where nothing
is moved: they run where their inputs are, so all that meets in one of them has to be on one device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from placewise._util.regex import compiled, in_time
from placewise.model.columns import Ints
from placewise.model.graph import Graph

NUMBERED = r"^.*?(?:^|\.)\d+(?=\.|$)"
"""The outermost module that has a number: a layer of a list of layers."""
_LIFTED = re.compile(r"(^|\.)(lifted_tensor_|_tensor_constant|c_lifted)\w*$")
FIRST_EXTRA = 1 << 16
"""Argument position from which on values stand that an op only waits for."""


@dataclass(frozen=True, slots=True)
class Modules:
    """The tensors of a model by full name, in order, and the modules that may not be split.

    `storage` is equal for tensors that share memory (the name itself where nothing is known).
    """

    tensors: tuple[str, ...]
    whole: frozenset[str] = frozenset()
    storage: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class ModuleUnits:
    """The units of a model: `names` in order, `of` [n_ops] the unit of each op, −1 for an op between units.

    `label` [n_ops] numbers sets of ops that have to be on one device, and `unit_label` is the set that each unit is
    in; `main` is that of what reads the model's inputs between units.
    """

    names: tuple[str, ...]
    of: Ints
    label: Ints
    unit_label: tuple[int, ...]
    main: int


def find_modules(graph: Graph, pattern: str = NUMBERED) -> Modules:
    """The modules that the weights and scopes of a graph, best the raw view, tell of; `pattern` finds whole ones."""
    scopes = {prefix for scope in graph.ops.scope.values for prefix in _prefixes(scope)}
    tensors = [name for name in graph.weights.name if not _LIFTED.search(name)]
    known = [name for name in tensors if _parent(name) in scopes or graph.source is None or _is_raw(graph)]
    storage = dict(zip(graph.weights.name, graph.weights.storage.tolist(), strict=True))
    paths = {prefix for name in known for prefix in _prefixes(_parent(name))} | scopes
    return Modules(tuple(known), find_whole_modules(paths, pattern), {name: storage[name] for name in known})


def find_whole_modules(paths: Iterable[str], pattern: str) -> frozenset[str]:
    """The modules, among paths and what is above them, that a regular expression finds in the paths."""
    if not pattern:
        return frozenset()
    regex = compiled(pattern)
    with in_time(pattern, 0):
        return frozenset(match[0] for match in map(regex.search, paths) if match is not None and match[0])


def find_units(graph: Graph, modules: Modules) -> ModuleUnits:
    """What has to be together: by module, by shared memory, and by what meets between units."""
    unit_of_tensor = _units(modules)
    names = tuple(dict.fromkeys(unit_of_tensor.values()))
    number = {name: place for place, name in enumerate(names)}
    by_scope = [_of(scope, number) for scope in graph.ops.scope.values]
    of = np.array(by_scope, np.int32)[graph.ops.scope.codes] if by_scope else np.zeros(0, np.int32)
    sets = _DisjointSets(graph.n_ops + len(names) + 1)
    main = graph.n_ops + len(names)
    for op, unit in enumerate(of.tolist()):
        if unit >= 0:
            sets.join(op, graph.n_ops + unit)
    _join_ties(sets, graph, modules, unit_of_tensor, number)
    _join_between(sets, graph, of.tolist(), main)
    for place, name in enumerate(names):
        if "." not in name and name in modules.tensors:
            sets.join(main, graph.n_ops + place)
    label = sets.labels()
    return ModuleUnits(names, of, label[: graph.n_ops], tuple(label[graph.n_ops : main].tolist()), int(label[main]))


def colocated_ops(graph: Graph, units: ModuleUnits) -> tuple[tuple[str, ...], ...]:
    """The sets of ops, by name, that have to be on one device."""
    found: dict[int, list[str]] = {}
    for name, label in zip(graph.ops.name, units.label.tolist(), strict=True):
        found.setdefault(label, []).append(name)
    return tuple(tuple(names) for names in found.values() if len(names) > 1)


def compress_keys(graph: Graph, units: ModuleUnits, device: Ints) -> dict[str, int]:
    """Module (or tensor) → device of ops placed by `device` [n_ops], with as few keys as say it.

    A unit without ops goes where units of its set are, else with its nearest neighbour.
    """
    by_label = dict(zip(units.label.tolist(), device.tolist(), strict=True))
    said = [by_label.get(label) for label in units.unit_label]
    for place, found in enumerate(said):
        if found is None:
            near = sorted(range(len(said)), key=lambda other: (-_shared(units.names, place, other), abs(other - place)))
            said[place] = next((said[other] for other in near if said[other] is not None), int(device[0]))
    between = zip(graph.ops.scope, units.of.tolist(), device.tolist(), strict=True)
    others = [(scope, home) for scope, unit, home in between if unit < 0]
    return _joined(dict(zip(units.names, (int(found or 0) for found in said), strict=True)), others)


def locate_ops(graph: Graph, keys: Mapping[str, int], main: int) -> Ints:
    """Where every op [n_ops] runs under keys: in the module that a key names, else where its inputs are.

    Inputs of the model and of its phases are on `main`. Raises SplitInputsError where inputs on several devices meet between
    modules.
    """
    named = [_of(scope, keys) for scope in graph.ops.scope.values]
    found = [named[code] for code in graph.ops.scope.codes.tolist()]
    keyed = [device >= 0 for device in found]
    weight = graph.weights.name
    free: list[int] = []
    for op in range(graph.n_ops):
        if keyed[op]:
            continue
        there = [found[made] if made >= 0 else main for made in _makers(graph, op)]
        there += [_of(weight[w], keys) for w in graph.weights_of(op)]
        known = set(there) - {-1}
        if len(known) > 1:
            read = [_module_of(graph, keys, made) for made in _makers(graph, op)]
            read += [f"the weight {weight[w]!r}" for w in graph.weights_of(op)]
            raise SplitInputsError(graph.ops.name[op], dict(zip(read, there, strict=True)))
        found[op] = known.pop() if known else -1
        if found[op] < 0:
            free.append(op)
    for op in reversed(free):
        readers = [int(user) for t in graph.outputs_of(op) for user in graph.consumers_of(t)]
        found[op] = found[readers[0]] if readers and found[readers[0]] >= 0 else main
    return np.array(found, np.int32)


def _module_of(graph: Graph, keys: Mapping[str, int], op: int) -> str:
    """The module of a map that an op is in, in words; −1 is the model's inputs."""
    if op < 0:
        return "the model's inputs"
    scope = graph.ops.scope[op]
    module = next((prefix for prefix in ("", *_prefixes(scope)) if prefix in keys), None)
    return f"the op {graph.ops.name[op]!r}" if module is None else f"the module {module!r}"


def _units(modules: Modules) -> dict[str, str]:
    """Tensor → the unit that it is in."""
    holders = {_parent(name) for name in modules.tensors} - {""}
    above = {prefix for path in modules.whole for prefix in _prefixes(_parent(path))}
    found = {}
    for name in modules.tensors:
        path = _parent(name)
        whole = next((prefix for prefix in _prefixes(path) if prefix in modules.whole), "")
        own = next((prefix for prefix in _prefixes(path) if prefix in holders and prefix not in above), "")
        found[name] = whole or own or name
    return found


def _join_ties(
    sets: _DisjointSets, graph: Graph, modules: Modules, unit_of_tensor: Mapping[str, str], number: Mapping[str, int]
) -> None:
    """Tensors that share memory, and ops that read a tensor of a unit which is not theirs."""
    first: dict[object, str] = {}
    for name in modules.tensors:
        other = first.setdefault(modules.storage.get(name, name), name)
        sets.join(graph.n_ops + number[unit_of_tensor[other]], graph.n_ops + number[unit_of_tensor[name]])
    storage_unit = {storage: number[unit_of_tensor[name]] for storage, name in first.items()}
    for row, consumer in zip(graph.weight_edges.value.tolist(), graph.weight_edges.consumer.tolist(), strict=True):
        name = graph.weights.name[row]
        if name in unit_of_tensor:
            sets.join(consumer, graph.n_ops + storage_unit[modules.storage.get(name, name)])


def _join_between(sets: _DisjointSets, graph: Graph, of: Sequence[int], main: int) -> None:
    """An op between units with all that it reads."""
    for op in range(graph.n_ops):
        if of[op] < 0:
            for made in _makers(graph, op):
                sets.join(op, made if made >= 0 else main)


def _makers(graph: Graph, op: int) -> list[int]:
    """The ops that make what an op reads, −1 for inputs of a call: the model's own, and what came from another phase.

    A token that was drawn is an input of the next call, and is moved as such.
    """
    rows = slice(int(graph.in_offsets[op]), int(graph.in_offsets[op + 1]))
    pairs = zip(graph.edges.value[rows].tolist(), graph.edges.position[rows].tolist(), strict=True)
    makers = [int(graph.tensors.producer[tensor]) for tensor, position in pairs if position < FIRST_EXTRA]
    phase = graph.ops.phase
    return [made if made >= 0 and phase[made] == phase[op] else -1 for made in makers]


def _joined(keys: Mapping[str, int], others: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The same with one key for a module in which all is on one device, and the ops of `others` in it too."""
    devices: dict[str, set[int]] = {}
    for name, device in (*keys.items(), *others):
        for prefix in ("", *_prefixes(name)):
            devices.setdefault(prefix, set()).add(device)
    joined: dict[str, int] = {}
    for name, device in keys.items():
        above = (prefix for prefix in ("", *_prefixes(name)) if len(devices[prefix]) == 1)
        joined[next(above, name)] = device
    return joined


def _prefixes(path: str) -> list[str]:
    """A path and all above it but the root, the shortest first."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _of(path: str, numbers: Mapping[str, int]) -> int:
    """The number of the shortest of a path and what is above it that has one, −1 if none has."""
    return next((numbers[prefix] for prefix in ("", *_prefixes(path)) if prefix in numbers), -1)


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _shared(names: Sequence[str], one: int, other: int) -> int:
    """How many leading parts two names have in common."""
    pairs = zip(names[one].split("."), names[other].split("."), strict=False)
    return next((count for count, (a, b) in enumerate(pairs) if a != b), 1 << 10)


def _is_raw(graph: Graph) -> bool:
    return graph.source is not None and graph.source.view == "raw"


class SplitInputsError(ValueError):
    """An op in no module of a map reads what is on several devices: `read` has what it is, and the device of each."""

    def __init__(self, op: str, read: Mapping[str, int]) -> None:
        super().__init__(op)
        self.op, self.read = op, read


class _DisjointSets:
    """Disjoint sets of numbers."""

    def __init__(self, count: int) -> None:
        self._root = list(range(count))

    def top(self, item: int) -> int:
        while self._root[item] != item:
            self._root[item] = item = self._root[self._root[item]]
        return item

    def join(self, one: int, other: int) -> None:
        a, b = self.top(one), self.top(other)
        self._root[max(a, b)] = min(a, b)

    def labels(self) -> Ints:
        """The set of each item, numbered from 0 by first member."""
        tops = [self.top(item) for item in range(len(self._root))]
        numbers = {top: place for place, top in enumerate(dict.fromkeys(tops))}
        return np.array([numbers[top] for top in tops], np.int32)
