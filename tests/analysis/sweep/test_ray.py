"""A sweep on a Ray cluster of several nodes finds what one process finds."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("ray")

from ray_clusters import three_nodes

from placewise.analysis.sweep.jobs import PointJob
from placewise.analysis.sweep.run import plan_sweep, run_sweep
from placewise.core.options import ProblemOptions
from placewise.placers.base import Budget
from placewise.processes.pool import Pool, PoolMember

pytestmark = pytest.mark.filterwarnings("ignore")
OPTIONS = ProblemOptions(dims={"layers": 1, "length": 16}, objective="throughput")


@pytest.mark.soak
def test_a_ray_cluster_finds_what_one_process_finds() -> None:
    """Two actors on two nodes share the points; the sweep is the same."""
    clusters = ["1..2xL4", '{"cuda:0": "130MiB"}']
    plan = plan_sweep("zoo:bert-base", clusters, {"batch": "16:128"}, OPTIONS, Budget(iterations=1000), placer="single")
    with three_nodes() as cluster:
        together = run_sweep(plan, ray=cluster.address)
    assert together == run_sweep(plan, workers=1)
    assert together.complete and together.largest


@pytest.mark.soak
def test_what_ray_says_of_dead_workers_is_not_printed(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """A worker that is killed costs no point, and stdout is that of the sweep alone."""
    given, killed = Pool.give, []

    def give(self: Pool, member: PoolMember, task: PointJob, *args: Any, **more: Any) -> None:
        given(self, member, task, *args, **more)
        if not killed:
            killed.append(task)
            actor = member.handle._actor  # type: ignore[attr-defined]
            actor.__ray_call__.remote(lambda _: os._exit(1))

    plan = plan_sweep("zoo:bert-base", "L4", {"batch": "16:128"}, OPTIONS, Budget(iterations=1000), placer="single")
    monkeypatch.setattr(Pool, "give", give)
    with three_nodes() as cluster:
        found = run_sweep(plan, ray=cluster.address)
    assert killed and all(point.status != "error" for point in found.points)
    assert not capfd.readouterr().out
