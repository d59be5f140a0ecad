"""Group ops by scope: those of one layer, or of one step of a layer.

A scope is a path of names whose numbers count repetitions: ``encoder.layer.3.forward.step.17.dropout`` is in step 17
of layer 3.
"""

from __future__ import annotations

import re

import numpy as np

from placewise.coarsen.quotient import renumber
from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.simulate.blocks import block_firsts

DEEPEST = 12
"""How many names of a scope become modules; the rest of the path is one name."""
_SEPARATORS = re.compile(r"[./]+")


def split_scope(scope: str) -> tuple[str, ...]:
    """The names of a scope, at most `DEEPEST` and the rest."""
    return tuple(part for part in _SEPARATORS.split(scope, maxsplit=DEEPEST) if part)


def scope_labels(problem: Problem) -> Ints:
    """Labels [n_ops]: blocks whose first ops have one scope, cut off after its last number."""
    scope = problem.graph.ops.scope
    known: dict[str, int] = {}
    code = np.array([known.setdefault(_cut_scope(path), len(known)) for path in scope.values], np.int32)
    first = block_firsts(problem)
    return renumber(code[scope.codes[first]])[problem.block] if problem.n_ops else np.zeros(0, np.int32)


def _cut_scope(path: str) -> str:
    """The path through its last number; all of it if it has none."""
    parts = path.split(".")
    last = max((place for place, part in enumerate(parts) if part.isdigit()), default=len(parts))
    return ".".join(parts[: last + 1])
