"""metis: balanced parts with little to send between them, made to fit.

With METIS, the baseline of the placement papers (some used Scotch; here METIS stands for both), every use of a tensor
is an edge, so that a tensor with many readers counts as often as it is read.

With Mt-KaHyPar (Gottesbüren et al., ALENEX 2021 and ACM TALG 2024), a tensor is one hyperedge over the blocks that
produce and read it, so that it counts once per device that it reaches, as the judge counts it. The partitioner runs in
its deterministic mode on several threads. Compute seconds are balanced by the speed of the devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Literal

import numpy as np

from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import Budget, PlacerInfo, Progress, SearchContext
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.partitions.hypergraph import Hypergraph, build_hypergraph, list_working_devices
from placewise.placers.shared.partitions.repair_and_select import CandidateSelector

Library = Literal["metis", "mt-kahypar"]
Metric = Literal["auto", "cut", "km1", "soed"]
Partitioner = Callable[[Hypergraph, float, int], Ints]
"""A hypergraph, an imbalance and a seed → the part [n_nodes] of each node, an index into the hypergraph's devices."""

IMBALANCES = (0.1, 0.03, 0.3)
"""The imbalances that are tried in turn."""
TRIES, MAX_TRIES = 3, 48
"""Cuts of graphs of up to `FEW` blocks without a time limit (larger graphs are cut once), and with a time limit."""
FEW = 3_000

_INFO = {
    "metis": PlacerInfo(
        name="metis",
        summary="balanced parts with few edges between them, made to fit",
        source="Karypis and Kumar, SIAM J. Sci. Comput. 20 (1998), METIS; the papers' baseline, with Scotch",
        extra="partition",
    ),
    "mt-kahypar": PlacerInfo(
        name="mincut",
        summary="balanced parts that send little, each tensor a hyperedge, made to fit",
        source="Mt-KaHyPar, Gottesbüren, Heuer, Maas, Sanders and Schlag, ACM Trans. Algorithms 20 (2024)",
        extra="partition",
    ),
}


@dataclass(frozen=True, slots=True)
class PartitioningOptions:
    """`imbalance`: by how much a part may exceed its share (0: several are tried).

    `library`: "metis", or "mt-kahypar", the placer `mincut`. `objective`: what a cut costs, for Mt-KaHyPar only. "cut"
    counts a tensor once if it crosses; "km1" once per device but one, the cost of direct transfers; "soed" once per
    device, the cost of staged transfers; "auto" follows the cluster.
    """

    imbalance: float = 0.0
    library: Library = "metis"
    objective: Metric = "auto"


class PartitioningPlacer:
    """Cuts edges or hyperedges, knowing neither pipelines nor schedules; memory and rules are repaired afterwards."""

    Options: ClassVar[type[PartitioningOptions]] = PartitioningOptions

    def __init__(self, options: PartitioningOptions | None = None) -> None:
        self.options = options or PartitioningOptions()
        self.info = _INFO[self.options.library]

    def supports(self, problem: Problem) -> str | None:
        if not 0 <= self.options.imbalance < 100:
            return "the imbalance must be a share, zero or more"
        if self.options.library == "metis" and self.options.objective != "auto":
            return "METIS has no other objective than the edges cut: leave out the option 'objective'"
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best placement of a few cuts, or a note of why none can be used."""
        problem, watch = search.problem, search.watch
        selector = CandidateSelector(problem, search.price, watch)
        partitioner, reason = self._choose_partitioner(search), Reason.FINISHED
        try:
            hypergraph = build_hypergraph(problem, selector.instance, list_working_devices(problem))
            longest = 0.0
            for tries, (imbalance, seed) in enumerate(_list_tries(problem, search.budget, self.options.imbalance)):
                begun = watch.elapsed
                if tries and watch.left < 1.2 * longest:
                    reason = Reason.TIME_LIMIT
                    break
                selector.add_parts(_assign_parts(selector, hypergraph, partitioner, imbalance, seed), seed=seed)
                value = selector.value if selector.best is not None else None
                search.on_progress(Progress(self.info.name, watch.elapsed, f"{tries + 1} cuts", value))
                longest = max(longest, watch.elapsed - begun)
            selector.swap_devices()
        except KeyboardInterrupt:
            reason = Reason.INTERRUPTED
        if selector.best is None:
            fault = selector.rejections[0] if selector.rejections else "no cut was finished in time"
            return Proposal(None, reason=reason, notes=(f"the parts make no placement: {fault}",))
        return Proposal(Placement(relabel(problem, selector.best)), reason=reason)

    def _choose_partitioner(self, search: SearchContext) -> Partitioner:
        if self.options.library == "metis":
            return cut_with_metis
        metric: str = self.options.objective
        if metric == "auto":
            metric = "soed" if search.problem.cluster.transfers == "staged" else "km1"
        return partial(cut_with_mt_kahypar, metric, search.budget.most_threads)


def _list_tries(problem: Problem, budget: Budget, imbalance: float) -> Iterator[tuple[float, int]]:
    """Imbalances and seeds."""
    count = TRIES if problem.n_blocks <= FEW else 1
    if np.isfinite(budget.seconds):
        count = MAX_TRIES
    if budget.iterations is not None:
        count = max(budget.iterations, 1)
    imbalances = (imbalance,) if imbalance > 0 else IMBALANCES
    for number in range(count):
        yield imbalances[number % len(imbalances)], (budget.seed + number // len(imbalances)) % (1 << 31)


def _assign_parts(
    selector: CandidateSelector, hypergraph: Hypergraph, partitioner: Partitioner, imbalance: float, seed: int
) -> Ints:
    """The device [n_blocks] of every block; blocks that none of the working devices may run go where they run best."""
    assignment: Ints = selector.instance.damage.argmin(axis=1).astype(np.int32)
    devices, node = hypergraph.devices, hypergraph.node
    several = len(devices) > 1 and len(node) > 1
    assignment[node] = devices[partitioner(hypergraph, imbalance, seed)] if several else devices[0]
    return assignment


QUALITY = 20_000
"""Nodes up to which Mt-KaHyPar also refines by flows."""


def cut_with_metis(hypergraph: Hypergraph, imbalance: float, seed: int) -> Ints:
    """The part [n_nodes] of every node. Every use of a tensor is an edge of its own."""
    import pymetis

    offsets, neighbours, cost = hypergraph.list_pairs()
    options = pymetis.Options(ufactor=max(round(1000 * imbalance), 1), seed=seed)
    _, part = pymetis.part_graph(
        len(hypergraph.devices), pymetis.CSRAdjacency(offsets.astype(np.int32), neighbours),
        vweights=hypergraph.weight.astype(np.int32), eweights=cost.astype(np.int32),
        tpwgts=hypergraph.share.tolist(), options=options,
    )  # fmt: skip
    return np.asarray(part, np.int32)


def cut_with_mt_kahypar(metric: str, threads: int, hypergraph: Hypergraph, imbalance: float, seed: int) -> Ints:
    """The part [n_nodes] of every node. `metric` is "cut", "km1" or "soed"."""
    library, kahypar = _load_mt_kahypar(threads)
    presets = library.PresetType
    refined = len(hypergraph.node) <= QUALITY
    context = kahypar.context_from_preset(presets.DETERMINISTIC_QUALITY if refined else presets.DETERMINISTIC)
    context.logging = False
    library.set_seed(seed)
    context.set_partitioning_parameters(len(hypergraph.devices), imbalance, getattr(library.Objective, metric.upper()))
    total, heaviest = int(hypergraph.weight.sum()), int(hypergraph.weight.max())
    fair = np.ceil(hypergraph.share * total * (1 + imbalance)).astype(np.int64)
    context.set_individual_target_block_weights(np.maximum(fair, heaviest).tolist())
    pins = hypergraph.list_pins()
    graph = kahypar.create_hypergraph(
        context, len(hypergraph.node), len(pins), pins, hypergraph.weight.tolist(), hypergraph.cost.tolist()
    )
    return np.array(graph.partition(context).get_partition(), np.int32)


@cache
def _load_mt_kahypar(threads: int) -> tuple[Any, Any]:
    """Mt-KaHyPar, initialized. The number of threads of the first call in a process holds for all later ones."""
    import mtkahypar

    return mtkahypar, mtkahypar.initialize(threads, False)
