"""Problem, cluster and cost files: exact round trips, matching by name, hostile figures refused."""

from __future__ import annotations

import csv
import json
import math
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from files_strategies import clusters, columns_of, problems
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pydantic import RootModel
from soak import examples
from split_problems import split_problem

from placewise.core.place import place
from placewise.costing.measured import load_measured
from placewise.errors import ClusterError, CostError, InputError, ModelFileError
from placewise.files.cluster_record import ClusterRecord, cluster_of, cluster_to_dict
from placewise.files.columns import read_columns, write_columns
from placewise.files.costs_file import CostsHeader, load_costs, save_costs
from placewise.files.problem_file import ProblemHeader, load_problem, save_problem
from placewise.files.records import parse_versioned
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.model.ways import Ways

SLOW = examples(40, suppress_health_check=[HealthCheck.too_slow])


def chain(names: str = "abc") -> Graph:
    """One op per letter, each feeding the next with 8 bytes."""
    builder = GraphBuilder()
    for op, name in enumerate(names):
        builder.add_op(name, "Relu")
        builder.add_tensor(op, nbytes=8, name=f"t{name}")
        if op:
            builder.add_edge(op - 1, op)
    return builder.build()


def pair(*names: str, bandwidth: float = 4.0) -> Cluster:
    """Accelerators of these names, each with a link of its own speed to the host."""
    links = [Link(*ends, bandwidth * (1 + "ghx".find(name))) for name in names for ends in ((name, HOST), (HOST, name))]
    return Cluster(tuple(Device(name) for name in names), tuple(links))


def table(graph: Graph, cluster: Cluster) -> CostTable:
    """The seconds of op i on device j are i + j / 10."""
    seconds = np.add.outer(np.arange(graph.n_ops), np.arange(len(cluster)) / 10)
    return CostTable.given(seconds, transfer_seconds_of(graph, cluster))


@SLOW
@given(problems())
def test_any_problem_comes_back(problem: Problem) -> None:
    """Every array bit by bit, given and derived, and every other field."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.npz"
        save_problem(problem, path)
        again = load_problem(path)
    assert columns_of(again) == columns_of(problem)
    assert again.graph.digest() == problem.graph.digest()


@SLOW
@given(clusters())
def test_any_cluster_comes_back(cluster: Cluster) -> None:
    """Through real JSON text, without bare infinities."""
    text = json.dumps(cluster_to_dict(cluster), allow_nan=False)
    assert columns_of(cluster_of(parse_versioned(ClusterRecord, json.loads(text), ClusterError))) == columns_of(cluster)


def test_unlimited_is_null() -> None:
    """What is unlimited in memory is null in the file."""
    document = cluster_to_dict(pair("g"))
    assert document["devices"][0]["memory"] is None
    assert document["links"][0] == {"source": "g", "target": "host", "bandwidth": 4.0, "latency": 0.0, "shared": ""}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"devices": []}, "'devices' needs 1 or more entries"),
        ({"devices": [{"name": "g", "memory": "much"}]}, "'devices.0.memory' must be a number"),
        ({"devices": [{"name": "g", "streams": 0}]}, "streams is 0"),
        ({"devices": [{"name": "g"}, {"name": "g"}]}, "both called 'g'"),
        ({"devices": [{"name": str(i)} for i in range(5000)]}, "'devices' has more than 4096 entries"),
        ({"links": [{"source": "g", "target": "nowhere", "bandwidth": 1}]}, "'nowhere', which does not exist"),
        ({"transfers": "by pigeon"}, "'transfers' must be 'direct' or 'staged'"),
        ({"version": 7}, "version 7, newer than 1"),
    ],
)
def test_bad_clusters(change: dict[str, object], message: str) -> None:
    """Each wrong field is named."""
    with pytest.raises(ClusterError, match=message):
        cluster_of(parse_versioned(ClusterRecord, {**cluster_to_dict(pair("g")), **change}, ClusterError))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("costs/op_seconds", np.full((3, 2), np.nan), "the time of op 'a' on g is nan"),
        ("costs/op_seconds", np.zeros((2, 3)), r"has shape \(2, 3\) instead of 3 × 2"),
        ("costs/op_source", np.full((3, 2), 5, np.int8), "outside the header's list"),
        ("costs/transfer_seconds", np.full((3, 3), np.inf), "the transfer time of tensor 'ta' is inf"),
        ("graph/edges.value", np.array([0, 7], np.int32), "one does not exist"),
    ],
)
def test_problem_files_that_lie(tmp_path: Path, name: str, array: np.ndarray, message: str) -> None:
    """NaN, wrong shapes, unknown codes and edges to nowhere are refused with the file's name."""
    graph, cluster = chain(), pair("g", "h")
    save_problem(Problem(graph, cluster, table(graph, cluster)), tmp_path / "p.npz")
    header, arrays = read_columns(tmp_path / "p.npz", ProblemHeader)
    write_columns(tmp_path / "p.npz", header, {**arrays.members, name: array})
    with pytest.raises(InputError, match=message) as caught:
        load_problem(tmp_path / "p.npz")
    assert "p.npz: " in str(caught.value)


def test_costs_are_matched_by_name(tmp_path: Path) -> None:
    """A table made for c, b, a on h, g serves a, b, c on g, h, and a cluster with g alone."""
    path = tmp_path / "costs.npz"
    turned, both = chain("cba"), pair("h", "g")
    save_costs(table(turned, both), turned, both, path)
    costs = load_costs(path, chain("abc"), pair("g", "h"))
    assert costs.op_seconds.tolist() == [[2.1, 2.0], [1.1, 1.0], [0.1, 0.0]]
    assert np.array_equal(costs.transfer_seconds, transfer_seconds_of(chain("abc"), pair("g", "h")))
    assert load_costs(path, chain("abc"), pair("g")).op_seconds.tolist() == [[2.1], [1.1], [0.1]]


def test_costs_keep_every_bit(tmp_path: Path) -> None:
    """The same graph and cluster get the same table, sources and infinities included."""
    graph, cluster = chain(), pair("g", "h")
    seconds = np.array([[0.1, math.inf], [1e-320, 1 / 3], [0, 1e300]])
    source = np.array([[0, 1], [1, 1], [0, 0]], np.int8)
    costs = CostTable(seconds, transfer_seconds_of(graph, cluster), source, ("roofline", "given"), "measured", 0.1)
    save_costs(costs, graph, cluster, tmp_path / "c.npz")
    again = load_costs(tmp_path / "c.npz", graph, cluster)
    assert columns_of(again) == columns_of(costs) and again.spread == 0.1
    save_problem(Problem(graph, cluster, costs), tmp_path / "p.npz")
    assert load_problem(tmp_path / "p.npz").costs.spread == 0.1


def test_costs_of_another_model_are_refused(tmp_path: Path) -> None:
    """An op, a device or a kind of link without costs, an op that the model does not have."""
    path, graph, cluster = tmp_path / "c.npz", chain("abc"), pair("g", "h")
    save_costs(table(graph, cluster), graph, cluster, path)
    for other, devices, message in (
        (chain("abcd"), cluster, "no costs for the op 'd'"),
        (chain("ab"), cluster, "the model has no op 'c'"),
        (graph, pair("g", "x"), "no costs for the device 'x'"),
        (graph, pair("g", "h", bandwidth=9.0), r"no costs for the link with \(bandwidth, latency\) \(9.0, 0.0\)"),
    ):
        with pytest.raises(CostError, match=message) as caught:
            load_costs(path, other, devices)
        assert str(path) in str(caught.value)


def test_nan_costs_are_refused_both_ways(tmp_path: Path) -> None:
    """NaN is neither written nor read, nor what adds up to infinity; a table without link classes is refused."""
    path, graph, cluster = tmp_path / "c.npz", chain(), pair("g")
    good = table(graph, cluster)
    bad = CostTable.given(np.full((3, 1), np.nan), good.transfer_seconds)
    with pytest.raises(CostError, match="the time of op 'a' on g is nan"):
        save_costs(bad, graph, cluster, path)
    endless = CostTable.given(np.full((3, 1), 1e301), good.transfer_seconds)
    with pytest.raises(CostError, match=r"the time of op 'a' on g is 1e\+301; give seconds from 0 to 1e\+300"):
        save_costs(endless, graph, cluster, path)
    assert not path.exists()
    save_costs(good, graph, cluster, path)
    header, arrays = read_columns(path, CostsHeader)
    write_columns(path, header, {**arrays.members, "op_seconds": bad.op_seconds})
    with pytest.raises(CostError, match="the time of op 'a' on g is nan"):
        load_costs(path, graph, cluster)
    empty = {"links.bandwidth": np.zeros(0), "links.latency": np.zeros(0), "transfer_seconds": np.zeros((3, 0))}
    write_columns(path, header, {**arrays.members, **empty})
    with pytest.raises(ModelFileError, match="no transfer times"):
        load_costs(path, graph, cluster)


def test_csv_is_read_to_the_last_bit(tmp_path: Path) -> None:
    """Names with commas, quotes and line ends, infinities and every bit of a time survive."""
    builder = GraphBuilder()
    for name in ("a,b", 'say "x"', "two\nlines", "é"):
        builder.add_op(name, "Relu")
    graph, cluster, path = builder.build(), pair("g", "h"), tmp_path / "c.csv"
    seconds = np.array([[0.1, math.inf], [1e-320, 1 / 3], [0, 1e300], [5, 6]])
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("op", "device", "seconds"))
        for op, row in zip(graph.ops.name, seconds.tolist(), strict=True):
            writer.writerows((op, device, repr(value)) for device, value in zip(cluster.names, row, strict=True))
    base = CostTable.given(np.ones_like(seconds), transfer_seconds_of(graph, cluster))
    costs, _ = load_measured(str(path), graph, cluster, base)
    assert costs.op_seconds.tobytes() == seconds.tobytes()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@examples(15)
@given(st.data())
def test_any_lie_is_an_input_error(data: st.DataObject) -> None:
    """One number, length, type or header field changed at random: a valid problem, or an InputError with the file."""
    graph, cluster = chain(), pair("g", "h")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.npz"
        save_problem(Problem(graph, cluster, table(graph, cluster)), path)
        header, arrays = read_columns(path, ProblemHeader)
        members = dict(arrays.members)
        if data.draw(st.booleans()):
            name = data.draw(st.sampled_from(sorted(members)))
            members[name] = _another(data, members[name])
            write_columns(path, header, members)
        else:
            document = header.model_dump(mode="json")
            part = document[data.draw(st.sampled_from(["graph", "cluster", "costs", "objective", "constraints"]))]
            chosen = data.draw(st.sampled_from([document, part]))
            chosen[data.draw(st.sampled_from(sorted(chosen)))] = data.draw(JSON_VALUES)
            write_columns(path, RootModel(document), members)
        try:
            load_problem(path)
        except InputError as error:
            assert str(error).startswith(f"{path}: ")


def _another(data: st.DataObject, array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    if data.draw(st.booleans()) and changed.size:
        raw = changed.view(np.uint8).reshape(-1)
        for _ in range(data.draw(st.integers(1, 8))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
        return changed
    if data.draw(st.booleans()):
        return changed.reshape(-1)[: data.draw(st.integers(0, changed.size))]
    return changed.astype(data.draw(st.sampled_from([np.int8, np.int32, np.int64, np.float64, np.bool_])))


@pytest.mark.parametrize("seed", range(12))
def test_ways_come_back(tmp_path: Path, seed: int) -> None:
    """Ways to split ops, with every field, and the names of units where there are any; a file without has none."""
    problem = split_problem(seed, classes=2, kind="latency" if seed % 3 == 0 else "throughput", even=False)
    ways = problem.require_ways()
    named = replace(ways, unit_names=tuple(f"unit {unit}" for unit in range(ways.n_units)))
    named = replace(named, collective_seconds=np.where(np.isfinite(ways.seconds), ways.seconds / 2, 0.0))
    for kept in (ways, named):
        save_problem(problem.with_(ways=kept), tmp_path / "p.npz")
        again = load_problem(tmp_path / "p.npz")
        assert again.ways is not None and columns_of(again) == columns_of(problem.with_(ways=kept))
        for field in fields(kept):
            one, other = getattr(again.ways, field.name), getattr(kept, field.name)
            assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other, field.name
        assert place(again).value == place(problem.with_(ways=kept)).value
    save_problem(problem.with_(ways=None), tmp_path / "p.npz")
    assert load_problem(tmp_path / "p.npz").ways is None


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("unit", np.full(3, 7, np.int32), "units are numbered from 0, and each has an op"),
        ("degree", np.array([0, 2, 0, 2], np.int32), "a degree outside 1 to"),
        ("degree", np.ones(3, np.int32), r"has shape \(3,\) instead of 4"),
        ("seconds", np.full((4, 1), np.nan), "the seconds of a way are negative, missing"),
        ("held_bytes", np.full((4, 2), -1.0), "a figure of held_bytes is negative"),
        ("reader", np.zeros(1, np.int32), "goes to a unit that does not stand behind its own"),
        ("reader_offsets", np.array([0, 5]), "the readers of a boundary tensor lie outside their column"),
        ("sync.tensor", np.array([3], np.int32), "'ways/sync.tensor' names one that does not exist"),
        ("device_class", np.array([-2, 0], np.int32), "−1 is a device that holds no stage"),
    ],
)
def test_ways_that_lie(tmp_path: Path, name: str, array: np.ndarray, message: str) -> None:
    """One sentence with the file's name."""
    graph, cluster, path = chain(), pair("g", "h"), tmp_path / "p.npz"
    ways = Ways(
        unit=np.array([0, 0, 1]), way_unit=np.array([0, 0, 1, 1]), degree=np.array([1, 2, 1, 2]),
        recompute=np.zeros(4, np.bool_), name=("a", "b", "a", "b"), seconds=np.ones((4, 1)),
        gradient_bytes=np.ones(4), bytes_in_flight=np.ones(4), held_bytes=np.ones((4, 2)), parts=("weights", "rest"),
        tensor_unit=np.zeros(1), tensor_bytes=np.ones(1), reader_offsets=np.array([0, 1]), reader=np.ones(1),
        sync_bytes=np.array([[0.0], [0.0], [0.0], [4.0]]), device_class=np.zeros(2), node=np.zeros(2),
    )  # fmt: skip
    save_problem(Problem(graph, cluster, table(graph, cluster), ways=ways), path)
    header, arrays = read_columns(path, ProblemHeader)
    write_columns(path, header, {**arrays.members, f"ways/{name}": array})
    with pytest.raises(InputError, match=message) as caught:
        load_problem(path)
    assert str(caught.value).startswith(f"{path}: ")
