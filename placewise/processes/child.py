"""The worker's side: pin the process, watch for the end of the parent, create the object, and answer requests."""

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
    """``child LINK ALIVE CORES MEMORY TIED``: descriptors of the request link and of the parent's pipe, and limits.

    If TIED is set, the kernel kills this process when the thread that started it ends, even inside native code.
    """
    link, alive, cores, memory, tied = sys.argv[1:]
    if tied and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    threading.Thread(target=_exit_with_parent, args=(int(alive),), daemon=True).start()
    if memory:
        _limit_memory(int(memory))
    _serve(Connection(int(link)))


def _exit_with_parent(alive: int) -> None:
    """Exit when the pipe is closed, which means that the parent has ended or has closed the worker."""
    os.read(alive, 1)
    os._exit(0)


def _limit_memory(size: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def _serve(link: Connection) -> None:
    server: Any = None
    value: Any
    answer: Any
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
            answer = ("ok", value)
        except MemoryError:
            answer = ("error", "memory ran out")
        except Exception as error:
            answer = ("error", _portable_error(error))
        with suppress(BrokenPipeError):
            link.send(answer)
        value = answer = None  # the next request may need the memory


def _portable_error(error: Exception) -> Any:
    """A RunError for an error of Placewise, and text for any other: its class may not exist in the parent."""
    from placewise.errors import PlacewiseError, RunError

    if isinstance(error, PlacewiseError):
        return RunError(*error.args)  # worded for the parent's reader there
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"


if __name__ == "__main__":
    main()
