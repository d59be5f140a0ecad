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
from placewise.simulate.step.stage_costs import KINDS, NOWHERE, sum_by


def copy_peaks(run: StepRun, copy: int) -> tuple[Floats, Floats]:
    """Bytes held throughout and at the peak [n_devices along the pipeline], of a copy of the pipeline."""
    own, places = run.copies[min(copy, len(run.copies) - 1)], run.pipeline.stage_places()
    count, costs = len(run.pipeline.devices), run.copies[0].costs
    resident = costs.resident[list(run.pipeline.devices)]
    resident = resident + sum_by(places, costs.gradient_bytes, count)
    place, start, end, nbytes = _list_spans(own, np.array(places))
    # A span is held from its start up to its end; one without duration is held at that moment all the same.
    time = np.concatenate((start, end))
    rank = np.concatenate((np.ones(len(start)), np.where(end > start, 0.0, 2.0)))
    change, where = np.concatenate((nbytes, -nbytes)), np.concatenate((place, place))
    order = np.lexsort((rank, time, where))
    held = np.cumsum(change[order])
    peak = np.zeros(count)
    np.maximum.at(peak, where[order], held)  # the spans of each device end, so that the next starts from zero
    return resident, resident + peak


def _list_spans(own: CopyRun, places: Longs) -> tuple[Longs, Floats, Floats, Floats]:
    """What devices hold for a time: the place of the device, start, end and bytes of each span."""
    costs, program = own.costs, own.program
    n, tasks = costs.n_stages, np.flatnonzero(program.type < KINDS * costs.n_stages)
    type_, i = program.type[tasks], program.microbatch[tasks]
    at = np.full((KINDS * n, int(program.microbatch.max(initial=0)) + 1), -1)
    at[type_, i] = tasks
    following = np.where(type_ < (KINDS - 1) * n, at[np.minimum(type_ + n, KINDS * n - 1), i], -1)
    kept = following >= 0
    spans = [
        (places[type_ % n], own.starts[tasks], own.ends[tasks], costs.alive[type_]),
        (
            places[type_[kept] % n], own.ends[tasks[kept]], own.starts[following[kept]], costs.carried[type_[kept]],
        ),
    ]  # fmt: skip
    moves = np.flatnonzero(program.type >= KINDS * n)
    if len(moves):
        hops, hop, i = costs.passed.hops, program.type[moves] - KINDS * n, program.microbatch[moves]
        source, target = (np.array(ends)[hop] for ends in zip(*((h.source, h.target) for h in hops), strict=True))
        out, into = ~np.array([h.by_receiver for h in hops])[hop], target != NOWHERE
        maker, reader, nbytes = at[source[out], i[out]], at[target[into], i[into]], costs.passed.bytes[hop]
        spans.append((places[source[out] % n], own.ends[maker], own.ends[moves[out]], nbytes[out]))
        spans.append((places[target[into] % n], own.starts[moves[into]], own.starts[reader], nbytes[into]))
    place, start, end, held = (np.concatenate(column) for column in zip(*spans, strict=True))
    lasts = end > start
    lasts[: len(tasks)] = True  # what a task without duration needs counts; what is handed on at once does not
    return place[lasts], start[lasts], end[lasts], held[lasts]


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
