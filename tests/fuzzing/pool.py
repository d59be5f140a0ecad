"""Processes in which cases run, many in each: with bounds on memory and time, so that what breaks them is found."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import selectors
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzing.verdict import FAULT, Verdict

Runner = Callable[[str, int, Path], Verdict]
"""Runs a case of a family by its number in a folder of its own."""

MEMORY = 2 << 30
"""Bytes that a case may ask for beyond what the process has after its imports."""
SECONDS, PATIENCE, LONGEST = 10.0, 120.0, 1_800.0
"""Of the processor for one case; and by the clock, since the machine may have other work, before a process is ended
that has spent so much, or that waits."""
CHUNK = 500
"""Cases that a process runs before a new one takes its place."""


@dataclass(frozen=True, slots=True)
class Done:
    """A case that was run: its verdict, and the seconds of the processor that it took."""

    family: str
    number: int
    verdict: Verdict
    seconds: float


@dataclass(slots=True)
class _Running:
    """A process, the cases that it still has to run, and when it began with the first of them; `spent`: seconds of the
    processor until then."""

    pid: int
    pipe: int
    left: list[tuple[str, int]]
    folder: Path
    since: float = field(default_factory=time.monotonic)
    spent: float = 0.0
    text: bytes = b""


def run_all(cases: list[tuple[str, int]], runner: Runner, folder: Path, processes: int) -> Iterator[Done]:
    """Every case, in chunks, in so many processes at once, each in its own folder of those named 0, 1, …, in `folder`;
    in the order in which they end."""
    chunks = [cases[start : start + CHUNK] for start in range(0, len(cases), CHUNK)][::-1]
    running: list[_Running] = []
    with selectors.DefaultSelector() as selector:
        try:
            while chunks or running:
                while chunks and len(running) < processes:
                    free = {folder / str(place) for place in range(processes)} - {one.folder for one in running}
                    running.append(_started(chunks.pop(), runner, min(free)))
                    selector.register(running[-1].pipe, selectors.EVENT_READ, running[-1])
                for key, _ in selector.select(1.0):
                    yield from _heard(key.data)
                for one in [one for one in running if not one.left or _is_stuck(one) or _is_over(one)]:
                    selector.unregister(one.pipe)
                    running.remove(one)
                    yield from _ended(one)
                    if one.left:
                        chunks.append(one.left)
        finally:
            for one in running:
                os.kill(one.pid, signal.SIGKILL)
                os.waitpid(one.pid, 0)


def _started(cases: list[tuple[str, int]], runner: Runner, folder: Path) -> _Running:
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(write)
        return _Running(pid, read, cases, folder)
    code = 1
    try:
        os.close(read)
        _work(cases, runner, folder, write)
        code = 0
    finally:
        os._exit(code)


def _work(cases: list[tuple[str, int]], runner: Runner, folder: Path, pipe: int) -> None:
    """Run cases in this process, and say of each what became of it."""
    os.chdir(folder)
    errors = os.open("errors.txt", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    warnings.simplefilter("error")
    faulthandler.enable(errors)
    faulthandler.register(signal.SIGUSR1, errors)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for family, number in cases:
        os.ftruncate(errors, 0)
        os.lseek(errors, 0, os.SEEK_SET)
        begin = time.process_time()
        verdict = runner(family, number, folder)
        seconds = time.process_time() - begin
        if verdict.outcome != FAULT:
            verdict = _on_the_side(errors, seconds) or verdict
        os.write(pipe, json.dumps([verdict.outcome, verdict.words, seconds]).encode() + b"\n")


def _on_the_side(errors: int, seconds: float) -> Verdict | None:
    """The fault of a case that took too long, or that made a library speak."""
    said = os.pread(errors, 3_000, 0).decode("utf-8", "replace")
    if seconds > SECONDS:
        return Verdict(FAULT, f"took {seconds:.0f} s\n{said}")
    return Verdict(FAULT, f"a library speaks: {said}") if said.strip() else None


def _heard(one: _Running) -> Iterator[Done]:
    one.text += os.read(one.pipe, 1 << 16)
    *lines, one.text = one.text.split(b"\n")
    for line in lines:
        outcome, words, seconds = json.loads(line)
        (family, number), one.since, one.spent = one.left.pop(0), time.monotonic(), _processor_seconds(one.pid)
        yield Done(family, number, Verdict(outcome, words), seconds)


def _is_stuck(one: _Running) -> bool:
    waited = time.monotonic() - one.since
    return waited > PATIENCE and (waited > LONGEST or _processor_seconds(one.pid) - one.spent > 2 * SECONDS)


def _processor_seconds(pid: int) -> float:
    """What a process has spent; 0 where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _is_over(one: _Running) -> bool:
    """Whether the process has ended, which it does not say where it crashes."""
    state: Any = os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return state is not None


def _ended(one: _Running) -> Iterator[Done]:
    """Take leave of a process; the case in which it was stuck, or crashed, is a fault."""
    stuck = bool(one.left) and _is_stuck(one)
    if stuck:
        os.kill(one.pid, signal.SIGUSR1)
        time.sleep(1.0)
        os.kill(one.pid, signal.SIGKILL)
    _, state = os.waitpid(one.pid, 0)
    with contextlib.suppress(OSError):
        while one.left and (more := os.read(one.pipe, 1 << 16)):
            one.text += more
            yield from _heard_again(one)
    os.close(one.pipe)
    if one.left:
        family, number = one.left.pop(0)
        said = (one.folder / "errors.txt").read_text("utf-8", errors="replace")[:3_000]
        how = f"no answer in {PATIENCE:.0f} s" if stuck else f"the process ended ({os.waitstatus_to_exitcode(state)})"
        yield Done(family, number, Verdict(FAULT, f"{how}\n{said}"), time.monotonic() - one.since)


def _heard_again(one: _Running) -> Iterator[Done]:
    *lines, one.text = one.text.split(b"\n")
    for line in lines:
        outcome, words, seconds = json.loads(line)
        family, number = one.left.pop(0)
        yield Done(family, number, Verdict(outcome, words), seconds)


def _address_space() -> int:
    """Bytes of addresses that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
