"""Limits of workers: quotas of processor time, and networks whose links have a bandwidth."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from locations import SEARCH_PATH

from placewise.errors import RunError
from placewise.processes import limits
from placewise.processes.limits import Network, ProcessorQuota, enter_network, name_interfaces
from placewise.processes.worker import Worker


@pytest.fixture
def quotas() -> None:
    """Skip where control groups cannot be made."""
    try:
        ProcessorQuota(0.5).close()
    except RunError as error:
        pytest.skip(str(error))


@pytest.fixture
def networks() -> None:
    """Skip where network namespaces, or links with a bandwidth, cannot be made."""
    try:
        Network([1e6]).close()
    except RunError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("quotas")
def test_a_worker_with_a_quota_is_in_a_group_of_its_own() -> None:
    """From its first answer on; the group has the share of one processor, and goes with the worker."""
    with Worker("runtime_servers:Server", 5, name="cpu:0", environment={"PYTHONPATH": SEARCH_PATH}, quota=0.4) as it:
        assert it._quota is not None
        group = it._quota.path
        assert str(it.pid) in (group / "cgroup.procs").read_text().split()
        assert it.ask("add", 2) == 7
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        assert int(quota) / int(period) == 0.4
    assert not group.exists()


@pytest.mark.usefixtures("quotas")
def test_the_group_of_a_killed_process_is_removed_by_the_next_one() -> None:
    """Nothing is left of it, and groups that are in use stay."""
    code = (
        "import time\nfrom placewise.processes.limits import ProcessorQuota\n"
        "quota = ProcessorQuota(0.5)\nprint(quota.path, flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        first = ProcessorQuota(0.5)
        try:
            assert left.is_dir()
            process.send_signal(signal.SIGKILL)
            process.wait()
            ProcessorQuota(0.5).close()
            assert not left.exists() and first.path.is_dir()
        finally:
            first.close()


def test_both_versions_of_control_groups_are_written(tmp_path: Path) -> None:
    """Version 2 has one file of quota and period; no quota is below the least that Linux grants."""
    two = ProcessorQuota(0.05, tmp_path)
    assert (two.path / "cpu.max").read_text() == "1000 20000"
    two.close()
    (tmp_path / "cpu").mkdir()
    one = ProcessorQuota(0.4, tmp_path)
    assert one.path.parent == tmp_path / "cpu" and (one.path / "cpu.cfs_quota_us").read_text() == "2000"
    one.close()
    assert os.listdir(tmp_path) == ["cpu"] and not os.listdir(tmp_path / "cpu")


def test_where_no_group_can_be_made_one_sentence_says_so(tmp_path: Path) -> None:
    """With the system's reason and what to do."""
    with pytest.raises(RunError, match=r"^no control group \(cgroup\) for a quota .*no such file.*: run without quota"):
        ProcessorQuota(0.5, tmp_path / "missing")


@pytest.mark.usefixtures("networks")
def test_processes_meet_over_links_of_their_bandwidth() -> None:
    """Namespaces are apart from this one and reach each other; what leaves one is shaped, if it has a bandwidth."""
    here = os.readlink("/proc/thread-self/ns/net")
    with Network([25e6, math.inf]) as network:
        one, other = network.namespaces
        assert network.environment == {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
        shaped = []
        for namespace in (one, other):
            with enter_network(namespace):
                assert os.readlink("/proc/thread-self/ns/net") != here
                shown = subprocess.run(["tc", "qdisc", "show", "dev", "eth0"], capture_output=True, text=True)
                shaped.append(shown.stdout)
        assert "rate 200Mbit" in shaped[0] and "tbf" not in shaped[1]
        with enter_network(one):
            listener = socket.create_server(("10.77.0.1", 0))
        with listener, enter_network(other):
            client = socket.create_connection(listener.getsockname(), timeout=20)
            with client, listener.accept()[0] as server:
                server.sendall(b"x" * 100_000)
                assert client.makefile("rb").read(100_000) == b"x" * 100_000
    assert os.readlink("/proc/thread-self/ns/net") == here
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(one)


def test_without_bandwidths_there_is_no_network() -> None:
    """Processes use loopback, or what the environment says, and need no rights."""
    with Network([math.inf, math.inf]) as network:
        assert network.namespaces == (-1, -1) and network.environment == name_interfaces()


def test_where_no_network_can_be_made_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason of the system, or of the program that failed, and nothing stays open."""
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(limits, "_open_namespace", lambda: os.open("/dev/null", os.O_RDONLY))
    with pytest.raises(RunError, match=r"^no network namespace can be made here \(.+\): run as root"):
        Network([1e6])
    monkeypatch.setattr(limits, "_open_namespace", lambda: os.open("/proc/thread-self/ns/net", os.O_RDONLY))
    monkeypatch.setattr(limits, "enter_network", lambda namespace: nullcontext())
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RunError, match="'ip' of iproute2 is not installed"):
        Network([1e6])
    assert len(os.listdir("/proc/self/fd")) == before
