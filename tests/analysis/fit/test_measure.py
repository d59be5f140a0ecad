"""fit --measure: both commands run on the real llama.cpp, and the faster one is printed."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from cli_runs import run
from gguf_models import tiny_model, write_model
from llama_servers import MISSING, is_installed, start_server

import placewise as pw
from placewise.analysis.fit import measure as module
from placewise.analysis.fit.measure import choose_command, find_default_command, measure_fit
from placewise.api.results import Fit
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.errors import ExportError, InputError, RunError
from placewise.exporters.llama_cpp.command import write_default_command
from placewise.reporting.fitted import TimedCommand, is_tie
from placewise.runtimes.llama_cpp.program import LlamaProgram

SIZES = {"prompt": 8, "tokens": 4}
DIMS = ("--dim", "prompt=8", "--dim", "tokens=4")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A model that only the header is read of."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_model())
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that llama.cpp loads."""
    pytest.importorskip("gguf")
    return write_model(tmp_path / "model.gguf", layers=4)


@pytest.fixture
def llama() -> None:
    """Skip where llama.cpp's programs are missing."""
    if not is_installed():
        pytest.skip(MISSING)


@pytest.fixture
def servers(llama: None) -> Iterator[list[tuple[Any, str]]]:
    """Two RPC servers: their processes and addresses."""
    with ExitStack() as running:
        yield [running.enter_context(start_server("-t", "1")) for _ in range(2)]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of all processes of llama-server that are started."""
    pids: list[int] = []

    class Recorded(LlamaProgram):
        def _wait(self, path: Path) -> None:
            pids.append(self.pid)
            super()._wait(path)

    monkeypatch.setattr(module, "LlamaProgram", Recorded)
    return pids


def assert_ended(pids: list[int]) -> None:
    """There were processes, and none is left."""
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def name_devices(servers: list[tuple[Any, str]], host: str = "core") -> str:
    return ",".join([host, *(f"rpc:{address}@1GiB" for _, address in servers)])


def invent(name: str, *seconds: float, failure: str = "") -> TimedCommand:
    """A command whose rounds take so long."""
    return TimedCommand(
        name, f"llama-server --{name}", 10, 4, tuple((each / 2, each / 8) for each in seconds), "", failure
    )


@pytest.mark.parametrize(
    ("plan", "default", "chosen", "said"),
    [
        ((1.0, 1.0, 1.1), (2.0, 2.0, 2.2), "plan", "plan, 2.00 times as fast as default"),
        ((2.0, 2.0, 2.2), (1.0, 1.0, 1.1), "default", "default, 2.00 times as fast as plan"),
        ((1.0, 2.0, 3.0), (1.0, 1.9, 3.0), "default", "1.05 times as fast as plan, which is within the spread: a tie"),
        ((1.0, 2.0, 3.0), (1.0, 2.0, 3.0), "plan", "within the spread: a tie"),
        ((), (1.0, 1.0, 1.0), "default", "plan did not run: no memory"),
        ((1.0, 1.0, 1.0), (), "plan", "default did not run: no memory"),
    ],
)
def test_the_faster_command_is_printed(
    plan: tuple[float, ...], default: tuple[float, ...], chosen: str, said: str, tiny: Path
) -> None:
    """By the medians of whole runs; a difference within the spread is called a tie, and what failed is never chosen."""
    found = pw.fit(tiny, "cpu", dims=SIZES).fitted
    both = [invent(name, *rounds, failure="" if rounds else "no memory") for name, rounds in
            (("plan", plan), ("default", default))]  # fmt: skip
    answer = Fit(choose_command(found, both))
    assert answer.command == f"llama-server --{chosen}" == answer.summary().splitlines()[0]
    assert said in answer.summary()
    assert ("what follows is about the plan: llama-server --plan" in answer.summary()) == (chosen != "plan")
    document = answer.to_dict()
    assert document["command"] == answer.command and [one["name"] for one in document["measured"]] == [
        "plan",
        "default",
    ]
    assert all(("tokens_per_second" in one) == bool(one["rounds"]) for one in document["measured"])
    json.dumps(document)


def test_what_is_measured_of_rounds() -> None:
    """Speeds are tokens by median seconds; a tie is a difference of no more than half the quartiles' distances."""
    one = invent("plan", 1.0, 2.0, 3.0)
    assert one.seconds == pytest.approx((1.0, 2.0, 3.0))
    assert one.prompt_speed == pytest.approx(10) and one.token_speed == pytest.approx(4)
    for other, tie in (((3.4, 3.5, 3.6), False), ((2.5, 2.55, 2.6), False), ((2.4, 2.45, 2.5), True)):
        assert is_tie(one, invent("default", *other)) == is_tie(invent("default", *other), one) == tie


def test_where_nothing_runs(tiny: Path) -> None:
    """One sentence has both reasons."""
    found = pw.fit(tiny, "cpu", dims=SIZES).fitted
    both = [invent("plan", failure="no memory"), invent("default", failure="no device")]
    with pytest.raises(RunError, match=r"^plan does not run: no memory; default does not run: no device$"):
        choose_command(found, both)


def test_the_default_command_has_the_same_devices(tiny: Path) -> None:
    """All servers and cards of the list, no others, and of a limited device no more than its memory."""
    server, sizes = "10.0.0.1:50052", ProblemOptions(dims=SIZES)
    start = f"llama-server -m {tiny} -c 12 -np 1"
    devices = f"cpu,rpc:{server}@8GiB,rpc:10.0.0.2:50052@100kB"
    problem = build(tiny, devices, sizes)
    words = f"{start} --fit on --rpc {server},10.0.0.2:50052"
    assert write_default_command(problem, {"RPC0": 9000, "RPC1": 9000}) == f"{words} --fit-target 1024,9000"
    assert write_default_command(problem, {"RPC0": 9000, "RPC1": 1000, "CUDA0": 1}) == f"{words} --device RPC0,RPC1"
    cards = build(tiny, "RTX3060,RTX3060,cpu", sizes)
    assert write_default_command(cards, {"CUDA0": 12000, "CUDA1": 12000}) == f"{start} --fit on"
    with pytest.raises(ExportError, match="no CUDA1 here; it has CUDA0"):
        write_default_command(cards, {"CUDA0": 12000})
    alone = build(tiny, "core", sizes)
    assert write_default_command(alone, {"CUDA0": 12000}) == f"{start} -t 1 --device none -ngl 0"


def test_what_cannot_be_measured(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other formats and targets, several sequences, no program: one sentence each, before anything is searched."""
    for dims, target, words in (
        (SIZES, "vllm", "runs GGUF files"),
        ({**SIZES, "batch": 2}, "llama.cpp", "one sequence"),
    ):
        with pytest.raises(InputError, match=words):
            pw.fit(tiny, "cpu", dims=dims, target=target, measure=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("placewise.runtimes.llama_cpp.program.find_spec", lambda name: None)
    said = run("fit", str(tiny), "-d", "cpu", *DIMS, "--measure", code=2)
    assert said.stderr.count("\n") == 1 and "error: llama-server is not installed" in said.stderr


@pytest.mark.usefixtures("llama")
def test_a_server_that_does_not_answer(tiny: Path) -> None:
    """It is named before anything is searched."""
    with start_server() as (process, address):
        process.kill()
        process.wait()
        with pytest.raises(RunError, match=f"the RPC server {address} does not answer"):
            pw.fit(tiny, f"core,rpc:{address}@1GiB", dims=SIZES, measure=True)


def test_both_commands_run(servers: list[tuple[Any, str]], model: Path, started: list[int]) -> None:
    """The plan's and llama.cpp's own, on the same servers; the faster one is printed, and no process is left."""
    memory: Any = {"max_memory": {"core:0": "1MiB"}, "headroom": 0}
    steps: list[str] = []
    answer = pw.fit(
        model, name_devices(servers), dims=SIZES, measure=True, cache=False, **memory,
        on_progress=lambda state: steps.append(state.message),
    )  # fmt: skip
    plan, default = answer.fitted.measured
    assert len(plan.rounds) == len(default.rounds) == 2 * module.ROUNDS and not plan.failure + default.failure
    assert answer.command == min((plan, default), key=lambda one: median(one.seconds)).command
    words = shlex.split(plan.command)
    assert f"{words[words.index('-ngl') + 1]} RPC" in plan.layers or "RPC1" in plan.layers
    assert "RPC0" in default.layers and "RPC1" in default.layers and "--device" not in default.command
    assert [one for one in steps if one.startswith("running")] == [
        "running llama.cpp's --fit", "running the plan", "running llama.cpp's --fit",
    ]  # fmt: skip
    assert len(started) == 3
    assert_ended(started)


def test_one_command_runs_once(llama: None, model: Path, started: list[int]) -> None:
    """On the host alone there is nothing to choose: speeds are measured, and the command is the only one."""
    said = run("fit", str(model), "-d", "core", *DIMS, "--measure", "--json", "-q")
    document = json.loads(said.stdout)
    (plan,) = document["measured"]
    assert plan["command"] == document["command"] and plan["prompt_tokens_per_second"] > 0 and plan["layers"] == "5 CPU"
    assert len(started) == 1
    assert_ended(started)


def test_a_server_that_dies(servers: list[tuple[Any, str]], model: Path, started: list[int]) -> None:
    """The plan that needs it does not run, which is said in one line and not tried again.

    llama.cpp's own placement leaves out servers that are gone, and is chosen; newer builds end instead. Where it needs
    one, nothing runs.
    """
    devices, memory = name_devices(servers), {"core:0": "1MiB"}
    found = pw.fit(model, devices, dims=SIZES, max_memory=memory, headroom=0, cache=False).fitted
    default = find_default_command(build(model, devices, ProblemOptions(dims=SIZES)), "llama.cpp")
    for process, _ in servers:
        process.kill()
        process.wait()
    assert "--device RPC0" in found.command
    try:
        answer = Fit(measure_fit(found, default, lambda words: None))
    except RunError as error:
        assert str(error).count(f"Failed to connect to {servers[0][1]}") == 2
        assert len(started) == 2
        return
    plan, other = answer.fitted.measured
    assert answer.command == default and other.layers == "5 CPU" and not plan.rounds
    assert f"{module.PLAN} did not run: llama.cpp does not load" in answer.summary() and "\n" not in plan.failure
    with pytest.raises(RunError, match=f"{module.PLAN} does not run: .*; {module.DEFAULT} does not run: "):
        measure_fit(found, f"{default} --device RPC0", lambda words: None)
    assert len(started) == 5, "what does not run is not tried again"
    assert_ended(started)


def test_an_interrupt_leaves_no_process(
    llama: None, model: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a model loads and while it generates."""

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    for name in ("read_log", "generate"):
        with monkeypatch.context() as patched:
            patched.setattr(LlamaProgram, name, interrupt)
            run("fit", str(model), "-d", "core", *DIMS, "--measure", "-q", code=130)
    assert len(started) == 2
    assert_ended(started)
