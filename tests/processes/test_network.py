"""What Placewise's processes listen on: nothing, or the loopback device alone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_runs import run
from crash_runs import alive_in
from locations import DATA
from processes_seen import LOOPBACK, listening_addresses
from soak import later

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's /proc")
COMMANDS = {
    "place": ("place {model} -d 2xV100-16GB,cpu --time-limit 0.5s", None),
    "sweep": ("sweep {model} -d 1..4xV100-16GB,cpu --workers 2 --time-limit 1s", None),
    "profile": ("profile {model} -d cores --repeats 3 -o {out}", "onnxruntime"),
    "run": ("run {plan} --rounds 1 --measure-time 1s", "onnxruntime"),
    "train": ("train {model} -d 2xV100-16GB,cpu --policy colocrl --controllers 2 --updates 3", "torch"),
}  # fmt: skip


def pids_in(session: int) -> list[int]:
    return [int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _session_of(stat) == session]


def _session_of(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[3])
    except OSError:
        return -1


def find_open_addresses(words: list[str], folder: Path) -> set[str]:
    """The addresses on which a command listens while it runs; it must end well."""
    addresses = set()
    command = [sys.executable, "-m", "placewise", *words, "-q"]
    with subprocess.Popen(command, cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            addresses |= listening_addresses(pids_in(process.pid))
            time.sleep(0.05)
    assert process.returncode == 0 and not alive_in(process.pid)
    return addresses


@pytest.mark.parametrize("command", ["place", *(later(name) for name in COMMANDS if name != "place")])
def test_nothing_listens(command: str, tmp_path: Path) -> None:
    """Commands and their workers talk through sockets that only they hold."""
    line, library = COMMANDS[command]
    if library:
        pytest.importorskip(library)
    model, plan = DATA / "measured" / "small.onnx", tmp_path / "plan.json"
    if "{plan}" in line:
        find_open_addresses(["place", str(model), "-d", "2xcore", "--placer", "heft", "-o", str(plan)], tmp_path)
    words = [word.format(model=model, plan=plan, out=tmp_path / "out.json") for word in line.split()]
    assert find_open_addresses(words, tmp_path) == set()


@pytest.mark.soak
def test_ranks_listen_on_loopback(tmp_path: Path) -> None:
    """Ranks of a pipeline of PyTorch connect to each other there, as in tests/runtimes/test_pipelining.py."""
    pytest.importorskip("torch")
    plan = tmp_path / "plan.json"
    words = ["place", DATA / "measured" / "small.pt2", "-d", "2xcore", "--objective", "throughput"]
    run(*words, "--placer", "in_order", "-o", plan)
    addresses = find_open_addresses(
        ["run", str(plan), "--runtime", "pipelining", "--rounds", "1", "--measure-time", "0.2s"], tmp_path
    )
    assert addresses and addresses <= LOOPBACK
