"""The worker's side: pin, watch for the parent's end, make the object, and answer one question after the other."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """``child LINK ALIVE CORES MEMORY TIED``: descriptors of the questions and of the parent's pipe, and limits.

    Where it is tied to the thread that started it, the kernel ends it with that one, also in the midst of native code.
    """
    link, alive, cores, memory, tied = sys.argv[1:]
    if tied and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    threading.Thread(target=_end_with_parent, args=(int(alive),), daemon=True).start()
    if memory:
        _limit(int(memory))
    _serve(Connection(int(link)))


def _end_with_parent(alive: int) -> None:
    """Nobody ever writes into this pipe: its end means that the parent is gone, or wants nothing more."""
    os.read(alive, 1)
    os._exit(0)


def _limit(memory: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


def _serve(link: Connection) -> None:
    server: Any = None
    while True:
        try:
            method, args = link.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            if server is None:
                module, _, name = method.partition(":")
                server, value = getattr(import_module(module), name)(*args), None
            else:
                value = getattr(server, method)(*args)
            answer: tuple[str, Any] = ("ok", value)
        except MemoryError:
            answer = ("error", "memory ran out")
        except Exception as error:
            answer = ("error", _portable(error))
        with suppress(BrokenPipeError):
            link.send(answer)


def _portable(error: Exception) -> Any:
    """An error of ours as it is, any other as words: its class may not exist over there."""
    from placewise.errors import PlacewiseError, RunError

    if isinstance(error, PlacewiseError):
        return RunError(str(error))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'without a word'}"


if __name__ == "__main__":
    main()
