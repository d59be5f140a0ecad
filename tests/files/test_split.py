"""The published split format: read on the published workloads, on small cases, and when it is broken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from published import WORKLOADS, needs_workloads

from placewise.errors import PlanError
from placewise.files.plan_file import PlanFile, save_plan
from placewise.files.split_file import read_placement
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.problem import Objective, Problem
from placewise.readers.workload import read_workload
from placewise.simulate import judge_placement

SPLITS = sorted(path.name for path in (WORKLOADS / "splits").glob("*.json"))
EXPERTS = {  # milliseconds, as the published programs print them
    "bert24_inference": 20.084, "bert24_training": 49.4049, "gnmt_inference": 46.2085, "gnmt_training": 137.154,
    "inceptionv3_inference": 102.482, "resnet50_inference": 43.9183, "resnet50_training": 112.108,
}  # fmt: skip


@needs_workloads
@pytest.mark.parametrize("name", SPLITS)
def test_published_splits_are_worth_what_they_say(name: str) -> None:
    """The judge finds the published value of every published split."""
    kind, graphs, model = name.rsplit("_", 1)[0].split("_", 2)
    problem = read_workload(WORKLOADS / kind / graphs / f"{model}.json", objective=kind).problem
    assert problem is not None
    _, placement = read_placement(WORKLOADS / "splits" / name, problem)
    document = json.loads((WORKLOADS / "splits" / name).read_text())
    milliseconds = document.get("maxLoad") or document["totalLatency"]
    assert judge_placement(problem, placement).value == pytest.approx(milliseconds / 1e3, rel=1e-9)


@needs_workloads
@pytest.mark.parametrize(("model", "milliseconds"), EXPERTS.items())
def test_expert_splits(model: str, milliseconds: float) -> None:
    """Expert splits are worth what is published; that of ResNet-50 inference serves its training graph."""
    split = WORKLOADS / "human-experts" / f"{model}_expert.json"
    if not split.exists():
        split = split.with_name(split.name.replace("training", "inference"))
    problem = read_workload(WORKLOADS / "throughput" / "LayerGraphs" / f"{model}.json").problem
    assert problem is not None
    _, placement = read_placement(split, problem)
    assert judge_placement(problem, placement).value == pytest.approx(milliseconds / 1e3, rel=1e-5)


@needs_workloads
def test_a_split_of_another_model() -> None:
    """The split of a larger model names ops that the smaller one does not have."""
    problem = read_workload(WORKLOADS / "throughput" / "LayerGraphs" / "bert24_inference.json").problem
    assert problem is not None
    with pytest.raises(PlanError, match=r"gnmt.*the model has no op '\d+'; use the split of this model"):
        read_placement(WORKLOADS / "human-experts" / "gnmt_inference_expert.json", problem)


def chain(objective: Objective, *, direct: bool = False) -> Problem:
    """Ops 0 → 1 → 2 → 3, the last two backward twins of 1 and 0, on acc0, acc1 and cpu0; op i costs 1 + i."""
    builder = GraphBuilder()
    for op, group in enumerate((0, 1, 1, 0)):
        builder.add_op(str(op), "Op", group=group, backward=op > 1)
        builder.add_tensor(op, nbytes=8)
        if op:
            builder.add_edge(op - 1, op)
    accelerators = ("acc0", "acc1")
    links = [Link(*ends, 8.0) for name in accelerators for ends in ((name, HOST), (HOST, name))]
    links += [Link(*ends, 16.0) for ends in permutations(accelerators, 2)] if direct else []
    devices = (*(Device(name) for name in accelerators), Device("cpu0", kind="cpu"))
    cluster, graph = Cluster(devices, tuple(links), "direct" if direct else "staged"), builder.build()
    seconds = np.outer(np.arange(1.0, 5.0), [1.0, 1.5, 10.0])
    return Problem(graph, cluster, CostTable.given(seconds, transfer_seconds_of(graph, cluster)), objective)


SUBGRAPH = Objective("latency", execution="subgraph", memory="sum")
THROUGHPUT = Objective("throughput", memory="sum")


def split(folder: Path, fpgas: Sequence[Sequence[int | str]], cpus: Sequence[Sequence[int | str]] = ()) -> Path:
    parts = {"fpgas": [{"nodes": nodes} for nodes in fpgas], "cpus": [{"nodes": nodes} for nodes in cpus]}
    path = folder / "split.json"
    path.write_text(json.dumps({**parts, "maxLoad": -1}))
    return path


def test_lists_are_devices_in_order(tmp_path: Path) -> None:
    """List i is accelerator or CPU i; ids may be numbers or texts; empty lists name nothing."""
    problem, placement = read_placement(split(tmp_path, [[], [0, "3"]], [[1, 2]]), chain(THROUGHPUT))
    assert placement.device.tolist() == [1, 2, 2, 1]
    assert placement.call is None
    assert problem.cluster.names == ("acc0", "acc1", "cpu0")


def test_unnamed_ops_follow_their_group(tmp_path: Path) -> None:
    """The split of the forward half places the backward half."""
    _, placement = read_placement(split(tmp_path, [[0], [1]]), chain(THROUGHPUT))
    assert placement.device.tolist() == [0, 1, 1, 0]


def test_blocks_of_lists_are_calls(tmp_path: Path) -> None:
    """In subgraph latency four lists for two accelerators are two calls each; the host has call 0."""
    problem, placement = read_placement(split(tmp_path, [[0], [2], [3], []], [[1]]), chain(SUBGRAPH))
    assert placement.device.tolist() == [0, 2, 0, 1]
    assert placement.call is not None
    assert placement.call.tolist() == [0, 0, 1, 0]
    assert problem.n_devices == 3
    # acc0: 1 s and 1 s to send, cpu0: 20 s, acc0 again: 1 + 3 + 1 s, acc1: 1 + 6 s; nobody reads op 3
    assert judge_placement(problem, placement).value == pytest.approx(1 + 1 + 20 + 1 + 3 + 1 + 1 + 6)


def test_all_cpu_lists_are_one_host_in_latency(tmp_path: Path) -> None:
    """More CPU lists than CPUs are no violation where all CPUs are one host."""
    problem, placement = read_placement(split(tmp_path, [[0]], [[1], [2], [3]]), chain(SUBGRAPH))
    assert placement.device.tolist() == [0, 2, 2, 2]
    assert problem.n_devices == 3


@pytest.mark.parametrize("direct", [False, True])
def test_surplus_lists_get_clones_that_are_not_available(tmp_path: Path, direct: bool) -> None:
    """In throughput the third list belongs to acc2, a clone of acc1 that can be priced and not used."""
    small = chain(THROUGHPUT, direct=direct)
    problem, placement = read_placement(split(tmp_path, [[0], [1], [2, 3]]), small)
    assert problem.cluster.names == ("acc0", "acc1", "cpu0", "acc2")
    assert placement.device.tolist() == [0, 1, 3, 3]
    assert not problem.allowed[:, 3].any()
    assert np.array_equal(problem.costs.op_seconds[:, 3], small.costs.op_seconds[:, 1])
    assert np.array_equal(problem.costs.op_seconds[:, :3], small.costs.op_seconds)
    assert np.array_equal(problem.costs.transfer_seconds, transfer_seconds_of(problem.graph, problem.cluster))
    wire = 0.5 if direct else 1.0
    judgement = judge_placement(problem, placement)
    assert judgement.value == pytest.approx(wire + 1.5 * (3 + 4))
    assert [violation.ops for violation in judgement.violations if violation.device == "acc2"] == [("2", "3")]


def test_surplus_cpus_get_clones_in_throughput(tmp_path: Path) -> None:
    """Where every CPU is a device of its own, a second list of CPU ops needs a second CPU."""
    problem, placement = read_placement(split(tmp_path, [], [[0, 3], [1, 2]]), chain(THROUGHPUT))
    assert problem.cluster.names[-1] == "cpu1"
    assert placement.device.tolist() == [2, 3, 3, 2]
    assert judge_placement(problem, placement).value == pytest.approx(10 * 5)


@pytest.mark.parametrize(
    ("fpgas", "cpus", "message"),
    [
        ([[0, 1]], [[1]], "op '1' is named twice"),
        ([[0, 0, 1]], [], "op '0' is named twice"),
        ([[0, 1, 4]], [], "the model has no op '4'"),
        ([[0]], [], "op '1' has no device"),
        ([], [], "op '0' has no device"),
        ([[]] * 5000 + [[0, 1]], [], "has 5001 lists"),
    ],
)
def test_splits_that_do_not_fit(tmp_path: Path, fpgas: list[list[int]], cpus: list[list[int]], message: str) -> None:
    """An op in two lists, an op that does not exist, an op left over, too many lists."""
    path = split(tmp_path, fpgas, cpus)
    with pytest.raises(PlanError, match=message) as caught:
        read_placement(path, chain(THROUGHPUT))
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[]", "names no format"),
        ('{"format": "placewise-plan", "fpgas": []}', "names no version of placewise-plan"),
        ('{"fpgas": 3}', "'fpgas' must be a list"),
        ('{"fpgas": [3]}', "'fpgas.0' must be a table of names and values"),
        ('{"fpgas": [{}]}', "'fpgas.0.nodes' is missing"),
        ('{"fpgas": [{"nodes": [1.5]}]}', "'fpgas.0.nodes.0"),
        ('{"fpgas": [{"nodes": [true]}]}', "'fpgas.0.nodes.0"),
    ],
)
def test_files_that_are_no_split(tmp_path: Path, text: str, message: str) -> None:
    """Each fault is one sentence that names the field."""
    (tmp_path / "split.json").write_text(text)
    with pytest.raises(PlanError, match=message):
        read_placement(tmp_path / "split.json", chain(THROUGHPUT))


def test_a_cluster_without_accelerators(tmp_path: Path) -> None:
    """Lists of accelerators need one; empty lists do not."""
    problem = chain(THROUGHPUT)
    hosts = Cluster(problem.cluster.devices[2:])
    costs = CostTable.given(problem.costs.op_seconds[:, 2:], transfer_seconds_of(problem.graph, hosts))
    problem = Problem(problem.graph, hosts, costs, THROUGHPUT)
    with pytest.raises(PlanError, match="no device for the lists of acc0"):
        read_placement(split(tmp_path, [[0]], [[1]]), problem)
    _, placement = read_placement(split(tmp_path, [[], []], [[0, 1]]), problem)
    assert placement.device.tolist() == [0, 0, 0, 0]


def test_one_door_for_plans_and_splits(tmp_path: Path) -> None:
    """`read_placement` takes either, tells them apart by content, and refuses anything else."""
    problem, path = chain(THROUGHPUT), tmp_path / "plan.json"
    save_plan(PlanFile(assignment={"0": "acc0", "1": "acc1", "2": "acc1", "3": "cpu0"}), path)
    again, placement = read_placement(path, problem)
    assert again is problem
    assert placement.device.tolist() == [0, 1, 1, 2]
    assert read_placement(split(tmp_path, [[0], [1]]), problem)[1].device.tolist() == [0, 1, 1, 0]
    path.write_text("{}")
    with pytest.raises(PlanError, match="not a placewise-plan file"):
        read_placement(path, problem)
