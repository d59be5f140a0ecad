"""The best split of one line of components over devices that stand in a row, at the true links between neighbours.

For devices that send to each other: node after node, each stage pays for what crosses to the stages beside it at
the link that joins their devices. Exact where tensors only go to the next stage or the one before; elsewhere a
tensor that goes further is charged as if it stopped there, and the judge tells what the proposal is worth.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from placewise.model.columns import Bools, Floats, Ints, Longs, distinct, frozen, offsets_of
from placewise.model.problem import Problem
from placewise.placers.chains.nodes import partitions
from placewise.placers.chains.stages import MODES
from placewise.placers.common.holdings import holdings, may_run
from placewise.simulate.blocks import storage_bytes
from placewise.simulate.kernels import helper, kernel

MOST_STEPS = 5e8
"""Components and devices, both squared: what the dynamic program may have to try."""
STEPS_PER_SECOND = 5e7
"""Tried by a slow core; the program cannot be stopped midway."""


class Row(NamedTuple):
    """A line of n components and d devices in a row, as flat arrays; device d stands for none."""

    seconds: Floats  # [n, d], inf where not allowed
    size: Longs  # [n]
    capacity: Floats  # [d]
    pays: Bools  # [d]
    price: Floats  # [n_tensors, n_link_classes]
    link: Ints  # [d + 1, d + 1] link classes; from and to host memory in the last row and column
    producer: Ints  # [n_tensors] position, −1 for the host
    first: Ints  # [n_tensors] position of the first reader
    last: Ints  # [n_tensors]
    output: Bools
    use_offsets: Longs  # [n + 1]
    uses: Ints
    make_offsets: Longs  # [n + 1]
    makes: Ints
    mode: int


def split_in_row(problem: Problem, component: Ints, line: Ints, row: Ints, seconds: float = math.inf) -> Ints | None:
    """The devices [n_ops] of the best split of components [n_ops] in the order of `line` [n] over devices in `row`.

    Devices may be left out. None if nothing fits, or if there is too much to try, in `seconds` among other limits.
    """
    n = len(line)
    if float(n) ** 2 * float(len(row)) ** 2 > min(MOST_STEPS, STEPS_PER_SECOND * seconds) or not n:
        return None
    position = line[component]
    table = _row_of(problem, position, n, row)
    value = np.full((n + 1, len(row) + 1, len(row) + 1), np.inf)
    value[0, len(row), :] = 0.0
    came = np.full((*value.shape, 2), -1, np.int32)
    end = int(_fill(table, value, came))
    if end < 0:
        return None
    device = np.empty(n, np.int32)
    at, own, following = n, end, len(row)
    while at > 0:
        begin, before = came[at, own, following].tolist()
        device[begin:at] = row[own]
        at, own, following = begin, before, own
    placed: Ints = device[position]
    return placed


def rows(problem: Problem) -> list[Ints]:
    """The devices node after node, host devices last or first."""
    levels = partitions(problem)[::-1]
    hosts = np.flatnonzero(problem.cluster.is_host).astype(np.int32)
    others = np.flatnonzero(~problem.cluster.is_host).astype(np.int32)
    if levels:
        others = others[np.lexsort([level[others] for level in levels[::-1]])]
    found = [np.concatenate((others, hosts))]
    return [*found, np.concatenate((hosts, others))] if len(hosts) else found


def _row_of(problem: Problem, position: Ints, n: int, row: Ints) -> Row:
    graph, cluster = problem.graph, problem.cluster
    able = may_run(problem, position, n)[:, row]
    seconds = np.zeros((n, len(row)))
    np.add.at(seconds, position, np.where(problem.allowed, problem.costs.op_seconds, 0.0)[:, row])
    producer = np.where(graph.tensors.producer < 0, -1, position[graph.tensors.producer])
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    pairs = distinct(tensor * n + position[graph.consumers])
    tensor, reader = pairs // n, pairs % n
    crosses = producer[tensor] != reader
    tensor, reader = tensor[crosses], reader[crosses]
    first, last = np.full(graph.n_tensors, n, np.int32), np.full(graph.n_tensors, -1, np.int32)
    np.minimum.at(first, tensor, reader.astype(np.int32))
    np.maximum.at(last, tensor, reader.astype(np.int32))
    made = np.flatnonzero((producer >= 0) & ((last >= 0) | graph.tensors.output))
    by_reader, by_producer = np.argsort(reader, kind="stable"), np.argsort(producer[made], kind="stable")
    places = np.append(cluster.location[row], len(cluster))
    held = holdings(problem, position, n)
    size = held.state.copy()
    np.add.at(size, held.group, storage_bytes(graph).astype(np.int64)[held.storage])
    columns: dict[str, npt.NDArray[Any]] = {
        "seconds": frozen(np.where(able, seconds, np.inf), np.float64),
        "size": frozen(size, np.int64),
        "capacity": frozen(problem.capacity[row], np.float64),
        "pays": frozen(~cluster.is_host[row], np.bool_),
        "price": problem.costs.transfer_seconds,
        "link": frozen(cluster.link_class[np.ix_(places, places)], np.int32),
        "producer": frozen(producer, np.int32),
        "first": frozen(first, np.int32),
        "last": frozen(last, np.int32),
        "output": graph.tensors.output,
        "use_offsets": frozen(offsets_of(reader[by_reader], n), np.int64),
        "uses": frozen(tensor[by_reader], np.int32),
        "make_offsets": frozen(offsets_of(producer[made][by_producer], n), np.int64),
        "makes": frozen(made[by_producer], np.int32),
    }
    return Row(**columns, mode=MODES[problem.objective.communication])


@helper
def _charge(r, sums, tensor, sign):
    for c in range(r.price.shape[1]):
        sums[c] += sign * r.price[tensor, c]


_FROM_BEFORE, _FROM_BEHIND, _TO_BEHIND, _TO_BEFORE, _FROM_HOST, _TO_HOST = range(6)


@helper
def _extend(r, i, j, inside, sums):
    """Put position j into the stage that began at i; `sums` [6, n_link_classes] is what crosses, by direction."""
    for k in range(r.use_offsets[j], r.use_offsets[j + 1]):
        t = r.uses[k]
        if inside[t] != i + 1 and not i <= r.producer[t] <= j:
            inside[t] = i + 1
            if r.producer[t] < 0:
                _charge(r, sums[_FROM_HOST], t, 1.0)
            else:
                _charge(r, sums[_FROM_BEFORE if r.producer[t] < i else _FROM_BEHIND], t, 1.0)
        if r.last[t] == j and i <= r.producer[t] < j:
            _charge(r, sums[_TO_BEHIND], t, -1.0)
    for k in range(r.make_offsets[j], r.make_offsets[j + 1]):
        t = r.makes[k]
        if inside[t] == i + 1:
            _charge(r, sums[_FROM_BEHIND], t, -1.0)
        if r.last[t] > j:
            _charge(r, sums[_TO_BEHIND], t, 1.0)
        if r.first[t] < i:
            _charge(r, sums[_TO_BEFORE], t, 1.0)
        if r.output[t]:
            _charge(r, sums[_TO_HOST], t, 1.0)


@helper
def _load(r, sums, compute, before, own, behind):
    """The load of a stage between devices `before` and `behind`, which may be none."""
    if not r.pays[own]:
        return compute
    none = len(r.capacity)
    enter, leave = sums[_FROM_HOST, r.link[none, own]], sums[_TO_HOST, r.link[own, none]]
    if before < none:
        enter += sums[_FROM_BEFORE, r.link[before, own]]
        leave += sums[_TO_BEFORE, r.link[own, before]]
    if behind < none:
        enter += sums[_FROM_BEHIND, r.link[behind, own]]
        leave += sums[_TO_BEHIND, r.link[own, behind]]
    if r.mode == 0:
        return compute + enter + leave
    if r.mode == 1:
        return max(compute, enter + leave)
    return max(compute, max(enter, leave))


@kernel
def _fill(r, value, came):
    """Fill in value[i, p, d]: the least max-load before position i, the last stage on p, the next one to be on d."""
    n, none = r.seconds.shape
    best, end = np.inf, -1
    inside = np.zeros(len(r.producer), np.int64)
    compute = np.empty(none)
    for i in range(n):
        sums = np.zeros((6, r.price.shape[1]))
        compute[:] = 0.0
        size, j, going = 0, i, True
        while going and j < n:
            _extend(r, i, j, inside, sums)
            size += r.size[j]
            going = False
            for own in range(none):
                compute[own] += r.seconds[j, own]
                if compute[own] >= best or size > r.capacity[own]:
                    continue
                for before in range(none + 1):
                    known = value[i, before, own]
                    if known >= best:
                        continue
                    going = True
                    for behind in range(own + 1 if j + 1 < n else none, none + (j + 1 == n)):
                        worst = max(known, _load(r, sums, compute[own], before, own, behind))
                        if worst < best and worst < value[j + 1, own, behind]:
                            value[j + 1, own, behind] = worst
                            came[j + 1, own, behind, 0] = i
                            came[j + 1, own, behind, 1] = before
                            if j + 1 == n:
                                best, end = worst, own
            j += 1
    return end
