"""Instances of Piper: what becomes of every field, what is refused, and what is found without a search."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published import PIPER, needs_piper

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.errors import InputError
from placewise.model.problem import Constraints, Objective
from placewise.model.result import Outcome
from placewise.readers.formats import detect_format
from placewise.readers.piper import read_piper


def way(name: str = "vanilla", **changes: Any) -> dict[str, Any]:
    """A way of a layer without neighbours."""
    known = {"timePerSample": 2.0, "parameterSize": 8, "memoryUsageA": 3, "memoryUsageB": 4.5}
    return {"id": name, **known, "syncTimeFw": {}, "syncTimeBw": {}, **changes}


def layer(number: Any, **by_degree: list[Any]) -> dict[str, Any]:
    """A layer with ways by degree, ``t1=[…]``; one vanilla way by default."""
    ways = {name[1:]: ways for name, ways in by_degree.items()} or {"1": [way()]}
    return {"id": number, "name": f"layer.{number}", "TMPCs": ways}


def write(path: Path, nodes: Any, edges: Any = (), **top: Any) -> Path:
    """An instance with four devices of 100 bytes."""
    known = {"maxMemoryPerDevice": 100.0, "maxDevices": 4, "bandwidth": 64.0, "mbsInBatch": 8}
    listed = [{"sourceId": a, "destId": b, "communicationCost": c} for a, b, c in edges]
    path.write_text(json.dumps({**known, "nodes": nodes, "edges": listed, **top}))
    return path


def pair() -> list[dict[str, Any]]:
    """Two layers, 7 before 5; the second has two degrees and may recompute."""
    late = {"syncTimeFw": {"7": 6.0}}
    return [
        layer(5, t2=[way(timePerSample=1.25, **late)], t1=[way(**late), way("activation recomp", **late)]),
        layer(7, t1=[way(syncTimeBw={"5": 0.5})]),
    ]


def test_every_field_has_its_place(tmp_path: Path) -> None:
    """Ids are names, names scopes, edges tensors; seconds and bytes are as they are written, by unit and degree."""
    path = write(tmp_path / "piper.json", pair(), [(7, 5, 16.5)])
    assert detect_format(path) == "piper"
    problem = read_piper(path).problem
    assert problem is not None and problem.ways is not None
    graph, cluster, ways = problem.graph, problem.cluster, problem.ways
    assert graph.ops.name == ("7", "5") and graph.ops.scope[0] == "layer.7" and graph.tensors.name == ("7->5",)
    assert graph.source is not None and graph.source.format == "piper"
    assert cluster.names == ("acc0", "acc1", "acc2", "acc3") and cluster.transfers == "staged"
    assert problem.capacity.tolist() == [100.0] * 4 and cluster.class_bandwidth[1:].tolist() == [64.0]
    assert problem.objective == Objective("throughput", memory="sum")
    assert problem.constraints == Constraints(contiguous=True, replicas=0, tensor_parallel=0)
    assert ways.unit.tolist() == [0, 1] and ways.unit_names == ("7", "5")
    listed = list(zip(ways.way_unit.tolist(), ways.degree.tolist(), ways.name, ways.recompute.tolist(), strict=True))
    late = (1, 1, "activation recomp", True)
    assert listed == [(0, 1, "vanilla", False), (1, 2, "vanilla", False), (1, 1, "vanilla", False), late]
    assert ways.seconds[:, 0].tolist() == [2.0, 1.25, 2.0, 2.0]
    assert ways.gradient_bytes.tolist() == [8.0] * 4 and ways.bytes_in_flight.tolist() == [3.0] * 4
    assert ways.bytes_fixed.tolist() == [4.5] * 4
    assert ways.tensor_bytes.tolist() == [16.5] and ways.sync_bytes[:, 0].tolist() == [0.5, 6.0, 6.0, 6.0]
    assert (ways.microbatches, ways.passes, ways.gradient_factor, ways.in_flight) == (8, 2, 4.0, "1f1b")
    assert ways.device_class.tolist() == ways.node.tolist() == [0] * 4
    assert problem.costs.op_seconds[:, 0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("edges", [(), [(0, 1, 1)] * 20_000])
def test_the_order_of_fields_does_not_matter(tmp_path: Path, edges: Any) -> None:
    """Nodes behind many edges, after a byte order mark: still an instance of Piper."""
    path = write(tmp_path / "piper.json", [layer(0)], edges)
    document = json.loads(path.read_text())
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({key: document[key] for key in sorted(document)}).encode())
    assert detect_format(path) == "piper"
    if not edges:
        assert read_piper(path).graph.n_ops == 1


def test_layers_need_no_way_for_one_device(tmp_path: Path) -> None:
    """A layer that only runs on two devices counts the seconds of both, and is placed."""
    path = write(tmp_path / "piper.json", [layer(0, t2=[way(timePerSample=1.25)])])
    problem = read_piper(path).problem
    assert problem is not None and problem.costs.op_seconds[0].tolist() == [2.5] * 4
    result = place(problem)
    assert result.status.outcome is Outcome.OPTIMAL and result.value == 1.25 / 2 + 4 / 2 * 8 / 8 / 64


TWO = [layer(0), layer(1)]
JOINED = [layer(0, t1=[way(syncTimeBw={"1": 0})]), layer(1, t1=[way(syncTimeFw={"0": 0})])]


@pytest.mark.parametrize(
    ("nodes", "edges", "top", "message"),
    [
        ([], [], {}, "there must be a node"),
        ("abc", [], {}, "'nodes' and 'edges' must be lists"),
        ([layer(0), layer(0)], [], {}, "node 0: two nodes have this id"),
        ([{"TMPCs": {"1": [way()]}}], [], {}, "node 0: has no 'id'"),
        ([layer(0), {"id": 1, "TMPCs": {}}], [], {}, r"node 1: has no ways to run it \('TMPCs'\); list them by degree"),
        ([layer(0), {"id": 1, "TMPCs": [way()]}], [], {}, "node 1: has no ways to run it"),
        ([layer(0, t2=[])], [], {}, "node 0: has no way for degree 2; list one, or leave the degree out"),
        ([layer(0, t0=[way()])], [], {}, "'0' is no degree of tensor parallelism; give devices, as 4"),
        ([layer(0, t02=[way()])], [], {}, "'02' is no degree"),
        ([layer(0, t1e3=[way()])], [], {}, "'1e3' is no degree"),
        ([layer(0, t70000=[way()])], [], {}, "'70000' is no degree"),
        ([layer(0, t1=[way(), way()])], [], {}, "node 0, degree 1: two ways are both called 'vanilla'"),
        ([layer(0, t1=["fast"])], [], {}, "node 0, degree 1: has no 'id'"),
        ([layer(0, t1=[way(timePerSample=-1)])], [], {}, "way 'vanilla': timePerSample is -1"),
        ([layer(0, t1=[way(timePerSample=1e301)])], [], {}, "timePerSample is 1e\\+301"),
        ([layer(0, t1=[way(parameterSize=math.nan)])], [], {}, "parameterSize is nan"),
        ([layer(0, t1=[way(memoryUsageA="much")])], [], {}, "memoryUsageA is 'much'; give a number"),
        ([layer(0, t1=[way(memoryUsageB=1e30)])], [], {}, r"memoryUsageB is 1e\+30; give bytes, up to 2\^62"),
        ([layer(0, t1=[{"id": "x"}])], [], {}, "way 'x': has no 'timePerSample'"),
        ([layer(0, t1=[way(syncTimeFw=[1])])], [], {}, "syncTimeFw is no mapping of nodes to bytes"),
        (TWO, [(0, 1, 1)], {}, "node 0, degree 1, way 'vanilla': syncTimeBw says nothing of the edge with node 1"),
        ([layer(0, t1=[way(syncTimeFw={"9": 0})])], [], {}, "syncTimeFw names node '9', to which no edge leads"),
        ([layer(0, t1=[way(syncTimeBw={"1": 0})]), layer(1, t1=[way(syncTimeFw={"0": -3})])], [(0, 1, 1)], {},
         "node 1, degree 1, way 'vanilla', syncTimeFw: 0 is -3"),
        (JOINED, [(0, 1, 1), (0, 1, 1)], {}, "edge 1: joins 0 to 1 a second time; give one edge per pair"),
        (JOINED, [(0, 7, 1)], {}, "edge 0: joins node 7, which does not exist"),
        (JOINED, [(0, 1, -1)], {}, "edge 0: communicationCost is -1"),
        (JOINED, [(0, 1, 1), (1, 0, 1)], {}, "cycle"),
        (TWO, [], {"maxDevices": 0}, "maxDevices must be a whole number of devices, from 1 to 4096"),
        (TWO, [], {"maxDevices": 2.5}, "maxDevices must be a whole number"),
        (TWO, [], {"maxDevices": None}, "the top level: has no 'maxDevices'"),
        (TWO, [], {"bandwidth": 0}, "bandwidth is 0; give bytes per second"),
        (TWO, [], {"mbsInBatch": 0}, "mbsInBatch must be a whole number of micro-batches"),
        (TWO, [], {"mbsInBatch": 1e9}, "mbsInBatch must be a whole number of micro-batches"),
        (TWO, [], {"maxMemoryPerDevice": "8GiB"}, "maxMemoryPerDevice is '8GiB'; give a number"),
    ],
)  # fmt: skip
def test_bad_files_name_the_place(tmp_path: Path, nodes: Any, edges: Any, top: dict[str, Any], message: str) -> None:
    """One sentence with the file, and the node, degree, way or edge."""
    with pytest.raises(InputError, match=message) as caught:
        read_piper(write(tmp_path / "bad.json", nodes, edges, **top))
    assert str(caught.value).startswith(str(tmp_path / "bad.json")) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"TMPCs": 3}', '{"nodes": [{"TMPCs"', "[" * 100_000, "null"])
def test_what_is_no_instance_is_refused(tmp_path: Path, text: str) -> None:
    """Broken or foreign JSON is one error."""
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"x\.json"):
        read_piper(path)


def test_latency_is_not_in_the_file(tmp_path: Path) -> None:
    """Times of training steps have no latency; other devices are another file's."""
    path = write(tmp_path / "piper.json", pair(), [(7, 5, 1)])
    with pytest.raises(InputError, match="have a throughput; add --objective throughput"):
        build(path, options=ProblemOptions(objective="latency"))
    with pytest.raises(InputError, match="leave out the devices"):
        build(path, "4xL4")


def test_options_restrict_the_ways(tmp_path: Path) -> None:
    """Degrees, recomputation, micro-batches, replicas and memory are asked for as for any model."""
    path = write(tmp_path / "piper.json", pair(), [(7, 5, 1)])

    def ways_with(**options: Any) -> list[tuple[int, bool]]:
        ways = build(path, options=ProblemOptions(**options)).require_ways()
        return list(zip(ways.degree.tolist(), ways.recompute.tolist(), strict=True))

    assert ways_with() == ways_with(tensor_parallel="any") == [(1, False), (2, False), (1, False), (1, True)]
    assert ways_with(tensor_parallel=1) == [(1, False), (1, False), (1, True)]
    assert ways_with(recompute="never") == [(1, False), (2, False), (1, False)]
    assert ways_with(recompute="always") == [(1, False), (2, False), (1, True)]
    assert build(path, options=ProblemOptions(microbatches=3)).require_ways().microbatches == 3
    alone = build(path, options=ProblemOptions(replicas=1, max_memory={"acc0": 9}))
    assert alone.capacity.tolist() == [9.0, 100.0, 100.0, 100.0]
    placed = place(alone).placement
    assert placed is not None and {group.data_parallel for group in placed.stages} == {1}
    only = write(tmp_path / "two.json", [layer(0, t2=[way()])])
    with pytest.raises(InputError, match="some unit has no way on at most 1 devices; allow more devices per split"):
        build(only, options=ProblemOptions(tensor_parallel=1))


@pytest.mark.parametrize(
    ("nodes", "options", "message"),
    [
        ([layer(0), layer(1, t8=[way()])], {}, "op '1' runs on 8 devices of a node at least, and no node has as many"),
        ([layer(0), layer(1)], {"forbid": [("^0$", f"acc{d}") for d in range(4)]}, "no device may run op '0'"),
        ([layer(0, t1=[way(memoryUsageB=101)])], {}, "fits the memory of the devices"),
    ],
)
def test_what_cannot_be_placed_is_said(tmp_path: Path, nodes: Any, options: dict[str, Any], message: str) -> None:
    """Proofs that nothing fits, in words."""
    result = place(build(write(tmp_path / "p.json", nodes), options=ProblemOptions(**options)))
    assert result.status.outcome is Outcome.INFEASIBLE and message in result.unmet


@needs_piper
def test_the_published_instance() -> None:
    """BERT-32 on A100s: 37 layers, 67 edges, five degrees, all but the ends with and without recomputation."""
    problem = read_piper(PIPER / "bert32a100.json").problem
    assert problem is not None
    ways = problem.require_ways()
    assert (problem.n_ops, problem.graph.n_tensors, problem.n_devices) == (37, 67, 10)
    assert ways.degrees.tolist() == [1, 2, 4, 8] and ways.microbatches == 1920
    assert np.count_nonzero(ways.recompute) > 100
