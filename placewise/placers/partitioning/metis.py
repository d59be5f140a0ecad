"""metis: balanced parts with few edges between them, by the graph partitioner METIS.

The baseline of the placement papers, some of which used Scotch in its place: here METIS stands for both. Every use of
a tensor is an edge, so that a tensor with many readers counts as often as it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.model.result import Proposal
from placewise.placers.base import PlacerInfo, SearchContext
from placewise.placers.shared.partitions.hypergraph import Net
from placewise.placers.shared.partitions.partition import propose_cuts


@dataclass(frozen=True, slots=True)
class MetisOptions:
    """`imbalance`: how much heavier than its share a part may be (0: several)."""

    imbalance: float = 0.0


class MetisPlacer:
    """What the papers compare with: edges cut, and nothing known of pipelines or schedules."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="metis",
        summary="balanced parts with few edges between them, made to fit",
        source="Karypis and Kumar, SIAM J. Sci. Comput. 20 (1998), METIS; the papers' baseline, with Scotch",
        extra="partition",
    )
    Options = MetisOptions

    def __init__(self, options: MetisOptions | None = None) -> None:
        self.options = options or MetisOptions()

    def supports(self, problem: Problem) -> str | None:
        return None if 0 <= self.options.imbalance < 100 else "the imbalance must be a share, zero or more"

    def propose(self, search: SearchContext) -> Proposal:
        """The best of a few cuts, or words that say why none will do."""
        return propose_cuts(search, self.info.name, _cut, self.options.imbalance)


def _cut(net: Net, imbalance: float, seed: int) -> Ints:
    """The part of every node."""
    import pymetis

    offsets, neighbours, cost = net.pairs()
    options = pymetis.Options(ufactor=max(round(1000 * imbalance), 1), seed=seed)
    _, part = pymetis.part_graph(
        len(net.devices), pymetis.CSRAdjacency(offsets.astype(np.int32), neighbours),
        vweights=net.weight.astype(np.int32), eweights=cost.astype(np.int32),
        tpwgts=net.share.tolist(), options=options,
    )  # fmt: skip
    return np.asarray(part, np.int32)
