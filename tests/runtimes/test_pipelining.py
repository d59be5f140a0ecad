"""The runtime `pipelining`: what stages hand on, who is named when a rank fails, and what a stream should take."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from processes_seen import LOOPBACK, listening_addresses

import placewise as pw
from placewise._util.cores import pinnable_cores
from placewise.analysis.measure_placements import Setting, measure_placements, tabulate_measurements
from placewise.errors import RunError
from placewise.model.problem import Problem
from placewise.reporting.measured import measurement_view
from placewise.reporting.plain import plain
from placewise.runtimes import registry
from placewise.runtimes.inputs import fresh_inputs
from placewise.runtimes.measure import Protocol
from placewise.targets.place_for import place_for

torch = pytest.importorskip("torch")
from pipeline_models import MODELS, HandedOn, Picks, Residuals, even_cut, export_model, export_named, job_here  # noqa: E402

from placewise.runtimes.torch.rank import Rank  # noqa: E402


def with_free_transfers(problem: Problem) -> Problem:
    """The problem of a full pipeline in which even a small model is worth splitting."""
    costs = replace(problem.costs, transfer_seconds=np.zeros_like(problem.costs.transfer_seconds))
    return problem.with_(costs=costs, objective=replace(problem.objective, kind="throughput"))


def require_outputs(model: Any, problem: Any, device: Any, then: Callable[[Any], None] = lambda _: None) -> None:
    """Two samples as single runs and a stream of both: in all of them the outputs of the module in one process. `then`
    takes what was prepared for them.
    """
    with registry.create("pipelining").prepare(job_here(problem, device)) as prepared:
        samples = [fresh_inputs(problem.graph, seed) for seed in range(2)]
        streamed = prepared._run_samples("stream", samples)[-1][2]
        for sample, seen in zip(samples, streamed, strict=True):
            alone = prepared.run(sample)
            wanted = model.outputs(sample)
            assert len(alone) == len(seen) == len(wanted)
            for one, other, value in zip(alone.values(), seen.values(), wanted, strict=True):
                for array in (one, other):
                    assert array.shape == tuple(value.shape)
                    found = torch.from_numpy(array.astype("float32")) if value.dtype == torch.bfloat16 else array
                    torch.testing.assert_close(
                        torch.as_tensor(found), value.float() if value.dtype == torch.bfloat16 else value,
                        rtol=1e-4, atol=1e-5,
                    )  # fmt: skip
        then(prepared)


def test_stages_hand_on_values_of_every_kind_until_one_is_killed(tmp_path: Path) -> None:
    """Transposed, sliced, expanded, empty, scalar, bool, int, complex values and one that skips a stage, after an input
    that no op reads. Where the middle rank is killed in a stream, the error is about it and no neighbour, and no
    process is left. Ranks listen on the loopback device alone.
    """
    model = export_model(HandedOn(), {"unread": torch.randn(3), "x": torch.randn(4, 6)}, tmp_path / "handed.pt2")
    problem = pw.build(model.path, "3xcore")
    last = max(number for number, name in enumerate(problem.graph.ops.name) if "add" in name)
    device = [0 if n < problem.n_ops // 2 else 1 if n < last else 2 for n in range(problem.n_ops)]

    def kill_the_middle(prepared: Any) -> None:
        pids = [worker.pid for worker in prepared._workers]
        if Path("/proc/net/tcp").exists():
            assert listening_addresses(pids) and listening_addresses(pids) <= LOOPBACK
        samples = [fresh_inputs(problem.graph, seed) for seed in range(4)] * 500
        assert len(prepared.time(samples[:4])) == 4 and min(prepared.time(samples[:4])) > 0
        assert len(prepared.time(samples[:4], in_flight=2)) == 1 and prepared.realised.pieces == (1, 1, 1)
        threading.Timer(0.3, os.kill, (pids[1], signal.SIGKILL)).start()
        with pytest.raises(RunError, match=r"core:1 \(.*\) was killed") as caught:
            for _ in range(100):
                prepared.time(samples, in_flight=2)
        assert "core:0" not in str(caught.value) and "core:2" not in str(caught.value)
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    require_outputs(model, problem, device, kill_the_middle)


@pytest.mark.soak
def test_stages_run_on_quotas_over_links_of_a_bandwidth(tmp_path: Path) -> None:
    """In network namespaces and control groups of their own: the same outputs, and nothing is left of either."""
    model = export_model(Residuals(), {"x": torch.randn(4, 16)}, tmp_path / "slow.pt2")
    problem = pw.build(model.path, "2xcore")
    job = job_here(problem, even_cut(problem, 2))
    places = tuple(replace(place, quota=0.8, bandwidth=50e6) for place in job.places)
    here = os.readlink("/proc/self/ns/net")
    try:
        prepared = registry.create("pipelining").prepare(replace(job, places=places))
    except RunError as error:
        pytest.skip(str(error)) if "can be made here" in str(error) else pytest.fail(str(error))
    with prepared:
        groups = [worker._quota.path for worker in prepared._workers]
        networks = {os.readlink(f"/proc/{worker.pid}/ns/net") for worker in prepared._workers}
        assert len(networks | {here}) == 3 and all(group.is_dir() for group in groups)
        sample = fresh_inputs(problem.graph, 0)
        for found, wanted in zip(prepared.run(sample).values(), model.outputs(sample), strict=True):
            torch.testing.assert_close(torch.as_tensor(found), wanted, rtol=1e-4, atol=1e-5)
    assert not any(group.exists() for group in groups)


@pytest.mark.parametrize("cores", [2, 4])
@pytest.mark.parametrize("placer", ["balanced", "auto"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.soak) for name in MODELS])
def test_nine_models_run_in_stages(name: str, placer: str, cores: int, tmp_path: Path) -> None:
    """Split over two and four cores, by hand and by the search: the outputs of the single process."""
    model = export_named(name, tmp_path / "model.pt2")
    problem = with_free_transfers(pw.build(model.path, f"{cores}xcore"))
    result = place_for(problem, "pipelining", placer, pw.Budget(seconds=2))
    assert result.placement is not None
    device = result.placement.device.tolist()
    assert len(set(device)) > 1
    require_outputs(model, problem, device)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "cores"), [("transposed", 2), ("mixture", 4)])
def test_models_run_in_even_stages(name: str, cores: int, tmp_path: Path) -> None:
    """Two of the nine, cut where the ops fall, in so many stages that hand something on."""
    model = export_named(name, tmp_path / "model.pt2")
    problem = pw.build(model.path, f"{cores}xcore")
    require_outputs(model, problem, even_cut(problem, cores))


@pytest.fixture(scope="module")
def residuals(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return export_model(Residuals(), {"x": torch.randn(3, 16)}, tmp_path_factory.mktemp("residuals") / "model.pt2")


@pytest.mark.soak
def test_an_error_in_the_middle_rank_is_named(tmp_path: Path) -> None:
    """An index that does not exist: its own message, while the other ranks wait; nobody waits for their time limit."""
    model = export_model(Picks(), {"x": torch.randn(4, 6), "row": torch.tensor(1)}, tmp_path / "picks.pt2")
    problem = pw.build(model.path, "3xcore")
    pick = next(op for op, name in enumerate(problem.graph.ops.name) if name.startswith("index"))
    device = [0 if op < pick else 1 if op == pick else 2 for op in range(problem.n_ops)]
    with registry.create("pipelining").prepare(job_here(problem, device)) as prepared:
        sample = fresh_inputs(problem.graph, 0)
        began = time.monotonic()
        with pytest.raises(RunError, match=r"core:1 \(.*\) failed: IndexError: index out of range"):
            prepared.run({**sample, "row": np.array(9)})
        assert time.monotonic() - began < 30


@pytest.mark.soak
def test_a_stream_is_predicted_with_its_fill(residuals: Any) -> None:
    """`run` says what the measured stream should take, and what a full pipeline would, with blocking transfers."""
    problem = pw.build(residuals.path, "2xcore")
    objective = replace(problem.objective, kind="throughput", communication="overlap", execution="sequential")
    problem = problem.with_(objective=objective)
    seconds = np.full_like(problem.costs.op_seconds, 1.0)
    free = np.zeros_like(problem.costs.transfer_seconds)
    problem = problem.with_(costs=replace(problem.costs, op_seconds=seconds, transfer_seconds=free))
    placement = job_here(problem, even_cut(problem, 2)).placement
    protocol = Protocol(rounds=1, samples=4, in_flight=2, warm_up=1)
    binding = {f"core:{number}": f"cores:{pinnable_cores()[0]}" for number in range(2)}
    setting = Setting("pipelining", binding, protocol=protocol)
    measured = measure_placements(problem, {"plan": placement}, setting)
    ops = [int((placement.device == device).sum()) for device in range(2)]
    assert measured.of("plan").steady == max(ops)
    assert measured.of("plan").predicted == (sum(ops) + 3 * max(ops)) / 4
    assert measured.single.predicted == measured.single.steady == sum(ops)
    assert math.isfinite(measured.of("plan").seconds)
    assert any("predictions are blocking" in note for note in measured.of("plan").notes)
    command = "placewise profile MODEL -d DEVICES --runtime pipelining --loaded -o FILE"
    assert any(command in note for note in measured.of("plan").notes)
    assert "when full" in plain(measurement_view(tabulate_measurements(measured, "plan")))


def test_a_gpu_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a rank, before it reads the program, as by the lanes of one process."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    payload: Any = SimpleNamespace(tf32="nothing")
    for device in ("cuda:1", "cuda:3"):
        with torch.no_grad(), pytest.raises(RunError, match=f"^PyTorch sees 1 GPU here, and {device} is none of them$"):
            Rank(payload, 0, 1, device, "", 1.0)
