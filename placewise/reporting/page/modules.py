"""The graph by module as data: a tree of scopes with sums, and the tensors between ops as columns.

A *module* is a scope, a phase, or a range of consecutive members; its members are modules and ops. Tensors are listed
once, from op to ops: which of them the page draws depends on the modules that the reader expands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from placewise.coarsen.module_parts import held_bytes
from placewise.coarsen.repeats import repeated_layers
from placewise.coarsen.scopes import split_scope
from placewise.model.columns import Longs
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.reporting.page.columns import clean_text, pack_column, pack_integers

MOST = 32
"""The most members that a module shows; more are grouped into ranges."""


@dataclass(slots=True)
class Module:
    """A name and its members in topological order: modules, and ops by number."""

    name: str
    members: list[Module | int] = field(default_factory=list)


def module_tree(problem: Problem, placement: Placement) -> dict[str, Any]:
    """The graph of a placed problem for a page.

    ``modules``: columns by module, parents first, 0 for the whole model: `name`, `parent` (−1 for 0), `ops`, `seconds`
    (per sample, each op on its device), `bytes` (distinct weights and state); `shares` with a row per module and
    device: `module`, `device` (−1: none), `ops`, `seconds`. ``home``: the module of each op. ``tensors``: a row per
    tensor between ops: `producer`, `bytes`, `readers` (how many), and `reader`, the readers of all tensors in turn.
    ``location``: the memory of each device.
    """
    names, parents, home = flatten_modules(build_modules(problem))
    return {
        "modules": {
            "name": [clean_text(name) for name in names],
            "parent": pack_integers(np.array(parents)),
            **_sums(problem, placement, parents, home),
        },
        "home": pack_integers(np.array(home, np.int64)),
        "tensors": tensor_columns(problem.graph),
        "location": problem.cluster.location.tolist(),
    }


def build_modules(problem: Problem) -> Module:
    """The model as a module of phases and scopes; of repeated layers if most ops have no scope."""
    graph = problem.graph
    scopes = [split_scope(scope) for scope in graph.ops.scope.values]
    paths = [scopes[code] for code in graph.ops.scope.codes.tolist()]
    if 2 * sum(1 for path in paths if path) < len(paths):
        paths = _repeated_paths(problem)
    inner = [(*part, *path) for part, path in zip(_phase_paths(graph), paths, strict=True)]
    whole = _simplify(_nest_modules(inner), outermost=True)
    return whole if isinstance(whole, Module) else Module("model", [whole])


def flatten_modules(whole: Module) -> tuple[list[str], list[int], list[int]]:
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
    """The tensors between ops, as columns."""
    readers = np.diff(graph.consumer_offsets)
    kept = np.flatnonzero((graph.tensors.producer >= 0) & (readers > 0))
    producer = graph.tensors.producer[kept].astype(np.int64)
    inside = graph.consumers[graph.consumer_offsets[kept[0]] :] if len(kept) else graph.consumers[:0]
    return {
        "producer": pack_column(producer, "i4"),
        "bytes": pack_column(np.maximum(graph.tensors.bytes[kept], 0), "f4"),
        "readers": pack_integers(readers[kept]),
        "reader": pack_column(inside, "i4"),
    }


def _phase_paths(graph: Graph) -> list[tuple[str, ...]]:
    """The path before the scope of each op: its phase, or the direction of a training step; often empty."""
    if len(graph.phases) > 1:
        return [(graph.phases[phase].name,) for phase in graph.ops.phase.tolist()]
    if graph.ops.backward.any():
        return [("backward and update" if backward else "forward",) for backward in graph.ops.backward.tolist()]
    return [()] * graph.n_ops


def _repeated_paths(problem: Problem) -> list[tuple[str, ...]]:
    """The repeated layer of each op as a path; empty for ops that repeat nowhere."""
    if not problem.n_ops:
        return []
    label = repeated_layers(problem)
    held = np.bincount(label)
    number: dict[int, tuple[str, ...]] = {}
    for group in label.tolist():
        if held[group] > 1:
            number.setdefault(group, (f"layer {len(number) + 1}",))
    return [number.get(group, ()) for group in label.tolist()]


def _nest_modules(paths: list[tuple[str, ...]]) -> Module:
    """The tree of modules, each at the position of its first op."""
    whole = Module("model")
    known: dict[tuple[str, ...], Module] = {(): whole}
    for op, path in enumerate(paths):
        for depth in range(1, len(path) + 1):
            if path[:depth] not in known:
                known[path[:depth]] = module = Module(path[depth - 1])
                known[path[: depth - 1]].members.append(module)
        known[path].members.append(op)
    return whole


def _simplify(module: Module, *, outermost: bool = False) -> Module | int:
    """The module without levels of a single member, and with ranges where members are too many."""
    members = [m if isinstance(m, int) else _simplify(m) for m in module.members]
    if len(members) == 1:
        (only,) = members
        if isinstance(only, int):
            return only
        return Module(only.name if outermost else f"{module.name}.{only.name}", only.members)
    last = module.name.rpartition(".")[2]
    for member in members:
        if isinstance(member, Module) and member.name[0].isdigit():
            member.name = f"{last}.{member.name}"
    return Module(module.name, _group_ranges(members))


def _group_ranges(members: list[Module | int], start: int = 0) -> list[Module | int]:
    """At most `MOST` members: equal ranges of them if there are more, recursively."""
    if len(members) <= MOST:
        return members
    count = min(MOST, -(-len(members) // MOST))
    edges = [len(members) * place // count for place in range(count + 1)]
    parts = [members[low:high] for low, high in pairwise(edges)]
    return [
        Module(_range_name(part, start + low), _group_ranges(part, start + low))
        for part, low in zip(parts, edges, strict=False)
    ]


def _range_name(part: list[Module | int], low: int) -> str:
    first, last = part[0], part[-1]
    if isinstance(first, Module) and isinstance(last, Module):
        path, _, end = last.name.rpartition(".")
        return f"{first.name} – {end if path == first.name.rpartition('.')[0] else last.name}"
    what = "ops" if all(isinstance(member, int) for member in part) else "parts"
    return f"{what} {low + 1:,}–{low + len(part):,}"


def _sums(problem: Problem, placement: Placement, parents: list[int], home: list[int]) -> dict[str, Any]:
    """The sums over all ops below each module."""
    above, at = np.array(parents, np.int64), np.array(home, np.int64)
    ops = np.arange(problem.n_ops)
    module, op = [at], [ops]
    while (left := above[module[-1]] >= 0).any():
        op.append(op[-1][left])
        module.append(above[module[-1]][left])
    return _totals(problem, placement, np.concatenate(module), np.concatenate(op), len(parents))


def _totals(problem: Problem, placement: Placement, module: Longs, op: Longs, n: int) -> dict[str, Any]:
    """The sums over rows (module, op below it), for `n` modules."""
    device = placement.device.astype(np.int64)
    seconds = problem.costs.seconds_on(placement.device)
    key = module * (problem.n_devices + 1) + device[op] + 1
    shares, row = np.unique(key, return_inverse=True)
    return {
        "ops": pack_integers(np.bincount(module, minlength=n)),
        "seconds": pack_column(np.bincount(module, seconds[op], n), "f4"),
        "bytes": pack_column(held_bytes(problem.graph, module, op, n), "f8"),
        "shares": {
            "module": pack_integers(shares // (problem.n_devices + 1)),
            "device": pack_integers(shares % (problem.n_devices + 1) - 1),
            "ops": pack_integers(np.bincount(row, minlength=len(shares))),
            "seconds": pack_column(np.bincount(row, seconds[op], len(shares)), "f4"),
        },
    }
