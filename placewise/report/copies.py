"""The copies of tensors that a placement makes: those of a run, or in a pipeline those that every sample needs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise.model.columns import Floats, Longs, distinct
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Timeline


class Copies(NamedTuple):
    """Copies as columns: the tensor, from and to which location (the host is ``n_devices``), in how many seconds."""

    tensor: Longs
    source: Longs
    target: Longs
    seconds: Floats


def copies_of(problem: Problem, placement: Placement, timeline: Timeline | None) -> Copies:
    """Every copy of a run; or, in a pipeline, every copy that a sample needs."""
    if timeline is not None:
        tensor, source = timeline.tensor.astype(np.int64), timeline.source.astype(np.int64)
        return Copies(tensor, source, timeline.target.astype(np.int64), timeline.arrived - timeline.sent)
    graph, cluster, host = problem.graph, problem.cluster, problem.n_devices
    home = cluster.location[placement.device].astype(np.int64)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
    outputs = np.flatnonzero(graph.tensors.output)
    wanted = np.concatenate((tensor, outputs)) * (host + 1)
    pairs = distinct(wanted + np.concatenate((home[graph.consumers], np.full(len(outputs), host))))
    tensor, target = pairs // (host + 1), pairs % (host + 1)
    maker = graph.tensors.producer[tensor]
    source = np.where(maker >= 0, home[maker], host)
    tensor, source, target = (column[source != target] for column in (tensor, source, target))
    if cluster.transfers == "staged":
        sent = distinct(tensor[source != host] * (host + 1) + source[source != host])
        got = target != host
        source = np.concatenate((sent % (host + 1), np.full(int(got.sum()), host)))
        target = np.concatenate((np.full(len(sent), host), target[got]))
        tensor = np.concatenate((sent // (host + 1), tensor[got]))
    return Copies(tensor, source, target, problem.costs.transfer_seconds[tensor, cluster.link_class[source, target]])
