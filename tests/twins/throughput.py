"""Max-load: once by the definition, tensor by tensor, and once vectorized, as a numpy user would write it."""

from __future__ import annotations

import numpy as np

from placewise.model.problem import Problem
from twins.plain import Plain


def throughput_value(problem: Problem, device: list[int]) -> float:
    """Seconds per sample of the busiest device or wire; where the pipeline flushes, of each phase, added up."""
    backward = problem.graph.ops.backward.tolist()
    if problem.objective.schedule == "gpipe":
        return sum(_busiest(problem, device, [late == phase for late in backward], phase) for phase in (False, True))
    return _busiest(problem, device, [True] * len(backward))


def _busiest(problem: Problem, device: list[int], counts: list[bool], backward: bool = False) -> float:
    """Seconds per sample of the busiest device or wire, if only some ops count, and model inputs unless backward."""
    return worst_of(problem.objective.communication, *parts_of(problem, device, counts, backward))


def parts_of(
    problem: Problem, device: list[int], counts: list[bool], backward: bool = False
) -> tuple[list[float], ...]:
    """Seconds per sample: compute, send and receive of every location, and of every wire, as in `_busiest`."""
    plain = Plain(problem)
    compute, send, receive = ([0.0] * (plain.host + 1) for _ in range(3))
    wires = [0.0] * plain.n_wires
    for op, d in enumerate(device):
        compute[d] += plain.seconds[op][d] if counts[op] else 0.0

    def travel(tensor: int, source: int, target: int) -> None:
        seconds = plain.hop(tensor, source, target)
        send[source] += seconds
        receive[target] += seconds
        if plain.wire[source][target] >= 0:
            wires[plain.wire[source][target]] += seconds

    for tensor, readers in enumerate(plain.readers):
        maker = plain.maker[tensor]
        if backward if maker < 0 else not counts[maker]:
            continue
        home = plain.home(tensor, device)
        needed = {plain.location[device[op]] for op in readers} - {home}
        if plain.output[tensor] and home != plain.host:
            needed.add(plain.host)
        if not plain.staged:
            for target in needed:
                travel(tensor, home, target)
        elif needed:
            if home != plain.host:
                travel(tensor, home, plain.host)
            for target in needed - {plain.host}:
                travel(tensor, plain.host, target)

    return compute, send, receive, wires


def worst_of(mode: str, compute: list[float], send: list[float], receive: list[float], wires: list[float]) -> float:
    """The load of the busiest device or wire, from their parts under a communication mode."""
    loads = []
    for d in range(len(compute) - 1):
        if mode == "blocking":
            loads.append(compute[d] + send[d] + receive[d])
        elif mode == "overlap":
            loads.append(max(compute[d], send[d] + receive[d]))
        else:
            loads.append(max(compute[d], send[d], receive[d]))
    return max(loads + wires)


class MaxLoad:
    """Max-load of staged or direct transfers in vectorized numpy: prepared once, then called per placement."""

    def __init__(self, problem: Problem) -> None:
        graph, cluster = problem.graph, problem.cluster
        self.seconds, self.transfer = problem.costs.op_seconds, problem.costs.transfer_seconds
        self.places = len(cluster) + 1
        self.location, self.link_class, self.wire = cluster.location, cluster.link_class, cluster.wire
        self.n_wires, self.staged = len(cluster.wires), cluster.transfers == "staged"
        self.mode = problem.objective.communication
        self.maker = graph.tensors.producer
        self.reader = graph.consumers
        tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumer_offsets))
        outputs = np.flatnonzero(graph.tensors.output)
        self.tensor = np.concatenate((tensor, outputs))
        self.at_host = np.full(len(outputs), len(cluster))
        self.ops = np.arange(graph.n_ops)

    def __call__(self, device: np.ndarray) -> float:
        """Seconds per sample of one placement [n_ops]."""
        host = self.places - 1
        compute = np.bincount(device, weights=self.seconds[self.ops, device], minlength=self.places)
        place = self.location[device]
        home = np.where(self.maker < 0, host, place[self.maker])
        target = np.concatenate((place[self.reader], self.at_host))
        crossing = home[self.tensor] != target
        needed = np.zeros((len(home), self.places), np.bool_)
        needed[self.tensor[crossing], target[crossing]] = True
        tensor, target = np.nonzero(needed)
        source = home[tensor]
        if self.staged:
            sent = np.unique(tensor[source != host])
            received = target != host
            tensor = np.concatenate((sent, tensor[received]))
            source = np.concatenate((home[sent], np.full(received.sum(), host)))
            target = np.concatenate((np.full(len(sent), host), target[received]))
        seconds = self.transfer[tensor, self.link_class[source, target]]
        send = np.bincount(source, weights=seconds, minlength=self.places)[:host]
        receive = np.bincount(target, weights=seconds, minlength=self.places)[:host]
        wire = self.wire[source, target]
        wires = np.bincount(wire[wire >= 0], weights=seconds[wire >= 0], minlength=self.n_wires)
        compute = compute[:host]
        if self.mode == "blocking":
            load = compute + send + receive
        elif self.mode == "overlap":
            load = np.maximum(compute, send + receive)
        else:
            load = np.maximum(compute, np.maximum(send, receive))
        return float(max(load.max(), wires.max(initial=0.0)))
