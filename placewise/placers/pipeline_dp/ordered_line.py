"""The best split of one order of components over a row of devices, priced on the links between neighbours.

For direct transfers: devices are in a row, node after node, and each stage pays for the tensors that cross to the
stages beside it on the link between their devices. This is exact if tensors only go to the next or the previous stage.
A tensor that goes further is charged as if it stopped there, and the judge decides what the proposal is worth.
"""

from __future__ import annotations

import math

import numpy as np

from placewise import _native
from placewise.model.columns import Ints, distinct, frozen, offsets_of
from placewise.model.problem import Problem
from placewise.placers.pipeline_dp.node_hierarchy import list_partitions
from placewise.placers.shared.memory_footprint import compute_footprint, may_run
from placewise.placers.shared.stages.stage_costs import MODES

MAX_STEPS = 5e8
"""The largest product of components squared and devices squared that the dynamic program takes."""
STEPS_PER_SECOND = 5e7
"""Steps that a slow core takes per second, to refuse what would not finish in time."""


def split_along_row(problem: Problem, component: Ints, line: Ints, row: Ints, seconds: float = math.inf) -> Ints | None:
    """The devices [n_ops] of the best split of components [n_ops], at positions `line` [n], over the devices in `row`.

    Devices may stay unused. None if nothing fits, or if the limits, `seconds` among them, would be exceeded.
    """
    n = len(line)
    if not n or exceeds_limits(n, len(row), seconds):
        return None
    position = line[component]
    place = _native.split_row(_build_row_costs(problem, position, n, row), seconds)
    return row[place[position]] if len(place) else None


def exceeds_limits(n: int, n_devices: int, seconds: float = math.inf) -> bool:
    """Whether n components on `n_devices` devices are too many for the limits or for `seconds`."""
    return float(n) ** 2 * float(n_devices) ** 2 > min(MAX_STEPS, STEPS_PER_SECOND * seconds)


def list_rows(problem: Problem) -> list[Ints]:
    """The devices node after node, with host devices last, and with host devices first."""
    levels = list_partitions(problem)[::-1]
    hosts = np.flatnonzero(problem.cluster.is_host).astype(np.int32)
    others = np.flatnonzero(~problem.cluster.is_host).astype(np.int32)
    if levels:
        others = others[np.lexsort([level[others] for level in levels[::-1]])]
    row = np.concatenate((others, hosts))
    return [row, np.concatenate((hosts, others))] if len(hosts) else [row]


def _build_row_costs(problem: Problem, position: Ints, n: int, row: Ints) -> _native.RowCosts:
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
    produced = np.flatnonzero((producer >= 0) & ((last >= 0) | graph.tensors.output))
    by_reader, by_producer = np.argsort(reader, kind="stable"), np.argsort(producer[produced], kind="stable")
    places = np.append(cluster.location[row], len(cluster))
    size = compute_footprint(problem, position, n).totals()
    return _native.RowCosts(
        seconds=frozen(np.where(able, seconds, np.inf), np.float64),
        size=frozen(size, np.int64),
        capacity=frozen(problem.capacity[row], np.float64),
        pays=frozen(~cluster.is_host[row], np.bool_),
        price=problem.costs.transfer_seconds,
        link=frozen(cluster.link_class[np.ix_(places, places)], np.int32),
        producer=frozen(producer, np.int32),
        first=frozen(first, np.int32),
        last=frozen(last, np.int32),
        output=graph.tensors.output,
        use_offsets=frozen(offsets_of(reader[by_reader], n), np.int64),
        uses=frozen(tensor[by_reader], np.int32),
        make_offsets=frozen(offsets_of(producer[produced][by_producer], n), np.int64),
        makes=frozen(produced[by_producer], np.int32),
        mode=MODES[problem.objective.communication],
    )
