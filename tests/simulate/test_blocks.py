"""Sums over blocks and storages, and devices that may be exchanged: small cases by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device
from placewise.model.costs import CostTable
from placewise.model.problem import Problem
from placewise.simulate.blocks import block_bytes, held_by_several, op_times, storage_bytes, unshared_bytes
from placewise.simulate.replicas import exchangeable


def sharing() -> Problem:
    """Three ops; a large weight of the first two, one of the last two with a small one, one of the last alone."""
    builder = GraphBuilder()
    weights = {
        name: builder.add_weight(name, shape=(size,), dtype="int8", storage=number)
        for number, (name, size) in enumerate({"early": 50_000, "late": 30_000, "tiny": 5, "alone": 20_000}.items())
    }
    for op, uses in enumerate((["early"], ["early", "late", "tiny"], ["late", "tiny", "alone"])):
        builder.add_op(f"op{op}", "Op")
        for name in uses:
            builder.use_weight(weights[name], op)
    cluster = Cluster(tuple(Device(f"cpu{i}", kind="cpu") for i in range(3)))
    return Problem(builder.build(), cluster, CostTable.given(np.ones((3, 3)), np.zeros((0, 1))))


def test_weights_that_several_devices_hold() -> None:
    """Those that ops on different devices use, but for small ones: by name, whatever the numbers of the devices."""
    problem = sharing()
    assert storage_bytes(problem.graph).tolist() == [50_000, 30_000, 5, 20_000]
    for device, names in (
        ([0, 0, 0], ()), ([0, 0, 1], ("late",)), ([0, 1, 1], ("early",)), ([0, 1, 2], ("early", "late")),
        ([2, 1, 0], ("early", "late")), ([2, 2, 0], ("late",)), ([1, 0, 1], ("early", "late")),
    ):  # fmt: skip
        assert held_by_several(problem, np.array(device, np.int32)) == names


def test_blocks_hold_their_weights() -> None:
    """All bytes of each op, and a part of what it shares; in groups, what is shared inside counts once."""
    problem = sharing()
    assert block_bytes(problem).tolist() == [50_000, 80_005, 50_005]
    assert unshared_bytes(problem).tolist() == [25_000, 40_002.5, 35_002.5]
    ops = replace(problem.graph.ops, group=np.array([0, 0, -1]), state_bytes=np.array([1, 2, 4]))
    grouped = problem.with_(graph=replace(problem.graph, ops=ops))
    assert block_bytes(grouped).tolist() == [80_008, 50_009]
    assert unshared_bytes(grouped).tolist() == [65_005.5, 35_006.5]


def test_locations_are_exchangeable_both_ways() -> None:
    """Equal links out are not enough, nor are equal links in; links between the two change places."""
    table = np.array([[0, 1, 2], [1, 0, 2], [3, 3, 0]], np.int32)
    assert exchangeable(table, 0, 1)
    for at, to in (((0, 2), 4), ((2, 0), 4), ((0, 1), 4)):
        other = table.copy()
        other[at] = to
        assert not exchangeable(other, 0, 1), at


def test_equal_devices_share_a_column_of_times() -> None:
    """Each distinct column once, in the order of the devices that have it first."""
    problem = sharing()
    seconds = np.array([[1.0, 2.0, 1.0], [3.0, 3.0, 3.0], [4.0, 5.0, 4.0]])
    times = op_times(problem.with_(costs=CostTable.given(seconds, problem.costs.transfer_seconds)))
    assert times.of.tolist() == [0, 1, 0]
    assert times.seconds.tolist() == seconds[:, :2].T.tolist()
