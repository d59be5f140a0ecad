"""balanced: the cut of huge graphs by cumulated bytes against the dynamic program."""

from __future__ import annotations

import numpy as np
import pytest
from toy_problems import boxes

from placewise.model.problem import Constraints
from placewise.placers.base import run_placer
from placewise.placers.baselines import balanced
from placewise.placers.shared.memory_footprint import count_first_uses


@pytest.mark.parametrize("seed", range(30))
def test_huge_graphs_are_cut_as_evenly(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Both have the same largest share, in a chain of stages as well, and both find nothing where nothing fits."""
    rng = np.random.default_rng(seed)
    sizes, room = rng.integers(0, 9, 25).tolist(), float(rng.integers(20, 60))
    problem = boxes(sizes, [room] * 4, constraints=Constraints(contiguous=bool(seed % 2)))
    shares = []
    for many in (problem.n_ops, 0):
        monkeypatch.setattr(balanced, "MANY_OPS", many)
        placement = run_placer(balanced.BalancedPlacer(), problem).placement
        amounts = count_first_uses(problem.graph) + 1.0
        shares.append(placement and np.bincount(placement.device, amounts, problem.n_devices).max())
    assert shares[1] == shares[0]
