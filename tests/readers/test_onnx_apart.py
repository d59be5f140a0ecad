"""ONNX files are read in a process with limits: what never ends, or breaks the onnx package, is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from locations import EXAMPLES, SEARCH_PATH
from onnx.helper import make_function, make_node, make_opsetid
from onnx_files import model, saved
from processes_seen import gone

from placewise.core import split_model
from placewise.errors import InputError, InternalError, ModelFileError, RunError
from placewise.processes.worker import Worker
from placewise.readers import apart
from placewise.readers.formats import ReadOptions, read_model
from placewise.readers.onnx import read_onnx

GOOD = EXAMPLES / "resnet50.onnx"
OPTIONS = ReadOptions({"batch": 1})


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """No process of other tests, and none left for them."""
    _end_idle()
    yield
    _end_idle()


def _end_idle() -> None:
    while apart._idle:
        apart._idle.pop().close()


def endless() -> Any:
    """Functions that call each other twice, 2²² nodes in the end, in 1,500 bytes."""
    functions, opsets = [], [make_opsetid("", 18), make_opsetid("f", 1)]
    for depth in range(22):
        called = ("Relu", "") if depth == 0 else (f"f{depth - 1}", "f")
        nodes = [make_node(called[0], [a], [b], domain=called[1]) for a, b in (("x", "a"), ("a", "y"))]
        functions.append(make_function("f", f"f{depth}", ["x"], ["y"], nodes, opsets))
    whole = model([make_node("f21", ["x"], ["y"], domain="f")], {"x": [3]}, ["y"])
    whole.functions.extend(functions)
    whole.opset_import.append(make_opsetid("f", 1))
    return whole


def test_what_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence, after the time that a file of this size may take; the process is gone, the next one reads."""
    monkeypatch.setattr(apart, "MIN_SECONDS", 1.0)
    path, started = saved(tmp_path, endless()), []
    monkeypatch.setattr(apart, "Worker", lambda *args, **kwargs: started.append(Worker(*args, **kwargs)) or started[-1])
    with pytest.raises(ModelFileError, match=r"reading it does not end within 1 s; export") as error:
        read_model(path)
    assert str(error.value).startswith(str(path)) and gone(started[0].pid)
    monkeypatch.undo()
    assert read_model(GOOD, OPTIONS).graph.n_ops > 100


def test_a_file_is_read_with_limits_before_it_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What exports and runs load here has been read by the process; a file that was changed since is not loaded."""
    monkeypatch.setattr(apart, "MIN_SECONDS", 1.0)
    path = saved(tmp_path, model([make_node("Relu", ["x"], ["y"])], {"x": [3]}, ["y"]))
    graph = read_model(path).graph
    monkeypatch.setattr(split_model, "load_with_weights", None)
    saved(tmp_path, model([make_node("Abs", ["x"], ["y"])], {"x": [3]}, ["y"]))
    with pytest.raises(InputError, match="the file has changed"):
        split_model.original(graph)
    saved(tmp_path, endless())
    with pytest.raises(ModelFileError, match="reading it does not end within 1 s"):
        split_model.original(graph)


@pytest.mark.parametrize("equation", ["@SUM(1)", "....->a", "..", "a;b", "a->b->c", "é", "a\0"])
def test_equations_that_are_none(tmp_path: Path, equation: str) -> None:
    """The onnx package is not asked: inference of some never ends."""
    path = saved(tmp_path, model([make_node("Einsum", ["x"], ["y"], equation=equation)], {"x": [3]}, ["y"]))
    assert read_model(path).graph.n_ops == 1


def test_memory_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks for more than a file of this size may need is refused; other files are read as before."""
    assert read_model(GOOD, OPTIONS).graph.n_ops > 100
    monkeypatch.setattr(apart, "MIN_SECONDS", 120.0)
    monkeypatch.setattr(apart, "MIN_MEMORY", 1 << 20)
    monkeypatch.setattr(apart, "MEMORY_PER_BYTE", 0)
    with pytest.raises(ModelFileError, match=r"more memory|fails on it|bad_alloc"):
        read_model(saved(tmp_path, endless()))
    monkeypatch.undo()
    assert read_model(GOOD, OPTIONS).graph.n_ops > 100


def test_a_crash_is_the_files_and_a_mistake_is_ours() -> None:
    """A process that dies says something of the file; an error that Placewise did not mean, of Placewise."""
    died = apart._explain(RunError("the worker of the ONNX reader crashed (SIGSEGV)"), 10.0, alive=False)
    assert "the onnx package fails on it" in str(died)
    with pytest.raises(InternalError, match="KeyError"):
        apart._explain(RunError("the worker of the ONNX reader failed: KeyError: 'x'"), 10.0, alive=True)


def test_the_same_model_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graph, warnings and errors are those of reading here, also by a relative path."""
    monkeypatch.chdir(EXAMPLES)
    here, there = read_onnx(Path(GOOD.name), dims=OPTIONS.dims), read_model(Path(GOOD.name), OPTIONS)
    assert there.graph.digest() == here.graph.digest() and there.graph.source == here.graph.source
    assert there.warnings == here.warnings
    worker = apart._idle[0].pid
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x07")
    for path in (tmp_path / "bad.onnx", GOOD):
        with pytest.raises(ModelFileError) as ours:
            read_onnx(path)
        with pytest.raises(ModelFileError) as theirs:
            read_model(path)
        assert str(ours.value) == str(theirs.value)
    assert [each.pid for each in apart._idle] == [worker]


def test_a_process_that_was_started_ahead_reads() -> None:
    """The file is read by the process that a command started, and one process waits afterwards."""
    apart.start_reader()
    apart.start_reader()
    [worker] = apart._idle
    assert read_model(GOOD, OPTIONS).graph.n_ops > 100
    assert apart._idle == [worker] and worker.ready


def test_what_starts_the_process_is_light() -> None:
    """A command starts it before it loads numpy, and the process then loads beside it."""
    code = (
        "import sys; from placewise import cli; from placewise.readers import apart; seen = set(sys.modules)\n"
        "cli._start_reader(); print(len(apart._idle), 'numpy' in seen)\n"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", code, "inspect", model], check=True, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": SEARCH_PATH},
        ).stdout
        for model in (str(GOOD), "missing.onnx", "zoo:rnnlm-2")
    ]  # fmt: skip
    assert told == ["1 False\n", "0 False\n", "0 False\n"]


def test_threads_read_side_by_side() -> None:
    """Each gets its own model, and one process waits afterwards."""
    barrier = threading.Barrier(3)

    def read(batch: int) -> tuple[int, ...]:
        barrier.wait()
        graph = read_model(GOOD, ReadOptions({"batch": batch})).graph
        return graph.tensors.shape[0]

    with ThreadPoolExecutor(3) as threads:
        assert [shape[0] for shape in threads.map(read, (1, 2, 3))] == [1, 2, 3]
    assert len(apart._idle) == 1


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_no_process_stays(tmp_path: Path, end: signal.Signals) -> None:
    """Interrupted or killed while the onnx package is busy, `python -c` leaves nobody behind."""
    path = saved(tmp_path, endless())
    code = (
        "import sys; from pathlib import Path; from placewise.readers import apart\n"
        "from placewise.readers.formats import read_model\n"
        "start = apart.Worker\n"
        "def told(*args, **more):\n"
        "    worker = start(*args, **more)\n"
        "    print(worker.pid, flush=True)\n"
        "    return worker\n"
        "apart.Worker = told\n"
        "read_model(Path(sys.argv[1]))\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": SEARCH_PATH},
    )  # fmt: skip
    with parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.send_signal(end)
        assert parent.wait(10) != 0
    assert gone(worker)
