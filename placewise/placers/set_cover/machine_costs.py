"""Stage costs as pipeline costs of single machines, to price any set of blocks on one of them."""

from __future__ import annotations

import numpy as np

from placewise.model.columns import frozen
from placewise.placers.shared.stages.stage_costs import NEVER, ComponentCosts
from placewise.placers.shared.throughput_search.pipeline_costs import PipelineCosts, no_chain

SHARED = (
    "producer", "readers", "output", "consumer_offsets", "consumers", "use_offsets", "uses", "make_offsets", "makes",
    "size", "storage_offsets", "storages", "storage_bytes",
)  # fmt: skip
"""Columns that stage costs and pipeline costs have in common."""


def machines(costs: ComponentCosts, kinds: list[int]) -> PipelineCosts:
    """The costs of one machine per class in `kinds`, each with its own link to the host.

    Class −1 is the host, which runs and holds everything at no cost.
    """
    width, rates = len(kinds), costs.enter.shape[1]
    seconds, capacity = np.zeros((len(costs.size), width), np.int64), np.full(width, NEVER)
    location, link_class = np.full(width, width, np.int32), np.zeros((width + 1, width + 1), np.int32)
    for m, kind in enumerate(kinds):
        if kind < 0:
            continue
        seconds[:, m], capacity[m], rate = costs.seconds[:, kind], costs.capacity[kind], costs.rate[kind]
        if rate >= 0:
            location[m] = m
            link_class[width, m], link_class[m, width] = 1 + rate, 1 + rates + rate
    return PipelineCosts(
        **{column: getattr(costs, column) for column in SHARED},
        seconds=frozen(seconds, np.int64),
        kind=frozen(np.arange(width), np.int32),
        transfer=frozen(np.hstack((np.zeros((len(costs.producer), 1), np.int64), costs.enter, costs.leave)), np.int64),
        phase=frozen(np.zeros(len(costs.producer)), np.int8),
        capacity=frozen(capacity, np.int64),
        location=frozen(location, np.int32),
        link_class=frozen(link_class, np.int32),
        wire=frozen(np.full_like(link_class, -1), np.int32),
        **no_chain(len(costs.size)),
        staged=True,
        shaped=False,
        ordered=False,
        mode=costs.mode,
        n_phases=1,
        n_wires=0,
    )
