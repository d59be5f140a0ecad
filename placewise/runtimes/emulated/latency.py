"""The tasks of one sample under the executions `operator`, `subgraph` and `sequential` (docs/judge.md).

Nothing here knows when anything happens: what starts when is up to the processes.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from placewise.model.columns import Ints, Longs
from placewise.model.placement import Placement
from placewise.runtimes.emulated.builder import ProgramBuilder
from placewise.simulate.judge.memory import piece_numbers
from placewise.simulate.judge.schedule import schedule_inputs


def add_operator_tasks(b: ProgramBuilder, placement: Placement) -> None:
    """Every op starts when its inputs are there and its device is free; a queue per link, or per wire."""
    problem = b.problem
    priority = schedule_inputs(problem, placement.order).priority
    tasks: list[int] = []
    for op, device in enumerate(placement.device.tolist()):
        slots = problem.cluster.devices[device].streams
        seconds = float(problem.costs.op_seconds[op, device])
        resource = b.resource(device, "compute", slots)
        key = (int(priority[op]),)
        tasks.append(b.add(device, seconds, (), resource=resource, key=key, order=(op, -1, -1), ops=[op]))
    for tensor, maker in enumerate(b.producer):
        made = tasks[maker] if maker >= 0 else -1
        source, targets = b.source_of(tensor), b.targets_of(tensor)
        at: dict[int, int] = {source: made}
        if source == b.host and maker < 0:
            b.hold(-1, b.host, tensor)
        staged = problem.cluster.transfers == "staged" and source != b.host
        if staged and targets:
            at[b.host] = _queue_hop(b, tensor, source, b.host, made)
        for target in targets:
            if target in at:
                continue
            start, after = (b.host, at[b.host]) if staged else (source, made)
            at[target] = _queue_hop(b, tensor, start, target, after)
        _arrive(b, tensor, at, tasks)


def _queue_hop(b: ProgramBuilder, tensor: int, source: int, target: int, after: int) -> int:
    """A transfer in the queue of its link, or of the wire that the link shares; who sends a tensor has it first."""
    wire = b.wire(source, target)
    peer, name = (source, f"to {target}") if wire < 0 else (wire, "wire")
    if peer >= b.host:
        b.hold(after, peer, tensor)
    queue = b.resource(peer, name, fifo=True, eager=True)
    return b.add_hop(tensor, source, target, (after,), peer=peer, resource=queue)


def _arrive(b: ProgramBuilder, tensor: int, at: dict[int, int], tasks: list[int]) -> None:
    """The readers of a tensor wait until it is at their location, and the host for outputs."""
    for target, task in at.items():
        if target != b.host:
            b.hold(task, target, tensor)
    for cpu in b.cpus_of(tensor):
        b.hold(at[b.host], cpu, tensor)
    for reader in b.readers[tensor]:
        b.wait_for(tasks[reader], (at[b.place(int(b.device[reader]))],))
    if b.output[tensor]:
        collect_output(b, tensor, at[b.host])


def collect_output(b: ProgramBuilder, tensor: int, task: int) -> None:
    """The host has an output when a task has ended."""
    b.hold(task, b.host, tensor)
    b.add(b.host, 0.0, (task,), order=(b.producer[tensor], tensor, b.host))


def add_sequential_tasks(b: ProgramBuilder, placement: Placement) -> None:
    """One piece at a time over all devices, each after the transfers that it needs."""
    problem, device = b.problem, placement.device
    pieces = piece_numbers(problem, placement)
    assert pieces is not None
    order = np.lexsort((device, pieces))
    turn = -1
    held = {(tensor, b.source_of(tensor)): -1 for tensor in range(problem.graph.n_tensors)}
    for tensor, maker in enumerate(b.producer):
        if maker < 0:
            b.hold(-1, b.host, tensor)
            for cpu in b.cpus_of(tensor):
                b.hold(-1, cpu, tensor)

    def move(tensor: int, source: int, target: int, turn: int) -> int:
        task = b.add_hop(tensor, source, target, (turn, held[tensor, source]), peer=source)
        held[tensor, target] = task
        b.hold(task, target, tensor)
        for cpu in b.cpus_of(tensor) if target == b.host else ():
            b.hold(task, cpu, tensor)
        return task

    def fetch(tensor: int, target: int, turn: int) -> int:
        source = b.source_of(tensor)
        if problem.cluster.transfers == "staged" and target != b.host:
            if (tensor, b.host) not in held:
                turn = move(tensor, source, b.host, turn)
            source = b.host
        return move(tensor, source, target, turn)

    for ops in _runs(order, device, pieces):
        d = int(device[ops[0]])
        needed = dict.fromkeys(
            tensor
            for op in ops
            for tensor in problem.graph.edges.value[
                problem.graph.in_offsets[op] : problem.graph.in_offsets[op + 1]
            ].tolist()
        )
        for tensor in needed:
            if (tensor, b.place(d)) not in held:
                turn = fetch(tensor, b.place(d), turn)
        seconds = problem.cluster.devices[d].call_overhead + float(problem.costs.op_seconds[ops, d].sum())
        arrived = [held[tensor, b.place(d)] for tensor in needed]
        turn = b.add(d, seconds, (turn, *arrived), order=(ops[0], -1, -1), ops=ops)
        for tensor in (tensor for op in ops for tensor in b.makes[op]):
            held[tensor, b.place(d)] = turn
            if b.place(d) == b.host:
                for peer in (b.host, *b.cpus_of(tensor)):
                    b.hold(turn, peer, tensor)
    for tensor in np.flatnonzero(problem.graph.tensors.output).tolist():
        if (tensor, b.host) not in held:
            turn = fetch(tensor, b.host, turn)
    outputs = [held[tensor, b.host] for tensor in np.flatnonzero(problem.graph.tensors.output).tolist()]
    if outputs:
        b.add(b.host, 0.0, (turn, *outputs))


def _runs(order: Ints | Longs, device: Ints, number: Ints) -> list[list[int]]:
    """The ops of an order, cut where the device or the number changes."""
    runs: list[list[int]] = []
    for op in order.tolist():
        if runs and device[runs[-1][0]] == device[op] and number[runs[-1][0]] == number[op]:
            runs[-1].append(op)
        else:
            runs.append([op])
    return runs


def add_subgraph_tasks(b: ProgramBuilder, placement: Placement) -> None:
    """Accelerators run calls, one after another: receive all, compute, send all; host ops run when they can."""
    problem, device = b.problem, placement.device
    calls = piece_numbers(problem, placement)
    assert calls is not None
    on_host = problem.cluster.is_host[device]
    node = [(-1, op) if on_host[op] else (int(device[op]), int(calls[op])) for op in range(problem.n_ops)]
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    for op, where in enumerate(node):
        members[where].append(op)
    first: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    compute: dict[tuple[int, int], int] = {}
    for where in sorted(members):
        ops, d = members[where], int(device[members[where][0]])
        seconds = float(problem.costs.op_seconds[ops, d].sum())
        if where[0] < 0:
            first[where] = compute[where] = last[where] = b.add(d, seconds, (), order=(ops[0], -1, -1), ops=ops)
            continue
        first[where] = b.add(d, problem.cluster.devices[d].call_overhead, (), order=(ops[0], -1, -1))
        compute[where] = b.add(d, seconds, (), order=(ops[0], -1, -1), ops=ops)
        last[where] = compute[where]
    at_host: dict[int, int] = {}
    for tensor, maker in enumerate(b.producer):  # what calls send, one after another
        if maker < 0 or on_host[maker]:
            continue
        origin, source = node[maker], int(device[maker])
        leaves = b.output[tensor]
        for target in dict.fromkeys(node[reader] for reader in b.readers[tensor]):
            if target == origin:
                continue
            if target[0] < 0 or problem.cluster.transfers == "staged":
                leaves = True
                continue
            there = b.host if target[0] == source else target[0]
            last[origin] = task = b.add_hop(tensor, source, there, (last[origin],), peer=source)
            if there == b.host:
                b.hold(task, b.host, tensor)
                at_host[tensor] = task
        if leaves:
            last[origin] = task = b.add_hop(tensor, source, b.host, (last[origin],), peer=source)
            at_host[tensor] = task
            for peer in (b.host, *b.cpus_of(tensor)):
                b.hold(task, peer, tensor)
    _add_receives(b, node, first, last, compute, at_host)
    previous: dict[int, int] = {}
    for where in sorted(members):
        if where[0] >= 0:
            b.wait_for(first[where], (previous.get(where[0], -1),))
            previous[where[0]] = last[where]
    for tensor in np.flatnonzero(problem.graph.tensors.output).tolist():
        maker = b.producer[tensor]
        if maker < 0:
            b.hold(-1, b.host, tensor)
            b.add(b.host, 0.0, ())
            continue
        task = last[node[maker]]
        if on_host[maker]:
            b.hold(task, b.host, tensor)
        b.add(b.host, 0.0, (task, at_host.get(tensor, -1)))


def _add_receives(
    b: ProgramBuilder,
    node: list[tuple[int, int]],
    first: dict[tuple[int, int], int],
    last: dict[tuple[int, int], int],
    compute: dict[tuple[int, int], int],
    at_host: dict[int, int],
) -> None:
    """Calls wait until all of their inputs exist, and then receive them, one after another; host ops only wait."""
    staged = b.problem.cluster.transfers == "staged"
    turn = dict(first)
    for tensor, maker in enumerate(b.producer):
        origin = node[maker] if maker >= 0 else (-1, -1)
        from_host = maker < 0 or origin[0] < 0
        for target in dict.fromkeys(node[reader] for reader in b.readers[tensor]):
            if maker >= 0 and target == origin:
                continue
            if maker >= 0:
                b.wait_for(first[target], (last[origin],))
            if target[0] < 0:
                cpu = int(b.device[target[1]])
                if from_host:
                    b.hold(last[origin] if maker >= 0 else -1, cpu, tensor)
                else:
                    b.wait_for(first[target], (at_host[tensor],))
                continue
            source = b.host if staged or from_host or origin[0] == target[0] else origin[0]
            made = last[origin] if maker >= 0 else -1
            if from_host:
                b.hold(made, b.host, tensor)
            here = at_host.get(tensor, made) if source == b.host else -1
            task = b.add_hop(tensor, source, target[0], (turn[target], here), peer=source)
            b.hold(task, target[0], tensor)
            turn[target] = task
    for target, task in turn.items():
        if target[0] >= 0:
            b.wait_for(compute[target], (task,))
