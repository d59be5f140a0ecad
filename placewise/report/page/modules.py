"""The graph by module as data: a tree of scopes with sums, and the tensors between ops as columns.

A *module* is a scope, a phase, or a stretch of what stands side by side; its members are modules and ops. What is
drawn of the tensors depends on what is unfolded, so that they are given once, from op to ops.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from placewise.coarsen.repeats import repeated_layers
from placewise.model.columns import Ints, Longs
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.report.page.packed import narrow, packed, shown

MOST = 32
"""Members that a module shows side by side; more are put into stretches."""
DEEPEST = 12
"""Names of a scope that become modules; the rest of the path is one name."""

_SEPARATORS = re.compile(r"[./]+")


@dataclass(slots=True)
class Module:
    """A name, and what is inside in topological order: modules, and ops by their number."""

    name: str
    members: list[Module | int] = field(default_factory=list)


def module_tree(problem: Problem, placement: Placement) -> dict[str, Any]:
    """The graph of a placed problem for a page.

    ``modules``: columns by module, parents before their members and 0 the whole: `name`, `parent` (−1 for 0), `ops`,
    `seconds` (per sample, each op on its device), `bytes` (distinct weights and state); `shares` with a row per
    module and device: `module`, `device` (−1: none), `ops`, `seconds`. ``home``: the module of each op.
    ``tensors``: a row per tensor that ops make and ops read: `producer`, `bytes`, `readers` (how many), and, one
    tensor after the other, `reader`. ``location``: the memory that each device works in.
    """
    names, parents, home = flattened(module_of(problem))
    return {
        "modules": {
            "name": [shown(name) for name in names],
            "parent": narrow(np.array(parents)),
            **_sums(problem, placement, parents, home),
        },
        "home": narrow(np.array(home, np.int64)),
        "tensors": tensor_columns(problem.graph),
        "location": problem.cluster.location.tolist(),
    }


def module_of(problem: Problem) -> Module:
    """The whole model as a module: phases first, then scopes; layers that repeat where most ops have no scope."""
    graph = problem.graph
    scopes = [_path(scope) for scope in graph.ops.scope.values]
    paths = [scopes[code] for code in graph.ops.scope.codes.tolist()]
    if 2 * sum(1 for path in paths if path) < len(paths):
        paths = _layers(problem)
    inner = [(*part, *path) for part, path in zip(_parts(graph), paths, strict=True)]
    whole = _simplified(_nested(inner), outermost=True)
    return whole if isinstance(whole, Module) else Module("model", [whole])


def flattened(whole: Module) -> tuple[list[str], list[int], list[int]]:
    """Names and parents of all modules, parents first, and the module of each op."""
    names, parents, home = [whole.name], [-1], {}
    waiting = [(0, whole)]
    for number, module in waiting:
        for member in module.members:
            if isinstance(member, Module):
                waiting.append((len(names), member))
                names.append(member.name)
                parents.append(number)
            else:
                home[member] = number
    return names, parents, [home[op] for op in range(len(home))]


def tensor_columns(graph: Graph) -> dict[str, Any]:
    """The tensors that ops make and ops read."""
    readers = np.diff(graph.consumer_offsets)
    kept = np.flatnonzero((graph.tensors.producer >= 0) & (readers > 0))
    producer = graph.tensors.producer[kept].astype(np.int64)
    inside = graph.consumers[graph.consumer_offsets[kept[0]] :] if len(kept) else graph.consumers[:0]
    return {
        "producer": packed(producer, "i4"),
        "bytes": packed(np.maximum(graph.tensors.bytes[kept], 0), "f4"),
        "readers": narrow(readers[kept]),
        "reader": packed(inside, "i4"),
    }


def _path(scope: str) -> tuple[str, ...]:
    """The names of a scope, at most `DEEPEST`."""
    parts = [part for part in _SEPARATORS.split(scope, maxsplit=DEEPEST) if part]
    return tuple(parts)


def _parts(graph: Graph) -> list[tuple[str, ...]]:
    """What comes before the scope of each op: its phase, or the direction of a training step; mostly nothing."""
    if len(graph.phases) > 1:
        return [(graph.phases[phase].name,) for phase in graph.ops.phase.tolist()]
    if graph.ops.backward.any():
        return [("backward and update" if backward else "forward",) for backward in graph.ops.backward.tolist()]
    return [()] * graph.n_ops


def _layers(problem: Problem) -> list[tuple[str, ...]]:
    """The layer of each op as a path, where the graph repeats itself; nothing for ops that stand alone."""
    if not problem.n_ops:
        return []
    label = repeated_layers(problem)
    held = np.bincount(label)
    number: dict[int, tuple[str, ...]] = {}
    for group in label.tolist():
        if held[group] > 1:
            number.setdefault(group, (f"layer {len(number) + 1}",))
    return [number.get(group, ()) for group in label.tolist()]


def _nested(paths: list[tuple[str, ...]]) -> Module:
    """Modules within modules, each where its first op stands."""
    whole = Module("model")
    known: dict[tuple[str, ...], Module] = {(): whole}
    for op, path in enumerate(paths):
        for depth in range(1, len(path) + 1):
            if path[:depth] not in known:
                known[path[:depth]] = module = Module(path[depth - 1])
                known[path[: depth - 1]].members.append(module)
        known[path].members.append(op)
    return whole


def _simplified(module: Module, *, outermost: bool = False) -> Module | int:
    """The module without shells around one member, and with stretches where members are too many."""
    members = [m if isinstance(m, int) else _simplified(m) for m in module.members]
    if len(members) == 1:
        (only,) = members
        if isinstance(only, int):
            return only
        return Module(only.name if outermost else f"{module.name}.{only.name}", only.members)
    last = module.name.rpartition(".")[2]
    for member in members:
        if isinstance(member, Module) and member.name[0].isdigit():
            member.name = f"{last}.{member.name}"
    return Module(module.name, _stretches(members))


def _stretches(members: list[Module | int], start: int = 0) -> list[Module | int]:
    """At most `MOST` members: equal stretches of them if there are more, and stretches of these."""
    if len(members) <= MOST:
        return members
    count = min(MOST, -(-len(members) // MOST))
    edges = [len(members) * place // count for place in range(count + 1)]
    parts = [members[low:high] for low, high in pairwise(edges)]
    return [
        Module(_stretch_name(part, start + low), _stretches(part, start + low))
        for part, low in zip(parts, edges, strict=False)
    ]


def _stretch_name(part: list[Module | int], low: int) -> str:
    first, last = part[0], part[-1]
    if isinstance(first, Module) and isinstance(last, Module):
        path, _, end = last.name.rpartition(".")
        return f"{first.name} – {end if path == first.name.rpartition('.')[0] else last.name}"
    what = "ops" if all(isinstance(member, int) for member in part) else "parts"
    return f"{what} {low + 1:,}–{low + len(part):,}"


def _sums(problem: Problem, placement: Placement, parents: list[int], home: list[int]) -> dict[str, Any]:
    """What the ops below each module add up to."""
    above, at = np.array(parents, np.int64), np.array(home, np.int64)
    ops = np.arange(problem.n_ops)
    module, op = [at], [ops]
    while (left := above[module[-1]] >= 0).any():
        op.append(op[-1][left])
        module.append(above[module[-1]][left])
    return _totals(problem, placement, np.concatenate(module), np.concatenate(op), len(parents))


def _totals(problem: Problem, placement: Placement, module: Longs, op: Longs, n: int) -> dict[str, Any]:
    """Sums of rows (module, op below it), for `n` modules."""
    device = placement.device.astype(np.int64)
    seconds = seconds_of(problem, placement.device)
    key = module * (problem.n_devices + 1) + device[op] + 1
    shares, row = np.unique(key, return_inverse=True)
    return {
        "ops": narrow(np.bincount(module, minlength=n)),
        "seconds": packed(np.bincount(module, seconds[op], n), "f4"),
        "bytes": packed(_held(problem.graph, module, op, n), "f8"),
        "shares": {
            "module": narrow(shares // (problem.n_devices + 1)),
            "device": narrow(shares % (problem.n_devices + 1) - 1),
            "ops": narrow(np.bincount(row, minlength=len(shares))),
            "seconds": packed(np.bincount(row, seconds[op], len(shares)), "f4"),
        },
    }


def seconds_of(problem: Problem, device: Ints) -> Any:
    """Seconds per sample of every op [n_ops] on its device; 0 where it has none, or one that cannot run it."""
    seconds = problem.costs.op_seconds[np.arange(problem.n_ops), np.maximum(device, 0)]
    return np.where((device >= 0) & np.isfinite(seconds), seconds, 0.0)


def _held(graph: Graph, module: Longs, op: Longs, n: int) -> Longs:
    """Bytes of state and of distinct weights that the ops of each module use."""
    uses = np.diff(graph.weight_offsets)[op]
    start = np.repeat(graph.weight_offsets[:-1][op] - np.cumsum(uses) + uses, uses)
    weight = graph.weight_edges.value[start + np.arange(len(start))]
    size = graph.weights.storage.astype(np.int64)
    span = int(size.max(initial=0)) + 1
    kept, first = np.unique(np.repeat(module, uses) * span + size[weight], return_index=True)
    total = np.zeros(n, np.int64)
    np.add.at(total, kept // span, np.maximum(graph.weights.bytes[weight[first]], 0))
    np.add.at(total, module, graph.ops.state_bytes[op])
    return total
