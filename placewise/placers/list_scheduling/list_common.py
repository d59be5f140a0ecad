"""What list schedulers share: their options, scheduling within memory, and what to do where stages have a shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from placewise import _native
from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints, Longs, frozen, offsets_of
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import Evaluate, SearchContext, Stopwatch, run_placer
from placewise.placers.list_scheduling.fewer_devices import keep_best_devices
from placewise.placers.registry import create
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.memory_footprint import compute_footprint, may_run
from placewise.placers.shared.partitions.repair_and_select import CandidateSelector
from placewise.placers.shared.repair import repair
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate.judge.memory import device_memory
from placewise.simulate.problem_arrays import native_problem

MANY_OPS = 200_000
"""Beyond this many ops a placement that fits is only scheduled again: repairs and fills would take longer."""

CHAINED = "the schedule was made a chain of stages"
FILLED = "no chain was found along the schedule, and memory was filled in topological order"
SHRUNK = "memory was found by leaving more of it free"

Schedule = Callable[[Floats, Ints | None], tuple[Ints, int]]
"""Room [n_devices] and a plan that fits [n_blocks] or None → devices [n_ops] (−1: none), ops that got one."""
Prepare = Callable[[Problem, Stopwatch], tuple[Schedule, tuple[str, ...]]]
"""A problem and the remaining time → its schedule, and notes for the user."""


@dataclass(frozen=True, slots=True)
class ListOptions:
    """`devices`: use only this many of the best devices, as far as ops and memory allow; 0: all. Raises PlacerError."""

    devices: int = 0

    def __post_init__(self) -> None:
        if self.devices < 0:
            remedy = "give a number of devices, 0 for all of them"
            raise PlacerError(f"the option 'devices' is {self.devices}", remedy=remedy)


class ListArguments(NamedTuple):
    """The first arguments of the native list schedulers."""

    problem: _native.Problem
    groups: _native.GroupNeeds
    group: Ints  # [n_ops]
    input_offsets: Longs  # [n_ops + 1]
    input_tensors: Ints
    rank: Ints  # [n_ops]
    by_rank: Ints  # [n_ops]


def build_list_arguments(problem: Problem, priority: Floats, capacity: Floats, plan: Ints | None) -> ListArguments:
    """Blocks within `capacity` [n_devices], high `priority` [n_ops] first; see `build_group_needs` for `plan`."""
    groups = build_group_needs(problem, problem.block, problem.n_blocks, capacity, plan)
    by_rank = np.argsort(-priority, kind="stable")
    rank = np.empty(problem.n_ops, np.int32)
    rank[by_rank] = np.arange(problem.n_ops, dtype=np.int32)
    inputs = problem.graph.in_offsets, problem.graph.edges.value
    order = frozen(rank, np.int32), frozen(by_rank, np.int32)
    return ListArguments(native_problem(problem), groups, problem.block, *inputs, *order)


def build_group_needs(
    problem: Problem, group: Ints, n: int, capacity: Floats, plan: Ints | None = None
) -> _native.GroupNeeds:
    """What groups of ops [n_ops] → 0…n − 1 need within `capacity` [n_devices].

    `plan` [n] is a placement of the groups that fits. The room that it reserves for a group becomes free for others as
    soon as the group is placed elsewhere.
    """
    footprint = compute_footprint(problem, group, n)
    return _native.GroupNeeds(
        allowed=may_run(problem, group, n),
        reserved=np.full(n, -1, np.int32) if plan is None else plan,
        state=footprint.state,
        own=footprint.own(),
        storage_offsets=offsets_of(footprint.group, n),
        storages=footprint.storage,
        storage_bytes=footprint.stored,
        capacity=np.floor(np.minimum(capacity, 2.0**62)).astype(np.int64),
    )


def schedule_within_memory(search: SearchContext, prepare: Prepare, devices: int) -> Proposal:
    """The placement of one list schedule, on the first `devices` devices only unless that is 0.

    If the schedule runs out of memory, the unlimited schedule is repaired, memory is filled in topological order, or
    else the blocks are packed. The schedule is then made again around whatever fits, where every place stays reserved
    until its block is placed elsewhere. The best of these placements is the answer. If stages have a shape to keep, the
    schedule is made a chain instead. Once something fits, nothing starts for which less time is left than the first
    schedule took.
    """
    problem, watch = search.problem, search.watch
    smaller = keep_best_devices(problem, devices)
    try:
        schedule, notes = prepare(smaller, watch)
        if problem.constraints.shaped:
            device, note = _chain_schedule(smaller, schedule, search.price, watch)
            placement = None if device is None else Placement(relabel(problem, device))
            return Proposal(placement, notes=(*notes, note) if note else notes)
        tried = [*notes]
        device, shrunk = fit_memory(smaller, partial(_schedule_all, smaller, schedule, tried, watch))
        if device is None and watch.last <= 0:
            return Proposal(None, reason=Reason.TIME_LIMIT, notes=tuple(tried))
        if device is None or (shrunk and watch.left > watch.elapsed):
            device, proof = _repair_schedule(smaller, schedule, device, search, tried)
            if proof and smaller is problem:
                return Proposal(None, reason=Reason.PROVED, infeasible=proof)
    except KeyboardInterrupt:
        return Proposal(None, reason=Reason.INTERRUPTED)
    if device is None:
        return Proposal(None, notes=tuple(tried))
    return Proposal(Placement(relabel(problem, device)), notes=tuple(tried))


def _schedule_all(
    problem: Problem, schedule: Schedule, tried: list[str], watch: Stopwatch, room: Floats
) -> Ints | None:
    """The schedule [n_ops] within `room` [n_devices], or None; then `tried` says how far it came."""
    device, placed = schedule(room, None)
    if placed == problem.n_ops:
        return relabel(problem, device)  # before its memory is measured, which the judge then need not do again
    what = "time" if watch.last <= 0 else "memory"
    others = [note for note in tried if not note.startswith("list scheduling")]
    tried[:] = [*others, f"list scheduling ran out of {what} after {placed:,} of {problem.n_ops:,} ops"]
    return None


def _repair_schedule(
    problem: Problem, schedule: Schedule, device: Ints | None, search: SearchContext, tried: list[str]
) -> tuple[Ints | None, str]:
    """The best placement that fits (`device`, its repairs, schedules around them), or the proof that nothing fits."""
    watch = search.watch
    pace = watch.elapsed
    fitting = _list_fitting(problem, schedule, device, watch)
    if not fitting:
        if create("pack").supports(problem) is not None:
            tried.append("neither repairing the unlimited schedule nor filling in topological order fits")
            return None, ""
        packed = _ask("pack", problem, watch)
        if packed.placement is None:
            tried += ["neither repairing it, nor filling in topological order, nor packing fits", *packed.notes]
            return None, packed.infeasible
        fitting = {"the blocks were packed": packed.placement.device}
    choices: dict[str, Ints] = {}
    for note, placed in fitting.items():
        again = _reschedule_around(problem, schedule, placed) if watch.left > pace else None
        if again is not None:
            choices[f"{note}, and it was scheduled again around that"] = again
    choices |= fitting
    best = int(np.argmin(search.price(np.stack(list(choices.values())))))
    tried.append(list(choices)[best])
    return list(choices.values())[best], ""


def _ask(name: str, problem: Problem, watch: Stopwatch) -> Proposal:
    """What another placer proposes; raises KeyboardInterrupt again where that ended it."""
    proposal = run_placer(create(name), problem, watch.rest())
    if proposal.reason is Reason.INTERRUPTED:
        raise KeyboardInterrupt
    return proposal


def _list_fitting(problem: Problem, schedule: Schedule, device: Ints | None, watch: Stopwatch) -> dict[str, Ints]:
    """Placements that fit, by how they came about: `device` if there is one, a repair, and a fill."""
    if device is not None and problem.n_ops > MANY_OPS:
        return {SHRUNK: device}
    unlimited, placed = schedule(np.full(problem.n_devices, np.inf), None)
    moved = repair(problem, unlimited, watch=watch) if placed == problem.n_ops else None
    filled = _ask("topo", problem, watch).placement
    candidates = {
        SHRUNK: device,
        "what fitted nowhere was moved": moved,
        "memory was filled in topological order": None if filled is None else filled.device,
    }
    return {note: placed for note, placed in candidates.items() if placed is not None}


def _reschedule_around(problem: Problem, schedule: Schedule, fitting: Ints) -> Ints | None:
    """A schedule that reserves the places of a placement that fits; None if its activations take too much memory."""
    assignment = np.empty(problem.n_blocks, np.int32)
    assignment[problem.block] = fitting
    resident, peak = device_memory(problem, Placement(fitting))
    device, placed = schedule(problem.capacity - (peak - resident), assignment)
    return device if placed == problem.n_ops and not find_broken_rule(problem, device) else None


def _chain_schedule(problem: Problem, schedule: Schedule, price: Evaluate, watch: Stopwatch) -> tuple[Ints | None, str]:
    """A placement [n_ops] that keeps the shape of stages, and a note of what became of the schedule.

    The schedule ignores memory limits if it runs out of memory. It is a candidate if it keeps the rules. Its parts are
    another: `CandidateSelector` puts the devices in a row and splits the resulting order of the ops anew. If neither
    keeps the rules, the answer is `topo`'s.
    """
    device, placed = schedule(problem.capacity, None)
    if placed < problem.n_ops:
        device, placed = schedule(np.full(problem.n_devices, np.inf), None)
    if placed < problem.n_ops:
        return None, "there was no time for a schedule"
    selector = CandidateSelector(problem, price, watch)
    if not find_broken_rule(problem, device):
        selector.consider(device, checked=True)
    assignment = np.empty(problem.n_blocks, np.int32)
    assignment[problem.block] = device
    selector.add_parts(assignment)
    if selector.best is not None:
        return selector.best, "" if np.array_equal(selector.best, device) else CHAINED
    filled = _ask("topo", problem, watch)
    if filled.placement is not None:
        return filled.placement.device, FILLED
    return None, f"neither the schedule nor a fill in topological order makes a chain: {selector.rejections[0]}"
