"""Workers on a real Ray cluster of three nodes on this machine: a worker and a whole node are killed in mid-run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ray = pytest.importorskip("ray")

from learned_policies import table
from processes_seen import gone
from ray_clusters import three_nodes
from worker_problems import OPTIONS, free_problem
from worker_rewards import Reward, measured, workers

from placewise.errors import MissingExtraError, RunError
from placewise.model.result import Reason
from placewise.placers.base import Budget
from placewise.simulate import evaluate
from placewise.training.distributed import distributed_trainer
from placewise.training.workers.config import RayCluster
from placewise.training.workers.messages import ControllerSpec


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without processors, and two nodes with one each."""
    with three_nodes() as made:
        yield made


def parent_of(pid: int) -> int:
    """The number of the process that started another; 0 if that is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_worker_and_a_node_may_be_killed(cluster: Any, tmp_path: Path) -> None:
    """Each costs what was being done there; what remains of the cluster spends the budget to the last evaluation."""
    problem = free_problem()
    victims: list[int] = []

    def kill(update: Any) -> None:
        alive = [pid for pid in workers(tmp_path) if not gone(pid, 0.0)]
        if update.number == 2:
            victims.append(alive[0])
            os.kill(alive[0], signal.SIGKILL)
        if len(victims) == 1 and update.number >= 4:
            node = next((node for node in cluster.worker_nodes if raylet(node) in map(parent_of, alive)), None)
            if node is not None:
                victims.extend(pid for pid in alive if parent_of(pid) == raylet(node))
                cluster.remove_node(node, allow_graceful=False)

    make = Reward(problem, str(tmp_path), pause=0.02)
    config = RayCluster(cluster.address, controllers=1, workers=2)
    trainer = distributed_trainer(ControllerSpec(partial(table, problem, OPTIONS, 0), OPTIONS, config, make), seed=1)
    try:
        trainer.begin()
        reason = trainer.run(Budget(evaluations=150), kill)
    finally:
        trainer.close()
    assert reason is Reason.FINISHED and not trainer.early_stop
    assert len(victims) >= 2 and len(cluster.worker_nodes) == 1 and trainer.controllers.deaths >= 1
    assert trainer.pricing.evaluations == 150
    assert trainer.pricing.value == evaluate(problem, np.array(measured(tmp_path))).min()
    assert all(gone(pid, 30.0) for pid in (*victims, *workers(tmp_path)))


def raylet(node: Any) -> int:
    """The number of the process from which a node's workers come."""
    return int(node.all_processes["raylet"][0].process.pid)


@pytest.mark.parametrize(
    ("address", "said"),
    [("127.0.0.1:1", "refused"), ("local", "an address is HOST:PORT"), ("127.0.0.1:99999", "an address is HOST:PORT")],
)
def test_a_cluster_that_is_not_there_is_told_of(address: str, said: str) -> None:
    """By its address, in an error of ours, at once."""
    with pytest.raises(RunError, match=f"no Ray cluster at '{address}': .*{said}"):
        RayCluster(address).backend()


def test_a_library_that_is_not_there_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that brings it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match="'ray'"):
        RayCluster("auto").backend()
