"""The naive answers beside a plan: copies of the model, the even split by layers, and why one cannot run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import placewise as pw
from placewise.catalog import read_cluster
from placewise.core.baselines import copy_model
from placewise.core.place import place
from placewise.files.plan_file import baselines_of, plan_of
from placewise.model.builder import GraphBuilder
from placewise.model.costs import CostTable, MachineRuns
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.verdict import BALANCED_SPLIT, EVEN_LAYERS, REPLICAS, SINGLE_DEVICE, Baseline, Decision
from placewise.placers.base import Budget
from placewise.placers.baselines.even_layers import split_layers
from placewise.simulate import judge_placement

SMALL = {"n_ops": 20}


def problem_of(devices: str, **options: object) -> Problem:
    """A random layered graph, for throughput."""
    return pw.build(
        "zoo:random-layered", devices, pw.ProblemOptions(dims=SMALL, objective="throughput", **options)  # type: ignore[arg-type]
    )  # fmt: skip


def alone(problem: Problem, device: int) -> float:
    """Seconds per sample of the whole model on one device."""
    return judge_placement(problem, Placement.on(device, problem.n_ops)).value


def test_equal_copies_share_the_samples() -> None:
    """Two equal devices take half as long as one."""
    problem = problem_of("2xL4")
    copies = copy_model(problem)
    assert copies.value == pytest.approx(alone(problem, 0) / 2) and copies.devices == problem.cluster.names


def test_unequal_copies_take_what_they_have_time_for() -> None:
    """Rates add up: a fast and a slow device, and a CPU."""
    problem = problem_of("L4,A100-80GB,cpu")
    rates = [1 / alone(problem, device) for device in range(3)]
    copies = copy_model(problem)
    assert 1 / copies.value == pytest.approx(sum(rates)) and set(copies.devices) == set(problem.cluster.names)


def test_copies_in_training_add_up_their_gradients() -> None:
    """They are priced as a shared stage: above half of one device's time, and equal to the plan of two replicas."""
    problem = pw.build(
        "examples/models/resnet50.onnx", "2xL4,A100-80GB",
        pw.ProblemOptions(dims={"batch": 2}, graph="training", objective="throughput"),
    )  # fmt: skip
    copies = copy_model(problem)
    shared = problem.with_(constraints=Constraints(replicas=2))
    stage = Placement(np.zeros(problem.n_ops, np.int32), replicas=np.array([0, 0, 2], np.int32))
    assert copies.devices == problem.cluster.names[:2]
    assert copies.value == judge_placement(shared, stage).value > alone(problem, 0) / 2


def unnamed(*, backward: bool = False) -> Problem:
    """Two ops without scopes and without weights on two equal devices, the second of them backward if asked."""
    builder = GraphBuilder()
    builder.add_op("a", "Op")
    builder.add_op("b", "Op", backward=backward)
    cluster = read_cluster("2xL4")
    costs = CostTable.given(np.ones((2, 2)), np.zeros((0, len(cluster.class_bandwidth))))
    return Problem(builder.build(), cluster, costs, Objective("throughput"))


def test_copies_in_training_need_to_know_the_weights() -> None:
    """A training graph that does not say what its weights are has no price for the sum of gradients."""
    assert "which of its bytes are weights" in copy_model(unnamed(backward=True)).broken
    assert copy_model(unnamed()).value == 1.0


def test_the_even_split_has_equally_many_layers_on_every_device() -> None:
    """Twelve layers of BERT-base on four devices, three on each, in order."""
    problem = pw.build("hf:bert-base", "4xL4", pw.ProblemOptions(objective="latency"))
    device, why = split_layers(problem)
    assert device is not None and not why
    where: dict[int, set[int]] = {}
    for scope, at in zip(problem.graph.ops.scope, device.tolist(), strict=True):
        words = scope.split(".")
        if "layer" in words and words[words.index("layer") + 1].isdecimal():
            where.setdefault(int(words[words.index("layer") + 1]), set()).add(at)
    assert where == {layer: {layer // 3} for layer in range(12)}


def test_a_model_without_layers_says_so() -> None:
    """The row of the even split stands there with the reason, in the result and in its file."""
    result = place(unnamed(), "single", Budget(1.0))
    assert result.compared[EVEN_LAYERS] == Baseline(math.inf, "the names of the ops number no layers")
    assert list(result.compared) == [SINGLE_DEVICE, REPLICAS, BALANCED_SPLIT, EVEN_LAYERS]
    assert baselines_of(plan_of(result)) == result.compared


def test_what_does_not_fit_says_how_much_is_missing() -> None:
    """No device holds the model: one device and copies have no value, and a reason in bytes."""
    whole = problem_of("2xL4")
    needed = judge_placement(whole, Placement.on(0, whole.n_ops)).devices[0].peak
    result = place(problem_of("2xL4", max_memory={"cuda:0": 0.8 * needed, "cuda:1": 0.8 * needed}), budget=Budget(2.0))
    for name in (SINGLE_DEVICE, REPLICAS):
        assert math.isinf(result.compared[name].value) and "short" in result.compared[name].broken
    assert result.verdict is not None and result.verdict.sentence.startswith(
        "A split is needed: the model does not fit"
    )


def test_latency_has_no_copies() -> None:
    """Copies of the model shorten no sample."""
    result = place(pw.build("zoo:random-layered", "2xL4", pw.ProblemOptions(dims=SMALL)), "single", Budget(1.0))
    assert REPLICAS not in result.compared


def test_a_loaded_plan_keeps_its_baselines(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """The same verdict and the same rows as when it was placed; judged for other devices, there are none."""
    plan = pw.place("zoo:random-layered", "2xL4,cpu", dims=SMALL, objective="throughput", time_limit="1s")
    plan.save(tmp_path / "plan.json")
    again = pw.Plan.load(tmp_path / "plan.json")
    assert again.result.compared == plan.result.compared
    assert again.result.verdict is not None and plan.result.verdict is not None
    assert again.result.verdict.decision is plan.result.verdict.decision
    assert plan.verdict == plan.result.verdict.sentence and plan.verdict in plan.summary()
    elsewhere = pw.Plan.load(tmp_path / "plan.json", devices="2xA100-80GB,cpu")
    assert elsewhere.verdict == "" and "compared with" not in elsewhere.summary()


def test_auto_takes_one_device_where_chosen_plans_took_too_long() -> None:
    """Two branches on two devices save a third by the costs; plans so chosen took twice as long."""
    builder = GraphBuilder()
    for op in range(3):
        builder.add_op(f"op{op}", "Op")
    for op in range(2):
        builder.add_edge(builder.add_tensor(op, shape=(1,), dtype="float32"), 2, op)
    cluster = read_cluster("2xcore")
    graph = builder.build()
    costs = CostTable.given(np.ones((3, 2)), np.zeros((graph.n_tensors, len(cluster.class_bandwidth))))
    problem = Problem(graph, cluster, costs)
    split = place(problem, "auto", Budget(1.0))
    assert split.value == split.expected == 2.0
    runs = MachineRuns(own_threads=1.8, cores=2, longer=1.0, plans=3)
    single = place(problem.with_(costs=replace(costs, runs=runs)), "auto", Budget(1.0))
    assert single.value == single.expected == 3.0 and single.placement is not None
    assert len(set(single.placement.device.tolist())) == 1 and "took 100.0% longer" in single.notes[-1]
    assert single.verdict is not None and single.verdict.decision is Decision.OWN_THREADS
