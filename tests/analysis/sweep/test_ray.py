"""A sweep on a Ray cluster of several nodes finds what one process finds."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from ray_clusters import three_nodes

from placewise.analysis.sweep.run import plan_sweep, run_sweep
from placewise.core.options import ProblemOptions
from placewise.placers.base import Budget

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.soak
def test_a_ray_cluster_finds_what_one_process_finds() -> None:
    """Two actors on two nodes share the points; the sweep is the same."""
    options = ProblemOptions(dims={"layers": 1, "length": 16}, objective="throughput")
    clusters = ["1..2xL4", '{"cuda:0": "130MiB"}']
    plan = plan_sweep("zoo:bert-base", clusters, {"batch": "16:128"}, options, Budget(iterations=1000), placer="single")
    with three_nodes() as cluster:
        together = run_sweep(plan, ray=cluster.address)
    assert together == run_sweep(plan, workers=1)
    assert together.complete and together.largest
