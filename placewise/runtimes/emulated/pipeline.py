"""The tasks of a sample in a full pipeline: pieces, and transfers that load both ends and the wire between them."""

from __future__ import annotations

from collections import defaultdict

from placewise.errors import RunError
from placewise.model.placement import Placement
from placewise.runtimes.emulated.builder import ProgramBuilder
from placewise.runtimes.emulated.latency import collect_output
from placewise.simulate.judge.sequential import cut_pieces
from placewise.simulate.phases import list_phases, two_phases
from placewise.simulate.replicas import replicated_loads

ENGINES = {
    "blocking": ("device", "device", "device"),
    "overlap": ("compute", "transfers", "transfers"),
    "duplex": ("compute", "send", "receive"),
}
"""What computes, sends and receives on a device under a communication mode."""
_SEND, _RECEIVE, _COMPUTE = 0, 1, 2
"""Of the tasks of a sample, a device starts transfers first."""


def require_plain(b: ProgramBuilder, placement: Placement) -> None:
    """Raise RunError for what this pipeline does not do: flushes, and the synchronization of weights."""
    problem = b.problem
    if two_phases(problem):
        raise RunError("a pipeline that flushes (--schedule gpipe) cannot be emulated: give --schedule 1f1b")
    if placement.replicas is not None and replicated_loads(problem, list_phases(problem)[0], placement).sync.any():
        raise RunError("the synchronization of replicated stages in training cannot be emulated")


def add_pipeline_tasks(b: ProgramBuilder, placement: Placement) -> None:
    """Devices and wires work in rounds; a transfer is sent, crosses its wire, and is received."""
    require_plain(b, placement)
    problem, device = b.problem, placement.device
    engines = ENGINES[problem.objective.communication]
    numbers = cut_pieces(problem, device)
    pieces: dict[tuple[int, int], list[int]] = defaultdict(list)
    for op, where in enumerate(zip(numbers.tolist(), device.tolist(), strict=True)):
        pieces[where].append(op)
    task_of = [-1] * problem.n_ops
    for (number, d), ops in sorted(pieces.items()):
        engine = b.resource(d, engines[0])
        seconds = float(problem.costs.op_seconds[ops, d].sum())
        task = b.add(d, seconds, (), resource=engine, key=(_COMPUTE, number), order=(ops[0], -1, -1), ops=ops)
        for op in ops:
            task_of[op] = task
    for tensor, maker in enumerate(b.producer):
        made = task_of[maker] if maker >= 0 else -1
        source, targets = b.source_of(tensor), b.targets_of(tensor)
        number = int(numbers[maker]) if maker >= 0 else -1
        at = {source: made}
        staged = problem.cluster.transfers == "staged" and source != b.host
        if staged and targets:
            at[b.host] = _carry(b, tensor, source, b.host, made, engines, number)
        for target in targets:
            if target not in at:
                start, after = (b.host, at[b.host]) if staged else (source, made)
                at[target] = _carry(b, tensor, start, target, after, engines, number)
        for cpu in b.cpus_of(tensor):
            b.hold(at[b.host], cpu, tensor)
        for reader in b.readers[tensor]:
            if task_of[reader] != made:
                b.wait_for(task_of[reader], (at[b.place(int(device[reader]))],))
        if b.output[tensor]:
            collect_output(b, tensor, at[b.host])
    b.number_stages()


def _carry(
    b: ProgramBuilder, tensor: int, source: int, target: int, after: int, engines: tuple[str, str, str], number: int
) -> int:
    """The last task of a transfer: who sends, the wire and who receives spend its seconds, one after the other."""
    wire = b.wire(source, target)
    if source != b.host:
        engine = b.resource(source, engines[1])
        after = b.add_hop(tensor, source, target, (after,), peer=source, resource=engine, key=(_SEND, number))
    elif wire < 0:
        b.hold(after, b.host, tensor)
        after = b.add_hop(tensor, source, target, (after,), peer=b.host, free=True)
    if wire >= 0:
        b.hold(after, wire, tensor)
        queue = b.resource(wire, "wire")
        after = b.add_hop(tensor, source, target, (after,), peer=wire, resource=queue, key=(_SEND, number))
    if target == b.host:
        return after
    b.hold(after, target, tensor)
    seconds, _ = b.hop_seconds(tensor, source, target)
    engine = b.resource(target, engines[2])
    order = (b.producer[tensor], tensor, target)
    return b.add(target, seconds, (after,), resource=engine, key=(_RECEIVE, number), order=order)
