"""The example of docs/judge.md of a pipeline whose ops are split."""

import numpy as np
import pytest

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.ways import StageGroup, Ways
from placewise.simulate import judge_placement


def test_the_example_of_the_page():
    """Two units: the first split over two devices, the second with two replicas."""
    builder = GraphBuilder()
    first, second = builder.add_op("1", "Op"), builder.add_op("2", "Op")
    builder.add_edge(builder.add_tensor(first, nbytes=20), second)
    graph = builder.build()
    devices = tuple(Device(f"acc{i}", memory=9) for i in range(4))
    links = tuple(Link(*pair, 10.0) for d in devices for pair in ((d.name, HOST), (HOST, d.name)))
    cluster = Cluster(devices, links)
    ways = Ways(
        unit=np.arange(2), way_unit=np.arange(2), degree=np.array([2, 1]), recompute=np.zeros(2, bool),
        name=("split", "whole"), seconds=np.array([[3.0], [4.0]]), gradient_bytes=np.array([8.0, 6.0]),
        bytes_in_flight=np.array([1.0, 2.0]), held_bytes=np.array([[5.0], [4.0]]), parts=("weights",),
        tensor_unit=np.array([0]), tensor_bytes=np.array([20.0]), reader_offsets=np.array([0, 1]),
        reader=np.array([1]), sync_bytes=np.zeros((2, 1)), device_class=np.zeros(4), node=np.zeros(4),
        microbatches=4, passes=2, gradient_factor=2.0, in_flight="1f1b",
    )  # fmt: skip
    costs = CostTable.given(np.ones((2, 4)), transfer_seconds_of(graph, cluster))
    rules = Constraints(contiguous=True, replicas=0)
    problem = Problem(graph, cluster, costs, Objective("throughput", memory="sum"), rules, ways=ways)
    stages = (StageGroup((0, 1), 1, 2), StageGroup((2, 3), 2, 1))
    judged = judge_placement(problem, Placement.of_stages(ways, stages, np.array([0, 1]), np.array([0, 1])))
    assert judged.valid and judged.value == pytest.approx(7)
    assert [stage.seconds for stage in judged.stages] == pytest.approx([7, 4.15])
    assert [stage.peak for stage in judged.stages] == [8, 6]
    assert [stage.in_flight for stage in judged.stages] == [3, 1]
