"""Worker processes: what they answer, how they fail, and that none outlives its parent."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys

import pytest
from locations import SEARCH_PATH
from processes_seen import gone
from soak import later

from placewise._util.cores import pinnable_cores
from placewise.errors import RunError
from placewise.processes.shared_memory import SharedMemory
from placewise.processes.worker import Worker, _environment

SERVER = "runtime_servers:Server"


def worker(*args, **options) -> Worker:
    """A worker of the tests."""
    return Worker(SERVER, *args, name="cpu:0", environment={"PYTHONPATH": _path()}, **options)


def _path() -> str:
    return SEARCH_PATH


def test_a_worker_keeps_its_object_and_answers_in_order():
    """Questions change the object that it holds, also those that are asked ahead."""
    with worker(5) as it:
        assert it.ask("add", 2) == 7
        it.tell("add", 1)
        it.tell("add", 1)
        assert (it.answer(), it.answer()) == (8, 9)
        pid = it.pid
    assert gone(pid)


def test_a_worker_is_pinned_before_it_imports_anything():
    """It may use the cores that it was given, and as many threads."""
    core = pinnable_cores()[-1]
    with worker(cores=[core]) as it:
        assert it.ask("cores") == [core]
        assert it.ask("threads") == "1"


def test_files_beside_the_user_are_not_imported(tmp_path, monkeypatch):
    """A script of the folder that is called like a module of Python stays what it is."""
    (tmp_path / "threading.py").write_text("raise SystemExit('a script of the user ran')")
    monkeypatch.chdir(tmp_path)
    with worker(5) as it:
        assert it.ask("add", 2) == 7


def test_memory_is_shared_without_a_name():
    """What a worker writes into an arena is there for its parent."""
    arena = SharedMemory(1000)
    with worker(fds=[arena.fd]) as it:
        it.ask("write", arena.fd, arena.size, 41)
        assert arena.view(0, (4,), "int64").tolist() == [41] * 4


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (("die", signal.SIGKILL), "was killed, probably because memory ran out"),
        (("die", signal.SIGSEGV), r"crashed \(SIGSEGV\)"),
        (("leave",), r"exit code 7 \(it was time to go\)"),
        (("fail",), "ValueError: this is wrong"),
        (("refuse",), "this is bad; give another"),
    ],
)
def test_failures_say_who_and_why(question, said):
    """A worker that dies or refuses is an error of ours, in words."""
    with worker() as it, pytest.raises(RunError, match=said):
        it.ask(*question)


def test_a_worker_that_dies_before_it_is_told_anything_answers_so(monkeypatch):
    """Whoever starts it without waiting hears of its death with its first answer, as of any later one."""

    class Stillborn(subprocess.Popen):
        def __init__(self, command, **options):
            super().__init__([sys.executable, "-c", "exit(7)"], **options)
            self.wait()

    monkeypatch.setattr(subprocess, "Popen", Stillborn)
    with worker(start=None) as it:
        assert not it.alive
        with pytest.raises(RunError, match="ended with exit code 7"):
            it.answer()
    with pytest.raises(RunError, match="ended with exit code 7"):
        worker()


def test_a_worker_that_hangs_is_stopped():
    """It has its time, and no more."""
    with worker() as it:
        pid = it.pid
        with pytest.raises(RunError, match=r"did not answer within 0\.2 s"):
            it.ask("hang", timeout=0.2)
        assert gone(pid)
        with pytest.raises(RunError):
            it.ask("add", 1)


def test_a_worker_keeps_within_its_memory():
    """An allocation above the limit fails that question, and not the machine."""
    with worker(memory=1 << 29) as it, pytest.raises(RunError, match="memory ran out"):
        it.ask("allocate", 1 << 30)


def test_interrupts_are_the_parents_business():
    """Ctrl-C reaches all processes of a terminal; workers leave it to their parent."""
    with worker() as it:
        assert it.ask("interrupted")


def test_a_forgotten_worker_ends():
    """When nobody has it any more, its process goes."""
    it = worker()
    pid = it.pid
    del it
    gc.collect()
    assert gone(pid)


@pytest.mark.parametrize(("given", "seen"), [(None, "1"), ("0", "0")])
def test_telemetry_is_off_unless_somebody_decided(monkeypatch, given, seen):
    """ONNX Runtime's is on by default: it names models, and leaves a file in the folder for temporary ones."""
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    if given is not None:
        monkeypatch.setenv("ORT_DISABLE_TELEMETRY", given)
    assert _environment(0, None)["ORT_DISABLE_TELEMETRY"] == seen


@pytest.mark.parametrize(
    ("by", "busy"),
    [
        (signal.SIGKILL, True),
        (signal.SIGTERM, False),
        (signal.SIGINT, True),
        later(signal.SIGKILL, False),
        later(signal.SIGTERM, True),
        later(signal.SIGINT, False),
    ],
)
def test_no_worker_outlives_its_parent(by, busy):
    """However the parent ends, also in the midst of a question that hangs."""
    code = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from placewise.processes.worker import Worker
it = Worker({SERVER!r}, name="cpu:0")
print(it.pid, flush=True)
it.ask("hang") if {busy} else __import__("time").sleep(1000)
"""
    environment = {**os.environ, "PYTHONPATH": _path()}
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    with parent:
        pid = int(parent.stdout.readline())
        parent.send_signal(by)
        assert gone(pid)
        parent.wait()
