"""Small problems that several test files use."""

from __future__ import annotations

import numpy as np

import placewise as pw
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.problem import Constraints, Objective, Problem


def toy(memory: float = 100.0) -> pw.Problem:
    """Two ops of 1 s and 10 bytes in a row, two accelerators."""
    builder = pw.GraphBuilder()
    for name in "ab":
        builder.add_op(name, "Add", state_bytes=10)
    builder.add_edge(builder.add_tensor(0, nbytes=1), 1)
    graph = builder.build()
    links = [pw.Link(*ends, 1.0) for d in ("x", "y") for ends in ((d, "host"), ("host", d))]
    cluster = pw.Cluster((pw.Device("x", memory=memory), pw.Device("y", memory=memory)), tuple(links))
    costs = pw.CostTable.given(np.ones((2, 2)), np.array([[0.0, 0.25]]))
    return pw.Problem(graph, cluster, costs, Objective("throughput", memory="sum"), Constraints(contiguous=True))


def boxes(
    sizes: list[int], rooms: list[float], *, group: list[int] | None = None, kind: str = "throughput",
    constraints: Constraints | None = None,
) -> Problem:  # fmt: skip
    """Ops in a row that need bytes, 1 s each, on accelerators with room; transfers take no time."""
    builder = GraphBuilder()
    for i, size in enumerate(sizes):
        builder.add_op(f"x{i}", "Op", state_bytes=size, group=group[i] if group else -1)
        if i:
            builder.add_edge(builder.add_tensor(i - 1, nbytes=1), i)
    devices = tuple(Device(f"d{i}", memory=room) for i, room in enumerate(rooms))
    links = tuple(Link(*ends, 1.0) for d in devices for ends in ((d.name, HOST), (HOST, d.name)))
    graph, cluster = builder.build(), Cluster(devices, links)
    costs = CostTable.given(np.ones((len(sizes), len(devices))), np.zeros((graph.n_tensors, 2)))
    return Problem(graph, cluster, costs, Objective(kind, memory="sum"), constraints or Constraints())  # type: ignore[arg-type]


def chains(width: int, length: int, execution: str) -> Problem:
    """Chains of ops beside each other whose costs all differ: hard to prove."""
    rng = np.random.default_rng(1)
    builder = GraphBuilder()
    for op in range(width * length):
        builder.add_op(f"op{op}", "Op", state_bytes=1)
        builder.add_tensor(op, nbytes=1)
        for source in {op - width, op - width - 1} if op > width else ():
            builder.add_edge(source, op)
    devices = (*(Device(f"acc{d}", memory=width * length / 2) for d in range(4)), Device("cpu", kind="cpu"))
    links = tuple(Link(*ends, 1.0) for d in devices[:-1] for ends in ((d.name, HOST), (HOST, d.name)))
    cluster = Cluster(devices, links)
    seconds = np.repeat(rng.uniform(1, 3, (width * length, 1)), 5, axis=1) * [1, 1, 1, 1, 3]
    transfer = np.zeros((width * length, len(cluster.class_bandwidth)))
    transfer[:, 1:] = rng.uniform(0.1, 1, (width * length, 1))
    objective = Objective(execution=execution, memory="sum")  # type: ignore[arg-type]
    return Problem(builder.build(), cluster, CostTable.given(seconds, transfer), objective)


def zoo(family: str, n: int, seed: int, devices: str = "2xV100") -> Problem:
    """A random graph of the zoo."""
    dims = {"n_ops": n, "seed": seed, "batch": 32, "size": 32}
    return build(f"zoo:random-{family}", devices, ProblemOptions(objective="latency", dims=dims))
