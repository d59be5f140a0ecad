"""The components of a contiguous placement, where ops are in order and where they are not."""

from __future__ import annotations

import numpy as np
from simulate_problems import random_problem, seeded
from soak import seeds

from placewise.simulate.contiguity import _block_edges, components, contract, strong_components


def test_components_are_strong_components_in_topological_order() -> None:
    """With and without colocation groups: the same parts as Tarjan's, and no edge of the contraction goes back."""
    fused, whole = 0, 0
    for seed in seeds(60):
        problem = random_problem(seeded(seed), max_ops=20, rules=True)
        component, n = components(problem)
        expected, count = strong_components(*_block_edges(problem), problem.n_blocks)
        assert n == count == contract(problem).n
        assert np.array_equal(component, expected[problem.block])
        tail, head = contract(problem).edges()
        assert (tail < head).all()
        fused += n < problem.n_blocks
        whole += n == problem.n_blocks
    assert fused and whole
