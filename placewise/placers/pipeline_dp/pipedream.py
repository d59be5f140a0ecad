"""pipedream: contract biconnected components, put the rest in a line, and split that line at best.

The baseline of Tarnawski et al. (NeurIPS 2020, appendix F) for graphs that are no chains, after PipeDream (Narayanan et
al., SOSP 2019), which partitions chains of layers. Two ops are biconnected if two paths without a common inner op join
them. In every biconnected component the ops with an outgoing edge inside it are fused. Residual and inception blocks
become single layers. In training graphs, where every forward op also feeds its backward op, nearly everything is fused
and goes to one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from placewise.model.columns import Bools, Ints, Longs, distinct
from placewise.model.disjoint_sets import DisjointSets
from placewise.model.problem import Problem
from placewise.model.result import Proposal
from placewise.placers.base import PlacerInfo, SearchContext
from placewise.placers.pipeline_dp.leaf_merging import merge_leaves
from placewise.placers.pipeline_dp.topological_orders import explain_refusal, propose_split, sort_last_ready_first
from placewise.placers.shared.rules import find_broken_rule
from placewise.placers.shared.stages.stage_costs import price_stages
from placewise.simulate.contiguity import contract, join

NEGLIGIBLE_SHARE = 1e-5
"""Tensors whose transfer takes a smaller share of the seconds of the whole model are ignored."""


class PipeDreamPlacer:
    """The best split of a line of biconnected components."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="pipedream",
        summary="the best pipeline along a line of biconnected components",
        source="PipeDream, Narayanan et al., SOSP 2019, as in Tarnawski et al., NeurIPS 2020 (arXiv 2006.16423)",
        objectives=frozenset({"throughput"}),
    )

    def supports(self, problem: Problem) -> str | None:
        return explain_refusal(problem, "pipedream")

    def propose(self, search: SearchContext) -> Proposal:
        """The best split, or a note of why there is none. Hints are ignored."""
        problem = search.problem
        graph = contract(coarsen_blocks(problem))
        graph = join(
            graph, merge_leaves(graph, price_stages(problem, graph.component, graph.n, problem.capacity).costs)
        )
        line = sort_last_ready_first(problem, graph, start="highest")
        proposal = propose_split(search, graph, line, "pipedream")
        if (
            proposal.placement is not None
            and proposal.placement.replicas is None
            and find_broken_rule(problem, proposal.placement.device)
        ):
            fault = f"its layers form no pipeline here: {find_broken_rule(problem, proposal.placement.device)}"
            return replace(proposal, placement=None, notes=(*proposal.notes, fault))
        return proposal


def coarsen_blocks(problem: Problem) -> Problem:
    """The problem with larger colocation groups: the ops with an outgoing edge inside one biconnected component.

    Forward and backward ops of a group are two vertices, as in the published program. That program ignores the edges of
    some nodes of its BERT-24 and GNMT files, listed by id: inputs and masks that go to every layer and would tie all
    layers together. Here `_find_idle` finds such ops.
    """
    tail, head = _list_edges(problem)
    low, high = np.minimum(tail, head), np.maximum(tail, head)
    n = 2 * problem.n_blocks
    ends, edge = np.unique(low.astype(np.int64) * max(n, 1) + high, return_inverse=True)
    component = _find_biconnected(n, list(zip((ends // max(n, 1)).tolist(), (ends % max(n, 1)).tolist(), strict=True)))
    sets, first = DisjointSets(problem.n_blocks), dict[int, int]()
    for number, block in zip(edge.tolist(), (tail // 2).tolist(), strict=True):
        sets.join(first.setdefault(component[number], block), block)
    fused = np.unique(sets.roots(), return_inverse=True)[1].astype(np.int32)
    return problem.with_(graph=replace(problem.graph, ops=replace(problem.graph.ops, group=fused[problem.block])))


def _find_biconnected(n: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The biconnected component of each undirected edge (Hopcroft and Tarjan 1973, without recursion)."""
    around: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    for edge, (one, other) in enumerate(edges):
        around[one].append((other, edge))
        around[other].append((one, edge))
    component, taken = [-1] * len(edges), [False] * len(edges)
    reached, lowest = [-1] * n, [0] * n
    waiting: list[int] = []  # edges whose component is not known yet
    clock = found = 0
    for root in range(n):
        path = [(root, -1)] if reached[root] < 0 else []  # vertices, and the edges that led to them
        while path:
            vertex, via = path[-1]
            if reached[vertex] < 0:
                reached[vertex] = lowest[vertex] = clock
                clock += 1
            if around[vertex]:
                other, edge = around[vertex].pop()
                if taken[edge]:
                    continue
                taken[edge] = True
                waiting.append(edge)
                if reached[other] < 0:
                    path.append((other, edge))
                else:
                    lowest[vertex] = min(lowest[vertex], reached[other])
                continue
            path.pop()
            if not path:
                continue
            above = path[-1][0]
            lowest[above] = min(lowest[above], lowest[vertex])
            if lowest[vertex] >= reached[above]:  # nothing below leads past the vertex above
                while component[via] < 0:
                    component[waiting.pop()] = found
                found += 1
    return component


def _list_edges(problem: Problem) -> tuple[Ints, Ints]:
    """Distinct tails and heads of the edges between vertices; a vertex is twice the block, plus one for backward ops.

    In graphs of layers, forward ops feed backward ops of their own block only. Such edges are ignored there, since the
    published layer graphs leave them out.
    """
    graph = problem.graph
    vertex = 2 * problem.block.astype(np.int64) + graph.ops.backward
    n = max(2 * problem.n_blocks, 1)
    source = np.repeat(graph.tensors.producer, np.diff(graph.consumer_offsets))
    produced = source >= 0
    tail, head = vertex[source[produced]], vertex[graph.consumers[produced]]
    within = tail // 2 == head // 2
    mixed = np.any((tail % 2 < head % 2) & ~within)
    counts = (tail != head) & (mixed | ~within) & ~_find_idle(problem, vertex, n)[tail]
    pair = distinct(tail[counts] * n + head[counts])
    return (pair // n).astype(np.int32), (pair % n).astype(np.int32)


def _find_idle(problem: Problem, vertex: Longs, n: int) -> Bools:
    """The vertices [n] whose ops take no time on any device and produce next to nothing: see `NEGLIGIBLE_SHARE`."""
    seconds, tensors = problem.costs.op_seconds, problem.graph.tensors
    busy = np.where(np.isfinite(seconds), seconds, 0.0).max(axis=1, initial=0.0)
    produced = tensors.producer >= 0
    moved = problem.costs.transfer_seconds.max(axis=1)[produced]
    sent = np.bincount(vertex[tensors.producer[produced]], weights=moved, minlength=n)
    least = np.where(problem.allowed, seconds, np.inf).min(axis=1, initial=np.inf)
    whole = least[np.isfinite(least)].sum()
    idle: Bools = (np.bincount(vertex, weights=busy, minlength=n) == 0) & (sent <= NEGLIGIBLE_SHARE * whole)
    return idle
