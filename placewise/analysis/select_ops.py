"""Selects ops by the name of an op, a module, or a regular expression."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher

import numpy as np

from placewise.errors import InputError
from placewise.model.columns import Ints
from placewise.model.problem import Problem, matching

GRAM, CANDIDATES, SHOWN = 3, 50, 4
"""Letters of the n-grams that rank names, how many of these names are compared in full, and how many are shown."""
LONGEST = 200
"""Characters of a name that are compared and shown."""


def unnamed_op(*choices: str) -> InputError:
    """The error of a question that names no op, with the choices that need one."""
    fault = f"{choices[0]!r} is a choice for an op, and none is named" if choices else "no op is named"
    return InputError(fault, remedy="name an op, a module, or a pattern that matches one op")


def select_ops(problem: Problem, asked: str) -> tuple[Ints, str]:
    """The ops that `asked` names, ascending, and a description: an op's kind and module, or a module.

    An exact op name takes precedence, then a module (a scope with everything in it, or the end of its name if that is
    unique), then a regular expression, which may match the ops of one block only. Raises InputError with similar names.
    """
    if not isinstance(asked, str):
        raise InputError(f"the op is {repr(asked)[:LONGEST]}", remedy="give the name of an op or a module")
    graph = problem.graph
    if asked in graph.ops.name:
        op = graph.ops.name.index(asked)
        return np.array([op], np.int32), _describe_op(problem, op)
    module = _find_module(problem, asked)
    if module:
        inside = np.array([_is_in(scope, module) for scope in graph.ops.scope.values], np.bool_)
        return np.flatnonzero(inside[graph.ops.scope.codes]).astype(np.int32), f"module {module!r}"
    try:
        ops = np.flatnonzero(matching(graph, asked or "$^")).astype(np.int32)
    except (InputError, RecursionError, OverflowError):
        near = ", ".join(repr(name[:LONGEST]) for name in _similar_names(problem, asked))
        raise InputError(
            f"no op, module or pattern {asked[:LONGEST]!r} in this plan", remedy=f"near are {near}"
        ) from None
    if len(np.unique(problem.block[ops])) > 1:
        some = ", ".join(repr(graph.ops.name[op][:LONGEST]) for op in ops[:SHOWN].tolist())
        remedy = f"name one op, as {some}, or a whole module, as {_common_module(problem, ops)!r}"
        raise InputError(f"{asked[:LONGEST]!r} matches {len(ops)} ops", remedy=remedy)
    return ops, _describe_op(problem, int(ops[0]))


def _describe_op(problem: Problem, op: int) -> str:
    """The kind of an op, and its module."""
    scope = problem.graph.ops.scope[op]
    return f"{problem.graph.ops.kind[op]}{f' in {scope}' if scope else ''}"


def _similar_names(problem: Problem, asked: str) -> list[str]:
    """The ops and modules whose names are most similar to `asked`."""
    names = sorted(set(_list_modules(problem)) | set(problem.graph.ops.name))
    grams, plain = _split_grams(asked), asked[:LONGEST]
    likely = sorted(names, key=lambda name: -_jaccard(_split_grams(name), grams))[:CANDIDATES]
    return sorted(likely, key=lambda name: -SequenceMatcher(None, name[:LONGEST], plain).ratio())[:SHOWN]


def _list_modules(problem: Problem) -> list[str]:
    """Every module that contains ops, directly or in submodules."""
    scopes = problem.graph.ops.scope
    used = np.unique(scopes.codes).tolist()
    return list(dict.fromkeys(module for code in used for module in _enclosing_modules(scopes.values[code])))


def _find_module(problem: Problem, asked: str) -> str:
    """The module of this name, or the only one whose name ends in it; "" if there is none."""
    asked, modules = asked.strip("./"), _list_modules(problem)
    if not asked or asked in modules:
        return asked
    ending = [module for module in modules if module.endswith((f".{asked}", f"/{asked}"))]
    return ending[0] if len(ending) == 1 else ""


def _is_in(scope: str, module: str) -> bool:
    return scope == module or scope.startswith((f"{module}.", f"{module}/"))


def _split_grams(name: str) -> set[str]:
    plain = re.sub(r"[^a-z0-9]", "", name[:LONGEST].lower())
    return {plain[at : at + GRAM] for at in range(max(1, len(plain) - GRAM + 1))}


def _jaccard(a: set[str], b: set[str]) -> float:
    return len(a & b) / len(a | b)


def _common_module(problem: Problem, ops: Ints) -> str:
    """The innermost module of all the ops, else the module or the name of the first."""
    scopes = [problem.graph.ops.scope[op] for op in ops.tolist()]
    shared = next(
        (module for module in _enclosing_modules(scopes[0]) if all(_is_in(scope, module) for scope in scopes)), ""
    )
    return shared or scopes[0] or problem.graph.ops.name[int(ops[0])]


def _enclosing_modules(scope: str) -> Iterator[str]:
    """A module and those that contain it, innermost first."""
    while scope:
        yield scope
        scope = scope[: max(scope.rfind("."), scope.rfind("/"), 0)]
