"""Names the rank that failed, from the ranks beside it, and ends them with it.

A rank that is killed says nothing, and its neighbours see a broken connection only. So ranks tell each other their
processes, and watch those on their own machine.

This module depends on PyTorch only: exports contain a copy of it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

POLL, GRACE = 0.1, 1.0
"""Seconds between looks at the others, and for which a rank that noticed a failure waits for its cause."""


class RankWatch:
    """Watches the ranks of a job, one for each of `names`, of which it knows the processes and their machines."""

    def __init__(self, processes: Sequence[tuple[int, str]], rank: int, names: Sequence[str]) -> None:
        self._rank, self._names, self._parent, self._over = rank, names, os.getppid(), False
        self._processes = {
            other: process for other, (process, host) in enumerate(processes) if host == processes[rank][1]
        }
        self._ending = threading.Lock()
        self._asked, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, daemon=True).start()
        if rank == 0:
            print(
                ", ".join(f"{name} (process {who})" for name, (who, _) in zip(names, processes, strict=True)),
                flush=True,
            )

    def finish(self) -> None:
        """Stop watching: this rank has done its work."""
        self._over = True

    def fail(self, error: BaseException) -> None:
        """End this process because of an error, and say so, unless another rank died and caused it."""
        self._end_with(self._wait_for_dead())
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        say(f"{self._names[self._rank]} failed: {lines[0] if lines else type(error).__name__}")
        os._exit(1)

    def _watch(self) -> None:
        while not self._over:
            ready = select.select([self._asked], [], [], POLL)[0]
            asked = bool(ready) and signal.SIGTERM in os.read(self._asked, 64)
            dead = self._wait_for_dead() if asked else self._find_dead()
            if self._over:
                return
            self._end_with(dead)
            if asked:
                os._exit(1)

    def _wait_for_dead(self) -> list[int]:
        until = time.monotonic() + GRACE
        while not (dead := self._find_dead()) and time.monotonic() < until:
            time.sleep(POLL / 10)
        return dead

    def _find_dead(self) -> list[int]:
        """The ranks of this machine whose processes have ended."""
        return [rank for rank, process in self._processes.items() if not is_running(process)]

    def _end_with(self, dead: Sequence[int]) -> None:
        """End this process if the launcher or other ranks died. The first living rank says which ranks. All of them
        stay until each has noticed, so that nobody is blamed for ending with the others.
        """
        if os.getppid() != self._parent:
            os._exit(1)
        if not dead:
            return
        self._ending.acquire()
        if self._rank == min(set(self._processes) - set(dead)):
            names = " and ".join(f"{self._names[rank]} (process {self._processes[rank]})" for rank in dead)
            say(f"{names} ended before the pipeline did, and the other stages end with it")
        time.sleep(GRACE / 2)
        os._exit(1)


def is_running(process: int) -> bool:
    """Whether a process exists and has not ended; one that nobody has waited for yet has ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return True


def say(text: str) -> None:
    """Write a line on standard error at once, in one piece."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())
    sys.stdout.flush()
