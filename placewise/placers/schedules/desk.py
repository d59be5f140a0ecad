"""What a chain of moves works on: the problem as kernels read it, and one placement with its schedule.

The schedule is kept with checkpoints, moments from which the simulation can go on, so that a move is priced from
the first moment that it touches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from placewise.model.columns import Bools, Floats, Ints, Longs, frozen, offsets_of
from placewise.model.problem import Problem
from placewise.placers.common.holdings import holdings
from placewise.placers.schedules.levels import Levels, levels_of
from placewise.placers.schedules.moves import Movable, movable
from placewise.simulate.arrays import Arrays, arrays_of
from placewise.simulate.heaps import bitset_levels
from placewise.simulate.in_place import in_place_ops
from placewise.simulate.kernels import kernel
from placewise.simulate.schedule import prepare

CHECKPOINTS = 16
CHECKPOINT_BYTES = 64 << 20
"""The most that the checkpoints of one chain may take: large graphs get fewer."""

ARMS, SIZES = 6, 6
"""Kinds of moves, and classes of sizes: what a chain learns to choose from; one kind more where probabilities are."""

OP = np.dtype(
    [("ready_at", "f8"), ("seconds", "f8"), ("priority", "i4"), ("missing", "i4"), ("device", "i4"), ("place", "i4")]
)

DONE, BEGUN, EVENTS = 0, 1, 2
VALUE, BEST, HEAT, OFFERED, NOW, SPAN = range(6)
SLOTS, MOVED, CRITICAL, LAST, TRIED, WORK, ARM, FROM, AWAITS, WATCHED = range(10)


class Ground(NamedTuple):
    """What all chains share: read-only."""

    owner: Ints  # the op of every event key
    priority: Ints  # [n_ops]
    by_priority: Ints  # [n_ops]
    inputs: Ints  # [n_ops] how many distinct tensors each op reads
    input_offsets: Longs  # [n_ops + 1]
    input_tensors: Ints
    after: Floats  # [n_ops] the least seconds from the end of an op to the end of all
    member_offsets: Longs  # [n_blocks + 1]
    members: Ints  # the ops of each block
    block: Ints  # [n_ops]
    held_offsets: Longs  # [n_blocks + 1]
    held: Ints  # the storages of each block
    tensor_bytes: Longs  # [n_tensors]
    replacing: Longs  # [n_ops] bytes of the first result, if it may take the place of an operand; −1 if not
    is_host: Bools  # [n_devices]
    activations: float
    live: bool
    shaped: bool


class Desk(NamedTuple):
    """One chain: a placement, its schedule, what a move changed, and room to simulate.

    `flat` and `tally` keep the scalars.
    """

    home: Ints  # [n_blocks]
    best: Ints  # [n_blocks]
    flat: Floats
    tally: Longs
    rng: npt.NDArray[np.uint64]
    merit: Floats  # [ARMS * SIZES], or [(ARMS + 1) * SIZES]
    # memory and work of the placement
    used: Longs  # [n_devices]
    holders: Ints  # [n_storages, n_devices]
    work: Floats  # [n_devices]
    ops_on: Longs  # [n_devices]
    # the move that is being tried
    moved: Ints  # [2 n_blocks]
    origin: Ints
    fresh: Ints  # [n_blocks] where to begin
    chosen: Longs
    returned: Longs
    member: Bools
    # the schedule of the placement
    start: Floats  # [n_ops]
    sequence: Ints  # the ops in the order of their starts
    turn: Ints  # [n_ops] the place of each in `sequence`
    ended: Ints  # [n_ops] how many ops finished before it
    late: Ints  # [n_ops] the last of its inputs to arrive
    cause: Ints  # [n_ops] why it started then: a tensor, −1 nothing, −2 − v the end of op v
    behind: Ints  # [n_tensors] the tensor for which it waited in a queue, or −1
    path: Ints  # ops on the critical path, the last first
    # the simulation
    op: npt.NDArray[np.void]
    trial_start: Floats
    trial_sequence: Ints
    order: Ints  # [n_ops] device by device, by start
    position: Ints  # [n_ops] where each is in `order`
    change: Floats  # [n_ops + 1] of live bytes
    taken: Bools  # [n_ops] whether its first result has taken the place of an operand
    words: npt.NDArray[np.uint64]
    levels: Longs
    waiting: Floats
    waiting_item: Ints
    base: Longs
    size: Longs
    slots: Longs
    free: Floats
    event: Floats
    event_key: Longs
    spent: Floats
    last: Ints  # [n_devices + n_queues] the last op that ended there, the last tensor that was sent there
    stamp: Longs
    found: Longs
    arrived: Floats
    # checkpoints, the k-th in row k
    kept_ready: Floats
    kept_missing: Ints
    kept_words: npt.NDArray[np.uint64]
    kept_waiting: Floats
    kept_waiting_item: Ints
    kept_size: Longs
    kept_slots: Longs
    kept_free: Floats
    kept_event: Floats
    kept_event_key: Longs
    kept_spent: Floats
    kept_last: Ints
    kept_time: Floats
    kept_count: Longs


class Board(NamedTuple):
    """Everything that is the same for all chains of a problem."""

    arrays: Arrays
    ground: Ground
    movable: Movable
    levels: Levels


def board_of(problem: Problem, likely: Floats | None = None) -> Board:
    """Linear in the problem, but for sorting. `likely`: probabilities of blocks (`common/probabilities.py`)."""
    a, n = arrays_of(problem), problem.n_blocks
    prepared = prepare(problem, a)
    by_reader = np.argsort(a.consumers, kind="stable")
    offsets = offsets_of(a.consumers[by_reader], problem.n_ops)
    held = holdings(problem, problem.block, n)
    objective, graph = problem.objective, problem.graph
    size = np.maximum(graph.tensors.bytes, 0)
    members = np.argsort(problem.block, kind="stable")
    ground = Ground(
        prepared.owner,
        prepared.priority,
        prepared.by_priority,
        frozen(np.diff(offsets), np.int32),
        frozen(offsets, np.int64),
        frozen(a.consumed[by_reader], np.int32),
        frozen(_least_after(a, np.where(problem.allowed, a.op_seconds, np.inf).min(axis=1)), np.float64),
        frozen(offsets_of(problem.block[members], n), np.int64),
        frozen(members, np.int32),
        problem.block,
        frozen(offsets_of(held.group, n), np.int64),
        frozen(held.storage, np.int32),
        frozen(size, np.int64),
        frozen(_replacing(problem, size), np.int64),
        problem.cluster.is_host,
        float(size.sum()),
        objective.memory == "live",
        problem.constraints.shaped,
    )
    return Board(a, ground, movable(problem, likely), levels_of(problem))


def _replacing(problem: Problem, size: Longs) -> Longs:
    graph, found = problem.graph, np.full(problem.n_ops, -1, np.int64)
    first = graph.out_offsets[:-1]
    ops = np.flatnonzero(in_place_ops(graph) & (first < graph.out_offsets[1:]))
    found[ops] = size[first[ops]]
    return found


def desk_of(board: Board, home: Ints, seed: int) -> Desk:
    """A desk for the placement `home` [n_blocks]; `events.record` fills its schedule."""
    a, g, m = board.arrays, board.ground, board.movable
    n, n_blocks, n_devices, n_queues = len(g.owner) - len(a.producer), len(home), len(a.location), a.n_queues
    n_tensors = len(a.producer)
    levels = _word_levels(n)
    words, room = int(n_devices * levels[-1]), int(a.streams.sum()) + (n_tensors if a.staged else 0) + 1
    keep = int(np.clip(CHECKPOINT_BYTES // max(12 * n, 1), 2, CHECKPOINTS))
    desk = Desk(
        home=home.astype(np.int32),
        best=home.astype(np.int32),
        flat=np.zeros(6),
        tally=np.zeros(10, np.int64),
        rng=np.array([seed], np.uint64),
        merit=np.full((ARMS + (len(m.likely) > 0)) * SIZES, 0.5),
        used=np.zeros(n_devices, np.int64),
        holders=np.zeros((len(m.storage_bytes), n_devices), np.int32),
        work=np.zeros(n_devices),
        ops_on=np.zeros(n_devices, np.int64),
        moved=np.empty(2 * n_blocks, np.int32),
        origin=np.empty(2 * n_blocks, np.int32),
        fresh=home.astype(np.int32),
        chosen=np.empty(n_blocks, np.int64),
        returned=np.empty(n_blocks, np.int64),
        member=np.zeros(n_blocks, np.bool_),
        start=np.zeros(n),
        sequence=np.zeros(n, np.int32),
        turn=np.zeros(n, np.int32),
        ended=np.zeros(n, np.int32),
        late=np.full(n, -1, np.int32),
        cause=np.full(n, -1, np.int32),
        behind=np.full(n_tensors, -1, np.int32),
        path=np.empty(n + 1, np.int32),
        op=np.zeros(n, OP),
        trial_start=np.zeros(n),
        trial_sequence=np.zeros(n, np.int32),
        order=np.empty(n, np.int32),
        position=np.empty(n, np.int32),
        change=np.empty(n + 1),
        taken=np.zeros(n, np.bool_),
        words=np.zeros(words, np.uint64),
        levels=levels,
        waiting=np.empty(n),
        waiting_item=np.empty(n, np.int32),
        base=np.zeros(n_devices + 1, np.int64),
        size=np.zeros((n_devices, 2), np.int64),
        slots=np.zeros(n_devices, np.int64),
        free=np.zeros(n_queues),
        event=np.empty(room),
        event_key=np.empty(room, np.int64),
        spent=np.zeros(n_devices),
        last=np.full(n_devices + n_queues, -1, np.int32),
        stamp=np.full(n_devices + 1, -1, np.int64),
        found=np.empty(n_devices + 1, np.int64),
        arrived=np.empty(n_devices + 1),
        kept_ready=np.empty((keep, n)),
        kept_missing=np.empty((keep, n), np.int32),
        kept_words=np.empty((keep, words), np.uint64),
        kept_waiting=np.empty((keep, n)),
        kept_waiting_item=np.empty((keep, n), np.int32),
        kept_size=np.empty((keep, n_devices, 2), np.int64),
        kept_slots=np.empty((keep, n_devices), np.int64),
        kept_free=np.empty((keep, n_queues)),
        kept_event=np.empty((keep, room)),
        kept_event_key=np.empty((keep, room), np.int64),
        kept_spent=np.empty((keep, n_devices)),
        kept_last=np.empty((keep, n_devices + n_queues), np.int32),
        kept_time=np.empty((keep, 2)),
        kept_count=np.empty((keep, 3), np.int64),
    )
    _lay_out(a, g, m, desk)
    return desk


@kernel
def _word_levels(n):
    return bitset_levels(n)


@kernel
def _least_after(a, best):
    """The longest path behind each op [n_ops] with every op at its best time and no transfers."""
    after = np.zeros(len(best))
    for op in range(len(best) - 1, -1, -1):
        for row in range(a.consumer_offsets[a.out_offsets[op]], a.consumer_offsets[a.out_offsets[op + 1]]):
            reader = a.consumers[row]
            after[op] = max(after[op], best[reader] + after[reader])
    return after


@kernel
def _lay_out(a, g, m, x):
    """Sums over the placement of `x`, and where its ops are."""
    for block in range(len(x.home)):
        d = x.home[block]
        x.used[d] += m.state[block]
        for row in range(g.held_offsets[block], g.held_offsets[block + 1]):
            s = g.held[row]
            if x.holders[s, d] == 0:
                x.used[d] += m.storage_bytes[s]
            x.holders[s, d] += 1
        for row in range(g.member_offsets[block], g.member_offsets[block + 1]):
            op = g.members[row]
            x.op[op].device, x.op[op].place = d, a.location[d]
            x.op[op].priority, x.op[op].seconds = g.priority[op], a.op_seconds[op, d]
            x.work[d] += a.op_seconds[op, d]
            x.ops_on[d] += 1
