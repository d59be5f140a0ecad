"""A policy's view of a problem: units of ops that move together, the graph between them, and ways to join units.

Labels are [n_ops]. Those of chains (HSDAG) and of co-location (ColocRL) only join blocks that may run on the same
devices, so that no op loses a device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placewise.coarsen.hierarchy import hierarchy
from placewise.coarsen.merging import sums
from placewise.coarsen.scopes import scope_labels
from placewise.model.columns import Bools, Floats, Ints, Longs, distinct, firsts_of
from placewise.model.problem import Problem
from placewise.placers.shared.memory_footprint import may_run
from placewise.simulate.contiguity import strong_components
from placewise.simulate.judge.ranks import mean_op_seconds, mean_transfer_seconds

STEP, BRANCH = "step", "branch"
"""The name of a step of a recurrent layer in scopes, and the prefix of branches."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Units of ops, numbered by the mean position of their ops, and the distinct edges between them.

    `unit` [n_ops]; `tail`, `head` [n_edges]; `flow` [n_edges], mean seconds of the transfer; `seconds`
    [n_units, n_devices], sums over ops, inf where `allowed` is false.
    """

    problem: Problem
    unit: Ints
    tail: Ints
    head: Ints
    flow: Floats
    seconds: Floats
    allowed: Bools

    @property
    def n(self) -> int:
        return len(self.seconds)

    @property
    def n_devices(self) -> int:
        return self.problem.n_devices

    def placements(self, device: npt.NDArray[np.integer]) -> Ints:
        """Devices of units [K, n_units] → placements [K, n_ops]."""
        return np.ascontiguousarray(device, np.int32)[:, self.unit]

    def devices(self, placements: Ints) -> Ints:
        """Placements [K, n_ops] → devices of units [K, n_units]: the device with most of a unit's seconds."""
        weight = mean_op_seconds(self.problem) + 1e-12
        devices = np.empty((len(placements), self.n), np.int32)
        for k, device in enumerate(placements):
            share = sums(weight, self.unit * self.n_devices + device, self.n * self.n_devices).reshape(self.n, -1)
            devices[k] = np.where(self.allowed, share, -1.0).argmax(axis=1)
        return devices


def build_view(problem: Problem, label: npt.NDArray[np.integer]) -> View:
    """Build the view in which ops with one label [n_ops], and ops of one colocation group, are one unit."""
    unit = _number_by_position(_join_labels(problem.block, label))
    n = int(unit.max(initial=-1)) + 1
    tail, head, flow = _edges(problem, unit, n)
    allowed = may_run(problem, unit, n)
    columns = [sums(np.where(problem.allowed[:, d], problem.costs.op_seconds[:, d], 0.0), unit, n)
               for d in range(problem.n_devices)]  # fmt: skip
    seconds = np.where(allowed, np.stack(columns, axis=1).reshape(n, -1), np.inf)
    return View(problem, unit, tail, head, flow, seconds, allowed)


def _join_labels(block: Ints, label: npt.NDArray[np.integer]) -> Ints:
    """The finest labels [n_ops] that split neither a block nor a label: components of the two together."""
    group = (np.unique(label, return_inverse=True)[1] + int(block.max(initial=-1)) + 1).astype(np.int32)
    tail, head = np.concatenate((block, group)), np.concatenate((group, block))
    component, _ = strong_components(tail, head, int(group.max(initial=-1)) + 1)
    return component[block]


def _number_by_position(label: Ints) -> Ints:
    """Number the same groups by the mean position of their ops."""
    _, dense, count = np.unique(label, return_inverse=True, return_counts=True)
    place = np.bincount(dense, weights=np.arange(len(label)), minlength=len(count)) / count
    rank = np.empty(len(count), np.int32)
    rank[np.lexsort((np.arange(len(count)), place))] = np.arange(len(count))
    return rank[dense]


def _edges(problem: Problem, unit: Ints, n: int) -> tuple[Ints, Ints, Floats]:
    graph = problem.graph
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    maker = graph.tensors.producer[tensor]
    made = maker >= 0
    tail, head = unit[maker[made]].astype(np.int64), unit[graph.consumers[made]].astype(np.int64)
    # A tensor with several readers in one unit is transferred once.
    once = distinct((tensor[made] * max(n, 1) + head)[tail != head])
    of, head = once // max(n, 1), once % max(n, 1)
    key = unit[graph.tensors.producer[of]].astype(np.int64) * max(n, 1) + head
    pairs = distinct(key)
    flow = sums(mean_transfer_seconds(problem)[of], np.searchsorted(pairs, key), len(pairs))
    return (pairs // max(n, 1)).astype(np.int32), (pairs % max(n, 1)).astype(np.int32), flow


def coarse_labels(problem: Problem, most: int) -> Ints:
    """Labels of blocks, or of groups of them if there are more than `most`."""
    if problem.n_blocks <= most:
        return problem.block
    return [problem.block, *hierarchy(problem, wanted=most, start=scope_labels(problem))][-1]


def chain_labels(problem: Problem) -> Ints:
    """Labels that join a unit with its sole reader, if that reads nothing else.

    Duan et al., NeurIPS 2024, appendix G: v_j, the sole child of v_i, and v_i, the sole parent of v_j, are merged.
    """
    view = build_view(problem, np.arange(problem.n_ops))
    return _join_edges(view, _has_sole_reader(view) & (np.bincount(view.head)[view.head] == 1))[view.unit]


def colocation_labels(problem: Problem) -> Ints:
    """Labels by the rules of Mirhoseini et al., ICML 2017: groups of the graph, parts of a model, sole readers.

    The graph's own groups stay whole (a layer's gradients are in its group). Ops of one step of a recurrent layer, of
    one branch, or of one part of a numbered layer are one unit. A unit joins its sole reader, along the whole tree of
    sole readers, unless their scopes differ. The paper repeats its rule on the merged graph, which would turn any graph
    that ends in one op into one unit; here the readers in the original graph count.
    """
    view = build_view(problem, np.arange(problem.n_ops))
    view = build_view(problem, _part_labels(view, _part_codes(view))[view.unit])
    part = _part_codes(view)
    of_tail, of_head = part[view.tail], part[view.head]
    return _join_edges(view, _has_sole_reader(view) & ((of_tail < 0) | (of_tail == of_head)))[view.unit]


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


def _has_sole_reader(view: View) -> Bools:
    """Whether each edge [n_edges] is the only one that leaves its tail."""
    return np.asarray(np.bincount(view.tail)[view.tail] == 1)


def _join_edges(view: View, wanted: Bools) -> Ints:
    """The component [n_units] of every unit, joined by the wanted edges between units with the same devices."""
    device_set = _device_sets(view)
    joins = wanted & (device_set[view.tail] == device_set[view.head])
    tail, head = view.tail[joins], view.head[joins]
    return strong_components(np.concatenate((tail, head)), np.concatenate((head, tail)), view.n)[0]


def _device_sets(view: View) -> Longs:
    """A number [n_units] per set of allowed devices."""
    return np.unique(view.allowed, axis=0, return_inverse=True)[1].reshape(-1)


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
