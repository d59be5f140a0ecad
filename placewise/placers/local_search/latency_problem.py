"""What all chains of a latency search share: the problem as `native/latency_search` reads it."""

from __future__ import annotations

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Longs, frozen
from placewise.model.problem import Problem
from placewise.placers.local_search.scope_levels import levels_of
from placewise.placers.shared.move_space import build_move_space
from placewise.simulate.in_place import in_place_ops
from placewise.simulate.judge.schedule import prepare
from placewise.simulate.problem_arrays import arrays_of


def search_problem_of(problem: Problem, priors: Floats | None = None) -> _native.LatencySearchProblem:
    """Linear in the problem, but for sorting. `priors`: probabilities of blocks (`common/probabilities.py`)."""
    a, graph, levels = arrays_of(problem), problem.graph, levels_of(problem)
    prepared = prepare(problem, a)
    tensor_bytes = np.maximum(graph.tensors.bytes, 0)
    return _native.LatencySearchProblem(
        prepared.native,
        build_move_space(problem, priors),
        priority=prepared.priority,
        by_priority=prepared.by_priority,
        block=frozen(problem.block, np.int32),
        least_seconds=frozen(np.where(problem.allowed, a.op_seconds, np.inf).min(axis=1), np.float64),
        in_place_bytes=_in_place_bytes(problem, tensor_bytes),
        tensor_bytes=frozen(tensor_bytes, np.int64),
        is_host=frozen(problem.cluster.is_host, np.bool_),
        part=levels.group,
        part_offsets=levels.offsets,
        part_blocks=levels.blocks,
        live=problem.objective.memory == "live",
        shaped=problem.constraints.shaped,
    )


def _in_place_bytes(problem: Problem, tensor_bytes: Longs) -> Longs:
    """Bytes [n_ops] of the first result if it may take the place of an operand, −1 if not."""
    graph, found = problem.graph, np.full(problem.n_ops, -1, np.int64)
    first = graph.out_offsets[:-1]
    ops = np.flatnonzero(in_place_ops(graph) & (first < graph.out_offsets[1:]))
    found[ops] = tensor_bytes[first[ops]]
    return frozen(found, np.int64)
