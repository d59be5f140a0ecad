"""Seconds from work and figures of devices, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from costing_helpers import one_op

from placewise.catalog import read_cluster
from placewise.catalog.entries import catalog
from placewise.costing.op_instance import CLASSES
from placewise.costing.roofline import cost_table
from placewise.costing.work import work_of
from placewise.errors import CostError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device, Link
from placewise.model.costs import transfer_seconds_of


def device(name="d", **changes):
    """1 TFLOP/s of float32 of which products reach half, 100 GB/s of which 80 % are reached, 1 µs per op."""
    figures = {
        "kind": "cpu",
        "peak_flops": {"float32": 1e12, "int8": 4e12},
        "memory_bandwidth": 100e9,
        "op_overhead": 1e-6,
        "efficiency": {"matmul": 0.5, "memory": 0.8},
    }
    return Device(name, **{**figures, **changes})


def seconds(graph, *devices):
    table = cost_table(graph, Cluster(devices or (device(),)))
    return table.op_seconds[0].tolist(), [table.sources[code] for code in table.op_source[0]]


def test_compute_bound_and_memory_bound():
    """A large product waits for arithmetic, an addition for memory; both pay the overhead."""
    product = one_op("MatMul", [(1000, 1000), (1000, 1000)], [(1000, 1000)])
    assert seconds(product)[0] == [pytest.approx(2e9 / 0.5e12 + 1e-6)]
    addition = one_op("Add", [(1000, 1000), (1000, 1000)], [(1000, 1000)])
    assert seconds(addition)[0] == [pytest.approx(12e6 / 80e9 + 1e-6)]


def test_views_cost_nothing():
    """Not even the overhead."""
    assert seconds(one_op("Reshape", [(1000,)], [(10, 100)])) == ([0.0], ["roofline"])


def test_every_device_has_its_own_column():
    """Overheads and speeds are those of the device; unlimited memory leaves the arithmetic."""
    graph = one_op("MatMul", [(100, 100), (100, 100)], [(100, 100)])
    fast = device("fast", peak_flops={"float32": 1e13}, op_overhead=5e-6, memory_bandwidth=math.inf)
    plain = device("plain", efficiency={})
    assert seconds(graph, device(), fast, plain)[0] == [
        pytest.approx(2e6 / 0.5e12 + 1e-6), pytest.approx(2e6 / 0.5e13 + 5e-6), pytest.approx(2e6 / 1e12 + 1e-6)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "peaks", "rate", "source"),
    [
        ("float32", {"float32": 1e12}, 1e12, "roofline"),
        ("float16", {"float32": 1e12, "float16": 2e12}, 2e12, "roofline"),
        ("float16", {"float32": 1e12}, 1e12, "assumed"),
        ("bfloat16", {"float32": 1e12, "float16": 2e12}, 1e12, "assumed"),
        ("float8_e4m3", {"float32": 1e12, "float16": 2e12}, 2e12, "assumed"),
        ("uint8", {"float32": 1e12, "int8": 4e12}, 4e12, "assumed"),
        ("int64", {"float32": 1e12, "int8": 4e12}, 1e12, "assumed"),
        ("float64", {"float32": 1e12}, 1e12, "assumed"),
        ("float32", {"float16": 8e12, "int8": 9e12}, 8e12, "assumed"),
        ("unknown", {"float32": 1e12}, 1e12, "assumed"),
    ],
)
def test_element_types_without_a_peak(dtype, peaks, rate, source):
    """The stand-in is a narrower or wider type of the same family, then float32, then the slowest; it is assumed."""
    graph = one_op("MatMul", [(512, 512), (512, 512)], [(512, 512)], dtype="float32" if dtype == "unknown" else dtype)
    if dtype == "unknown":
        builder = GraphBuilder()
        op = builder.add_op("op", "MatMul")
        for _ in range(2):
            builder.add_edge(builder.add_tensor(-1, shape=(512, 512), nbytes=4 * 512**2), op)
        builder.add_tensor(op, shape=(512, 512), nbytes=4 * 512**2, output=True)
        graph = builder.build()
    found = seconds(graph, device(peak_flops=peaks, memory_bandwidth=math.inf, op_overhead=0))
    assert found == ([pytest.approx(2 * 512**3 / (0.5 * rate))], [source])


def test_unknown_kinds_are_assumed_everywhere():
    """They cost their bytes and say so."""
    assert seconds(one_op("my::Op", [(1000, 1000)], [(1,)])) == (
        [pytest.approx(4_000_004 / 80e9 + 1e-6)], ["assumed"]
    )  # fmt: skip


def test_only_arithmetic_needs_a_stand_in():
    """Moving integers is not assumed, whatever the device computes in; adding them is."""
    builder = GraphBuilder()
    value = builder.add_tensor(-1, shape=(1000,), dtype="int64")
    for kind in ("Concat", "Neg"):
        op = builder.add_op(kind, kind, dtype="int64")
        builder.add_edge(value, op)
        value = builder.add_tensor(op, shape=(1000,), dtype="int64")
    table = cost_table(builder.build(), Cluster((device(),)))
    assert [table.sources[code] for code in table.op_source[:, 0]] == ["roofline", "assumed"]


def test_a_device_without_peaks_waits_for_its_memory():
    """What is known counts, and is marked as assumed; without a bandwidth either, arithmetic has no time at all."""
    graph, cluster = one_op("Relu", [(1000,)], [(1000,)]), Cluster((device("x", peak_flops={}),))
    table = cost_table(graph, cluster)
    assert table.op_seconds[0, 0] == pytest.approx(8000 / 80e9 + 1e-6)
    assert table.sources[table.op_source[0, 0]] == "assumed"
    nothing = device("x", peak_flops={}, memory_bandwidth=math.inf)
    with pytest.raises(CostError, match=r"device 'x': it has no peak speed and no memory bandwidth.*give peak_flops"):
        seconds(graph, nothing)
    assert seconds(one_op("Concat", [(1000,)], [(1000,)]), nothing)[0] == [pytest.approx(1e-6)]


def test_transfers_are_the_models_own():
    """Transfer seconds come from the one rule for them, and the table fits graph and cluster."""
    graph = one_op("Relu", [(1000,)], [(1000,)])
    links = (Link("g", "host", 1e9, 1e-5), Link("host", "g", 1e9, 1e-5))
    cluster = Cluster((device(), device("g", kind="gpu")), links)
    table = cost_table(graph, cluster, work=work_of(graph))
    table.validate(graph, cluster)
    assert np.array_equal(table.transfer_seconds, transfer_seconds_of(graph, cluster))
    assert table.transfer_seconds[0].tolist() == [0.0, pytest.approx(4000 / 1e9 + 1e-5)]
    assert table.transfer_source == "roofline"


def test_the_catalogue_speaks_the_same_classes():
    """Every efficiency of the catalogue is of a class of op (or memory), and every computing class has one."""
    computing = set(CLASSES) - {"free", "movement", "control", "unknown"}
    for behaviour in catalog().behaviour.values():
        assert set(behaviour.efficiency) == computing | {"memory"}


def test_catalogued_devices_order_as_expected():
    """A half-precision product is fastest on the newest device and slowest on a CPU."""
    graph = one_op("MatMul", [(4096, 4096), (4096, 4096)], [(4096, 4096)], dtype="float16")
    cluster = read_cluster("H100,A100-80GB,V100,L4,P100,K80,i9-12900K")
    column = cost_table(graph, cluster).op_seconds[0]
    assert list(np.argsort(column)) == [0, 1, 2, 3, 4, 5, 6]
    assert column[0] == pytest.approx(2 * 4096**3 / (0.7 * 989.4e12) + 5e-6)
