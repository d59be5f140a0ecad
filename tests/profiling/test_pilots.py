"""Runs of whole placements beside a profile: borders, chosen plans, the plain runtime, and where they count."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_branches import branching, written

from placewise._util.cores import pinnable_cores
from placewise.core.apply_profile import apply_to_problem, summarize_runs, with_borders
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.files.profile_file import PilotRecord, RunsRecord, load_profile, save_profile
from placewise.model.placement import Placement
from placewise.model.verdict import OWN_THREADS
from placewise.placers.base import Budget
from placewise.profiling import pilots
from placewise.profiling.pilots import _apart, _fit_borders, _Run, _with_borders
from placewise.profiling.profile import Profiling, profile
from placewise.profiling.profile_cache import ProfileCache
from placewise.reporting.sentences import expected_line
from placewise.runtimes.paired import summarize_ratios
from placewise.simulate import judge_placement

pytest.importorskip("onnxruntime")
two_cores = pytest.mark.skipif(len(pinnable_cores()) < 2, reason="needs two cores")
NAMES = {"core:0", "core:1"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return written(tmp_path_factory.mktemp("pilots"), branching(width=256, batch=64))


def pilot(ratio, *, chosen=True, error=0.0):
    return PilotRecord(chosen=chosen, predicted=2.0, measured=2.0 * ratio, error=error)


def test_chosen_plans_say_how_much_longer_they_take():
    """The median of those that were chosen; what taught the borders does not count."""
    record = RunsRecord(own_threads=3.0, cores=2, pilots=(pilot(9.0, chosen=False), pilot(1.1), pilot(1.2), pilot(1.5)))
    runs = summarize_runs(record)
    assert (runs.own_threads, runs.cores, runs.plans) == (3.0, 2, 3)
    assert runs.longer == pytest.approx(0.2) and runs.error == pytest.approx(0.25)
    noisy = summarize_runs(RunsRecord(own_threads_error=0.4, pilots=(pilot(1.1), pilot(1.2, error=0.3))))
    assert (noisy.error, noisy.own_threads_error) == (0.3, 0.4)
    assert summarize_runs(RunsRecord()).plans == 0 and summarize_runs(RunsRecord()).own_threads == float("inf")


def test_a_machine_that_changes_between_batches_widens_the_error():
    """By as much as the median of one batch is from that of all, however many rounds there are."""
    batches = [[1.0] * 25, [1.0] * 25, [1.1] * 9]
    whole = summarize_ratios([ratio for batch in batches for ratio in batch])
    assert whole.error == 0.0 and max(_apart(batch, whole) for batch in batches) == pytest.approx(0.1)


def test_borders_are_found_from_runs(path):
    """Placements that took what a border of 60 µs and 0.4 ns per byte makes them take."""
    problem = build(path, "2xcore")
    true = _with_borders(problem, NAMES, 6e-5, 4e-10)
    rng = np.random.default_rng(0)
    placements = [Placement(rng.integers(0, 2, problem.n_ops).astype(np.int32)) for _ in range(6)]
    runs = [_Run(placement, 2, judge_placement(true, placement).value) for placement in placements]
    assert _fit_borders(problem, NAMES, runs) == (6e-5, 4e-10)
    assert _fit_borders(problem, NAMES, []) == (
        problem.cluster.links[-1].latency,
        1 / problem.cluster.links[-1].bandwidth,
    )


def test_borders_change_only_links_between_the_profiled_devices(path):
    """Those to host memory stay as they are."""
    cluster = build(path, "2xcore").cluster
    changed = with_borders(cluster, NAMES, 1e-3, 0.0)
    for before, after in zip(cluster.links, changed.links, strict=True):
        inside = NAMES.issuperset((before.source, before.target))
        assert after.latency == (1e-3 if inside else before.latency)
        assert after.bandwidth == (float("inf") if inside else before.bandwidth)


@two_cores
def test_a_profile_runs_plans_and_a_placement_knows_them(path, tmp_path, monkeypatch):
    """Pilots, chosen plans and the plain runtime are in the file; the plan is compared with it, and corrected."""
    monkeypatch.setattr(pilots, "SEARCH", 0.2)
    monkeypatch.setattr(pilots, "PROTOCOL", pilots.Protocol(rounds=7, samples=2))
    monkeypatch.setattr(pilots, "OF_CHOSEN", pilots.PROTOCOL)
    problem, cache = build(path, "2xcore"), ProfileCache(tmp_path / "cache")
    made = profile(problem, Profiling(repeats=3, pilots=3, cache=cache))
    assert made.runs is not None and made.runs.own_threads and made.runs.cores == len(pinnable_cores())
    assert sum(not one.chosen for one in made.runs.pilots) == 3
    assert all(one.measured > 0 and one.predicted > 0 and 0 < one.error <= 1 for one in made.runs.pilots)
    assert made.runs.own_threads_error > 0
    again = profile(problem, Profiling(repeats=3, pilots=3, cache=cache))
    assert again.runs == made.runs and all(device.cached for device in again.devices)
    save_profile(made, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == made
    costed = build(path, "2xcore", ProblemOptions(costs=(str(tmp_path / "p.json"),)))
    assert costed.costs.runs == summarize_runs(made.runs) == apply_to_problem(problem, made).costs.runs
    result = place(costed, "round_robin", Budget(1.0))
    assert result.compared[OWN_THREADS].value == made.runs.own_threads
    assert result.expected == pytest.approx(result.value * (1 + costed.costs.runs.longer))
    said = expected_line(result)
    assert ("expected when it runs" in said) == (costed.costs.runs.plans > 0)


@two_cores
def test_without_pilots_only_ops_are_measured(path):
    """As before; and one device has no borders and no threads beside its own."""
    assert profile(build(path, "2xcore"), Profiling(repeats=3)).runs is None
    assert profile(build(path, "1xcore"), Profiling(repeats=3, pilots=2)).runs is None
