"""A problem as plain lists, and what a twin answers."""

from __future__ import annotations

from typing import NamedTuple

from placewise.model.problem import Problem

Transfer = tuple[int, int, int, float, float]
"""(tensor, source location, target location, sent, arrived)."""


class Run(NamedTuple):
    """What a twin says of one placement: seconds, when each op starts, and every hop of a tensor."""

    value: float
    start: list[float]
    transfers: list[Transfer]


class Plain:
    """The lists that all twins read. Locations are device numbers, and `host` for host memory."""

    def __init__(self, problem: Problem) -> None:
        graph, cluster = problem.graph, problem.cluster
        self.host = len(cluster)
        self.n_ops = graph.n_ops
        self.seconds: list[list[float]] = problem.costs.op_seconds.tolist()
        self.transfer: list[list[float]] = problem.costs.transfer_seconds.tolist()
        self.maker: list[int] = graph.tensors.producer.tolist()
        self.output: list[bool] = graph.tensors.output.tolist()
        self.size = [max(size, 0) for size in graph.tensors.bytes.tolist()]
        self.makes: list[list[int]] = [[] for _ in range(graph.n_ops)]
        self.inputs: list[int] = []
        for tensor, maker in enumerate(self.maker):
            (self.makes[maker] if maker >= 0 else self.inputs).append(tensor)
        self.reads: list[list[int]] = [[] for _ in range(graph.n_ops)]
        readers: list[set[int]] = [set() for _ in self.maker]
        edges = graph.edges
        for tensor, op in zip(edges.value.tolist(), edges.consumer.tolist(), strict=True):
            readers[tensor].add(op)
            if tensor not in self.reads[op]:
                self.reads[op].append(tensor)
        self.readers = [sorted(ops) for ops in readers]
        self.location: list[int] = [self.host if device.is_host else d for d, device in enumerate(cluster)]
        self.link_class: list[list[int]] = cluster.link_class.tolist()
        self.queue: list[list[int]] = cluster.queue.tolist()
        self.waits = problem.objective.execution != "contention-free"
        self.wire: list[list[int]] = cluster.wire.tolist()
        self.n_wires = len(cluster.wires)
        self.streams = [device.streams for device in cluster]
        self.overhead = [device.call_overhead for device in cluster]
        self.staged = cluster.transfers == "staged"
        self.allowed: list[list[bool]] = problem.allowed.tolist()

    def hop(self, tensor: int, source: int, target: int) -> float:
        """Seconds of a tensor on the link between two locations."""
        return self.transfer[tensor][self.link_class[source][target]]

    def home(self, tensor: int, device: list[int]) -> int:
        """The location where a tensor is made; model inputs are in host memory."""
        maker = self.maker[tensor]
        return self.host if maker < 0 else self.location[device[maker]]
