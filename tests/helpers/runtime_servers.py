"""What the workers of the tests hold: objects that answer, hang, crash and run out of memory."""

from __future__ import annotations

import os
import signal
import time

from placewise.errors import InputError
from placewise.processes.shared_memory import SharedMemory


class Server:
    """Does what tests need of a worker."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

    def add(self, number: int) -> int:
        self.count += number
        return self.count

    def cores(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))

    def threads(self) -> str:
        return os.environ["OMP_NUM_THREADS"]

    def hang(self) -> None:
        time.sleep(1000)

    def die(self, by: int) -> None:
        os.kill(os.getpid(), by)

    def leave(self) -> None:
        print("it was time to go", flush=True)
        os._exit(7)

    def allocate(self, size: int) -> int:
        return len(bytearray(size))

    def fail(self) -> None:
        raise ValueError("this is wrong")

    def refuse(self) -> None:
        raise InputError("this is bad", remedy="give another")

    def write(self, fd: int, size: int, value: int) -> None:
        SharedMemory(size, fd).view(0, (4,), "int64")[:] = value

    def interrupted(self) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return True
