"""Group ops by scope: those of one layer, or of one step of a layer.

A scope is a path of names whose numbers count repetitions: ``encoder.layer.3.forward.step.17.dropout`` is in step 17
of layer 3.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from placewise.coarsen.coarse import colocate
from placewise.coarsen.quotient import renumber
from placewise.model.columns import Ints
from placewise.model.problem import Problem, cached_per_problem
from placewise.simulate.blocks import best_seconds, block_firsts

PIECES = (1, 4, 16)
"""Into how many runs of equal length repetitions are cut, from coarse to fine; each number divides the next."""
LARGE_PART = 8
"""A part is large if it takes more than an even share of the work per device, divided by this."""
DEEPEST = 12
"""How many names of a scope become modules; the rest of the path is one name."""
_SEPARATORS, _NUMBER = re.compile(r"[./]+"), re.compile(r"[0-9]{1,18}")


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


@cached_per_problem
def join_parts(problem: Problem) -> Problem:
    """The problem in which all ops of a part, as of one step of one layer, stay on one device.

    The blocks of large parts are apart, since they may fill a device by themselves, and so are those of parts that no
    device may run. Values stay exact.
    """
    part, allowed = scope_labels(problem), problem.allowed
    spent = np.bincount(part, weights=best_seconds(problem, np.arange(problem.n_devices)))
    apart = spent > spent[np.isfinite(spent)].sum() / (LARGE_PART * problem.n_devices)
    runs = [np.bincount(part, weights=~allowed[:, d], minlength=len(spent)) == 0 for d in range(problem.n_devices)]
    apart |= ~np.any(runs, axis=0)
    return colocate(problem, renumber(np.where(apart[part], len(spent) + problem.block, part)))


def repeated_labels(problem: Problem) -> list[Ints]:
    """Labels [n_ops] from fine to coarse: each repetition of a part, runs of repetitions, and all that repeats a part.

    Repetitions are scopes that differ only in their last number: ``decoder.layer.3.step.0``, ``decoder.layer.3.step.1``
    and so on. Empty if nothing repeats. Groups may be scattered over the graph, and cycles between them are common.
    """
    each, scope, first = scope_labels(problem), problem.graph.ops.scope, block_firsts(problem)
    paths = dict(zip(each[first].tolist(), scope.codes[first].tolist(), strict=True))
    parts = [_split_number(_cut_scope(scope.values[paths[group]])) for group in range(len(paths))]
    rank, count = np.zeros(len(parts), np.int64), Counter[str]()
    for group in sorted(range(len(parts)), key=lambda group: parts[group][1]):
        part = parts[group][0]
        rank[group], count[part] = count[part], count[part] + 1
    numbers = {part: number for number, part in enumerate(count)}
    number, repeats = np.array([(numbers[part], count[part]) for part, _ in parts], np.int64).reshape(-1, 2).T
    labels: list[Ints] = [each]
    for pieces in reversed(PIECES):
        runs = np.unique([number, rank * pieces // np.maximum(repeats, 1)], axis=1, return_inverse=True)[1].ravel()
        if runs.max(initial=-1) < labels[-1].max(initial=-1):
            labels.append(renumber(runs)[each])
    return labels if len(labels) > 1 else []


def _split_number(path: str) -> tuple[str, int]:
    """A path without its last name, and that as a number; or all of it and 0."""
    head, _, last = path.rpartition(".")
    return (head, int(last)) if _NUMBER.fullmatch(last) else (f"{path}.", 0)


def _cut_scope(path: str) -> str:
    """The path through its last number; all of it if it has none."""
    parts = path.split(".")
    last = max((place for place, part in enumerate(parts) if _NUMBER.fullmatch(part)), default=len(parts))
    return ".".join(parts[: last + 1])
