"""How long a finite stream of samples takes in a pipeline: the fill and the drain as well.

This module depends on nothing: exports contain a copy of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StageTime(NamedTuple):
    """Seconds per sample of one stage: receiving, computing and sending, one after another.

    `wire` is the time from the start of a send to the earliest end of the receive in the next stage: as long as either
    where both take part at once, the sum where the values rest in host memory between.
    """

    receive: float
    compute: float
    send: float
    wire: float = 0.0


def steady_seconds(stages: Sequence[StageTime]) -> float:
    """Seconds per sample when the pipeline is full: the load of the busiest stage."""
    return max((stage.receive + stage.compute + stage.send for stage in stages), default=0.0)


def stream_seconds(stages: Sequence[StageTime], samples: int) -> float:
    """Seconds from the first input of `samples` samples to the last output.

    A stage takes the samples in order, receives a sample once the stage before sends it, and does one thing at a time;
    a sender does not wait for its receiver. With equal stages, and transfers that take no time, this is
    (samples + stages − 1) times the time of a stage.
    """
    free, end = [0.0] * len(stages), 0.0
    for _ in range(samples):
        sent = 0.0
        for place, stage in enumerate(stages):
            wire = stages[place - 1].wire if place else 0.0
            received = max(max(free[place], sent) + stage.receive, sent + wire)
            sent = received + stage.compute
            free[place] = end = sent + stage.send
    return end
