"""Which ops policies move together: chains (HSDAG), and the co-location rules of ColocRL.

Labels are [n_ops]; they join blocks only where those may run on the same devices, so that nothing loses a choice.
"""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Bools, Ints, Longs, firsts_of
from placewise.model.problem import Problem
from placewise.placers.learned.view import View, view_of
from placewise.simulate.contiguity import strong_components

STEP, BRANCH = "step", "branch"
"""What scopes call a step of a recurrent layer, and how they begin to call a branch."""


def chains(problem: Problem) -> Ints:
    """Labels: what is the sole reader of one unit, and reads nothing else, goes with it.

    Duan et al., NeurIPS 2024, appendix G: v_j, the sole child of v_i, and v_i, the sole parent of v_j, are merged.
    """
    view = view_of(problem, np.arange(problem.n_ops))
    wanted = (_children(view)[view.tail] == 1) & (_parents(view)[view.head] == 1)
    return _merged(view, wanted)[view.unit]


def colocation(problem: Problem, *, scopes: bool = True) -> Ints:
    """Labels by the rules of Mirhoseini et al., ICML 2017: groups of the graph, parts of a model, sole readers.

    The graph's own groups stay whole (a layer's gradients are in its group). With `scopes`, ops of one step of a
    recurrent layer, of one branch, or of one part of a numbered layer are one. What one unit alone reads goes with
    that one, along the whole tree of sole readers; parts that scopes tell apart stay apart. The paper repeats its
    rule on the merged graph, which would make one unit of any graph that ends in one op; here the readers of the
    graph before merging count.
    """
    label = np.arange(problem.n_ops)
    view = view_of(problem, label)
    part = np.full(view.n, -1, np.int64)
    if scopes:
        view = view_of(problem, _parts(view, _part_codes(view))[view.unit])
        part = _part_codes(view)
    of_tail, of_head = part[view.tail], part[view.head]
    wanted = (_children(view)[view.tail] == 1) & ((of_tail < 0) | (of_tail == of_head))
    return _merged(view, wanted)[view.unit]


def part_of(scope: str) -> str:
    """The step, branch or part of a numbered layer that a scope lies in; "" if it tells none.

    ``decoder.layer.1.step.7.attention`` is in step 7 of the layer, ``mixed_5b.branch_0.conv`` in that branch,
    ``a.0.3x3.tall`` in part 3x3 of a.0.
    """
    words = scope.split(".")
    for place, word in enumerate(words):
        if word == STEP and place + 1 < len(words) and words[place + 1].isdigit():
            return ".".join(words[: place + 2])
        if word.lower().startswith(BRANCH):
            return ".".join(words[: place + 1])
    first = next((place for place, word in enumerate(words) if word.isdigit()), None)
    return "" if first is None else ".".join(words[: first + 2])


def _children(view: View) -> Longs:
    return np.bincount(view.tail, minlength=view.n)


def _parents(view: View) -> Longs:
    return np.bincount(view.head, minlength=view.n)


def _merged(view: View, wanted: Bools) -> Ints:
    """The component [n_units] of every unit where the wanted edges between units of equal rights join."""
    rights = _rights(view)
    joins = wanted & (rights[view.tail] == rights[view.head])
    tail, head = view.tail[joins], view.head[joins]
    return strong_components(np.concatenate((tail, head)), np.concatenate((head, tail)), view.n)[0]


def _rights(view: View) -> Longs:
    """A number [n_units] per set of devices that a unit may run on."""
    found: Longs = np.unique(view.allowed, axis=0, return_inverse=True)[1].reshape(-1)
    return found


def _part_codes(view: View) -> Longs:
    """A number [n_units] per part of the model, by the first op of each unit; −1 where its scope tells none."""
    scope = view.problem.graph.ops.scope
    known: dict[str, int] = {"": -1}
    code = np.array([known.setdefault(part_of(path), len(known)) for path in scope.values], np.int64)
    first = firsts_of(view.unit)
    return code[scope.codes[first]] if view.n else np.zeros(0, np.int64)


def _parts(view: View, part: Longs) -> Longs:
    """A label [n_units] per part and set of rights; units in no part have their own."""
    key = part * (view.n + 1) + _rights(view)
    alone = int(key.max(initial=-1)) + 1 + np.arange(view.n)
    return np.where(part < 0, alone, key)
