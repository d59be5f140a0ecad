"""Ops that policies move together: chains (HSDAG), and the co-location rules of ColocRL.

Labels are [n_ops]. They only join blocks that may run on the same devices, so that no op loses a device.
"""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Bools, Ints, Longs, firsts_of
from placewise.model.problem import Problem
from placewise.placers.learned.view import View, build_view
from placewise.simulate.contiguity import strong_components

STEP, BRANCH = "step", "branch"
"""The name of a step of a recurrent layer in scopes, and the prefix of branches."""


def chain_labels(problem: Problem) -> Ints:
    """Labels that join a unit with its sole reader, if that reads nothing else.

    Duan et al., NeurIPS 2024, appendix G: v_j, the sole child of v_i, and v_i, the sole parent of v_j, are merged.
    """
    view = build_view(problem, np.arange(problem.n_ops))
    wanted = (_children(view)[view.tail] == 1) & (_parents(view)[view.head] == 1)
    return _join_edges(view, wanted)[view.unit]


def colocation_labels(problem: Problem, *, scopes: bool = True) -> Ints:
    """Labels by the rules of Mirhoseini et al., ICML 2017: groups of the graph, parts of a model, sole readers.

    The graph's own groups stay whole (a layer's gradients are in its group). With `scopes`, ops of one step of a
    recurrent layer, of one branch, or of one part of a numbered layer are one unit. A unit joins its sole reader, along
    the whole tree of sole readers, unless their scopes differ. The paper repeats its rule on the merged graph, which
    would turn any graph that ends in one op into one unit; here the readers in the original graph count.
    """
    label = np.arange(problem.n_ops)
    view = build_view(problem, label)
    part = np.full(view.n, -1, np.int64)
    if scopes:
        view = build_view(problem, _part_labels(view, _part_codes(view))[view.unit])
        part = _part_codes(view)
    of_tail, of_head = part[view.tail], part[view.head]
    wanted = (_children(view)[view.tail] == 1) & ((of_tail < 0) | (of_tail == of_head))
    return _join_edges(view, wanted)[view.unit]


def model_part(scope: str) -> str:
    """The step, branch or part of a numbered layer that a scope is in; "" if there is none.

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


def _join_edges(view: View, wanted: Bools) -> Ints:
    """The component [n_units] of every unit, joined by the wanted edges between units with the same devices."""
    device_set = _device_sets(view)
    joins = wanted & (device_set[view.tail] == device_set[view.head])
    tail, head = view.tail[joins], view.head[joins]
    return strong_components(np.concatenate((tail, head)), np.concatenate((head, tail)), view.n)[0]


def _device_sets(view: View) -> Longs:
    """A number [n_units] per set of allowed devices."""
    code: Longs = np.unique(view.allowed, axis=0, return_inverse=True)[1].reshape(-1)
    return code


def _part_codes(view: View) -> Longs:
    """A number [n_units] per part of the model, by the first op of each unit; −1 for none."""
    scope = view.problem.graph.ops.scope
    known: dict[str, int] = {"": -1}
    code = np.array([known.setdefault(model_part(path), len(known)) for path in scope.values], np.int64)
    first = firsts_of(view.unit)
    return code[scope.codes[first]] if view.n else np.zeros(0, np.int64)


def _part_labels(view: View, part: Longs) -> Longs:
    """A label [n_units] per part and set of allowed devices; units in no part have their own."""
    key = part * (view.n + 1) + _device_sets(view)
    alone = int(key.max(initial=-1)) + 1 + np.arange(view.n)
    return np.where(part < 0, alone, key)
