"""Orders that go deep: the kernel against plain stacks."""

from __future__ import annotations

import numpy as np
import pytest
from simulate_problems import random_problem, seeded
from soak import seeds

from placewise.placers.pipeline_dp.topological_orders import sort_depth_first
from placewise.simulate.contiguity import Contraction, contract, depth_first


def plain(graph: Contraction, sources: list[int], key: list[float], stage: list[int]) -> list[int]:
    """The components in their order: one stack per stage, what became ready last on top."""
    tails, heads = (column.tolist() for column in graph.edges())
    missing = [heads.count(c) for c in range(graph.n)]
    ready: list[list[int]] = [[] for _ in range(max(stage, default=0) + 1)]
    for source in sources:
        ready[stage[source]].append(source)
    order = []
    while any(ready):
        component = next(stack for stack in ready if stack).pop()
        order.append(component)
        after = [head for tail, head in zip(tails, heads, strict=True) if tail == component]
        for successor in sorted(after, key=key.__getitem__):
            missing[successor] -= 1
            if not missing[successor]:
                ready[stage[successor]].append(successor)
    return order


@pytest.mark.parametrize("stages", [1, 3])
def test_the_same_order(stages: int) -> None:
    """On random problems, with ties among the keys, with and without stages."""
    for seed in seeds(60):
        graph = contract(random_problem(seeded(seed), max_ops=25))
        rng = np.random.default_rng(seed)
        key = rng.integers(0, 4, graph.n)
        stage = (depth_first(graph) * stages // max(graph.n, 1)).astype(np.int32)
        sources = rng.permutation(np.flatnonzero(np.diff(graph.predecessor_offsets) == 0))
        order = plain(graph, sources.tolist(), key.tolist(), stage.tolist())
        assert np.argsort(sort_depth_first(graph, sources, key, stage)).tolist() == order
        if stages == 1:
            assert np.argsort(sort_depth_first(graph, sources, key)).tolist() == order
