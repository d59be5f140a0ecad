"""The profiled layer graphs of PipeDream: what becomes of every line, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from published import PROFILES, WORKLOADS, needs_profiles, needs_workloads

import placewise as pw
from placewise.analysis.inspect import inspect
from placewise.core.build import build, build_for_plan
from placewise.core.open_model import open_model
from placewise.core.options import ProblemOptions
from placewise.errors import InputError
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.readers.formats import ReadOptions, detect_format, read_model
from placewise.readers.pipedream import read_pipedream
from placewise.simulate import judge_placement

NAMES = (
    "alexnet", "gnmt", "inception_v3", "nasnetamobile", "resnet18", "resnet50", "resnet101", "resnext101",
    "squeezenet1_0",
)  # fmt: skip
LINES = (
    ("node1 -- Input0", "500.0", "0.0", "100.0", "0.0"),
    ("node3 -- ReLU(inplace)", "1.0", "2.0", "8.0", "0.0"),
    ("node2 -- Conv2d(3, 4)", "2.0", "4.0", "[8.0; 4.0]", "40.0"),
    ("node4 -- Add(1 -- 2)", "0.5", "0.25", "2.5", "0.0 -- stage_id=0"),
)
SMALL = "".join(
    f"{node} -- forward_compute_time={f}, backward_compute_time={b}, activation_size={a}, parameter_size={p}\n"
    for node, f, b, a, p in LINES
) + "".join(
    f"\t{tail} -- {head}\n"
    for tail, head in (("node1", "node2"), ("node2", "node3"), ("node2", "node4"), ("node3", "node4"))
)


def write(path: Path, text: str) -> Path:
    """A file with this text."""
    path.write_text(text)
    return path


def figures(line: str = "node1 -- Add", **changes: str) -> str:
    """A node's line."""
    known = {"forward_compute_time": "1", "backward_compute_time": "1", "activation_size": "1", "parameter_size": "0"}
    return f"{line} -- " + ", ".join(f"{name}={value}" for name, value in {**known, **changes}.items())


def test_the_inference_graph(tmp_path: Path) -> None:
    """Ops in the order of their numbers with kinds, weights, one tensor each; inputs cost nothing."""
    reading = read_model(write(tmp_path / "small.txt", SMALL))
    graph = reading.graph
    assert graph.ops.name == ("node1", "node2", "node3", "node4")
    assert list(graph.ops.kind) == ["Input", "Conv", "Relu", "Add"]
    assert graph.ops.attributes[3]["description"] == "Add(1 -- 2)"
    assert graph.tensors.bytes.tolist() == [0, 12, 8, 3]
    assert graph.weights.bytes.tolist() == [40] and graph.weights_of(1).tolist() == [0]
    assert reading.op_seconds is not None and reading.op_seconds.tolist() == pytest.approx([0, 2e-3, 1e-3, 5e-4])
    assert reading.warnings == ("0.5 s of loading inputs are left out, as PipeDream does",)
    assert graph.ops.group.tolist() == [-1] * 4 and not graph.ops.backward.any()


def test_the_training_graph(tmp_path: Path) -> None:
    """Each op but the input has a twin in its group with state, which runs after it and sends gradients."""
    reading = read_model(write(tmp_path / "small.txt", SMALL), ReadOptions(graph="training"))
    graph, seconds = reading.graph, reading.op_seconds
    row = {name: op for op, name in enumerate(graph.ops.name)}
    assert seconds is not None and graph.n_ops == 7
    for number, time, state in ((2, 4e-3, 92), (3, 2e-3, 8), (4, 2.5e-4, 3)):
        op, twin = row[f"node{number}"], row[f"node{number}.backward"]
        assert graph.ops.group[op] == graph.ops.group[twin] >= 0
        assert graph.ops.backward[twin] and not graph.ops.backward[op]
        assert seconds[twin] == pytest.approx(time) and graph.ops.state_bytes[twin] == state
    sent = {
        (graph.ops.name[graph.tensors.producer[t]], graph.ops.name[int(op)]): int(graph.tensors.bytes[t])
        for t in range(graph.n_tensors)
        for op in graph.consumers_of(t)
    }
    assert sent == {
        ("node1", "node2"): 0, ("node2", "node3"): 12, ("node2", "node4"): 12, ("node3", "node4"): 8,
        ("node2", "node2.backward"): 0, ("node3", "node3.backward"): 0, ("node4", "node4.backward"): 0,
        ("node3.backward", "node2.backward"): 12, ("node4.backward", "node2.backward"): 12,
        ("node4.backward", "node3.backward"): 8,
    }  # fmt: skip


def test_a_training_split_by_hand(tmp_path: Path) -> None:
    """Two accelerators, 1 kB/s to the host, cut behind node2: 12 B go forward, two gradients of 12 B come back."""
    machines = tuple(Device(name) for name in "ab")
    cluster = Cluster(machines, tuple(Link(*ends, 1e3) for d in "ab" for ends in ((d, HOST), (HOST, d))))
    problem = build(
        write(tmp_path / "small.txt", SMALL), cluster, ProblemOptions(objective="throughput", graph="training")
    )
    split = np.array([int(name[:5] in ("node3", "node4")) for name in problem.graph.ops.name], np.int32)
    judged = judge_placement(problem, Placement(split))
    assert judged.valid and problem.costs.sources == ("profiled",)
    assert [use.compute for use in judged.devices] == pytest.approx([0.006, 0.00375])
    assert [use.send for use in judged.devices] == pytest.approx([0.012, 0.024])
    assert [use.receive for use in judged.devices] == pytest.approx([0.024, 0.012])
    assert judged.value == pytest.approx(0.042)


def test_a_plan_knows_which_graph_it_is_for(tmp_path: Path) -> None:
    """A training plan prices again without being told; its value is the plan's, proved on two accelerators."""
    model = write(tmp_path / "small.txt", SMALL)
    plan = pw.place(model, "2xV100-16GB", objective="throughput", graph="training")
    assert plan.status == "optimal" and len(plan.assignment) == 7
    plan.save(tmp_path / "plan.json")
    problem, placement = build_for_plan(model, tmp_path / "plan.json")
    assert problem.graph.n_ops == 7
    assert judge_placement(problem, placement).value == plan.value


def test_cpus_run_nothing_of_a_profile(tmp_path: Path) -> None:
    """Beside accelerators a CPU is there but runs no op; alone it is refused; inspection counts no FLOPs."""
    model = write(tmp_path / "small.txt", SMALL)
    problem = build(model, "1xV100-16GB,cpu")
    assert problem.allowed.tolist() == [[True, False]] * 4
    with pytest.raises(InputError, match="cluster has none; add accelerators"):
        build(model, "cpu")
    found = inspect(open_model(model))
    assert found.flops is None and found.weight_bytes == 40


def test_the_graph_that_is_there(tmp_path: Path) -> None:
    """`graph` picks one of a profile's two; elsewhere it must be what the file holds, and one of two words."""
    model = write(tmp_path / "small.txt", SMALL)
    assert open_model(model).graph.n_ops == open_model(model, ProblemOptions(graph="inference")).graph.n_ops == 4
    training = open_model(model, ProblemOptions(graph="training")).graph
    assert open_model(training, ProblemOptions(graph="training")).graph is training
    with pytest.raises(InputError, match="for training; leave out --graph inference"):
        open_model(training, ProblemOptions(graph="inference"))
    workload = tmp_path / "w.json"
    workload.write_text(
        json.dumps({"maxCPUs": 1, "nodes": [{"id": 1, "cpuLatency": 1, "fpgaLatency": 1}], "edges": []})
    )
    with pytest.raises(InputError, match=r"w\.json: .* for inference; leave out --graph training"):
        open_model(workload, ProblemOptions(graph="training"))
    with pytest.raises(InputError, match="no graph 'both'; choose inference or training"):
        open_model(model, ProblemOptions(graph="both"))
    with pytest.raises(InputError, match="no symbolic dimensions"):
        open_model(model, ProblemOptions(dims={"batch": 1}))


def test_profiles_are_known_by_their_content(tmp_path: Path) -> None:
    """A profile may have any suffix but .onnx and .json, and its first lines may be broken."""
    assert detect_format(write(tmp_path / "a.graph", SMALL)) == "profile"
    assert detect_format(write(tmp_path / "b.txt", "broken\n" + SMALL)) == "profile"
    assert detect_format(write(tmp_path / "b.txt", "hello")) == "onnx"
    assert detect_format(write(tmp_path / "c.onnx", SMALL)) == "onnx"


BAD = {
    "": "has no nodes; is it",
    "hello": "line 1: is neither",
    figures() + "\n" + figures("node2 -- Add"): "2 nodes and no edges; is the file whole",
    figures() + "\n" + figures(): "line 2: node1 is on line 1 already; keep one",
    figures() + "\nnode1 -- node2": "line 2: joins node2, which no line describes; add its line",
    figures() + "\nnode1 -- node1": "line 2: closes a cycle: node1 → node1; a placement",
    figures() + "\n" + figures("node2 -- A") + "\nnode1 -- node2\n node2 -- node1": "closes a cycle: node",
    figures(forward_compute_time="nan"): "line 1: node1's forward_compute_time is 'nan'; give a number, zero or more",
    figures(backward_compute_time="-1"): "node1's backward_compute_time is '-1'; give",
    figures(activation_size="[1; x]"): "activation_size is '[1; x]'; give",
    figures(activation_size="[1e308; 1e308]"): "activation_size is",
    figures(parameter_size="inf"): "parameter_size is 'inf'",
    figures(parameter_size=""): "parameter_size is ''",
    figures()[:-30]: "line 1: node1 has no activation_size; is the line whole",
    figures() + "\nnode1 -- no": "line 2: is neither",
    figures(f"node{'9' * 5000} -- Add"): "line 1: is neither",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_bad_profiles_are_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    """The file, the line, what is wrong and what to do."""
    for graph in ("inference", "training"):
        with pytest.raises(InputError) as caught:
            read_pipedream(write(tmp_path / "bad.txt", text), graph=graph)
        said = str(caught.value)
        assert said.startswith(str(tmp_path / "bad.txt")) and BAD[text] in said and "\n" not in said


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """A binary file under this suffix is refused."""
    (tmp_path / "bad.txt").write_bytes(b"node1 -- \xff\xfe")
    with pytest.raises(InputError, match="is not text"):
        read_model(tmp_path / "bad.txt")


@needs_profiles
@pytest.mark.parametrize("name", NAMES)
def test_counts_of_the_published_profiles(name: str) -> None:
    """Ops, edges, bytes and seconds equal a direct count of the lines, in both graphs."""
    path = PROFILES / f"{name}.txt"
    lines = path.read_text().splitlines()
    nodes = [line for line in lines if "forward_compute_time" in line]
    edges = [line.split() for line in lines if line.startswith("\t") and "=" not in line]
    inputs = {line.split()[0] for line in nodes if " -- Input" in line}
    inference, training = read_pipedream(path), read_pipedream(path, graph="training")
    assert inference.graph.n_ops == len(nodes) and inference.graph.n_edges == len(edges)
    assert training.graph.n_ops == 2 * len(nodes) - len(inputs)
    gradients = sum(tail not in inputs for tail, _, _ in edges)
    assert training.graph.n_edges == len(edges) + len(nodes) - len(inputs) + gradients
    assert inference.op_seconds is not None and training.op_seconds is not None
    counted = [line for line in nodes if line.split()[0] not in inputs]
    forward, backward = (
        sum(float(line.split(f"{way}_compute_time=")[1].split(",")[0]) for line in counted)
        for way in ("forward", "backward")
    )
    assert inference.op_seconds.sum() == pytest.approx(forward * 1e-3)
    assert training.op_seconds.sum() == pytest.approx((forward + backward) * 1e-3)
    parameters = sum(float(line.split("parameter_size=")[1]) for line in nodes)
    assert inference.graph.weights.bytes.sum() == parameters
    kept = inference.graph.tensors.bytes.sum()
    assert training.graph.ops.state_bytes.sum() == 2 * parameters + kept


@needs_profiles
@needs_workloads
def test_a_profile_and_the_workload_made_of_it() -> None:
    """ResNet-50 was published both ways: the same edges and times, and transfers at one speed."""
    profile = read_pipedream(PROFILES / "resnet50.txt")
    path = WORKLOADS / "throughput" / "LayerGraphs" / "resnet50_inference.json"
    workload = read_model(path).problem
    assert isinstance(workload, Problem) and profile.op_seconds is not None
    names = [name.removeprefix("node") for name in profile.graph.ops.name]
    row = [workload.graph.ops.name.index(name) for name in names]
    theirs = workload.costs.op_seconds[row, 0]
    assert theirs[1:] == pytest.approx(profile.op_seconds[1:]) and profile.graph.ops.kind[0] == "Input"

    def joined(graph: pw.Graph) -> set[tuple[str, str]]:
        maker = graph.tensors.producer[graph.edges.value]
        ends = zip(maker.tolist(), graph.edges.consumer.tolist(), strict=True)
        return {(graph.ops.name[a].removeprefix("node"), graph.ops.name[b].removeprefix("node")) for a, b in ends}

    assert joined(profile.graph) == joined(workload.graph)
    cost = dict(zip(workload.graph.tensors.name, workload.costs.transfer_seconds[:, 1].tolist(), strict=True))
    speeds = {
        round(size / cost[f"{name}:0"])
        for name, size in zip(names[1:], profile.graph.tensors.bytes[1:].tolist(), strict=True)
        if f"{name}:0" in cost
    }
    assert speeds == {2**31 * 1_000}
