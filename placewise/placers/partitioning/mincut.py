"""mincut: balanced parts with little to send between them, by hypergraph partitioning.

A tensor is one hyperedge over the blocks that make and read it, so that a tensor with many readers counts once per
device that it reaches, as the judge counts it. Parts are cut by Mt-KaHyPar (Gottesbüren et al., ALENEX 2021 and
ACM TALG 2024), in its deterministic mode, on several threads; compute seconds are balanced by the speed of the devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Literal

import numpy as np

from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.model.result import Proposal
from placewise.placers.base import PlacerInfo, SearchContext
from placewise.placers.shared.partitions.hypergraph import Net
from placewise.placers.shared.partitions.partition import propose_cuts

Measure = Literal["auto", "cut", "km1", "soed"]
QUALITY = 20_000
"""Nodes of graphs that are refined by flows as well."""


@dataclass(frozen=True, slots=True)
class MincutOptions:
    """`imbalance`: how much heavier than its share a part may be (0: several); `objective`: what a cut costs.

    "cut" counts a tensor once if it crosses; "km1" once per device but one, what direct transfers cost; "soed" once
    per device, what staged ones cost; "auto" is the one that fits.
    """

    imbalance: float = 0.0
    objective: Measure = "auto"


class MincutPlacer:
    """The strongest partitioner there is, on what a placement really sends."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="mincut",
        summary="balanced parts that send little, each tensor a hyperedge, made to fit",
        source="Mt-KaHyPar, Gottesbüren, Heuer, Maas, Sanders and Schlag, ACM Trans. Algorithms 20 (2024)",
        extra="partition",
    )
    Options = MincutOptions

    def __init__(self, options: MincutOptions | None = None) -> None:
        self.options = options or MincutOptions()

    def supports(self, problem: Problem) -> str | None:
        return None if 0 <= self.options.imbalance < 100 else "the imbalance must be a share, zero or more"

    def propose(self, search: SearchContext) -> Proposal:
        """The best of a few cuts, or words that say why none will do."""
        problem = search.problem
        staged = problem.cluster.transfers == "staged"
        measure = ("soed" if staged else "km1") if self.options.objective == "auto" else self.options.objective
        cut = partial(_cut, measure, search.budget.most_threads)
        return propose_cuts(search, self.info.name, cut, self.options.imbalance)


@cache
def _library(threads: int) -> tuple[Any, Any]:
    """Mt-KaHyPar set up with so many threads: those of the first call of a process are used ever after."""
    import mtkahypar

    return mtkahypar, mtkahypar.initialize(threads, False)


def _cut(measure: str, threads: int, net: Net, imbalance: float, seed: int) -> Ints:
    """The part of every node."""
    library, start = _library(threads)
    kind = library.PresetType.DETERMINISTIC_QUALITY if len(net.node) <= QUALITY else library.PresetType.DETERMINISTIC
    context = start.context_from_preset(kind)
    context.logging = False
    library.set_seed(seed)
    context.set_partitioning_parameters(len(net.devices), imbalance, getattr(library.Objective, measure.upper()))
    total, heaviest = int(net.weight.sum()), int(net.weight.max())
    fair = np.ceil(net.share * total * (1 + imbalance)).astype(np.int64)
    context.set_individual_target_block_weights(np.maximum(fair, heaviest).tolist())
    lists = net.lists()
    graph = start.create_hypergraph(
        context, len(net.node), len(lists), lists, net.weight.tolist(), net.cost.tolist()
    )  # fmt: skip
    return np.array(graph.partition(context).get_partition(), np.int32)
