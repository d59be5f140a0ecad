"""What limits the speed of generation under a placement, and what would have to move for twice the speed."""

from __future__ import annotations

import numpy as np

from placewise.coarsen.module_parts import held_bytes
from placewise.core.llama_ops import find_priced_work
from placewise.exporters.stack import find_stack
from placewise.model.columns import Bools, Floats
from placewise.model.cost_error import OFFLOADED
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import DECODE
from placewise.reporting.fitted import TWICE, Departure, Limit
from placewise.simulate import judge_placement

MOSTLY = 0.5
"""The share of a device's seconds from which one cause of them is named."""


def find_limit(problem: Problem, placement: Placement) -> Limit | None:
    """The device that takes most of a generated token, and why; None for a model that generates nothing."""
    decodes = find_decoding(problem)
    if not decodes.any():
        return None
    seconds = seconds_per_token(problem, placement, decodes)
    slowest = int(np.argmax(np.bincount(placement.device, seconds, problem.n_devices)))
    device, own = problem.cluster.devices[slowest], decodes & (placement.device == slowest)
    work = find_priced_work(problem)
    busy = own & ~work.op_class.equals("free")
    read = float(work.bytes[busy].sum())
    rate = device.memory_bandwidth * device.efficiency.get("memory", 1.0)
    spent = float(seconds[own].sum())
    starting = int(busy.sum()) * device.op_overhead
    reasons = {"memory bandwidth": read / rate if rate else 0.0, "starting ops": starting}
    reason = max(reasons, key=lambda name: reasons[name])
    lent = own & problem.costs.is_from((OFFLOADED,))[np.arange(problem.n_ops), placement.device]
    if float(seconds[lent].sum()) >= MOSTLY * spent:
        reason = "copies of its weights to a card"
    elif reasons[reason] < MOSTLY * spent:
        reason = "arithmetic"
    return Limit(device.name, spent / float(seconds.sum()), reason, read, rate)


def find_departure(problem: Problem, placement: Placement, limit: Limit) -> Departure | None:
    """The least layers that would have to leave the limiting device, for its fastest partner, to halve a token's time.

    None where it has no partner that is faster at its layers. Each layer saves the difference between its seconds on
    both, and the last one the copies too; memory is left out, so it is what has to go, and not yet a plan.
    """
    stack, decodes = find_stack(problem), find_decoding(problem)
    here, table = problem.cluster.index(limit.device), problem.costs.op_seconds
    totals = np.where(np.isfinite(table), table, 0.0)[decodes].sum(axis=0)
    totals[~np.isfinite(table[decodes]).all(axis=0)] = np.inf
    there = int(np.argmin(totals))
    if stack is None or there == here or not np.isfinite(totals[there]):
        return None
    seconds = seconds_per_token(problem, placement, decodes)
    own = decodes & (placement.device == here) & (stack.of >= 0) & (stack.of < stack.count)
    repeats = problem.graph.op_repeats
    saved = np.where(own, (table[:, here] - table[:, there]) / repeats, 0.0)
    per_layer = np.bincount(stack.of[own], saved[own], stack.count)
    order = np.argsort(-per_layer, kind="stable")
    order = order[per_layer[order] > 0]
    if not len(order):
        return None
    needed = float(seconds.sum()) * (1 - 1 / TWICE)
    reached = np.flatnonzero(np.cumsum(per_layer[order]) >= needed)
    layers = order[: int(reached[0]) + 1] if len(reached) else order
    without_copies = float(seconds.sum() - per_layer[order].sum())
    enough = len(reached) > 0 or without_copies <= time_token(problem, placement) / TWICE
    leaving = np.flatnonzero(own & np.isin(stack.of, layers))
    size = float(held_bytes(problem.graph, np.zeros_like(leaving), leaving, 1)[0])
    return Departure(limit.device, len(layers) if enough else 0, size)


def time_token(problem: Problem, placement: Placement) -> float:
    """Seconds of a generated token, with its copies."""
    phases = judge_placement(problem, placement).phases
    return next((use.seconds for use in phases if use.phase == DECODE), 0.0)


def find_decoding(problem: Problem) -> Bools:
    """The ops [n_ops] of the phase that generates a token."""
    names = [phase.name for phase in problem.graph.phases]
    if DECODE not in names:
        return np.zeros(problem.n_ops, np.bool_)
    decodes: Bools = problem.graph.ops.phase == names.index(DECODE)
    return decodes


def seconds_per_token(problem: Problem, placement: Placement, decodes: Bools) -> Floats:
    """Seconds [n_ops] of compute per token, 0 for ops of other phases."""
    table = problem.costs.seconds_on(placement.device)
    seconds: Floats = np.where(decodes, table / problem.graph.op_repeats, 0.0)
    return seconds
