"""What each stage of split ops does with a micro-batch, task by task: ops, collectives, transfers, recomputation.

Ways say what a unit of ops takes. Its ops and collectives follow from the rules that made the ways, where these give
the same sums; otherwise, as for ways from a file, the first op of a unit stands for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from placewise.core.precision import find_tf32
from placewise.costing.roofline import allow_tf32
from placewise.costing.sharding import shard_graph
from placewise.costing.sharding.backward import find_forward_ops
from placewise.costing.sharding.split_seconds import SplitSeconds
from placewise.costing.sharding.ways import find_boundaries
from placewise.costing.work import work_of
from placewise.errors import ModelFileError
from placewise.model.columns import Floats
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import StageUse
from placewise.model.sharding import KINDS, Collective
from placewise.simulate.judge.stages import list_transfers

COMPUTE, RECOMPUTE, COLLECTIVES = "compute", "recompute", "collectives"
SEND, RECEIVE, GRADIENTS = "send", "receive", "gradient exchange"
"""What tasks are; a collective is called by its kind, or `COLLECTIVES` where the kind is not known."""
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class StageTask:
    """What every device of a replica is busy with: `seconds` per micro-batch, of an op or a tensor (−1: none).

    A transfer has the stage at its other end as `peer`.
    """

    what: str
    seconds: float
    op: int = -1
    tensor: int = -1
    peer: int = -1


def track_of(task: StageTask) -> str:
    """What a device has besides `compute`: collectives, transfers, gradients."""
    if task.what in (*KINDS, COLLECTIVES):
        return "collectives"
    tracks = {SEND: "transfers", RECEIVE: "transfers", GRADIENTS: "gradients", RECOMPUTE: "recomputation"}
    return tracks.get(task.what, "compute")


@dataclass(frozen=True, slots=True)
class StageWork:
    """The tasks of every stage, [n_stages][n_blocks], in the order in which they run.

    A micro-batch runs through the stages once per block: for each phase of the graph, or forward and back. With
    `joined`, a training step has one block, in which both passes are together. Backward blocks run from the last stage
    to the first (`backward` [n_blocks]).
    """

    tasks: tuple[tuple[tuple[StageTask, ...], ...], ...]
    backward: tuple[bool, ...]
    joined: bool = False


def list_stage_work(problem: Problem, placement: Placement, uses: Iterable[StageUse]) -> StageWork:
    """The tasks of all stages; `uses` are the judge's figures of these."""
    graph, ways = problem.graph, problem.require_ways()
    stages = range(len(placement.stages))
    try:
        priced = _price_ops(problem, placement)
    except ModelFileError:  # an op whose work cannot be counted: its ways come from a file
        priced = None
    if priced is None:
        blocks = [[list(_unit_tasks(problem, placement, s))] for s in stages]
        backward: tuple[bool, ...] = (False,)
    else:
        returns = bool(graph.ops.backward.any())
        n_blocks = 2 if returns else max(len(graph.phases), 1)
        block_of = graph.ops.backward.astype(int) if returns else graph.ops.phase
        blocks = [
            [_op_tasks(problem, placement, (stage, block), block_of, *priced) for block in range(n_blocks)]
            for stage in stages
        ]
        backward = tuple(returns and block == 1 for block in range(n_blocks))
    _add_transfers(problem, placement, blocks, backward, known=priced is not None)
    for own, group, use in zip(blocks, placement.stages, uses, strict=True):
        if use.gradients:
            own[-1].append(StageTask(GRADIENTS, use.gradients * group.data_parallel))
    tasks = tuple(tuple(tuple(block) for block in own) for own in blocks)
    return StageWork(tasks, backward, ways.trains and not any(backward))


_Collectives = dict[int, list[tuple[Collective, float]]]


def _price_ops(problem: Problem, placement: Placement) -> tuple[Floats, _Collectives] | None:
    """Seconds [n_ops] of each op in its way, and the collectives by op; None where they are not those of the ways."""
    graph, ways = problem.graph, problem.require_ways()
    stage, way = np.asarray(placement.stage), np.asarray(placement.way)
    again = ways.recompute[way]
    pricing = SplitSeconds(
        graph, problem.cluster, problem.costs, allow_tf32(work_of(graph), find_tf32(graph)), ways.device_class,
        ways.node, ways.unit.astype(np.int64), ways.microbatches,
    )  # fmt: skip
    seconds, collectives = np.zeros(graph.n_ops), _Collectives()
    last_gradient = _find_last_gradients(problem)
    tokens = problem.constraints.sequence_parallel
    degrees = {group.tensor_parallel for group in placement.stages}
    shardings = {t: shard_graph(graph, t, unit=ways.unit, sequence_parallel=tokens) for t in degrees}
    compute = {t: pricing.compute_ops(sharding) for t, sharding in shardings.items()}
    for s, group in enumerate(placement.stages):
        kind, t = int(ways.device_class[group.devices[0]]), group.tensor_parallel
        own = stage == s
        seconds[own] = compute[t][own, kind]
        each = pricing.exchange_each(shardings[t], kind)
        for collective, spent in zip(shardings[t].collectives, each or (), strict=each is not None):
            if own[collective.op]:
                at = last_gradient[collective.op] if collective.backward else collective.op
                collectives.setdefault(at, []).append((collective, spent))
    total, exchanged = np.zeros(ways.n_units), np.zeros(ways.n_units)
    twice = again[ways.unit] & ~graph.ops.backward
    np.add.at(total, ways.unit, seconds * np.where(twice, 2, 1))
    for collective, spent in (one for found in collectives.values() for one in found):
        unit = ways.unit[collective.op]
        exchanged[unit] += spent * (2 if again[unit] and not collective.backward else 1)
    groups = [placement.stages[stage[op]] for op in np.unique(ways.unit, return_index=True)[1].tolist()]
    kinds = ways.device_class[[group.devices[0] for group in groups]]
    wanted = ways.seconds[way, kinds], ways.collective_seconds[way, kinds]
    same = np.allclose(total + exchanged, wanted[0], _ROUNDING, 0) and np.allclose(exchanged, wanted[1], _ROUNDING, 0)
    return (seconds, collectives) if same else None


def _find_last_gradients(problem: Problem) -> list[int]:
    """For each op [n_ops] its last backward op, else the last one of its unit, else itself."""
    graph, unit = problem.graph, problem.require_ways().unit
    found, of_unit = np.arange(graph.n_ops), np.full(int(unit.max(initial=-1)) + 1, -1)
    late, forward = np.flatnonzero(graph.ops.backward), find_forward_ops(graph)
    of_unit[unit[late]] = late  # of several, the last one stays
    found = np.where(of_unit[unit] >= 0, of_unit[unit], found)
    known = late[forward[late] >= 0]
    found[forward[known]] = known
    return found.tolist()


def _op_tasks(
    problem: Problem, placement: Placement, place: tuple[int, int], block_of: np.ndarray, seconds: Floats,
    collectives: _Collectives,
) -> list[StageTask]:  # fmt: skip
    """The ops of a stage in a block, each with its collectives; a unit recomputes before its first backward op."""
    graph, ways, (stage, block) = problem.graph, problem.require_ways(), place
    again = ways.recompute[np.asarray(placement.way)]
    here = np.asarray(placement.stage) == stage
    tasks: list[StageTask] = []
    repeated: set[int] = set()
    for op in np.flatnonzero(here & (block_of == block)).tolist():
        unit = int(ways.unit[op])
        if graph.ops.backward[op] and again[unit] and unit not in repeated:
            repeated.add(unit)
            for early in np.flatnonzero((ways.unit == unit) & ~graph.ops.backward).tolist():
                tasks += _op_with_collectives(problem, early, RECOMPUTE, seconds, collectives)
        tasks += _op_with_collectives(problem, op, COMPUTE, seconds, collectives)
    return tasks


def _op_with_collectives(
    problem: Problem, op: int, what: str, seconds: Floats, collectives: _Collectives
) -> Iterator[StageTask]:
    """An op after the exchanges of tensors that it waits for, and before those of what it makes."""
    own, maker = collectives.get(op, []), problem.graph.tensors.producer
    first = [one for one in own if not one[0].backward and maker[one[0].tensor] != op]
    for collective, spent in first:
        yield StageTask(collective.kind, spent, op, collective.tensor)
    yield StageTask(what, float(seconds[op]), op)
    for collective, spent in (one for one in own if one not in first):
        yield StageTask(collective.kind, spent, op, collective.tensor)


def _unit_tasks(problem: Problem, placement: Placement, stage: int) -> Iterator[StageTask]:
    """The units of a stage, whose seconds are their first op's.

    Recomputation is what a way takes longer than the one without it.
    """
    ways = problem.require_ways()
    kind = int(ways.device_class[placement.stages[stage].devices[0]])
    first = np.unique(ways.unit, return_index=True)[1]
    for unit in np.flatnonzero(np.asarray(placement.stage)[first] == stage).tolist():
        way, op = int(np.asarray(placement.way)[unit]), int(first[unit])
        exchanged = float(ways.collective_seconds[way, kind])
        compute = float(ways.seconds[way, kind]) - exchanged
        once = compute
        if ways.recompute[way]:
            others = [w for w in ways.ways_of(unit, int(ways.degree[way])).tolist() if not ways.recompute[w]]
            plain = [float(ways.seconds[w, kind] - ways.collective_seconds[w, kind]) for w in others]
            once = min([compute, *plain])
        yield StageTask(COMPUTE, once, op)
        yield from (
            StageTask(COMPUTE, 0.0, other) for other in np.flatnonzero(ways.unit == unit).tolist() if other != op
        )
        if compute > once:
            yield StageTask(RECOMPUTE, compute - once, op)
        if exchanged:
            yield StageTask(COLLECTIVES, exchanged, op)


def _add_transfers(
    problem: Problem, placement: Placement, blocks: list[list[list[StageTask]]], backward: tuple[bool, ...], *,
    known: bool,
) -> None:  # fmt: skip
    """Add what stages receive before, and send after, the ops of their blocks; going back, gradients the other way."""
    ways, graph = problem.require_ways(), problem.graph
    tensors = find_boundaries(graph, ways.unit.astype(np.int64))[0] if known else None
    known = tensors is not None and len(tensors) == ways.n_tensors
    shares = len([one for one in backward if one]) + 1
    before: list[list[list[StageTask]]] = [[[] for _ in own] for own in blocks]
    after: list[list[list[StageTask]]] = [[[] for _ in own] for own in blocks]
    for transfer in list_transfers(problem, placement):
        tensor = int(tensors[transfer.tensor]) if tensors is not None and known else -1
        maker = int(graph.tensors.producer[tensor]) if tensor >= 0 else -1
        forward = int(graph.ops.phase[maker]) if maker >= 0 and not any(backward) else 0
        sent, received = transfer.send / shares, transfer.receive / shares
        for block in [forward, *(b for b, back in enumerate(backward) if back)]:
            first, last = (after, before) if not backward[block] else (before, after)
            words = (SEND, RECEIVE) if not backward[block] else (RECEIVE, SEND)
            for table, stage, peer, spent, what in (
                (first, transfer.source, transfer.target, sent, words[0]),
                (last, transfer.target, transfer.source, received, words[1]),
            ):
                if spent:
                    table[stage][block].append(StageTask(what, spent, -1, tensor, peer))
    for s, own in enumerate(blocks):
        for b in range(len(own)):
            own[b] = [*before[s][b], *own[b], *after[s][b]]
