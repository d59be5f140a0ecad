"""The times of the stages of a placement that runs as a line: what every stage computes, receives and sends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from placewise.model.columns import Bools
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.transform.stream_time import StageTime


def stage_times(problem: Problem, placement: Placement, order: Sequence[int]) -> list[StageTime]:
    """The times of the stages on the devices `order`, by the problem's costs.

    A value goes from stage to stage, also through those that do not read it, as pipelines of processes do. The first
    stage takes the model's inputs from the host, and the last one returns its outputs there.
    """
    graph, costs, cluster = problem.graph, problem.costs, problem.cluster
    stage = np.full(len(cluster), -1)
    stage[list(order)] = np.arange(len(order))
    place = stage[placement.device]
    made = np.where(graph.tensors.producer >= 0, place[np.maximum(graph.tensors.producer, 0)], 0)
    read = np.full(graph.n_tensors, -1)
    np.maximum.at(read, graph.edges.value, place[graph.edges.consumer])
    inputs = (graph.tensors.producer < 0) & (read >= 0)
    until = np.where(graph.tensors.output, len(order) - 1, read)
    compute = np.bincount(place, costs.op_seconds[np.arange(graph.n_ops), placement.device], len(order))
    host = len(cluster)
    where = [int(cluster.location[device]) for device in order]

    def hop(source: int, target: int, moved: Bools) -> float:
        return float(costs.transfer_seconds[moved, cluster.link_class[source, target]].sum())

    receive, send, wire = [hop(host, where[0], inputs)], list[float](), list[float]()
    for border, (one, other) in enumerate(itertools.pairwise(where)):
        moved = (made <= border) & (until > border)
        if cluster.transfers == "staged":
            up, down = hop(one, host, moved), hop(host, other, moved)
            wire.append(up + down)
        else:
            up = down = hop(one, other, moved)
            wire.append(up)
        send.append(up)
        receive.append(down)
    send.append(hop(where[-1], host, graph.tensors.output))
    wire.append(0.0)
    rows = zip(receive, compute.tolist(), send, wire, strict=True)
    return [StageTime(*row) for row in rows]
