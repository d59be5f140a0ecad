"""What runs beside every plan on cores: the runtime's own threads on all of them, and copies of the model."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from onnx_branches import branching, written

import placewise as pw
from placewise._util.cores import pinnable_cores
from placewise.analysis.measure_placements import SINGLE
from placewise.core.build import build
from placewise.errors import RunError
from placewise.model.placement import Placement
from placewise.model.verdict import CORE_COPIES, OWN_THREADS, REPLICAS
from placewise.runtimes import plain
from placewise.runtimes.base import Job
from placewise.runtimes.binding import Place
from placewise.runtimes.inputs import fresh_inputs
from placewise.runtimes.onnxruntime.runtime import OnnxRuntime
from placewise.runtimes.plain import Copies, copies_by_core, copies_by_device, on_all_cores

pytest.importorskip("onnxruntime")
CORES = pinnable_cores()
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return written(tmp_path_factory.mktemp("plain"), branching())


def job_on(path, *cores: tuple[int, ...], device: int = 0, **options) -> Job:
    """The whole model on one device of a cluster whose devices have these cores."""
    problem = build(path, f"{len(cores)}xcore")
    places = tuple(Place(f"core:{n}", "cores", cores=own, options=options) for n, own in enumerate(cores))
    return Job(problem, Placement.on(device, problem.n_ops), places, seconds=60.0)


def test_all_cores_are_those_of_all_places(path):
    """A thread per core of all places, on the first of them; nothing where one device has all cores already."""
    whole = on_all_cores(job_on(path, (0,), (1,), device=1, threads="1"))
    assert whole is not None and whole.places[0].cores == (0, 1) and not whole.places[0].options
    assert set(whole.placement.device.tolist()) == {0}
    assert on_all_cores(job_on(path, (0, 1), (1,))) is None and on_all_cores(job_on(path, (0,))) is None


def test_plain_answers_get_the_quotas_of_their_places(path):
    """All cores for as much of their time as the devices have together, and a copy each with its own; four devices
    that share two cores by quotas can be busy at once.
    """
    job = job_on(path, (0,), (0,), (1,), (1,))
    shares = (0.6, 0.3, 0.4, 0.1)
    job = replace(job, places=tuple(replace(p, quota=q) for p, q in zip(job.places, shares, strict=True)))
    whole = on_all_cores(job)
    assert whole is not None and whole.places[0].quota == pytest.approx(0.7)
    copies = copies_by_device(job)
    assert [copy.places[int(copy.placement.device[0])].quota for copy in copies] == list(shares)
    assert not copies_by_device(replace(job, places=(*job.places[:3], replace(job.places[3], quota=0.7))))


def test_copies_are_made_by_device_and_by_core(path):
    """Of two devices with two cores each: two copies or four; devices that share cores have none."""
    job = job_on(path, (0, 1), (2, 3))
    by_device, by_core = copies_by_device(job), copies_by_core(job)
    assert [one.placement.device[0] for one in by_device] == [0, 1]
    cores = [one.places[int(one.placement.device[0])].cores for one in by_core]
    assert cores == [(0,), (1,), (2,), (3,)]
    assert not copies_by_core(job_on(path, (0,), (1,))) and not copies_by_device(job_on(path, (0,), (0,)))


@two_cores
def test_a_plan_for_latency_runs_beside_the_own_threads_of_the_runtime(path):
    """In every runtime's table: the same outputs, as many threads as cores, and a row of its own."""
    cut = pw.place(path, "2xcore", placer="round_robin")
    found = pw.run(cut, rounds=2)
    names = [one.name for one in found.placements.placements]
    assert names == [SINGLE, OWN_THREADS, "plan"]
    own = found.placements.of(OWN_THREADS)
    assert own.measurement.rounds and own.difference <= 1
    assert OWN_THREADS in found.summary() and "too few to tell" in found.verdict
    whole = on_all_cores(Job(cut.problem, Placement.on(0, cut.problem.n_ops), found.placements.places))
    assert whole is not None
    with OnnxRuntime().prepare(whole) as prepared:
        (pid,) = prepared.pids.values()
        assert os.sched_getaffinity(pid) == set(found.placements.places[0].cores + found.placements.places[1].cores)


@two_cores
def test_a_plan_for_throughput_runs_beside_copies_of_the_model(path):
    """One per core here; nobody waits for nobody, and their rates add up."""
    found = pw.run(pw.place(path, "2xcore", placer="round_robin", objective="throughput"), rounds=2)
    copies = found.placements.of(REPLICAS)
    assert copies.measurement.rounds and copies.copies == 2
    assert CORE_COPIES not in [one.name for one in found.placements.placements]


@two_cores
def test_rates_of_copies_add_up(path):
    """Two copies that take 2 and 4 s per sample serve one in 4/3 s."""
    job = job_on(path, CORES[:1], CORES[1:2])
    with Copies(OnnxRuntime(), copies_by_device(job)) as copies:
        samples = [fresh_inputs(job.problem.graph, seed) for seed in range(4)]
        assert len(copies.run(samples[0])) == 2 and copies.time(samples, in_flight=4)[0] > 0
        for copy, seconds in zip(copies._copies, (2.0, 4.0), strict=True):
            copy.time = lambda own, seconds=seconds: [seconds] * len(own)
        assert copies.time(samples) == [pytest.approx(4 / 3)]


@two_cores
def test_copies_that_do_not_fit_are_not_started(path, monkeypatch):
    """Their weights are compared with the free memory first."""
    monkeypatch.setattr(plain, "_free_memory", lambda: 1000)
    with pytest.raises(RunError, match="the weights of 2 copies take"):
        Copies(OnnxRuntime(), copies_by_device(job_on(path, CORES[:1], CORES[1:2])))


def test_free_memory_is_a_number_of_bytes():
    """Above a megabyte here, and below a petabyte."""
    assert 1 << 20 < plain._free_memory() < 1 << 50 and np.isfinite(plain._free_memory())
