"""Placements of whole modules, as hooks on modules realise them: which ops must share a device, and in which keys.

A *unit* is what gets a device: a module that holds weights, a module that may not be split, or a weight that its
module holds beside such modules. Hooks move the inputs of a unit to its device. All other ops run between units, where
nothing is moved: they run where their inputs are, so the inputs of such an op must be on one device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from placewise._util.regex import compiled, in_time
from placewise.model.columns import Ints
from placewise.model.graph import Graph
from placewise.simulate.contiguity import strong_components

NUMBERED = r"^.*?(?:^|\.)\d+(?=\.|$)"
"""The outermost numbered module: a layer in a list of layers."""
_LIFTED = re.compile(r"(^|\.)(lifted_tensor_|_tensor_constant|c_lifted)\w*$")
FIRST_EXTRA = 1 << 16
"""Argument positions from here on hold values that an op only waits for."""


@dataclass(frozen=True, slots=True)
class Modules:
    """The tensors of a model by full name, in order, and the modules that may not be split.

    `storage` is equal for tensors that share memory; it defaults to the name.
    """

    tensors: tuple[str, ...]
    whole: frozenset[str] = frozenset()
    storage: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class ModuleUnits:
    """The units of a model: `names` in order, `of` [n_ops] the unit of each op, −1 for an op between units.

    `label` [n_ops] numbers the sets of ops that must share a device, and `unit_label` is the set of each unit. `main`
    is the set of the ops that read the model's inputs between units.
    """

    names: tuple[str, ...]
    of: Ints
    label: Ints
    unit_label: tuple[int, ...]
    main: int


def find_modules(graph: Graph, pattern: str = NUMBERED) -> Modules:
    """The modules in the weights and scopes of a graph, best its raw view; `pattern` finds those to keep whole."""
    scopes = {prefix for scope in graph.ops.scope.values for prefix in list_prefixes(scope)}
    tensors = [name for name in graph.weights.name if not _LIFTED.search(name)]
    raw = graph.source is None or graph.source.view == "raw"
    known = [name for name in tensors if _parent(name) in scopes or raw]
    storage = dict(zip(graph.weights.name, graph.weights.storage.tolist(), strict=True))
    paths = {prefix for name in known for prefix in list_prefixes(_parent(name))} | scopes
    return Modules(tuple(known), find_whole_modules(paths, pattern), {name: storage[name] for name in known})


def find_whole_modules(paths: Iterable[str], pattern: str) -> frozenset[str]:
    """The modules, among the paths and their ancestors, that a regular expression finds in the paths."""
    if not pattern:
        return frozenset()
    regex = compiled(pattern)
    with in_time(pattern, 0):
        return frozenset(match[0] for match in map(regex.search, paths) if match is not None and match[0])


def find_units(graph: Graph, modules: Modules) -> ModuleUnits:
    """The units, and the sets of ops that must share a device: by module, by shared memory, by inputs between units."""
    unit_of_tensor = _assign_units(modules)
    names = tuple(dict.fromkeys(unit_of_tensor.values()))
    number = {name: place for place, name in enumerate(names)}
    by_scope = [find_number(scope, number) for scope in graph.ops.scope.values]
    of = np.array(by_scope, np.int32)[graph.ops.scope.codes] if by_scope else np.zeros(0, np.int32)
    main = graph.n_ops + len(names)
    pairs = [(op, graph.n_ops + unit) for op, unit in enumerate(of.tolist()) if unit >= 0]
    pairs += _list_ties(graph, modules, unit_of_tensor, number)
    pairs += _list_free_reads(graph, of.tolist(), main)
    pairs += [
        (main, graph.n_ops + place) for name, place in number.items() if name in modules.tensors and "." not in name
    ]
    label = _label_sets(pairs, main + 1)
    return ModuleUnits(names, of, label[: graph.n_ops], tuple(label[graph.n_ops : main].tolist()), int(label[main]))


def colocated_ops(graph: Graph, units: ModuleUnits) -> tuple[tuple[str, ...], ...]:
    """The sets of two and more ops, by name, that must share a device."""
    sets: dict[int, list[str]] = {}
    for name, label in zip(graph.ops.name, units.label.tolist(), strict=True):
        sets.setdefault(label, []).append(name)
    return tuple(tuple(names) for names in sets.values() if len(names) > 1)


def compress_keys(graph: Graph, units: ModuleUnits, device: Ints) -> dict[str, int]:
    """Module (or tensor) → device, for ops placed by `device` [n_ops], with as few keys as possible.

    A unit without ops goes where the units of its set are, else with its nearest neighbour.
    """
    by_label = dict(zip(units.label.tolist(), device.tolist(), strict=True))
    homes = [by_label.get(label) for label in units.unit_label]
    for place, home in enumerate(homes):
        if home is None:
            near = sorted(range(len(homes)), key=lambda k: (-_common_parts(units.names, place, k), abs(k - place)))
            homes[place] = next((homes[other] for other in near if homes[other] is not None), int(device[0]))
    ops = zip(graph.ops.scope, units.of.tolist(), device.tolist(), strict=True)
    between = [(scope, home) for scope, unit, home in ops if unit < 0]
    return _merge_keys(dict(zip(units.names, (int(home or 0) for home in homes), strict=True)), between)


def locate_ops(graph: Graph, keys: Mapping[str, int], main: int) -> Ints:
    """The device of every op [n_ops] under a map: that of its module, else that of its inputs.

    Inputs of the model and of its phases are on `main`. Raises SplitInputsError if an op between modules has inputs on
    several devices.
    """
    named = [find_number(scope, keys) for scope in graph.ops.scope.values]
    device = [named[code] for code in graph.ops.scope.codes.tolist()]
    keyed = [home >= 0 for home in device]
    weight = graph.weights.name
    free: list[int] = []
    for op in range(graph.n_ops):
        if keyed[op]:
            continue
        there = [device[maker] if maker >= 0 else main for maker in _list_makers(graph, op)]
        there += [find_number(weight[w], keys) for w in graph.weights_of(op)]
        known = set(there) - {-1}
        if len(known) > 1:
            read = [_describe_module(graph, keys, maker) for maker in _list_makers(graph, op)]
            read += [f"the weight {weight[w]!r}" for w in graph.weights_of(op)]
            raise SplitInputsError(graph.ops.name[op], dict(zip(read, there, strict=True)))
        device[op] = known.pop() if known else -1
        if device[op] < 0:
            free.append(op)
    for op in reversed(free):
        readers = [int(user) for t in graph.outputs_of(op) for user in graph.consumers_of(t)]
        device[op] = device[readers[0]] if readers and device[readers[0]] >= 0 else main
    return np.array(device, np.int32)


def _describe_module(graph: Graph, keys: Mapping[str, int], op: int) -> str:
    """The module of a map that contains an op, in words; −1 stands for the model's inputs."""
    if op < 0:
        return "the model's inputs"
    scope = graph.ops.scope[op]
    module = next((prefix for prefix in ("", *list_prefixes(scope)) if prefix in keys), None)
    return f"the op {graph.ops.name[op]!r}" if module is None else f"the module {module!r}"


def _assign_units(modules: Modules) -> dict[str, str]:
    """Tensor → its unit."""
    holders = {_parent(name) for name in modules.tensors} - {""}
    above = {prefix for path in modules.whole for prefix in list_prefixes(_parent(path))}
    units = {}
    for name in modules.tensors:
        path = _parent(name)
        whole = next((prefix for prefix in list_prefixes(path) if prefix in modules.whole), "")
        own = next((prefix for prefix in list_prefixes(path) if prefix in holders and prefix not in above), "")
        units[name] = whole or own or name
    return units


def _list_ties(
    graph: Graph, modules: Modules, unit_of_tensor: Mapping[str, str], number: Mapping[str, int]
) -> Iterator[tuple[int, int]]:
    """Pairs of units whose tensors share memory, and of ops with the units whose tensors they read."""
    first: dict[object, str] = {}
    for name in modules.tensors:
        other = first.setdefault(modules.storage.get(name, name), name)
        yield graph.n_ops + number[unit_of_tensor[other]], graph.n_ops + number[unit_of_tensor[name]]
    storage_unit = {storage: number[unit_of_tensor[name]] for storage, name in first.items()}
    for row, consumer in zip(graph.weight_edges.value.tolist(), graph.weight_edges.consumer.tolist(), strict=True):
        name = graph.weights.name[row]
        if name in unit_of_tensor:
            yield consumer, graph.n_ops + storage_unit[modules.storage.get(name, name)]


def _list_free_reads(graph: Graph, of: Sequence[int], main: int) -> Iterator[tuple[int, int]]:
    """Pairs of ops between units with the ops that they read from."""
    for op in range(graph.n_ops):
        if of[op] < 0:
            for maker in _list_makers(graph, op):
                yield op, maker if maker >= 0 else main


def _label_sets(pairs: Iterable[tuple[int, int]], count: int) -> Ints:
    """The connected component [count] of each item under these pairs, numbered from 0 by first member."""
    one, other = np.array([*pairs], np.int32).reshape(-1, 2).T
    component, _ = strong_components(np.concatenate((one, other)), np.concatenate((other, one)), count)
    numbers = {label: number for number, label in enumerate(dict.fromkeys(component.tolist()))}
    return np.array([numbers[label] for label in component.tolist()], np.int32)


def _list_makers(graph: Graph, op: int) -> list[int]:
    """The producers of an op's inputs; −1 for model inputs and for values from another phase.

    A sampled token is an input of the next call, and is moved as such.
    """
    rows = slice(int(graph.in_offsets[op]), int(graph.in_offsets[op + 1]))
    pairs = zip(graph.edges.value[rows].tolist(), graph.edges.position[rows].tolist(), strict=True)
    makers = [int(graph.tensors.producer[tensor]) for tensor, position in pairs if position < FIRST_EXTRA]
    phase = graph.ops.phase
    return [maker if maker >= 0 and phase[maker] == phase[op] else -1 for maker in makers]


def _merge_keys(keys: Mapping[str, int], others: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The keys, with one key for each module that is on one device as a whole, the ops of `others` included."""
    devices: dict[str, set[int]] = {}
    for name, device in (*keys.items(), *others):
        for prefix in ("", *list_prefixes(name)):
            devices.setdefault(prefix, set()).add(device)
    merged: dict[str, int] = {}
    for name, device in keys.items():
        above = (prefix for prefix in ("", *list_prefixes(name)) if len(devices[prefix]) == 1)
        merged[next(above, name)] = device
    return merged


def list_prefixes(path: str) -> list[str]:
    """A path and its ancestors except the root, shortest first."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def find_number(path: str, numbers: Mapping[str, int]) -> int:
    """The number of the first among a path and its ancestors, shortest first, that has one; −1 if none has."""
    return next((numbers[prefix] for prefix in ("", *list_prefixes(path)) if prefix in numbers), -1)


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _common_parts(names: Sequence[str], one: int, other: int) -> int:
    """The number of leading parts that two names have in common."""
    pairs = zip(names[one].split("."), names[other].split("."), strict=False)
    return next((count for count, (a, b) in enumerate(pairs) if a != b), 1 << 10)


class SplitInputsError(ValueError):
    """An op in no module of a map reads inputs on several devices: `read` maps a description of each to its device."""

    def __init__(self, op: str, read: Mapping[str, int]) -> None:
        super().__init__(op)
        self.op, self.read = op, read
