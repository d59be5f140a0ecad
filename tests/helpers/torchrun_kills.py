"""Training scripts under torchrun whose processes are killed, and what a run must be like all the same."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

QUIET = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
"""The environment of processes that share a machine."""


@dataclass
class KilledRun:
    """The steps that were printed, with their losses, in a list for each attempt; the rank and the moment of each kill,
    and the step that had been printed last; what the run returned and printed.
    """

    attempts: list[list[tuple[int, float]]] = field(default_factory=list)
    kills: list[tuple[int, float, int]] = field(default_factory=list)
    status: int = -1
    seconds: float = 0.0
    output: str = ""
    errors: str = ""

    @property
    def last(self) -> int:
        """The step that was printed last."""
        return next((attempt[-1][0] for attempt in reversed(self.attempts) if attempt), 0)


def torchrun(folder: Path, *arguments: str, seconds: float = 200.0) -> subprocess.CompletedProcess[str]:
    """What torchrun with these arguments, two processes on this machine, did and said."""
    return subprocess.run(
        _command(arguments), env=os.environ | QUIET, cwd=folder,
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip


def losses_of(text: str) -> dict[int, float]:
    """The losses that a training script printed, by step."""
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss ([\d.e+-]+),", text)}


def run_and_kill(
    folder: Path, moments: Iterable[tuple[int, float, int]], arguments: Sequence[str], *, seconds: float = 200.0
) -> KilledRun:
    """A run of the script in a folder. A moment is a rank, seconds, and a step: in each attempt, the rank is killed so
    many seconds after its processes exist and that step has been printed.
    """
    moments = list(moments)
    command = _command(["--max-restarts", str(len(moments)), *arguments])
    run, begin = KilledRun(), time.monotonic()
    errors = folder / "errors.txt"
    with (
        errors.open("w") as said,
        subprocess.Popen(
            command, env=os.environ | QUIET, cwd=folder, stdout=subprocess.PIPE, stderr=said, text=True
        ) as launcher,
    ):
        reader = threading.Thread(target=_read, args=(launcher, run), daemon=True)
        limit = threading.Timer(seconds, launcher.kill)
        limit.start()
        reader.start()
        try:
            _kill_at(moments, launcher, run, begin)
            run.status = launcher.wait()
        finally:
            limit.cancel()
            launcher.kill()
            reader.join()
    run.seconds, run.errors = time.monotonic() - begin, errors.read_text()
    return run


def check_attempts(run: KilledRun, losses: dict[int, float], every: int) -> None:
    """Assert that each attempt goes on from the last checkpoint, and that all losses are those of a run without kills.

    Checkpoints are written every so many steps, right after a step was printed.
    """
    assert run.status == 0, run.errors[-2000:]
    done = 0
    for attempt in filter(None, run.attempts):
        numbers = [number for number, _ in attempt]
        assert numbers == list(range(numbers[0], numbers[-1] + 1)), "an attempt leaves out or repeats a step"
        resumed = numbers[0] - 1
        assert resumed % every == 0, f"an attempt begins after step {resumed}, which has no checkpoint"
        assert done - every <= resumed <= done, f"an attempt begins after step {resumed}, and {done} were done"
        assert all(losses[number] == loss for number, loss in attempt), "losses are not those of an undisturbed run"
        done = numbers[-1]
    assert done == max(losses)


def living(run: KilledRun) -> list[int]:
    """The processes named in what a run printed that still run."""
    found = [int(process) for process in re.findall(r"\(process (\d+)\)", run.output)]
    return [process for process in found if Path(f"/proc/{process}").exists()]


def _kill_at(
    moments: Iterable[tuple[int, float, int]], launcher: subprocess.Popen[str], run: KilledRun, begin: float
) -> None:
    workers: list[int] = []
    for rank, delay, step in moments:
        workers = _await_workers(launcher, workers)
        while launcher.poll() is None and run.last < step:
            time.sleep(0.01)
        time.sleep(delay)
        if launcher.poll() is not None:
            return
        run.kills.append((rank, time.monotonic() - begin, run.last))
        with suppress(ProcessLookupError):
            os.kill(workers[rank], signal.SIGKILL)


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]


def _read(launcher: subprocess.Popen[str], run: KilledRun) -> None:
    assert launcher.stdout is not None
    for line in launcher.stdout:
        run.output += line
        if line.startswith("process 0 on "):
            run.attempts.append([])
        for number, loss in losses_of(line).items():
            run.attempts[-1].append((number, loss))


def _await_workers(launcher: subprocess.Popen[str], before: Sequence[int]) -> list[int]:
    """The two processes of the next attempt, in the order of their ranks."""
    while launcher.poll() is None:
        found = [child for child in _children(launcher.pid) if child not in before and _is_worker(child)]
        if len(found) == 2:
            return found
        time.sleep(0.01)
    return []


def _children(process: int) -> list[int]:
    with suppress(OSError):
        return sorted(int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split())
    return []


def _is_worker(process: int) -> bool:
    with suppress(OSError):
        return b"train_pipeline.py" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False
