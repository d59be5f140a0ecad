"""Ctrl-C and the end of time: real SIGINTs into the command, and stop reasons that say what happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run

from placewise import _native
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.model.problem import Problem
from placewise.model.result import Outcome, Proposal, Reason
from placewise.placers.base import Budget, Progress, SearchContext
from placewise.placers.registry import placer_class

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


@contextmanager
def searching(name: str, number: int = signal.SIGINT) -> Iterator[None]:
    """This process is sent a signal in the midst of a search: once it has reported a value, or soon after it began."""
    kind, timers = placer_class(name), list[threading.Timer]()
    propose: Any = kind.propose

    def interrupt() -> None:
        timers.append(threading.Timer(0.1, os.kill, (os.getpid(), number)))
        timers[0].start()

    def interrupted(self: Any, search: SearchContext) -> Proposal:
        def report(progress: Progress) -> None:
            search.on_progress(progress)
            if progress.value is not None and not timers:
                interrupt()

        if name in ("cpsat", "pack"):
            interrupt()
        kind.propose = propose
        return propose(self, replace(search, on_progress=report))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "propose", interrupted)
        yield
        for timer in timers:
            timer.cancel()


@contextmanager
def beginning(name: str) -> Iterator[None]:
    """This process is sent SIGINT when a placer's dynamic program begins: for those that take no time."""
    kind, program = placer_class(name), _native.StageExpansion
    propose: Any = kind.propose
    expand = program.expand

    def interrupt_once(*args: Any) -> Any:
        program.expand = expand
        os.kill(os.getpid(), signal.SIGINT)
        return expand(*args)

    def interrupted(*args: Any, **kwargs: Any) -> Proposal:
        program.expand = interrupt_once
        return propose(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "expand", expand)
        patch.setattr(kind, "propose", interrupted)
        yield


def model(path: Path, *, n: int = 60, k: int = 4, room: float = 1.6) -> Path:
    """A workload of n random ops in about ten layers; the accelerators hold `room` times all of it."""
    rng = np.random.default_rng(0)
    nodes: list[dict[str, Any]] = [
        {"id": i, "name": f"n{i}", "cpuLatency": float(rng.integers(200, 900)), "supportedOnFpga": 1,
         "fpgaLatency": float(rng.integers(20, 90)), "size": float(rng.integers(1000, 3000)), "isBackwardNode": 0}
        for i in range(n)
    ]  # fmt: skip
    cost = rng.integers(1, 9, n)
    edges = [
        {"sourceId": int(s), "destId": i, "cost": float(cost[s])}
        for i in range(6, n)
        for s in rng.choice(np.arange(max(0, i - 12), i), 2, replace=False)
    ]
    total = sum(node["size"] for node in nodes)
    limits = {"maxSizePerFPGA": total / k * room, "maxFPGAs": k, "maxCPUs": 0 if room < 1.01 else 1}
    path.write_text(json.dumps({**limits, "nodes": nodes, "edges": edges}))
    return path


def interrupted(name: str, path: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the plan that was printed, if any, and standard error of a command that is interrupted."""
    done = run("place", path, "--placer", name, "--json", *options, code=(0, 130))
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dp", ()),
        ("cpsat", ("--free", "--time-limit", "200s")),
        ("cpsat", ("--objective", "latency", "--time-limit", "200s")),
        ("cover", ("--free", "--time-limit", "200s")),
        ("temper", ("--objective", "latency", "--time-limit", "200s")),
        ("auto", ("--free", "--time-limit", "200s")),
    ],
)
def test_interrupted_with_the_best_so_far(tmp_path: Path, name: str, options: tuple[str, ...]) -> None:
    """The plan holds a placement and says that it was interrupted; exit code 0."""
    with searching(name):
        code, plan, _ = interrupted(name, model(tmp_path / "w.json"), *options)
    assert (code, plan["status"], plan["reason"]) == (0, "feasible", "interrupted")
    assert len(plan["assignment"]) == 60 and plan["lower_bound"] <= plan["value"]


def test_terminated_with_the_best_so_far(tmp_path: Path) -> None:
    """SIGTERM is heard like Ctrl-C."""
    options = "--objective", "latency", "--time-limit", "200s"
    with searching("temper", signal.SIGTERM):
        code, plan, _ = interrupted("temper", model(tmp_path / "w.json"), *options)
    assert (code, plan["reason"], len(plan["assignment"])) == (0, "interrupted", 60)


class Closing:
    """What is interrupted while it is thrown away, where Python drops all that is raised."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)


def test_an_interrupt_in_a_finalizer_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C that comes while an object is finalized ends the search all the same, and nothing else is printed."""
    kind, closed = placer_class("temper"), list[float]()
    propose: Any = kind.propose

    def proposed(self: Any, search: SearchContext) -> Proposal:
        def report(progress: Progress) -> None:
            if progress.value is not None and not closed:
                closed.append(progress.value)
                Closing()

        return propose(self, replace(search, on_progress=report))

    monkeypatch.setattr(kind, "propose", proposed)
    options = "--objective", "latency", "--time-limit", "10s"
    code, plan, errors = interrupted("temper", model(tmp_path / "w.json"), *options)
    assert (code, plan["reason"], len(plan["assignment"])) == (0, "interrupted", 60)
    assert closed and "ignored" not in errors


@pytest.mark.parametrize("name", ["dpl", "pipedream"])
def test_interrupted_lines(tmp_path: Path, name: str) -> None:
    """A placer that is done in no time, interrupted at once: what it has, or exit code 130 and nothing."""
    with beginning(name):
        code, plan, errors = interrupted(name, model(tmp_path / "w.json"))
    assert plan["reason"] == "interrupted"
    assert (code == 0 and plan["assignment"]) or (code == 130 and not plan["assignment"] and "interrupted" in errors)


def test_interrupted_with_nothing(tmp_path: Path) -> None:
    """Packing thirty devices to the last byte takes long: exit code 130, no assignment, and no wrong proof."""
    path = model(tmp_path / "w.json", n=90, k=30, room=1.0003)
    with searching("pack"):
        code, plan, errors = interrupted("pack", path, "--free", "--time-limit", "200s")
    assert (code, plan["status"], plan["reason"], plan["assignment"]) == (130, "unknown", "interrupted", {})
    assert errors.strip().endswith("interrupted")


@pytest.mark.soak
def test_training_workers_are_interrupted(tmp_path: Path) -> None:
    """Ctrl-C goes to all processes of a terminal: the best so far is the plan, exit code 0, and nobody is left."""
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    kept = tmp_path / "kept.json"
    said = "train zoo:random-branchy --dim n_ops=30 -d 2xV100-16GB --policy colocrl --controllers 1 --time-limit 200s"
    command = [sys.executable, "-m", "placewise", *said.split(), "--checkpoint", str(kept), "--every", "1", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as running:
        until = time.monotonic() + 200
        while not kept.exists() and running.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGINT)
        said, errors = running.communicate(timeout=200)
    assert running.returncode == 0 and "Traceback" not in errors, errors
    plan = json.loads(said)
    assert plan["reason"] == "interrupted" and plan["assignment"] and plan["training"]["updates"] > 0
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, 0)


def hard(tmp_path: Path, objective: str, **options: Any) -> Problem:
    """A problem that no placer here proves in a moment."""
    return build(model(tmp_path / "w.json", **options), options=ProblemOptions(objective=objective, contiguous=False))


@pytest.mark.parametrize("name", ["cpsat", "auto", "cover"])
def test_a_proof_that_ran_out_of_time_is_not_finished(tmp_path: Path, name: str) -> None:
    """Throughput without a proof in the time there was: no optimum is claimed, and the reason is the time limit."""
    result = place(hard(tmp_path, "throughput"), name, Budget(0.2))
    assert result.status.reason is Reason.TIME_LIMIT and result.status.outcome is not Outcome.OPTIMAL


@pytest.mark.parametrize("name", ["temper", "auto", "cpsat"])
def test_a_latency_search_that_ran_out_of_time_is_not_finished(tmp_path: Path, name: str) -> None:
    """Latency without a proof in the time there was: the same."""
    result = place(hard(tmp_path, "latency"), name, Budget(0.2))
    assert result.status.reason is Reason.TIME_LIMIT and result.status.outcome is not Outcome.OPTIMAL


def test_a_pipeline_that_ran_out_of_time_is_not_finished(tmp_path: Path) -> None:
    """dp in the middle of its ideals has a placement, a lower bound that holds, and the reason."""
    problem = build(model(tmp_path / "w.json"))
    result = place(problem, "dp", Budget(1.0))
    assert (result.status.outcome, result.status.reason) == (Outcome.FEASIBLE, Reason.TIME_LIMIT)
    assert result.lower_bound <= result.value


def test_a_packing_that_ran_out_of_time_proves_nothing(tmp_path: Path) -> None:
    """pack neither packs nor proves in a moment: unknown, by the time limit."""
    result = place(hard(tmp_path, "throughput", n=90, k=30, room=1.0003), "pack", Budget(0.3))
    assert (result.status.outcome, result.status.reason) == (Outcome.UNKNOWN, Reason.TIME_LIMIT)
    assert not result.unmet and "before the search ended" in " ".join(result.notes)
