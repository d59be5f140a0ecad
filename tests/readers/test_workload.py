"""The published workload format: what becomes of every field, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from published import WORKLOADS, needs_workloads

from placewise.core.build import build
from placewise.core.open_model import open_model
from placewise.core.options import ProblemOptions
from placewise.errors import InputError, ModelFileError
from placewise.files.problem_file import save_problem
from placewise.model.problem import Objective, Rule
from placewise.readers.formats import ReadOptions, detect_format, read_model
from placewise.readers.workload import read_workload


def node(number: int, **changes: Any) -> dict[str, Any]:
    """A node that takes 2 ms on a CPU, 1 ms on an accelerator, and 8 bytes there."""
    known = {"id": number, "name": f"n{number}", "cpuLatency": 2.0, "fpgaLatency": 1.0, "size": 8.0}
    return {**known, "supportedOnFpga": 1, "isBackwardNode": 0, **changes}


def write(path: Path, nodes: list[dict[str, Any]], edges: list[tuple[Any, Any, Any]], **top: Any) -> Path:
    """A workload file with two accelerators and a CPU."""
    known = {"maxSizePerFPGA": 20.0, "maxFPGAs": 2, "maxCPUs": 1}
    listed = [{"sourceId": s, "destId": d, "cost": c} for s, d, c in edges]
    path.write_text(json.dumps({**known, "nodes": nodes, "edges": listed, **top}))
    return path


def test_every_field_has_its_place(tmp_path: Path) -> None:
    """Ids are names, milliseconds become seconds, sizes state, colours groups, and a source has one tensor."""
    nodes = [
        node(7, colorClass=3),
        node(5, colorClass=3, isBackwardNode=1),
        node(9, supportedOnFpga=0, fpgaLatency=-1),
        node(1),
    ]
    path = write(tmp_path / "w.json", nodes, [(7, 9, 0.5), (7, 1, 0.5), (9, 5, 0.25)])
    problem = read_workload(path).problem
    assert problem is not None
    graph, cluster = problem.graph, problem.cluster
    assert cluster.names == ("acc0", "acc1", "cpu0") and cluster.transfers == "staged"
    row = {name: op for op, name in enumerate(graph.ops.name)}
    assert set(row) == {"7", "5", "9", "1"}
    assert problem.costs.op_seconds[row["7"]].tolist() == [0.001, 0.001, 0.002]
    assert problem.costs.op_seconds[row["9"]].tolist() == [math.inf, math.inf, 0.002]
    assert graph.ops.state_bytes[row["7"]] == 8 and graph.ops.scope[row["7"]] == "n7"
    assert graph.ops.group[row["7"]] == graph.ops.group[row["5"]] >= 0 > graph.ops.group[row["1"]]
    assert graph.ops.backward[row["5"]] and not graph.ops.backward[row["7"]]
    assert graph.n_tensors == 2
    made = graph.outputs_of(row["7"])[0]
    assert {graph.ops.name[op] for op in graph.consumers_of(made)} == {"9", "1"}
    assert problem.costs.transfer_seconds[made].tolist() == [0.0, 0.0005]
    assert problem.objective == Objective("throughput", memory="sum") and problem.constraints.contiguous
    assert problem.capacity.tolist() == [20, 20, math.inf]


def test_latency_is_another_reading(tmp_path: Path) -> None:
    """Read for latency, calls are executed and stages need not form a chain."""
    problem = read_model(write(tmp_path / "w.json", [node(0)], []), ReadOptions(objective="latency")).problem
    assert problem is not None
    assert problem.objective.execution == "subgraph" and not problem.constraints.contiguous


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        ([], [], "must be a node"),
        ([node(0), node(0)], [], "node 0: two nodes have this id"),
        ([{"name": "x"}], [], "node 0: has no 'id'"),
        ([node(0, cpuLatency="fast")], [], "cpuLatency is 'fast'"),
        ([node(0, cpuLatency=None)], [], "has no 'cpuLatency'"),
        ([node(0, size=-5)], [], "size is -5"),
        ([node(0, size=1e30)], [], r"node 0: size is 1e\+30; give bytes, up to 2\^62"),
        ([node(0, size=10**400)], [], r"node 0: size is .*up to 2\^62"),
        ([node(0, size=-(10**400))], [], "node 0: size is -"),
        ([node(0, size=2**61), node(1, size=2**61), node(2, size=2**61)], [], "all nodes together"),
        ([node(1.5)], [], "'id' is 1.5; give a whole number or a string"),
        ([node(True)], [], "'id' is True"),
        ([node(0, fpgaLatency=math.inf)], [], "fpgaLatency is inf"),
        ([node(0, colorClass=[1])], [], "colorClass"),
        ([node(0), node(1)], [(0, 1, math.nan)], "edge 0: cost is nan"),
        ([node(0), node(1)], [(0, None, 1)], "edge 0: has no 'destId'"),
        ([node(0), node(1), node(2)], [(0, 1, 1), (0, 2, 2)], "another edge of node 0 1.0 ms"),
        ([node(0), node(1)], [(0, 1, 1), (1, 0, 1)], "cycle"),
        (["zero"], [], "has no 'id'"),
    ],
)
def test_bad_files_name_node_or_edge(
    tmp_path: Path, nodes: list[dict[str, Any]], edges: list[tuple[Any, Any, Any]], message: str
) -> None:
    """One sentence with the file and the place."""
    with pytest.raises(InputError, match=message) as caught:
        read_workload(write(tmp_path / "bad.json", nodes, edges))
    assert "bad.json" in str(caught.value)


@pytest.mark.parametrize("devices", [{"maxFPGAs": 1e9}, {"maxCPUs": 4097}, {"maxFPGAs": 2.5}])
def test_too_many_devices_are_refused(tmp_path: Path, devices: dict[str, float]) -> None:
    """The limit is said."""
    path = tmp_path / "many.json"
    path.write_text(json.dumps({"nodes": [node(0)], "edges": [], **devices}))
    with pytest.raises(ModelFileError, match=r"whole numbers of devices, up to 4096"):
        read_workload(path)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"nodes": 3, "edges": 4}', '{"plan": true}', "[" * 100_000])
def test_what_is_no_workload_is_refused(tmp_path: Path, text: str) -> None:
    """Broken or foreign JSON is one error, however deep it is nested."""
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ModelFileError, match=r"x\.json"):
        read_model(path)


def test_suffix_and_content_decide(tmp_path: Path) -> None:
    """JSON content is a workload whatever the suffix, unless the suffix says ONNX; the rest is ONNX."""
    for name, content, expected in (
        ("a.json", b"nodes", "workload"), ("b", b' \n{"nodes"', "workload"), ("c.onnx", b"{", "onnx"),
        ("d", b"\x08\x07", "onnx"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
        assert detect_format(tmp_path / name) == expected


def test_wishes_change_a_given_problem(tmp_path: Path) -> None:
    """Objective, mode, headroom and rules may differ from the file's own; its devices may not."""
    path = write(tmp_path / "w.json", [node(0), node(1)], [(0, 1, 0.5)])
    pins = (Rule("^0$", "cpu0"),)
    problem = build(path, options=ProblemOptions(communication="overlap", headroom=0.5, pins=pins, contiguous=False))
    assert problem.objective.communication == "overlap" and not problem.constraints.contiguous
    assert problem.capacity.tolist() == [10, 10, math.inf] and problem.allowed[0].tolist() == [False, False, True]
    latency = build(path, options=ProblemOptions(objective="latency", execution="sequential"))
    assert latency.objective == Objective("latency", execution="sequential", memory="sum")
    with pytest.raises(InputError, match="leave out the devices"):
        build(path, "cpu")
    with pytest.raises(InputError, match="applies to latency only"):
        build(path, options=ProblemOptions(execution="operator"))


def test_the_shape_of_stages_is_a_wish(tmp_path: Path) -> None:
    """Workloads ask for a chain; `convex` asks for less, `contiguous=False` for nothing, both at once is an error."""
    path = write(tmp_path / "w.json", [node(0), node(1)], [(0, 1, 0.5)])
    for options, shape in (
        (ProblemOptions(), (True, False)),
        (ProblemOptions(convex=True), (False, True)),
        (ProblemOptions(convex=False), (True, False)),
        (ProblemOptions(contiguous=False), (False, False)),
        (ProblemOptions(contiguous=False, convex=True), (False, True)),
    ):
        rules = build(path, options=options).constraints
        assert (rules.contiguous, rules.convex) == shape
        again = build(build(path, options=options)).constraints
        assert again == rules
    with pytest.raises(InputError, match="convex already"):
        build(path, options=ProblemOptions(contiguous=True, convex=True))


def test_problem_files_are_models_too(tmp_path: Path) -> None:
    """A saved problem is opened like any model, by its content."""
    problem = read_workload(write(tmp_path / "w.json", [node(0), node(1)], [(0, 1, 0.5)])).problem
    assert problem is not None
    save_problem(problem, tmp_path / "problem.npz")
    again = open_model(tmp_path / "problem.npz").problem
    assert again is not None and again.graph.digest() == problem.graph.digest()
    assert again.objective == problem.objective


@needs_workloads
def test_all_published_workloads_are_read() -> None:
    """Nineteen instances, none of them empty, all groups and backward ops where the files have them."""
    paths = sorted((WORKLOADS / "throughput").rglob("*.json")) + sorted((WORKLOADS / "latency").rglob("*.json"))
    assert len(paths) == 19
    for path in paths:
        document = json.loads(path.read_text())
        problem = read_workload(path).problem
        assert problem is not None
        assert problem.n_ops == len(document["nodes"])
        assert problem.graph.n_edges == len(document["edges"])
        assert int(problem.graph.ops.backward.sum()) == sum(bool(n["isBackwardNode"]) for n in document["nodes"])
