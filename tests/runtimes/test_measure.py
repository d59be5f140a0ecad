"""Places on this machine, example inputs, equality of outputs, and measuring in turns."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placewise._util.cores import pinnable_cores
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.errors import ClusterError, InputError, RunError
from placewise.model.cluster import Cluster, Device, Link
from placewise.processes.worker import await_rest, read_schedule, waited_seconds
from placewise.profiling.profile import describe_processor
from placewise.runtimes.base import Realised
from placewise.runtimes.binding import bind, physical_core, require_limits
from placewise.runtimes.equal import require_equal
from placewise.runtimes.inputs import fresh_inputs, load_inputs
from placewise.runtimes.measure import ATTEMPTS, Measurement, Protocol, check_outputs, choose_calm, measure

CORES = pinnable_cores()


def cluster(*names: str) -> Cluster:
    """Devices that work in host memory, and others whose names say where they are."""
    devices = [Device(name, kind="cpu" if name.startswith("c") and "cuda" not in name else "gpu") for name in names]
    links = [Link(device.name, "host", 1e9) for device in devices if not device.is_host]
    return Cluster(tuple(devices), (*links, *(Link("host", link.source, 1e9) for link in links)))


def test_host_devices_share_the_free_cores_in_order():
    """Whoever is bound by name takes its cores first; the others share the rest evenly."""
    assert [place.cores for place in bind(cluster("cpu"))] == [CORES]
    said = {"c1": f"cores:{CORES[0]}"}
    one, other = (
        bind(cluster("c0", "c1"), said) if len(CORES) > 1 else bind(cluster("c0", "c1"), {**said, "c0": said["c1"]})
    )
    assert one.cores == (CORES[1:] or CORES) and other.cores == CORES[:1]


def test_threads_of_one_core_stay_together(monkeypatch):
    """Where the system numbers the second threads of all cores last, a device still gets both threads of its core."""
    monkeypatch.setattr("placewise.runtimes.binding.pinnable_cores", lambda: (0, 1, 2, 3))
    monkeypatch.setattr("placewise.runtimes.binding.physical_core", lambda core: (0, core % 2))
    assert [place.cores for place in bind(cluster("c0", "c1"))] == [(0, 2), (1, 3)]
    assert bind(cluster("cpu"))[0].cores == (0, 1, 2, 3)
    assert {physical_core(core)[0] >= 0 for core in CORES} == {True}


def test_places_are_found_by_name_or_as_they_are_said():
    """cuda:1 is that GPU; options follow after semicolons."""
    places = bind(cluster("cuda:1", "npu", "fast"), {"npu": "openvino:NPU", "fast": f"cores:{CORES[0]};PRECISION=bf16"})
    assert [(place.kind, place.name) for place in places] == [("cuda", "1"), ("openvino", "NPU"), ("cores", "")]
    assert places[2].options == {"PRECISION": "bf16"} and str(places[1]) == "npu (openvino:NPU)"


def test_limits_make_slower_devices_of_cores():
    """A share of the time of its cores, and a bandwidth; they are part of what a profile measured."""
    place = bind(cluster("c0"), {"c0": f"cores:{CORES[0]};quota=40%;bandwidth=200Mb/s;threads=1"})[0]
    assert (place.quota, place.bandwidth, place.options) == (0.4, 25e6, {"threads": "1"})
    assert str(place) == f"c0 (cores {CORES[0]}; quota=0.4; bandwidth=25MB/s)"
    assert describe_processor(place, ()).endswith("; bandwidth=25MB/s; quota=0.4; threads=1")
    with pytest.raises(InputError, match="'onnxruntime' gives devices no bandwidth of their own, and 'c0' has one"):
        require_limits([place], "onnxruntime", ("quota",))
    require_limits([place, *bind(cluster("c0"))], "pipelining", ("quota", "bandwidth"))


@pytest.mark.parametrize(
    ("names", "said", "message"),
    [
        (("acc0",), {}, "'acc0' is not on this machine"),
        (("cpu",), {"gpu": "cuda:0"}, "no device 'gpu' to bind"),
        (("cpu",), {"cpu": "cores:4096"}, "core 4096 is not here"),
        (("cpu",), {"cpu": "cores:a-b"}, "names no cores"),
        (("cpu",), {"cpu": "cores:1-0"}, "names no cores"),
        (("cpu",), {"cpu": "cores:0-999999999999"}, "is not here"),
        (("cpu",), {"cpu": "the moon"}, "is no place"),
        (("cpu",), {"cpu": "cuda:first"}, "is no place"),
        (("cpu",), {"cpu": f"cores:{CORES[0]};quota=0"}, "cannot be kept"),
        (("cpu",), {"cpu": f"cores:{CORES[0]};Quota = 0.1%"}, "cannot be kept"),
        (("cpu",), {"cpu": f"cores:{CORES[0]};bandwidth=1e30"}, "cannot be kept"),
        (("cpu",), {"cpu": f"cores:{CORES[0]};quota=2"}, "is not a share"),
        (("cpu",), {"cpu": f"cores:{CORES[0]};bandwidth=fast"}, "is not a bandwidth"),
        (("cpu",), {"cpu": "cuda:0;quota=0.5"}, "is on no cores, so it has no quota"),
        (tuple(f"c{number}" for number in range(len(CORES) + 1)), {}, "free cores of this machine"),
    ],
)
def test_devices_that_are_not_here_are_refused(names, said, message):
    """One sentence says which device, and how to say where it is."""
    with pytest.raises((ClusterError, InputError), match=message):
        bind(cluster(*names), said)


def test_a_disk_is_refused_wherever_it_is_said_to_be():
    """No runtime reads weights anew at every run: what would be measured is another plan."""
    disk = Cluster((Device("cpu", kind="cpu"), Device("disk", kind="disk")), ())
    with pytest.raises(ClusterError, match="no runtime reads weights from 'disk'"):
        bind(disk, {"disk": f"cores:{CORES[0]}"})


@pytest.fixture(scope="module")
def bert():
    """A graph with three inputs of whole numbers."""
    return build("examples/models/bert_base.onnx", "cpu", ProblemOptions(dims={"batch": 1, "seq": 4})).graph


def test_inputs_are_fresh_reproducible_and_fit(bert):
    """Every input has its shape and type; a seed means the same inputs, another one others."""
    first, again, other = fresh_inputs(bert, 0), fresh_inputs(bert, 0), fresh_inputs(bert, 1)
    assert all(array.shape == (1, 4) and array.dtype == np.int64 for array in first.values()) and len(first) >= 2
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert any(not np.array_equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nothing": np.zeros(1)}, "no input 'nothing'"),
        ({"input_ids": np.zeros((1, 5), np.int64)}, "has shape \\(1, 5\\)"),
        ({"input_ids": np.zeros((1, 4), np.float32)}, "is of type float32"),
    ],
)
def test_wrong_inputs_are_refused(bert, given, message):
    """Name, shape and type are checked before anything runs."""
    with pytest.raises(InputError, match=message):
        fresh_inputs(bert, 0, given)


def test_inputs_from_a_file(tmp_path: Path):
    """A .npz file gives arrays by name; anything else is refused in words."""
    np.savez(tmp_path / "in.npz", x=np.arange(3))
    assert load_inputs(tmp_path / "in.npz")["x"].tolist() == [0, 1, 2]
    (tmp_path / "no.npz").write_bytes(b"nothing")
    for wrong in ("no.npz", "missing.npz"):
        with pytest.raises(InputError):
            load_inputs(tmp_path / wrong)


def test_outputs_may_differ_as_their_type_allows():
    """float32 within a thousandth of the largest entry, whole numbers not at all."""
    wanted = {"y": np.array([1.0, -100.0], np.float32)}
    near = {"y": wanted["y"] + np.float32(0.05)}
    assert 0.4 < require_equal(wanted, near, who="it") < 0.6
    with pytest.raises(RunError, match="it gives another output 'y'"):
        require_equal(wanted, {"y": wanted["y"] + np.float32(0.2)}, who="it")
    assert require_equal(wanted, {"y": wanted["y"] + np.float32(2)}, who="it", precision="bfloat16") < 1
    with pytest.raises(RunError):
        require_equal({"n": np.array([1])}, {"n": np.array([2])}, who="it")
    with pytest.raises(RunError, match="instead of"):
        require_equal(wanted, {"y": np.zeros(3, np.float32)}, who="it")
    with pytest.raises(RunError, match="other outputs"):
        require_equal(wanted, {"z": wanted["y"]}, who="it")


def test_nan_equals_nan_and_nothing_else():
    """A model that gives NaN gives it everywhere; a placement that does so alone is wrong."""
    nan = np.array([np.nan, 1.0], np.float32)
    assert require_equal({"y": nan}, {"y": nan.copy()}, who="it") == 0
    with pytest.raises(RunError):
        require_equal({"y": np.ones(2, np.float32)}, {"y": nan}, who="it")


class Clockwork:
    """A model on the spot: it doubles its input, takes the time that it is told, and keeps a log."""

    notes, realised = (), Realised((1,))

    def __init__(self, name: str, seconds: float, log: list[str], *, fails_at: int = -1, noise: float = 0.0) -> None:
        self.name, self.seconds, self.log, self.fails_at, self.times = name, seconds, log, fails_at, 0
        self.rng, self.noise = np.random.default_rng(0), noise

    def run(self, inputs):
        return {"y": inputs["x"] * 2 + self.rng.standard_normal() * self.noise}

    def time(self, samples: Sequence[object], *, in_flight: int = 1) -> list[float]:
        self.log.append(self.name)
        self.times += 1
        if self.times == self.fails_at:
            raise RunError("it broke")
        return [self.seconds] * (1 if in_flight > 1 else len(samples))

    def close(self) -> None:
        self.log.append("closed")


def test_rounds_are_interleaved_in_changing_order():
    """Everybody has a turn in every round, and nobody is always the first."""
    log: list[str] = []
    ready = {name: Clockwork(name, seconds, log) for name, seconds in (("a", 1.0), ("b", 2.0), ("c", 3.0))}
    found = measure(ready, lambda number: {"x": np.ones(1)}, Protocol(rounds=4, samples=1, warm_up=1))
    assert [(one.name, one.seconds, one.spread, len(one.rounds)) for one in found] == [
        ("a", 1.0, 0.0, 4), ("b", 2.0, 0.0, 4), ("c", 3.0, 0.0, 4),
    ]  # fmt: skip
    rounds = [log[start : start + 3] for start in range(3, len(log), 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds) and len({one[0] for one in rounds}) > 1


def test_rounds_in_which_workers_waited_are_repeated(monkeypatch):
    """The calm ones count, of all placements together; where there are too few, the calmest do."""
    log: list[str] = []
    waits = iter([0.0, 0.0, 0.0, 9.0, *[9.0] * 200])  # before and after each time: the second of round 1 waited
    monkeypatch.setattr("placewise.runtimes.measure.waited_seconds", lambda: next(waits))
    ready = {name: Clockwork(name, 1.0, log) for name in "ab"}
    protocol = Protocol(rounds=4, samples=1, warm_up=1, wait=1e-3)
    found = measure(ready, lambda number: {"x": np.ones(1)}, protocol)
    assert [(len(one.rounds), one.dropped) for one in found] == [(4, 1), (4, 1)] and len(log) == 2 + 2 * 5
    always = iter(range(10**6))
    monkeypatch.setattr("placewise.runtimes.measure.waited_seconds", lambda: float(next(always)))
    found = measure(ready, lambda number: {"x": np.ones(1)}, replace(protocol, least=3))
    assert [(len(one.rounds), one.dropped) for one in found] == [(3, 4 * ATTEMPTS - 3)] * 2
    assert choose_calm([0.3, 0.1, 0.2], Protocol(least=2, wait=0.05)) == [1, 2]


def test_waiting_for_a_processor_is_seen():
    """Of the processes that this one has started, all threads together: two that want the same core."""
    code = f"import os\nos.sched_setaffinity(0, [{CORES[0]}])\nprint(flush=True)\nwhile True: pass"
    before = waited_seconds()
    burning = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for process in burning:
            assert process.stdout is not None and process.stdout.readline()
        until = time.monotonic() + 60
        while waited_seconds() <= before + 0.02 and time.monotonic() < until:
            time.sleep(0.02)
        assert waited_seconds() > before + 0.02
    finally:
        for process in burning:
            process.kill()
            process.communicate()


def test_threads_that_spin_after_a_run_are_waited_for():
    """Until they have stopped, also where they share a core, but no longer than is said."""
    spin = "import os, time\nos.sched_setaffinity(0, [{}])\nprint(flush=True)\nwhile time.process_time() < {}: pass\n"
    spin += "time.sleep(600)"
    started = [
        subprocess.Popen([sys.executable, "-c", spin.format(CORES[0], seconds)], stdout=subprocess.PIPE)
        for seconds in (0.3, 0.4)
    ]
    try:
        for process in started:
            assert process.stdout is not None and process.stdout.readline()
        assert not await_rest(0.02)
        assert await_rest(60)
        assert all(read_schedule(process.pid)[0] > 0.29 for process in started)
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_one_that_fails_drops_out_and_the_others_go_on(caplog):
    """Its failure is said and kept in words, and none of its times."""
    log: list[str] = []
    ready = {"good": Clockwork("good", 1.0, log), "bad": Clockwork("bad", 1.0, log, fails_at=3)}
    good, bad = measure(ready, lambda number: {"x": np.ones(1)}, Protocol(rounds=5, samples=1, warm_up=1))
    assert len(good.rounds) == 5 and bad == Measurement("bad", (), "it broke") and bad.seconds == float("inf")
    assert caplog.messages == ["bad failed: it broke"]


def test_a_model_with_random_outputs_cannot_be_checked():
    """Before anything is timed, the single device must agree with itself."""
    sure, random = Clockwork("sure", 1.0, []), Clockwork("random", 1.0, [], noise=1.0)
    fresh = lambda number: {"x": np.ones(3, np.float32)}  # noqa: E731
    assert check_outputs(sure, sure, fresh, who="it") == 0
    with pytest.raises(RunError, match="outputs of this model are random"):
        check_outputs(random, sure, fresh, who="it")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 cut off", b"one array", b"objects"])
def test_inputs_that_are_no_npz_are_refused(tmp_path, content):
    """Text, a torn archive, one array without a name and pickled objects: one sentence."""
    path = tmp_path / "in.npz"
    path.write_bytes(content)
    if content == b"one array":
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    if content == b"objects":
        np.savez(path, a=np.array([None]))
    with pytest.raises(InputError, match=r"in\.npz: is no \.npz file of arrays"):
        load_inputs(path)
