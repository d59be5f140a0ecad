"""The instances of docs/judge.md.

Tensors are called like the op that makes them; a hop of b bytes on a link of s bytes per second takes b / s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link, Transfers
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.tables import Phase


@dataclass(frozen=True)
class Op:
    """An op: its seconds on every device, where it is placed, the tensors that it reads, and what it makes."""

    seconds: float
    device: str
    reads: str = ""
    bytes: int = 0
    output: bool = False
    backward: bool = False
    group: int = -1
    weight: int = 0
    phase: int = 0


def _graph(ops: Mapping[str, Op], inputs: Mapping[str, int], phases: Sequence[Phase]) -> Graph:
    builder = GraphBuilder()
    tensor = {name: builder.add_tensor(-1, nbytes=size, name=name) for name, size in inputs.items()}
    for name, op in ops.items():
        number = builder.add_op(name, "Op", backward=op.backward, group=op.group, phase=op.phase)
        for read in op.reads.split():
            builder.add_edge(tensor[read], number)
        if op.weight:
            builder.use_weight(builder.add_weight(f"w_{name}", shape=(op.weight,), dtype="int8"), number)
        if op.bytes:
            tensor[name] = builder.add_tensor(number, nbytes=op.bytes, name=name, output=op.output)
    return builder.build(phases=phases)


def make_problem(
    ops: Mapping[str, Op],
    devices: Sequence[Device],
    transfers: Transfers,
    objective: Objective,
    *,
    inputs: Mapping[str, int] | None = None,
    speeds: Mapping[tuple[str, str], float] | None = None,
    shared: str = "",
    phases: Sequence[Phase] = (),
) -> Problem:
    """Links of 1 byte per second unless `speeds` says otherwise; the seconds of an op are those of one run."""
    graph = _graph(ops, inputs or {}, phases)
    names = [device.name for device in devices if not device.is_host]
    ends = [pair for name in names for pair in ((name, HOST), (HOST, name))]
    if transfers == "direct":
        ends += [(a, b) for a in names for b in names if a != b]
    links = tuple(Link(a, b, (speeds or {}).get((a, b), 1.0), shared=shared) for a, b in ends)
    cluster = Cluster(tuple(devices), links, transfers)
    seconds = np.array([[op.seconds] * len(devices) for op in ops.values()]) * graph.op_repeats[:, None]
    return Problem(graph, cluster, CostTable.given(seconds, transfer_seconds_of(graph, cluster)), objective)


def make_placement(ops: Mapping[str, Op], problem: Problem) -> Placement:
    return Placement.named(problem.graph, problem.cluster, {name: op.device for name, op in ops.items()})


@dataclass(frozen=True)
class Example:
    """A problem with the placement that the page judges."""

    problem: Problem
    placement: Placement

    def in_mode(self, mode: str, schedule: str = "1f1b") -> Problem:
        objective = Objective("throughput", communication=mode, schedule=schedule)  # type: ignore[arg-type]
        return self.problem.with_(objective=objective)


def _examples() -> dict[str, Example]:
    acc = [Device("acc0"), Device("acc1"), Device("acc2")]
    cpu = Device("cpu", kind="cpu")
    throughput = Objective("throughput")
    operator, subgraph, sequential = (Objective(execution=name) for name in ("operator", "subgraph", "sequential"))  # type: ignore[arg-type]
    found: dict[str, Example] = {}

    def add(name: str, ops: Mapping[str, Op], problem: Problem, **given: Sequence[int]) -> None:
        columns = {key: np.array(column, np.int32) for key, column in given.items()}
        found[name] = Example(problem, Placement(make_placement(ops, problem).device, **columns))

    chain = {
        "a": Op(2, "acc0", "x", 1, weight=10),
        "b": Op(3, "acc0", "a", 4),
        "c": Op(4, "acc1", "b", 1),
        "d": Op(1, "acc1", "c", 1, output=True),
    }
    add("two-stages", chain, make_problem(chain, acc[:2], "staged", throughput, inputs={"x": 2}))
    fan = {
        "a": Op(3, "acc0", "", 4),
        "b": Op(1, "acc1", "a"),
        "c": Op(3, "acc2", "a", 2, output=True),
        "d": Op(4, "cpu", "a"),
        "e": Op(2, "acc1", "a"),
    }
    speeds = {pair: 2.0 for name in ("acc0", "acc1", "acc2") for pair in ((name, HOST), (HOST, name))}
    speeds |= {("acc0", "acc1"): 4.0, ("acc0", "acc2"): 2.0}
    for transfers in ("staged", "direct"):
        add(f"fan-out-{transfers}", fan, make_problem(fan, [*acc, cpu], transfers, throughput, speeds=speeds))  # type: ignore[arg-type]
    training = {
        "f1": Op(2, "acc0", "", 2, group=1),
        "f2": Op(2, "acc1", "f1", 1, group=2),
        "b2": Op(4, "acc1", "f2", 2, backward=True, group=2),
        "b1": Op(3, "acc0", "f1 b2", backward=True, group=1),
    }
    add("shared-wire", training, make_problem(training, acc[:2], "staged", throughput, shared="pcie"))

    flush = {
        "f1": Op(4, "acc0", "", 1, group=1),
        "f2": Op(2, "acc1", "f1", 2, group=2),
        "b2": Op(4, "acc1", "f2", 1, backward=True, group=2),
        "b1": Op(2, "acc0", "f1 b2", backward=True, group=1),
    }
    add("flush", flush, make_problem(flush, acc[:2], "staged", throughput))
    shared = {
        "f1": Op(1, "acc0", "", 3, group=1, weight=4),
        "f2": Op(5, "acc1", "f1", 1, group=2, weight=9),
        "b2": Op(10, "acc1", "f2", 3, backward=True, group=2),
        "b1": Op(2, "acc0", "f1 b2", backward=True, group=1),
    }
    sharing = make_problem(shared, [*acc, Device("acc3")], "staged", throughput)
    sharing = sharing.with_(constraints=Constraints(replicas=0))
    add("shared-stage", shared, sharing, replicas=[0, 1, 1, 1])

    diamond = {
        "a": Op(2, "acc0", "", 1),
        "b": Op(3, "acc0", "a", 2),
        "c": Op(2, "acc1", "a", 1),
        "e": Op(1, "acc0", "a", 1),
        "d": Op(1, "acc0", "b c e"),
    }
    add("diamond", diamond, make_problem(diamond, acc[:2], "direct", operator))
    queue = {
        "p": Op(1, "acc0", "", 2),
        "q": Op(1, "acc0", "", 2),
        "r": Op(1, "acc1", "p"),
        "s": Op(3, "acc1", "q"),
    }
    add("queue", queue, make_problem(queue, acc[:2], "direct", operator))
    add("queue-ordered", queue, make_problem(queue, acc[:2], "direct", operator), order=[0, 1, 2, 3])
    streams = {
        "a": Op(2, "acc0", "x", 2),
        "b": Op(3, "acc0", "x", 1),
        "c": Op(2, "acc1", "a"),
        "d": Op(1, "acc1", "b", 2, output=True),
    }
    devices = [Device("acc0", streams=2), acc[1]]
    add("two-streams", streams, make_problem(streams, devices, "staged", operator, inputs={"x": 1}))

    back = {
        "a": Op(2, "acc0", "", 1),
        "b": Op(3, "cpu", "a", 2),
        "c": Op(2, "acc0", "a b", 1, output=True),
    }
    add("there-and-back", back, make_problem(back, [acc[0], cpu], "staged", subgraph))
    hosts = {
        "u": Op(4, "cpu", "", 1),
        "v": Op(2, "cpu", "", 2),
        "p": Op(1, "acc0", "v", 1),
        "q": Op(2, "acc1", "u p", 2, output=True),
    }
    devices = [acc[0], Device("acc1", call_overhead=1.0), cpu]
    add("host-in-parallel", hosts, make_problem(hosts, devices, "direct", subgraph))
    circle = {
        "a1": Op(2, "acc0", "", 1),
        "b2": Op(1, "acc1", "", 1),
        "b1": Op(2, "acc1", "a1"),
        "a2": Op(1, "acc0", "b2"),
    }
    add("circle", circle, make_problem(circle, acc[:2], "staged", subgraph))
    add("circle-cut", circle, make_problem(circle, acc[:2], "staged", subgraph), call=[0, 0, 1, 1])

    pieces = {
        "a": Op(2, "acc0", "x", 1),
        "b": Op(1, "acc0", "a", 2),
        "c": Op(3, "cpu", "b", 1),
        "d": Op(2, "acc0", "a c", 1, output=True),
    }
    devices = [Device("acc0", call_overhead=1.0), cpu]
    add("three-pieces", pieces, make_problem(pieces, devices, "staged", sequential, inputs={"x": 1}))
    branch = {
        "a": Op(1, "acc0", "", 2),
        "b": Op(2, "acc1", "a", 1),
        "c": Op(3, "acc0", "a", 1),
        "e": Op(1, "acc1", "a c"),
        "f": Op(1, "acc0", "b"),
    }
    add("branches", branch, make_problem(branch, acc[:2], "direct", sequential))
    copies = {
        "a": Op(2, "acc0", "", 2),
        "b": Op(1, "acc1", "a", 1),
        "h": Op(3, "cpu", "a", 1),
        "k": Op(1, "acc0", "b h"),
    }
    add("copy-kept", copies, make_problem(copies, [*acc[:2], cpu], "staged", sequential))
    generator = {
        "p": Op(4, "acc0", "", 2, group=1),
        "q": Op(3, "acc1", "p", 1, group=2),
        "s": Op(1, "acc0", "q", 1, group=1, phase=1),
        "t": Op(2, "acc1", "s", 1, output=True, group=2, phase=1),
    }
    phases = (Phase("prefill"), Phase("decode", 3))
    add("prompt-and-tokens", generator, make_problem(generator, acc[:2], "direct", operator, phases=phases))
    return found


EXAMPLES = _examples()
