"""Times of a profile: alike devices stay equal, and unlike ones do not become so."""

from __future__ import annotations

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
from placewise.model.problem import Objective, Problem
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
        ((1.0, 1.04, 1.04), 0.0, ("a", "b", "b"), [1.0, 1.04, 1.04]),
    ],
    ids=["all", "two", "none", "noise", "processors"],
)
def test_alike_devices_get_the_mean_of_their_times(
    times: tuple[float, ...], spread: float, processors: tuple[str, ...], expected: list[float]
) -> None:
    """Up to `ALIKE` apart, or as far as each is from itself, on the same processor; the others keep their own."""
    devices = [
        device_profile(f"core:{k}", factor, spread, f"{name}; cores {k}")
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
    for costs in ((), (str(path),)):
        again, _ = build_for_plan("zoo:random-layered", kept, options=ProblemOptions(costs=costs))
        told = [warning for warning in again.warnings if "give it again" in warning]
        assert len(told) == 1 and str(path) in told[0]
