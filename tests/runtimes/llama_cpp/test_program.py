"""llama-server as a process: what it says of devices, how its failures read, and that it never outlives its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gguf_models import write_model
from llama_servers import MISSING, SECONDS, is_installed, start_server
from locations import SEARCH_PATH

from placewise.errors import RunError
from placewise.runtimes.llama_cpp import program
from placewise.runtimes.llama_cpp.log import find_first_error
from placewise.runtimes.llama_cpp.program import LlamaProgram, list_devices


@pytest.fixture
def llama() -> None:
    """Skip where llama.cpp's programs are missing."""
    if not is_installed():
        pytest.skip(MISSING)


def test_the_first_error_of_a_log() -> None:
    """Without its time, since those that follow say less; else what was given, or the last line."""
    log = "0.00.1 I srv start\n0.00.2 E ggml no memory\n0.00.3 E srv exiting\n"
    assert find_first_error(log, "failed") == "ggml no memory"
    assert (
        find_first_error('error while handling "--device": CUDA9\n\nusage:\n')
        == 'error while handling "--device": CUDA9'
    )
    assert find_first_error("0.00.1 I srv start\n\n", "failed") == "failed"
    assert find_first_error("0.00.1 I srv start\n\n") == "0.00.1 I srv start"
    assert find_first_error("") == "it logged nothing"


@pytest.mark.usefixtures("llama")
def test_devices_are_listed() -> None:
    """RPC servers are numbered in their order, with the MiB that they have."""
    with start_server() as (_, one), start_server() as (_, two):
        found = list_devices([one, two])
    assert [name for name in found if name.startswith("RPC")] == ["RPC0", "RPC1"]
    assert min(found.values()) > 0
    assert not any(name.startswith("RPC") for name in list_devices())


@pytest.mark.usefixtures("llama")
def test_a_server_that_somebody_else_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections and answers none."""
    monkeypatch.setattr(program, "REPLY", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RunError, match=f"{address} do not answer: each serves one program"):
            list_devices([address])


@pytest.mark.usefixtures("llama")
def test_what_does_not_load(tmp_path: Path) -> None:
    """A file that is no model, and an unknown device: one line each."""
    pytest.importorskip("gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(64))
    model = write_model(tmp_path / "model.gguf")
    for path, words, why in ((broken, [], "bad GGUF version"), (model, ["--device", "CUDA9"], "invalid device: CUDA9")):
        with pytest.raises(RunError, match=f"does not load .*: .*{why}") as error:
            LlamaProgram(path, words)
        assert "\n" not in str(error.value)


@pytest.mark.usefixtures("llama")
def test_a_program_that_was_killed(tmp_path: Path) -> None:
    """The next request says how it ended."""
    pytest.importorskip("gguf")
    with LlamaProgram(write_model(tmp_path / "model.gguf"), ["-c", "64", "-t", "1", "--device", "none"]) as process:
        assert min(process.generate([3, 4, 5], 3)) > 0
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(RunError, match=r"did not answer: llama-server was killed, .* \(its log: "):
            process.generate([3, 4, 5], 3)


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_a_program_for_another_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build whose instructions this processor lacks says nothing; we do."""
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho init: 1 thread\nkill -ILL $$\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(RunError, match=r"crashed \(SIGILL\): .* other instructions .* \(its log: init: 1 thread\)"):
        LlamaProgram(tmp_path / "model.gguf", [])


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
@pytest.mark.usefixtures("llama")
def test_a_killed_parent_leaves_no_program(tmp_path: Path) -> None:
    """However the parent ends, the program ends with it."""
    pytest.importorskip("gguf")
    path = write_model(tmp_path / "model.gguf")
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom placewise.runtimes.llama_cpp.program import LlamaProgram\n"
        f"process = LlamaProgram(Path({str(path)!r}), ['-c', '64', '-t', '1', '--device', 'none'])\n"
        "print(process.pid, flush=True)\ntime.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([SEARCH_PATH, os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + SECONDS
    while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < until, "the program outlives its parent"
        time.sleep(0.05)
