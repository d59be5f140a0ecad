"""The parent's side of a worker process: send requests, wait with a timeout, and report why a worker failed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, Self

from placewise.errors import PlacewiseError, RunError
from placewise.processes.limits import ProcessorQuota, enter_network
from placewise.processes.scratch import remove_stale_folders

START, ANSWER, GRACE = 120.0, 300.0, 2.0
"""Seconds that a worker may take to start, to answer, and to exit."""
STDERR_TAIL = 4096
"""Bytes of standard error that a failure report reads."""
LONGEST_SPIN, _GLANCE = 0.3, 5e-3
"""Seconds to wait until threads that spin after a run rest, and between two looks at them."""
DEATH_DELAY = 1.0
"""Seconds by which a neighbour may report a failure before the system reports the death of a worker."""
_CHILD = "placewise.processes.child"
QUIET = {"ORT_DISABLE_TELEMETRY": "1"}
"""ONNX Runtime sends nothing to its makers and writes no file for that, unless the caller's environment says so."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "TBB_NUM_THREADS")


class Worker:
    """A process that creates an object from `served` (``module:Class``) and calls its methods on request.

    `cores` are the processors that the process and its threads may use, `fds` file descriptors that it inherits under
    the same numbers, and `memory` the most bytes that it may allocate. Once it is ready, it gets the share `quota` of
    the time of its cores; it is in the network namespace `network`. `name` identifies it in messages. A worker ends
    when `close` is called, when the last reference to it goes, and when this process ends in whatever way.

    Raises RunError if the worker does not start within `start` seconds. With `start` None the constructor does not
    wait, and the first answer confirms the start: it makes the worker `ready`. Errors of Placewise that the object
    raises are raised here as well.
    """

    def __init__(
        self,
        served: str,
        *args: Any,
        name: str,
        cores: Sequence[int] = (),
        fds: Sequence[int] = (),
        memory: float = float("inf"),
        quota: float = 1.0,
        network: int = -1,
        environment: Mapping[str, str] | None = None,
        start: float | None = START,
    ) -> None:
        self.name, self.ready = name, False
        self._quota: ProcessorQuota | None = None
        ours, theirs = socket.socketpair()
        alive, self._lifeline = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            if quota < 1:
                self._quota = ProcessorQuota(quota * max(len(cores), 1))
            with enter_network(network):
                self._process = subprocess.Popen(
                    _command(theirs.fileno(), alive, cores, memory),
                    pass_fds=(theirs.fileno(), alive, *fds),
                    stdin=subprocess.DEVNULL,
                    stdout=self._errors,
                    stderr=self._errors,
                    env=_environment(len(cores), environment),
                )
        except BaseException:
            if self._quota is not None:
                self._quota.close()
            raise
        finally:
            theirs.close()
            os.close(alive)
        self._link = Connection(ours.detach())
        self._end = weakref.finalize(
            self, _end_process, self._process, self._link, self._lifeline, self._errors, self._quota
        )
        try:
            with suppress(OSError):  # that it has died is the answer
                self._link.send((served, args))
            if start is not None:
                self.answer(start)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def link(self) -> Connection:
        """The connection on which answers arrive."""
        return self._link

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def aborted(self) -> bool:
        """Whether the process ended itself by SIGABRT, as libraries do that lose a peer."""
        return self._process.poll() == -signal.SIGABRT

    def ask(self, method: str, *args: Any, timeout: float = ANSWER) -> Any:
        """The result of `method` of the object. Raises RunError if it fails or takes longer than `timeout` seconds."""
        self.tell(method, *args)
        return self.answer(timeout)

    def tell(self, method: str, *args: Any) -> None:
        """Send a request without waiting; every `tell` needs an `answer`. Raises RunError if the worker is dead."""
        try:
            self._link.send((method, args))
        except (OSError, ValueError):
            raise self.failure() from None

    def answer(self, timeout: float = ANSWER) -> Any:
        """The answer to the oldest request. Raises RunError, or the error that the worker's object raised."""
        try:
            if not self._link.poll(timeout):
                self.kill()
                raise RunError(f"the worker of {self.name} did not answer within {timeout:g} s and was stopped")
            kind, value = self._link.recv()
        except (EOFError, OSError):
            raise self.failure() from None
        if kind == "ok":
            if self._quota is not None and not self.ready:
                self._quota.add(self.pid)
            self.ready = True
            return value
        if isinstance(value, PlacewiseError):
            raise value
        raise RunError(f"the worker of {self.name} failed: {value}")

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Stop the process and wait until it has ended."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def failure(self) -> RunError:
        """Why the process ended; a process that has not ended yet is killed."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        message = _last_line(self._errors)
        code = self._process.poll()
        self.kill()
        return RunError(f"the worker of {self.name} {describe_exit(code)}{f' ({message})' if message else ''}")


def collect_answers(
    workers: Sequence[Worker], timeout: float = ANSWER, *, suspects: Callable[[], Sequence[Worker]] | None = None
) -> list[Any]:
    """The answer of each worker to its oldest request, in the order of `workers`.

    Raises as `Worker.answer` does, as soon as the first worker fails. After a timeout the message names the `suspects`
    among the workers that have not answered, if there are any: a worker that waits for another one is silent as well.
    """
    answers: dict[Worker, Any] = {}
    until = time.monotonic() + timeout
    while len(answers) < len(workers):
        pending = [worker for worker in workers if worker not in answers]
        ready = wait([worker.link for worker in pending], max(until - time.monotonic(), 0.0))
        if not ready:
            guilty = [worker.name for worker in (suspects() if suspects else ()) if worker in pending]
            names = " and ".join(guilty or [worker.name for worker in pending])
            raise RunError(f"the worker of {names} did not answer within {timeout:g} s")
        for worker in pending:
            if worker.link in ready:
                answers[worker] = worker.answer()
    return [answers[worker] for worker in workers]


def find_dead(workers: Sequence[Worker]) -> Worker | None:
    """A worker that has died, if there is one; rather not one that aborted because it lost a neighbour."""
    until = time.monotonic() + DEATH_DELAY
    while True:
        dead = [worker for worker in workers if not worker.alive]
        if dead or time.monotonic() > until:
            return min(dead, key=lambda worker: worker.aborted, default=None)
        time.sleep(0.01)


def waited_seconds() -> float:
    """The seconds that the threads of all running children of this process have waited for a processor; 0 if unknown.

    What a thread runs is not in it, nor what it waits for something else: so it grows while more threads want to run
    than there are processors for them, and while threads wait for a quota.
    """
    return sum(read_schedule(pid)[1] for pid in _children())


def await_rest(most: float = LONGEST_SPIN) -> bool:
    """Wait until the children of this process no longer want to run, `most` seconds at the longest; whether they rest.

    After a run, the threads of a runtime spin for some time, so as to begin the next one sooner. On the same
    processors, they would slow whatever is measured next.
    """
    until, ran = time.monotonic() + most, _ran_seconds()
    while time.monotonic() < until:
        time.sleep(_GLANCE)
        before, ran = ran, _ran_seconds()
        if ran - before < _GLANCE / 10 and not any(_wants_to_run(pid) for pid in _children()):
            return True
    return False


def _ran_seconds() -> float:
    return sum(read_schedule(pid)[0] for pid in _children())


def _wants_to_run(pid: int) -> bool:
    """Whether a thread of a process runs, or would if it had a processor: state R of proc(5)."""
    with suppress(OSError):
        return any(_state(file) == "R" for file in Path(f"/proc/{pid}/task").glob("*/stat"))
    return False


def _state(file: Path) -> str:
    """The state of a thread; its name, in brackets before, may have any characters."""
    with suppress(OSError):
        return file.read_text().rpartition(") ")[2][:1]
    return ""


def _children() -> list[int]:
    found: list[str] = []
    with suppress(OSError):
        for own in Path("/proc/self/task").iterdir():
            found += (own / "children").read_text().split()
    return [int(pid) for pid in found]


def read_schedule(pid: int) -> tuple[float, float]:
    """Seconds in which the threads of a process ran, and in which they waited for a processor; zeros if unknown.

    From the kernel's Documentation/scheduler/sched-stats.rst.
    """
    ran, waited, files = 0, 0, list[Path]()
    with suppress(OSError):
        files += Path(f"/proc/{pid}/task").glob("*/schedstat")
    for file in files:
        with suppress(OSError, ValueError, IndexError):
            times = [int(word) for word in file.read_text().split()]
            ran, waited = ran + times[0], waited + times[1]
    return ran * 1e-9, waited * 1e-9


def _command(link: int, alive: int, cores: Sequence[int], memory: float) -> list[str]:
    limit = "" if memory == float("inf") else str(int(memory))
    tied = "tied" if threading.current_thread() is threading.main_thread() else ""
    return [sys.executable, "-P", "-m", _CHILD, str(link), str(alive), ",".join(map(str, cores)), limit, tied]


def _environment(threads: int, extra: Mapping[str, str] | None) -> dict[str, str]:
    """The environment of this process, with this package on the path and as many threads as the worker has cores."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    limits = dict.fromkeys(_THREADS, str(threads)) if threads else {}
    return {**QUIET, **os.environ, **limits, "PYTHONPATH": path, **(extra or {})}


def _end_process(
    process: subprocess.Popen[bytes], link: Connection, lifeline: int, errors: IO[bytes], quota: ProcessorQuota | None
) -> None:
    link.close()
    os.close(lifeline)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    errors.close()
    if quota is not None:
        quota.close()
    remove_stale_folders()


def describe_exit(code: int | None) -> str:
    """How a process ended, as the end of a sentence about it; None is the code of one that still runs."""
    if code is None:
        return "stopped answering"
    if code >= 0:
        return f"ended with exit code {code}"
    if code == -signal.SIGKILL:
        return "was killed, probably because memory ran out"
    if code == -signal.SIGILL:
        return "crashed (SIGILL): it was built for a processor with other instructions than this one"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"crashed ({name})"


def _last_line(errors: IO[bytes]) -> str:
    if errors.closed:
        return ""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(size - STDERR_TAIL, 0))
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
