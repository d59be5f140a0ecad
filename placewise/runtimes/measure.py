"""Measure several placements side by side: checked first, warmed up, interleaved, median and spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from placewise.errors import RunError
from placewise.model.graph import Graph
from placewise.runtimes.base import Prepared
from placewise.runtimes.equal import require_equal
from placewise.runtimes.inputs import Arrays, fresh_inputs

Fresh = Callable[[int], Arrays]
"""Inputs for the sample of this number."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """How to measure: `rounds` of every placement in turn, after `warm_up` samples each that do not count.

    With `in_flight` above 1, a round is a stream of `samples`, whose time per sample counts; else `samples` runs, of
    which each counts. `seconds` ends the rounds early, but not before there are `least`.
    """

    rounds: int = 10
    samples: int = 3
    in_flight: int = 1
    warm_up: int = 3
    seconds: float = float("inf")
    least: int = 3


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds per sample of every round (its median, for latency), or the reason why there are none."""

    name: str
    rounds: tuple[float, ...] = ()
    failure: str = ""

    @property
    def seconds(self) -> float:
        """The median; inf where it failed."""
        return float(np.median(self.rounds)) if self.rounds else float("inf")

    @property
    def spread(self) -> float:
        """The distance between the quartiles of the rounds, as a share of the median."""
        if not self.rounds:
            return float("nan")
        low, high = np.percentile(self.rounds, (25, 75))
        return float(high - low) / self.seconds


def fresh_of(graph: Graph, seed: int = 0, given: Arrays | None = None, *, kinds: int = 8) -> Fresh:
    """Inputs that differ from sample to sample; after `kinds` of them they come again."""
    made = [fresh_inputs(graph, seed + number, given) for number in range(kinds)]
    return lambda number: made[number % kinds]


def check(reference: Prepared, candidate: Prepared, fresh: Fresh, *, who: str, precision: str = "") -> float:
    """How near the outputs of `candidate` are to those of `reference`, as a share of the tolerance.

    Raises RunError if they differ, or if the reference does not give the same outputs twice.
    """
    return require_equal(settled(reference, fresh), candidate.run(fresh(0)), who=who, precision=precision)


def settled(reference: Prepared, fresh: Fresh) -> Arrays:
    """The outputs of `reference` for the first inputs. Raises RunError if it does not give them twice."""
    inputs = fresh(0)
    wanted = reference.run(inputs)
    try:
        require_equal(wanted, reference.run(inputs), who="a second run of the same model on the same inputs")
    except RunError as error:
        raise RunError(f"the outputs of this model are random, so no placement can be checked ({error})") from None
    return wanted


def measure(prepared: Mapping[str, Prepared], fresh: Fresh, protocol: Protocol = Protocol()) -> list[Measurement]:
    """Every placement in turn, round after round, each round in another order; one that fails drops out.

    Whatever slows the machine for a while then slows all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in prepared}
    failures: dict[str, str] = {}
    numbers, began = count(1), time.monotonic()

    def attempt(name: str, length: int, *, counts: bool) -> None:
        samples = [fresh(next(numbers)) for _ in range(length)]
        try:
            found = prepared[name].time(samples, in_flight=protocol.in_flight)
        except RunError as error:
            failures[name] = str(error)
            return
        if counts:
            times[name].append(float(np.median(found)))

    for name in prepared:
        attempt(name, max(protocol.warm_up, protocol.in_flight), counts=False)
    for round_ in range(protocol.rounds):
        if round_ >= protocol.least and time.monotonic() - began > protocol.seconds:
            break
        for name in _turned([name for name in prepared if name not in failures], round_):
            attempt(name, protocol.samples, counts=True)
    return [Measurement(name, () if name in failures else tuple(times[name]), failures.get(name, "")) for name in times]


def _turned(names: Sequence[str], by: int) -> Sequence[str]:
    """The names, from another one on and every other time backwards."""
    start = by % max(len(names), 1)
    turned = [*names[start:], *names[:start]]
    return turned[::-1] if by % 2 else turned
