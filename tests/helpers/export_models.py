"""Small stacks of layers with hand-made times, for the tests of exports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.graph import Graph, Source
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem

KINDS = {"embed": "Gather", "attn": "Attention", "mlp": "MatMul", "experts": "MatMul", "head": "MatMul"}


def stack_graph(
    layers: int, inside: Sequence[str] = ("attn", "mlp"), *, weight: int = 1, path: str = "layers"
) -> Graph:
    """``embed``, then layers of ops in a line (``layers.0.attn``, …), then ``head``; one weight and one byte each."""
    builder = GraphBuilder()
    last = builder.add_tensor(-1, shape=(1,), dtype="int8", name="ids")
    scopes = ["embed", *(f"{path}.{layer}.{part}" for layer in range(layers) for part in inside), "head"]
    for scope in scopes:
        op = builder.add_op(scope.replace(".", "/"), KINDS[scope.rpartition(".")[2]], scope=scope)
        builder.add_edge(last, op)
        builder.use_weight(builder.add_weight(f"{scope}.weight", shape=(weight,), dtype="int8"), op)
        last = builder.add_tensor(op, shape=(1,), dtype="int8", name=f"{scope}:0", output=scope == "head")
    return builder.build(Source("stack.json", "", "test"))


def stack_problem(
    graph: Graph,
    *,
    gpus: int = 2,
    cpu: bool = True,
    seconds: Mapping[str, float] | None = None,
    memory: float = math.inf,
    objective: Objective | None = None,
) -> Problem:
    """Ops of one second (or of those of their scope) on every device; copies are free; time per sample counts."""
    devices = [Device(f"cuda:{number}", memory=memory) for number in range(gpus)]
    devices += [Device("cpu", "cpu")] if cpu else []
    links = [link for d in devices[:gpus] for link in (Link(d.name, HOST, math.inf), Link(HOST, d.name, math.inf))]
    cluster = Cluster(tuple(devices), tuple(links))
    table = np.array([[(seconds or {}).get(scope, 1.0)] * len(devices) for scope in graph.ops.scope])
    costs = CostTable.given(table, np.zeros((graph.n_tensors, len(cluster.class_bandwidth))))
    return Problem(graph, cluster, costs, objective or Objective("throughput"))


def on(problem: Problem, devices: Mapping[str, str]) -> Placement:
    """The placement of ops by scope, cuda:0 for the others."""
    names = problem.cluster.names
    return Placement(np.array([names.index(devices.get(scope, "cuda:0")) for scope in problem.graph.ops.scope]))
