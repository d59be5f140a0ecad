"""Groups that a search moves as one: merged along the dearest tensors, in several sizes."""

from __future__ import annotations

import numpy as np

from placewise import _native
from placewise.model.columns import Ints, frozen
from placewise.placers.shared.stages.stage_costs import NEVER
from placewise.placers.shared.throughput_search.pipeline_costs import Costs

_SIZES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""The work that a cluster may have, as shares of what one device would have on average."""


def clusters(c: Costs) -> _native.Clusters:
    """Clusters of several sizes; groups joined by dear tensors first, as long as the work allows it."""
    kinds = c.seconds.reshape(len(c.size), c.n_phases, -1).sum(axis=1)
    work = np.where(kinds < NEVER, kinds, np.iinfo(np.int64).max).min(axis=1).astype(np.float64)
    share = float(work.sum()) / max(len(c.capacity), 1)
    return _native.Clusters(*_pairs(c), work, np.array(_SIZES) * share)


def _pairs(c: Costs) -> tuple[Ints, Ints]:
    """A maker and a reader per use of a tensor, dearest tensors first."""
    cost = c.transfer.max(axis=1, initial=0)
    uses = np.repeat(np.arange(len(c.producer)), np.diff(c.consumer_offsets))
    rows = np.argsort(-cost[uses], kind="stable")
    rows = rows[c.producer[uses[rows]] >= 0]
    return frozen(c.producer[uses[rows]], np.int32), frozen(c.consumers[rows], np.int32)
