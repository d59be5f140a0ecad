"""Times of a profile: alike devices stay equal, and unlike ones do not become so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import placewise as pw
from placewise.catalog import read_cluster
from placewise.core.apply_profile import ALIKE, Profiled, with_profile
from placewise.core.baselines import copy_model
from placewise.core.build import build, build_for_plan
from placewise.core.options import ProblemOptions
from placewise.costing.roofline import cost_table
from placewise.files.profile_file import DeviceProfile, Figures, ProfileFile, save_profile
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.model.result import Bound, Outcome, Reason, Result, Status
from placewise.model.verdict import SINGLE_DEVICE, Decision
from placewise.simulate import judge_placement
from placewise.simulate.replicas import equal_devices
from placewise.zoo.random import random_graph

GRAPH = random_graph("layered", 12, 1)
PACE = np.linspace(1e-3, 2e-3, GRAPH.n_ops)


def device_profile(name: str, factor: float, spread: float = 0.0, processor: str = "a chip; cores 0") -> DeviceProfile:
    """A device whose ops take `factor` times `PACE`, and a call as many microseconds."""
    figures = Figures(ops=tuple((factor * PACE).tolist()), spread=spread)
    return DeviceProfile(name=name, processor=processor, call_overhead=factor * 1e-6, idle=figures)


def applied(*devices: DeviceProfile, cluster: str = "3xcore", **options: Any) -> Profiled:
    """The times of these devices over the roofline's."""
    found = read_cluster(cluster)
    profile = ProfileFile(runtime="onnxruntime", ops=GRAPH.ops.name, devices=devices)
    return with_profile(cost_table(GRAPH, found), GRAPH, found, profile, **options)


def factors(*devices: DeviceProfile, **options: Any) -> list[float]:
    """How many times `PACE` each device of the cluster takes."""
    seconds = applied(*devices, **options).costs.op_seconds / PACE[:, None]
    assert np.allclose(seconds, seconds[0])
    return [round(factor, 6) for factor in seconds[0].tolist()]


@pytest.mark.parametrize(
    ("times", "spread", "processors", "expected"),
    [
        ((1.0, 1.04, 1.02), 0.0, ("a", "a", "a"), [1.02, 1.02, 1.02]),
        ((1.0, 1.04, 1.5), 0.0, ("a", "a", "a"), [1.02, 1.02, 1.5]),
        ((1.5, 1.0, 1.5), 0.0, ("a", "a", "a"), [1.5, 1.0, 1.5]),
        ((1.0, 1.2, 1.4), 0.5, ("a", "a", "a"), [1.2, 1.2, 1.2]),
        ((1.0, 1.3, 5.0), (0.0, 0.0, 0.5), ("a", "a", "a"), [1.0, 1.3, 5.0]),
        ((1.0, 1.04, 1.04), 0.0, ("a", "b", "b"), [1.0, 1.04, 1.04]),
    ],
    ids=["all", "two", "none", "noise", "noise of another", "processors"],
)
def test_alike_devices_get_the_mean_of_their_times(
    times: tuple[float, ...], spread: float | tuple[float, ...], processors: tuple[str, ...], expected: list[float]
) -> None:
    """Up to `ALIKE` apart, or as far as each is from itself, on the same processor; the others keep their own."""
    devices = [
        device_profile(f"core:{k}", factor, spread[k] if isinstance(spread, tuple) else spread, f"{name}; cores {k}")
        for k, (factor, name) in enumerate(zip(times, processors, strict=True))
    ]
    assert factors(*devices) == expected
    found = applied(*devices)
    assert [round(1e6 * device.call_overhead, 6) for device in found.cluster] == expected
    assert any("are alike" in note for note in found.notes) == (expected != list(times))


def test_the_mean_is_of_the_state_that_counts() -> None:
    """Alike while idle, unlike while all are busy: each objective has its own answer."""
    busy = Figures(ops=tuple((1.5 * PACE).tolist()))
    calm = Figures(ops=tuple((1.2 * PACE).tolist()))
    one = device_profile("core:0", 1.0).model_copy(update={"loaded": calm})
    other = device_profile("core:1", 1.04).model_copy(update={"loaded": busy})
    assert factors(one, other, cluster="2xcore") == [1.02, 1.02]
    assert factors(one, other, cluster="2xcore", loaded=True) == [1.2, 1.5]


def test_what_was_not_profiled_takes_the_mean_too() -> None:
    """The third core is like the first, whose times are pooled; one device that is named keeps its own times."""
    devices = device_profile("core:0", 1.0), device_profile("core:1", 1 + ALIKE)
    assert factors(*devices) == [1.025, 1.025, 1.025]
    assert factors(devices[1], device="*") == [1.05, 1.05, 1.05]


def test_copies_of_a_training_graph_are_priced_though_times_differ_a_little() -> None:
    """Data-parallel copies need equal devices, and no two measurements are the same."""
    cluster = read_cluster("2xcore")
    graph = build("zoo:random-layered", cluster, ProblemOptions(graph="training", dims={"n_ops": 40})).graph
    seconds = np.linspace(1e-3, 2e-3, graph.n_ops)
    figures = [Figures(ops=tuple((factor * seconds).tolist())) for factor in (1.0, 1.01)]
    devices = tuple(
        DeviceProfile(name=name, processor="a chip", idle=idle)
        for name, idle in zip(cluster.names, figures, strict=True)
    )
    profile = ProfileFile(runtime="torch", ops=graph.ops.name, devices=devices)
    profiled = with_profile(cost_table(graph, cluster), graph, cluster, profile)
    problem = Problem(graph, profiled.cluster, profiled.costs, Objective("throughput"))
    assert equal_devices(problem).tolist() == [0, 0]
    copies = copy_model(problem)
    assert copies.valid and copies.devices == cluster.names
    assert copies.value < seconds.sum()


def test_a_plan_without_its_profile_says_so(tmp_path: Path) -> None:
    """Who judges or runs it without costs is told whose times it had; who gives them is told once."""
    path, kept, dims = tmp_path / "times.json", tmp_path / "plan.json", {"n_ops": 12, "seed": 1}
    devices = device_profile("core:0", 1.0), device_profile("core:1", 1.0)
    problem = build("zoo:random-layered", "2xcore", ProblemOptions(dims=dims))
    save_profile(ProfileFile(runtime="onnxruntime", ops=problem.graph.ops.name, devices=devices), path)
    plan = pw.place("zoo:random-layered", "2xcore", dims=dims, costs=[str(path)], time_limit="2s")
    plan.save(kept)
    without, _ = build_for_plan("zoo:random-layered", kept)
    assert f"the plan was priced with {path}, which is not used here: --costs {path}" in without.warnings
    assert not any("op times come from" in warning for warning in without.warnings)
    again, _ = build_for_plan("zoo:random-layered", kept, options=ProblemOptions(costs=(str(path),)))
    assert [str(path) in warning for warning in again.warnings].count(True) == 1


def test_processors_of_one_kind_differ_in_their_numbers_alone() -> None:
    """Cores and GPUs of a machine by what they are; another card, more cores and other options are another kind."""
    xeon = "Xeon, 8 cores; cuda:{} (NVIDIA {} GPU-{}2345678-1234-1234-1234-123456789abc; driver 5, CUDA 12.4)"
    for one, other, equal in (
        ("EPYC, 2 cores; cores 0", "EPYC, 2 cores; cores 1", True),
        ("EPYC, 2 cores; cores 0", "EPYC, 2 cores; cores 0, 1", False),
        ("EPYC, 2 cores; cores 0", "EPYC, 2 cores; cores 1; quota=0.5", False),
        (xeon.format(0, "A100", 1), xeon.format(1, "A100", 2), True),
        (xeon.format(0, "A100", 1), xeon.format(1, "RTX 3060", 2), False),
        ("EPYC, 2 cores; openvino:GPU", "EPYC, 2 cores; openvino:CPU", False),
    ):
        devices = device_profile("core:0", 1.0, 0.0, one), device_profile("core:1", 1.04, 0.0, other)
        assert (factors(*devices, cluster="2xcore") == [1.02, 1.02]) == equal, (one, other)


def test_a_plan_that_trains_is_not_sent_to_commands_that_measure_nothing_of_it() -> None:
    """The verdict on two cores, of a training graph."""
    for graph, named in (("inference", True), ("training", False)):
        problem = build("zoo:random-layered", "2xcore", ProblemOptions(graph=graph, dims={"n_ops": 40}))
        own = {
            SINGLE_DEVICE: (Placement.on(0, problem.n_ops), judge_placement(problem, Placement.on(0, problem.n_ops)))
        }
        device = np.arange(problem.n_ops, dtype=np.int32) * 2 // problem.n_ops
        judged = judge_placement(problem, Placement(device))
        status = Status(Outcome.FEASIBLE, Reason.FINISHED)
        quick = replace(judged, value=own[SINGLE_DEVICE][1].value / 2)
        result = Result(problem, Placement(device), status, quick, Bound(0.0, "none"), "auto", 0.0, baselines=own)
        assert result.verdict is not None and result.verdict.decision is Decision.NOT_MEASURED
        assert ("placewise profile" in result.verdict.sentence) == named
