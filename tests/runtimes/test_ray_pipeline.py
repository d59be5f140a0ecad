"""Plans run on a real Ray cluster of three nodes on this machine: a stage is killed in mid-stream."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run
from processes_seen import gone
from ray_clusters import three_nodes

import placewise as pw
from placewise.core.build import build
from placewise.errors import InputError, MissingExtraError, RunError
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.runtimes.base import Job
from placewise.runtimes.binding import bind_remotely
from placewise.runtimes.inputs import fresh_inputs
from placewise.runtimes.torch.ray_pipeline import PreparedActors, RayPipeline

torch = pytest.importorskip("torch")
ray = pytest.importorskip("ray")

SAMPLES = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without processors, and two nodes with one each."""
    with three_nodes() as made:
        yield made


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers with a value that goes past the second stage's first op."""

    class Chain(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))

        def forward(self, x: Any) -> Any:
            first = torch.relu(self.layers[0](x))
            second = torch.relu(self.layers[1](first))
            return torch.relu(self.layers[3](torch.tanh(self.layers[2](second)))) + first

    path = tmp_path_factory.mktemp("ray") / "chain.pt2"
    torch.export.save(torch.export.export(Chain().eval(), (torch.randn(3, 16),)), path)
    return path


def job_of(problem: Problem, address: str, stages: int) -> Job:
    device = (np.arange(problem.n_ops) * stages // problem.n_ops).astype(np.int32)
    return Job(problem, Placement(device), bind_remotely(problem.cluster), options={"address": address})


@pytest.mark.soak
def test_a_stage_that_dies_is_replaced(cluster: Any, program: Path) -> None:
    """Two stages on two nodes; one is killed while samples flow: every output is that of the whole program.

    At most as many samples are on their way as are asked for.
    """
    problem = build(program, "2xcore")
    samples = [fresh_inputs(problem.graph, seed) for seed in range(SAMPLES)]
    module = torch.export.load(program).module()
    wanted = [module(torch.from_numpy(sample["x"])).detach().numpy() for sample in samples]
    with RayPipeline().prepare(job_of(problem, cluster.address, 2)) as prepared:
        assert isinstance(prepared, PreparedActors)
        before = prepared.processes
        assert len(set(before)) == 2
        outputs = prepared.stream(samples[:3], in_flight=2)
        assert all(np.allclose(next(iter(o.values())), w, atol=1e-6) for o, w in zip(outputs, wanted, strict=False))
        submitted: list[Any] = []
        submit, on_their_way = prepared._submit, []

        def submit_and_kill(sample: Any) -> Any:
            if len(submitted) == SAMPLES // 2:
                os.kill(before[1], signal.SIGKILL)
            if submitted:
                on_their_way.append(len(ray.wait(submitted, num_returns=len(submitted), timeout=0)[1]) + 1)
            submitted.append(submit(sample))
            return submitted[-1]

        prepared._submit = submit_and_kill  # type: ignore[method-assign]
        outputs = prepared.stream(samples, in_flight=4)
        prepared._submit = submit  # type: ignore[method-assign]
        assert len(submitted) >= SAMPLES and 2 <= max(on_their_way) <= 4
        outputs += prepared.stream(samples[:2])
        after = prepared.processes
    assert after[0] == before[0] and after[1] != before[1]
    for found, expected in zip(outputs, [*wanted, *wanted[:2]], strict=True):
        np.testing.assert_allclose(next(iter(found.values())), expected, atol=1e-6)


@pytest.mark.soak
def test_the_command_runs_a_plan_on_the_cluster(cluster: Any, program: Path, tmp_path: Path) -> None:
    """`placewise run --ray` compares the stages with the whole program, which runs on the cluster as well."""
    plan = tmp_path / "plan.json"
    run("place", program, "-d", "2xcore", "--objective", "throughput", "--pin", "linear_3=core:1",
        "--pin", "linear$=core:0", "--contiguous", "-o", plan)  # fmt: skip
    text = run("run", plan, "--ray", cluster.address, "--rounds", "2").stdout
    assert text.startswith("ray, throughput") and "1+1" in text and "single device" in text
    with pytest.raises(InputError, match="on this machine alone"):
        pw.run(plan, ray=cluster.address, runtime="torch")
    with pytest.raises(InputError, match="chooses places itself"):
        pw.run(plan, ray=cluster.address, bind={"core:0": "cores:0"})


@pytest.mark.soak
def test_a_cluster_without_room(cluster: Any, program: Path) -> None:
    """More stages than processors are refused at once: their actors would wait for ever."""
    with pytest.raises(RunError, match="3 stages need processors of their own, and the Ray cluster has 2"):
        RayPipeline().prepare(job_of(build(program, "3xcore"), cluster.address, 3))


@pytest.mark.soak
def test_the_whole_program_shares_a_gpu_with_a_stage(
    cluster: Any, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With which it is compared, and no two stages do: one GPU, of which Ray only counts, is enough for both."""

    class Ready:
        def __init__(self, *_: Any) -> None:
            pass

        def start(self) -> str:
            return ""

    cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=80 << 20)
    module = "placewise.runtimes.torch.ray_pipeline"
    monkeypatch.setattr(f"{module}.RayStage", Ready)
    monkeypatch.setattr(f"{module}.START", 30.0)
    monkeypatch.setattr(f"{module}.torch_device", lambda place: "cuda:0" if place.device == "core:0" else "cpu")
    problem = build(program, "2xcore")
    with RayPipeline().prepare(replace(job_of(problem, cluster.address, 1), seconds=1.0)):
        RayPipeline().prepare(replace(job_of(problem, cluster.address, 2), seconds=1.0)).close()
    monkeypatch.setattr(f"{module}.torch_device", lambda _: "cuda:0")
    with pytest.raises(RunError, match="2 stages need GPUs of their own, and the Ray cluster has 1"):
        RayPipeline().prepare(job_of(problem, cluster.address, 2))


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_node_that_dies_is_left(cluster: Any, program: Path) -> None:
    """The stage of a node that goes in mid-stream starts on another node, and no output is lost or wrong."""
    cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    problem = build(program, "2xcore")
    samples = [fresh_inputs(problem.graph, seed) for seed in range(SAMPLES)]
    module = torch.export.load(program).module()
    with RayPipeline().prepare(job_of(problem, cluster.address, 2)) as prepared:
        assert isinstance(prepared, PreparedActors)
        lost = prepared.processes[1]
        node = next(node for node in cluster.worker_nodes if raylet(node) == parent_of(lost))
        submit, count = prepared._submit, [0]

        def submit_and_remove(sample: Any) -> Any:
            count[0] += 1
            if count[0] == SAMPLES // 2:
                cluster.remove_node(node, allow_graceful=False)
                assert gone(lost, 60.0)  # it outlives its node for a moment
            return submit(sample)

        prepared._submit = submit_and_remove  # type: ignore[method-assign]
        outputs = prepared.stream(samples, in_flight=4)
        assert count[0] >= SAMPLES and lost not in prepared.processes
    for sample, found in zip(samples, outputs, strict=True):
        expected = module(torch.from_numpy(sample["x"])).detach().numpy()
        np.testing.assert_allclose(next(iter(found.values())), expected, atol=1e-6)


def raylet(node: Any) -> int:
    """The number of the process from which a node's actors come."""
    return int(node.all_processes["raylet"][0].process.pid)


def parent_of(pid: int) -> int:
    """The number of the process that started another."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_no_cluster_and_no_ray(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address where nothing listens, a text that is none, and a missing library are errors of ours."""
    problem = build(program, "2xcore")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for address, said in (("127.0.0.1:1", "refused"), ("nowhere", "HOST:PORT"), ("127.0.0.1:99999", "HOST:PORT")):
        with pytest.raises(RunError, match=f"no Ray cluster at '{address}': .*{said}"):
            RayPipeline().prepare(job_of(problem, address, 2))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match="'ray'"):
        RayPipeline().prepare(job_of(problem, "auto", 2))
