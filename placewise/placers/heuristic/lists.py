"""What list schedulers do around their schedule: fewer devices, memory that is too tight, and words for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from placewise.model.columns import Floats, Ints, frozen
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import Budget, Evaluate, Stopwatch
from placewise.placers.common.alike import relabel
from placewise.placers.common.devices import checked, fewer
from placewise.placers.common.fit import fit
from placewise.placers.common.repair import repair
from placewise.placers.common.rules import broken
from placewise.placers.registry import create
from placewise.simulate import Evaluator
from placewise.simulate.infeasible import why_infeasible

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


def why_not_shaped(problem: Problem, name: str) -> str | None:
    """Why a list scheduler does not take a problem, in words."""
    if problem.constraints.shaped:
        return f"{name} takes ops as they become ready, and its stages are seldom contiguous or convex"
    return None


def ranked(key: Floats) -> tuple[Ints, Ints]:
    """The ops by descending `key` [n_ops], ties by number, and the place of each in that order."""
    by_priority = np.argsort(-key, kind="stable")
    priority = np.empty(len(key), np.int32)
    priority[by_priority] = np.arange(len(key), dtype=np.int32)
    return frozen(by_priority, np.int32), frozen(priority, np.int32)


def listed(problem: Problem, prepare: Prepare, devices: int, budget: Budget, evaluate: Evaluate | None) -> Proposal:
    """The placement of one list schedule, on the first `devices` devices only if that is not 0.

    Where its memory runs out the schedule is made without limits and repaired, or the blocks are packed; and it is
    made once more with every place of that reserved until its block has gone elsewhere.
    """
    missing = why_infeasible(problem)
    if missing:
        return Proposal(None, reason=Reason.PROVED, infeasible=missing)
    watch, smaller = Stopwatch(budget), fewer(problem, devices)
    try:
        schedule, notes = prepare(smaller, watch)
        tried = _Tried([*notes])
        device, _ = fit(smaller, partial(_complete, smaller, schedule, tried))
        if device is None:
            device, proof = _reserved(smaller, schedule, watch, evaluate, tried)
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


def _reserved(
    problem: Problem, schedule: Schedule, watch: Stopwatch, evaluate: Evaluate | None, tried: _Tried
) -> tuple[Ints | None, str]:
    """A schedule around a placement that fits, or that itself, whichever is better; or the proof that nothing fits."""
    fitting = repair(problem, schedule(np.full(problem.n_devices, np.inf), None)[0], watch=watch)
    said = "what it would do without limits was repaired"
    if fitting is None:
        packer = create("pack")
        if packer.supports(problem) is not None:
            tried.notes.append("repairing what it would do without limits did not make it fit either")
            return None, ""
        packed = packer.propose(problem, watch.rest())
        if packed.placement is None:
            tried.notes += ["neither repairing nor packing found what fits", *packed.notes]
            return None, packed.infeasible
        fitting, said = packed.placement.device, "the blocks were packed"
    home = np.empty(problem.n_blocks, np.int32)
    home[problem.block] = fitting
    device, placed = schedule(problem.capacity, home)
    kept = placed == problem.n_ops and not broken(problem, device)
    tried.notes.append(f"{said}{', and scheduled again with these places reserved' if kept else ''}")
    if not kept:
        return fitting, ""
    values = (evaluate or Evaluator(problem))(np.stack((device, fitting)))
    return (device if not values[1] < values[0] else fitting), ""
