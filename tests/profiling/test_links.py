"""What is measured of cores and of the ways between them: it is there, it is plausible, and -d reads it."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

from placewise._util.cores import pinnable_cores
from placewise.catalog import read_cluster
from placewise.cli.app import app
from placewise.errors import InputError, RunError
from placewise.processes.shared_memory import SharedMemory
from placewise.processes.worker import Worker
from placewise.profiling import hops
from placewise.profiling import links as module
from placewise.profiling.links import apply_links, measure_links
from placewise.profiling.servers.memory import BOARD, MemoryServer
from placewise.runtimes.binding import Place, bind

TWO = pytest.mark.skipif(len(pinnable_cores()) < 2, reason="needs two cores")


@TWO
def test_devices_measure_writes_a_cluster_that_is_read(tmp_path, monkeypatch):
    """`devices --measure -o`: figures of both cores and of both ways between them, marked as measured."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(module, "LARGE", 8 << 20)
    monkeypatch.setattr("placewise.profiling.hops.SAMPLES", 6)
    path = tmp_path / "here.toml"
    done = CliRunner().invoke(app, ["devices", "2xcore", "--measure", "-o", str(path)])
    assert done.exit_code == 0, done.output
    assert "core:0" in done.output and "hand" not in done.stderr
    cluster = read_cluster(path)
    assert cluster.names == ("core:0", "core:1") and cluster.transfers == "direct"
    for device in cluster:
        assert 1e8 < device.memory_bandwidth < 1e13 and 0 < device.call_overhead < 1
        assert any(note.startswith("measured: memory") for note in device.notes)
    between = [link for link in cluster.links if "host" not in (link.source, link.target)]
    assert {(link.source, link.target) for link in between} == {("core:0", "core:1"), ("core:1", "core:0")}
    assert all(0 <= link.latency < 1 and 0 < link.bandwidth < math.inf for link in between)


def test_without_a_runtime_memory_alone_is_measured(monkeypatch):
    """Where ONNX Runtime is missing a note says so; one device has no ways to others."""
    monkeypatch.setattr(module, "LARGE", 1 << 20)
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    cluster = read_cluster("core,L4")
    found = measure_links(cluster, bind(cluster, {"cuda:0": "cuda:0"}))
    assert found.alone.keys() == {"core:0"} and not found.latency and not found.call and found.skipped == ("cuda:0",)
    assert "not installed" in found.notes[0]
    measured = apply_links(cluster, found)
    assert measured.devices[0].memory_bandwidth == found.alone["core:0"].value
    assert measured.devices[1] == cluster.devices[1] and measured.transfers == cluster.transfers
    assert set(measured.links) == set(cluster.links)


def test_of_many_pairs_some_are_measured(monkeypatch):
    """Five cores make ten pairs: six are measured, and every pair gets figures, by hand 3 µs and 4·(L − S) bytes/ms."""
    asked = []

    def extra(_cluster, _places, path, pair, _seconds):
        asked.append(pair)
        return [1e-3 + 5e-6] if str(hops.LARGE) in path else [5e-6]

    monkeypatch.setattr(hops, "_extra_seconds", extra)
    cluster = read_cluster("5xcore")
    places = [Place(name, "cores", cores=(0,)) for name in cluster.names]
    found = hops.measure_hops(cluster, places, dict.fromkeys(cluster.names, 2e-6))
    assert len(set(asked)) == hops.MAX_PAIRS and len(found) == 20
    for latency, rates in found.values():
        assert min(latency) == max(latency) == pytest.approx(3e-6)
        assert min(rates) == max(rates) == pytest.approx(4 * (hops.LARGE - hops.SMALL) / 1e-3)


def test_no_cores_no_measurement():
    """Devices that are all elsewhere are refused in a sentence."""
    cluster = read_cluster("L4")
    with pytest.raises(InputError, match="none of these devices is on cores"):
        measure_links(cluster, bind(cluster))


@TWO
def test_a_tensor_is_handed_over():
    """A writer and a reader on two cores: as many hand-overs as asked, each seen after it was handed over."""
    first, last = pinnable_cores()[0], pinnable_cores()[-1]
    arena = SharedMemory(BOARD + 4096)
    served = f"{MemoryServer.__module__}:{MemoryServer.__name__}"
    workers = [
        Worker(served, arena.fd, 4096, name=f"core {core}", cores=(core,), fds=(arena.fd,)) for core in (first, last)
    ]
    try:
        workers[1].tell("read", 4096, 20)
        found = workers[0].ask("write", 4096, 20)
        workers[1].answer()
        assert len(found) == 20 and all(seen > 0 and read > 0 for seen, read in found)
    finally:
        for worker in workers:
            worker.close()
        arena.close()


def test_a_partner_that_does_not_come_is_told(monkeypatch):
    """Whoever waits for another core gives up after a while, and says so."""
    monkeypatch.setattr("placewise.profiling.servers.memory.PATIENCE", 0.05)
    arena = SharedMemory(BOARD + 64)
    with pytest.raises(RunError, match="does not answer"):
        MemoryServer(arena.fd, 64).write(64, 1)
    arena.close()


def test_devices_fit_from_a_file(tmp_path):
    """`devices --fit` needs nothing but the profile, and shows the errors before and after."""
    from profiles_made import TRUE, profile_of

    from placewise.files.profile_file import save_profile

    profile = tmp_path / "p.json"
    save_profile(profile_of(TRUE), profile)
    done = CliRunner().invoke(app, ["devices", "this", "--fit", str(profile), "-o", str(tmp_path / "c.toml")])
    assert done.exit_code == 0 and "error before" in done.output, done.output
    assert read_cluster(tmp_path / "c.toml").devices[0].op_overhead == pytest.approx(7e-6, rel=0.05)
    shown = CliRunner().invoke(app, ["devices", str(tmp_path / "c.toml"), "--json"])
    assert json.loads(shown.stdout)["devices"][0]["notes"][-1].startswith("measured: efficiencies")
