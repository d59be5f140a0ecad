"""Which ops a user means: by an op's name, a module, or a regular expression; or one sentence that says why not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher

import numpy as np

from placewise.errors import InputError
from placewise.model.columns import Ints
from placewise.model.problem import Problem, matching

NEAR, LOOKED_AT, SHOWN = 3, 50, 4
"""Letters of the pieces by which names are compared, names that are looked at closely, and those that are shown."""
LONGEST = 200
"""Characters of a name that are looked at, and shown."""


def chosen_ops(problem: Problem, asked: str) -> tuple[Ints, str]:
    """The ops of `asked`, ascending, and in words what it is: an op, or a module.

    An exact name comes first, then a module (a scope, with everything in it; its last parts are enough where no other
    module ends in them), then a regular expression, which may find the ops of one block only. Raises InputError with
    the names that are near.
    """
    graph = problem.graph
    if asked in graph.ops.name:
        op = graph.ops.name.index(asked)
        return np.array([op], np.int32), kind_of(problem, op)
    module = _module(problem, asked)
    if module:
        inside = np.array([_is_in(scope, module) for scope in graph.ops.scope.values], np.bool_)
        return np.flatnonzero(inside[graph.ops.scope.codes]).astype(np.int32), f"module {module!r}"
    try:
        found = np.flatnonzero(matching(graph, asked or "$^")).astype(np.int32)
    except (InputError, RecursionError, OverflowError):
        near = ", ".join(repr(name[:LONGEST]) for name in near_names(problem, asked))
        raise InputError(
            f"no op, module or pattern {asked[:LONGEST]!r} in this plan", remedy=f"near are {near}"
        ) from None
    if len(np.unique(problem.block[found])) > 1:
        some = ", ".join(repr(graph.ops.name[op][:LONGEST]) for op in found[:SHOWN].tolist())
        remedy = f"name one op, as {some}, or a whole module, as {_common(problem, found)!r}"
        raise InputError(f"{asked[:LONGEST]!r} matches {len(found)} ops", remedy=remedy)
    return found, kind_of(problem, int(found[0]))


def kind_of(problem: Problem, op: int) -> str:
    """What an op is, and in which module."""
    scope = problem.graph.ops.scope[op]
    return f"{problem.graph.ops.kind[op]}{f' in {scope}' if scope else ''}"


def near_names(problem: Problem, asked: str) -> list[str]:
    """The ops and modules that are called most like what was asked for."""
    names = sorted(set(_modules(problem)) | set(problem.graph.ops.name))
    wanted, plain = _pieces(asked), asked[:LONGEST]
    likely = sorted(names, key=lambda name: -_likeness(_pieces(name), wanted))[:LOOKED_AT]
    return sorted(likely, key=lambda name: -SequenceMatcher(None, name[:LONGEST], plain).ratio())[:SHOWN]


def _modules(problem: Problem) -> list[str]:
    """Every module of the model that has ops, or modules with ops, in it."""
    found: dict[str, None] = {}
    for code in np.unique(problem.graph.ops.scope.codes).tolist():
        for module in _above(problem.graph.ops.scope.values[code]):
            found[module] = None
    return list(found)


def _module(problem: Problem, asked: str) -> str:
    """The module that is called so, or the only one whose name ends so; "" where there is none."""
    asked, modules = asked.strip("./"), _modules(problem)
    if not asked or asked in modules:
        return asked
    ending = [module for module in modules if module.endswith((f".{asked}", f"/{asked}"))]
    return ending[0] if len(ending) == 1 else ""


def _is_in(scope: str, module: str) -> bool:
    return scope == module or scope.startswith((f"{module}.", f"{module}/"))


def _pieces(name: str) -> set[str]:
    plain = re.sub(r"[^a-z0-9]", "", name[:LONGEST].lower())
    return {plain[at : at + NEAR] for at in range(max(1, len(plain) - NEAR + 1))}


def _likeness(own: set[str], wanted: set[str]) -> float:
    return len(own & wanted) / len(own | wanted)


def _common(problem: Problem, ops: Ints) -> str:
    """The module that all of the ops are in, or that of the first, or its name where it is in none."""
    scopes = [problem.graph.ops.scope[op] for op in ops.tolist()]
    shared = next((module for module in _above(scopes[0]) if all(_is_in(scope, module) for scope in scopes)), "")
    return shared or scopes[0] or problem.graph.ops.name[int(ops[0])]


def _above(scope: str) -> Iterator[str]:
    """A module and those that it is in, the smallest first."""
    while scope:
        yield scope
        scope = scope[: max(scope.rfind("."), scope.rfind("/"), 0)]
