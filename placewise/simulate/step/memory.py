"""Bytes of each device over a simulated step: what it holds throughout, micro-batches in flight, and buffers of links.

A task needs what its micro-batch holds at its peak; between its tasks, a micro-batch holds what a later task reads.
What a link brings counts from the start of the transfer to the start of the task that reads it, and what it takes
away from the end of the task that makes it to the end of the transfer.
"""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Floats, Longs
from placewise.simulate.step.orders import (
    BACKWARD,
    FORWARD,
    SPLITS_BACKWARD,
    WEIGHT,
    count_stages,
    device_orders,
)
from placewise.simulate.step.simulate import CopyRun, StepRun
from placewise.simulate.step.stage_costs import KINDS, NOWHERE


def copy_peaks(run: StepRun, copy: int) -> tuple[Floats, Floats]:
    """Bytes held throughout and at the peak [n_devices along the pipeline], of a copy of the pipeline."""
    own, places = run.copies[min(copy, len(run.copies) - 1)], run.pipeline.stage_places()
    count = len(run.pipeline.devices)
    costs = run.copies[0].costs
    resident = costs.resident[list(run.pipeline.devices)]
    resident = resident + np.bincount(places, weights=costs.gradient_bytes, minlength=count)
    time, step, place, change = _list_changes(own, np.array(places))
    order = np.lexsort((change > 0, step, time, place))
    held = np.cumsum(change[order])
    peak = np.zeros(count)
    np.maximum.at(peak, place[order], held)  # the changes of each device cancel out, so that the next starts from zero
    return resident, resident + peak


def _list_changes(own: CopyRun, places: Longs) -> tuple[Floats, Longs, Longs, Floats]:
    """When the bytes of which device change by how much; `step` orders what happens at the same time."""
    costs, program = own.costs, own.program
    n = costs.n_stages
    tasks = np.flatnonzero(program.type < KINDS * n)
    type_ = program.type[tasks]
    before = np.where(type_ < n, 0.0, costs.carried[type_ - n])
    time = [own.starts[tasks], own.ends[tasks]]
    step, place = [2 * tasks, 2 * tasks + 1], [places[type_ % n]] * 2
    change = [costs.alive[type_] - before, costs.carried[type_] - costs.alive[type_]]
    moves = np.flatnonzero(program.type >= KINDS * n)
    if len(moves):
        hops, hop, i = costs.passed.hops, program.type[moves] - KINDS * n, program.microbatch[moves]
        at = np.full((KINDS * n, int(program.microbatch.max()) + 1), -1)
        at[type_, program.microbatch[tasks]] = tasks
        source, target, by_host = (
            np.array([column(h) for h in hops])[hop]
            for column in (lambda h: h.source, lambda h: h.target, lambda h: h.by_receiver)
        )
        out, into = ~by_host, target != NOWHERE
        maker, reader = at[source[out], i[out]], at[target[into], i[into]]
        nbytes = costs.passed.bytes[hop]
        time += [own.ends[maker], own.ends[moves[out]], own.starts[moves[into]], own.starts[reader]]
        step += [2 * maker + 1, 2 * moves[out] + 1, 2 * moves[into], 2 * reader]
        place += [places[source[out] % n]] * 2 + [places[target[into] % n]] * 2
        change += [nbytes[out], -nbytes[out], nbytes[into], -nbytes[into]]
    return np.concatenate(time), np.concatenate(step), np.concatenate(place), np.concatenate(change)


def count_in_flight(schedule: str, n_devices: int, microbatches: int) -> tuple[list[int], list[int]]:
    """The most micro-batches [n_stages] that a stage holds at once: until their backward task is done, and until the
    gradients of their weights are.
    """
    count = count_stages(schedule, n_devices)
    last = WEIGHT if schedule in SPLITS_BACKWARD else BACKWARD
    most = [[0] * count, [0] * count]
    for order in device_orders(schedule, n_devices, microbatches):
        for row, ends in enumerate((BACKWARD, last)):
            held = [0] * count
            for task in order:
                held[task.stage] += (task.kind == FORWARD) - (task.kind == ends)
                most[row][task.stage] = max(most[row][task.stage], held[task.stage])
    return most[0], most[1]
