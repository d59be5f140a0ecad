"""What list schedulers do around their schedule: fewer devices, memory that is too tight, and words for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints, Longs, frozen, offsets_of
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import SearchContext, Stopwatch, run_placer
from placewise.placers.list_scheduling.chained_stages import chained
from placewise.placers.list_scheduling.fewer_devices import checked, fewer
from placewise.placers.registry import create
from placewise.placers.shared.fit import fit
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.memory_footprint import may_run, memory_footprint
from placewise.placers.shared.repair import repair
from placewise.placers.shared.rules import broken
from placewise.simulate.judge.memory import device_memory
from placewise.simulate.problem_arrays import arrays_of, native_problem

MANY_OPS = 200_000
"""With more ops a placement that fits is only scheduled again: repairs and fills take longer than what they repair."""

SHRUNK = "memory was found by leaving more of it free"

Schedule = Callable[[Floats, Ints | None], tuple[Ints, int]]
"""Room [n_devices] and a plan that fits [n_blocks] or None → devices [n_ops] (−1: none), ops that got one."""
Prepare = Callable[[Problem, Stopwatch], tuple[Schedule, tuple[str, ...]]]
"""A problem and the time that there is → how it is scheduled, and what the user should know of it."""


@dataclass(frozen=True, slots=True)
class ListOptions:
    """`devices`: only the best so many, as far as ops and memory allow; 0: all."""

    devices: int = 0

    def __post_init__(self) -> None:
        checked(self.devices)


@dataclass(slots=True)
class _Tried:
    """What did not work, in words."""

    notes: list[str]

    def stuck(self, problem: Problem, placed: int) -> None:
        said = f"list scheduling ran out of memory after {placed:,} of {problem.n_ops:,} ops"
        self.notes = [note for note in self.notes if not note.startswith("list scheduling")] + [said]


def ranked(key: Floats) -> tuple[Ints, Ints]:
    """The ops by descending `key` [n_ops], ties by number, and the place of each in that order."""
    by_priority = np.argsort(-key, kind="stable")
    priority = np.empty(len(key), np.int32)
    priority[by_priority] = np.arange(len(key), dtype=np.int32)
    return frozen(by_priority, np.int32), frozen(priority, np.int32)


class ListArguments(NamedTuple):
    """What both list schedules are made of."""

    problem: _native.Problem
    groups: _native.GroupNeeds
    group: Ints  # [n_ops]
    input_offsets: Longs  # [n_ops + 1]
    input_tensors: Ints
    rank: Ints  # [n_ops]
    by_rank: Ints  # [n_ops]


def list_arguments(problem: Problem, priority: Floats, capacity: Floats, plan: Ints | None) -> ListArguments:
    """Groups within `capacity` [n_devices], those of a `plan` [n_blocks] with places; high `priority` [n_ops] first."""
    groups = group_needs(problem, problem.block, problem.n_blocks, capacity, plan)
    by_rank, rank = ranked(priority)
    inputs = problem.graph.in_offsets, problem.graph.edges.value
    return ListArguments(native_problem(arrays_of(problem)), groups, problem.block, *inputs, rank, by_rank)


def group_needs(
    problem: Problem, group: Ints, n: int, capacity: Floats, plan: Ints | None = None
) -> _native.GroupNeeds:
    """What groups of ops [n_ops] → 0…n − 1 need within `capacity` [n_devices].

    `plan` [n] is a placement of the groups that fits: what is reserved for a group is free for others as soon as it has
    gone elsewhere.
    """
    held = memory_footprint(problem, group, n)
    users = np.bincount(held.storage, minlength=len(held.stored))
    alone = users[held.storage] == 1
    own = held.state.copy()
    np.add.at(own, held.group[alone], held.stored[held.storage[alone]])
    return _native.GroupNeeds(
        allowed=may_run(problem, group, n),
        reserved=np.full(n, -1, np.int32) if plan is None else plan,
        state=held.state,
        own=own,
        storage_offsets=offsets_of(held.group, n),
        storages=held.storage,
        storage_bytes=held.stored,
        capacity=np.floor(np.minimum(capacity, 2.0**62)).astype(np.int64),
    )


def schedule_within_memory(search: SearchContext, prepare: Prepare, devices: int) -> Proposal:
    """The placement of one list schedule, on the first `devices` devices only if that is not 0.

    Where its memory runs out, what it would do without limits is repaired, memory is filled in topological order, or
    else the blocks are packed; and around whatever fits it is made once more, every place reserved until its block has
    gone elsewhere. The best of these is the answer. Where stages have a shape to keep, it is made a chain instead. Once
    something fits, nothing is begun for which the time that is left is shorter than what the first schedule took.
    """
    problem, watch = search.problem, search.watch
    smaller = fewer(problem, devices)
    try:
        schedule, notes = prepare(smaller, watch)
        if problem.constraints.shaped:
            device, said = chained(smaller, schedule, search.price, watch)
            placement = None if device is None else Placement(relabel(problem, device))
            return Proposal(placement, notes=(*notes, said) if said else notes)
        tried = _Tried([*notes])
        device, shrunk = fit(smaller, partial(_complete, smaller, schedule, tried))
        if device is None or (shrunk and watch.left > watch.elapsed):
            device, proof = _mended(smaller, schedule, device, search, tried)
            if proof and smaller is problem:
                return Proposal(None, reason=Reason.PROVED, infeasible=proof)
    except KeyboardInterrupt:
        return Proposal(None, reason=Reason.INTERRUPTED)
    if device is None:
        return Proposal(None, notes=tuple(tried.notes))
    return Proposal(Placement(relabel(problem, device)), notes=tuple(tried.notes))


def _complete(problem: Problem, schedule: Schedule, tried: _Tried, room: Floats) -> Ints | None:
    device, placed = schedule(room, None)
    if placed < problem.n_ops:
        tried.stuck(problem, placed)
        return None
    return device


def _mended(
    problem: Problem, schedule: Schedule, device: Ints | None, search: SearchContext, tried: _Tried
) -> tuple[Ints | None, str]:
    """The best of what fits: `device`, its repairs, and schedules around them; or the proof that nothing fits."""
    watch = search.watch
    pace = watch.elapsed
    fitting = _fitting(problem, schedule, device, watch)
    if not fitting:
        packer = create("pack")
        if packer.supports(problem) is not None:
            tried.notes.append(
                "nor does what it would do without limits fit if repaired, or a fill in topological order"
            )
            return None, ""
        packed = run_placer(packer, problem, watch.rest())
        if packed.placement is None:
            tried.notes += ["neither repairing it, nor filling in topological order, nor packing fits", *packed.notes]
            return None, packed.infeasible
        fitting = {"the blocks were packed": packed.placement.device}
    around = {said: _around(problem, schedule, found) for said, found in fitting.items() if watch.left > pace}
    again = {f"{said}, and it was scheduled again around that": found for said, found in around.items()}
    choice = {said: found for said, found in (again | fitting).items() if found is not None}
    best = int(np.argmin(search.price(np.stack(list(choice.values())))))
    tried.notes.append(list(choice)[best])
    return list(choice.values())[best], ""


def _fitting(problem: Problem, schedule: Schedule, device: Ints | None, watch: Stopwatch) -> dict[str, Ints]:
    """Placements that fit, by how they came about: `device` if that is one, a repair, and a fill."""
    if device is not None and problem.n_ops > MANY_OPS:
        return {SHRUNK: device}
    unlimited, _ = schedule(np.full(problem.n_devices, np.inf), None)
    filled = run_placer(create("topo"), problem, watch.rest()).placement
    found = {
        SHRUNK: device,
        "what fitted nowhere was moved": repair(problem, unlimited, watch=watch),
        "memory was filled in topological order": None if filled is None else filled.device,
    }
    return {said: placed for said, placed in found.items() if placed is not None}


def _around(problem: Problem, schedule: Schedule, fitting: Ints) -> Ints | None:
    """A schedule that reserves the places of a placement that fits; None if its activations are too much."""
    home = np.empty(problem.n_blocks, np.int32)
    home[problem.block] = fitting
    resident, peak = device_memory(problem, Placement(fitting))
    device, placed = schedule(problem.capacity - (peak - resident), home)
    return device if placed == problem.n_ops and not broken(problem, device) else None
