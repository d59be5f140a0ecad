"""Measure several placements side by side: checked, warmed up and interleaved, with median and spread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from placewise.errors import RunError
from placewise.model.graph import Graph
from placewise.processes.worker import await_rest, waited_seconds
from placewise.runtimes.base import PreparedPlacement
from placewise.runtimes.equal import require_equal
from placewise.runtimes.inputs import Arrays, fresh_inputs

InputSource = Callable[[int], Arrays]
"""Returns the inputs of the sample with this number."""
INPUTS, ATTEMPTS = 8, 4
RAMP, MOST = 0.03, 50
"""By default seconds, and samples at most, that run in a round before times count: rested processors are slower."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """How to measure: `rounds` of all placements in turn, after `warm_up` samples of each that are not counted.

    With `in_flight` above 1, a round is a stream of `samples` and gives its seconds per sample; else it is `samples`
    single runs, after others for `ramp` seconds, and gives their median. After `seconds` no further round starts, once
    there are `least`. A round in which workers waited for a processor for more than the share `wait` of a time is
    repeated: of up to `ATTEMPTS` times as many rounds the calm ones count, or the `least` calmest.
    """

    rounds: int = 10
    samples: int = 3
    in_flight: int = 1
    warm_up: int = 3
    ramp: float = RAMP
    seconds: float = float("inf")
    least: int = 3
    wait: float = float("inf")


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds per sample of every round, or the reason why there are none (`failure`); how many rounds were dropped."""

    name: str
    rounds: tuple[float, ...] = ()
    failure: str = ""
    dropped: int = 0

    @property
    def seconds(self) -> float:
        """The median of the rounds; inf after a failure."""
        return float(np.median(self.rounds)) if self.rounds else float("inf")

    @property
    def spread(self) -> float:
        """The distance between the quartiles of the rounds, as a share of the median; NaN of fewer than two."""
        if len(self.rounds) < 2:
            return float("nan")
        low, high = np.percentile(self.rounds, (25, 75))
        return float(high - low) / self.seconds


def input_source(graph: Graph, seed: int = 0, given: Arrays | None = None) -> InputSource:
    """Inputs that differ from sample to sample and repeat after `INPUTS` samples. Raises as `fresh_inputs`."""
    inputs = [fresh_inputs(graph, seed + number, given) for number in range(INPUTS)]
    return lambda number: inputs[number % INPUTS]


def check_outputs(
    reference: PreparedPlacement, candidate: PreparedPlacement, source: InputSource, *, who: str, precision: str = ""
) -> float:
    """The difference between the outputs of `candidate` and of `reference`, as a share of the tolerance.

    Raises RunError if they differ by more, or if the outputs of the reference are random.
    """
    outputs = reproducible_outputs(reference, source)
    return require_equal(outputs, candidate.run(source(0)), who=who, precision=precision)


def reproducible_outputs(reference: PreparedPlacement, source: InputSource) -> Arrays:
    """The outputs of `reference` for the first inputs. Raises RunError if a second run gives others."""
    inputs = source(0)
    outputs = reference.run(inputs)
    try:
        require_equal(outputs, reference.run(inputs), who="a second run of the same model on the same inputs")
    except RunError as error:
        problem = "the outputs of this model are random, or depend on earlier runs, so no placement can be checked"
        raise RunError(f"{problem} ({error})") from None
    return outputs


def measure(
    prepared: Mapping[str, PreparedPlacement], source: InputSource, protocol: Protocol = Protocol()
) -> list[Measurement]:
    """Time all placements by name, round after round, each round in another order; one that fails drops out.

    A machine that is slow for a while slows all of them alike.
    """
    times: dict[str, list[float]] = {name: [] for name in prepared}
    last: dict[str, float] = {}
    waits: list[float] = []
    failures: dict[str, str] = {}
    numbers, began = count(1), time.monotonic()

    def attempt(name: str, length: int, *, counts: bool) -> None:
        before = int(protocol.ramp / last[name]) if counts and protocol.in_flight == 1 else 0
        samples = [source(next(numbers)) for _ in range(before + length)]
        await_rest()
        start, waited = time.perf_counter(), waited_seconds() if counts else 0.0
        try:
            seconds = prepared[name].time(samples, in_flight=protocol.in_flight)
        except RunError as error:
            failures[name] = report_failure(name, error)
            return
        last[name] = max(float(np.median(seconds)), RAMP / MOST)
        if counts:
            end = time.perf_counter()
            waits[-1] = max(waits[-1], (waited_seconds() - waited) / (end - start))
            times[name].append(float(np.median(seconds[before:])))

    for name in prepared:
        attempt(name, max(protocol.warm_up, protocol.in_flight), counts=False)
    for round_ in range(protocol.rounds * ATTEMPTS):
        late = round_ >= protocol.least and time.monotonic() - began > protocol.seconds
        if late or sum(wait <= protocol.wait for wait in waits) >= protocol.rounds:
            break
        waits.append(0.0)
        for name in _rotate([name for name in prepared if name not in failures], round_):
            attempt(name, protocol.samples, counts=True)
    calm = choose_calm(waits, protocol)
    return [
        Measurement(name, failure=failures[name])
        if name in failures
        else Measurement(name, tuple(own[row] for row in calm), dropped=len(waits) - len(calm))
        for name, own in times.items()
    ]


def report_failure(name: str, error: RunError) -> str:
    """Say at once what failed, since the others are measured for a while yet; the failure in words."""
    logging.getLogger("placewise").warning("%s failed: %s", name, error)
    return str(error)


def choose_calm(waits: Sequence[float], protocol: Protocol) -> list[int]:
    """The rounds that count, in order, by the share of each that workers waited for a processor.

    >>> choose_calm([0.0, 0.3, 0.01, 0.2], Protocol(least=2, wait=0.05))
    [0, 2]
    >>> choose_calm([0.2, 0.3, 0.01], Protocol(least=2, wait=0.05))
    [0, 2]
    """
    calm = [row for row, wait in enumerate(waits) if wait <= protocol.wait][: protocol.rounds]
    least = min(protocol.least, protocol.rounds)
    return calm if len(calm) >= least else sorted(sorted(range(len(waits)), key=waits.__getitem__)[:least])


def _rotate(names: Sequence[str], by: int) -> Sequence[str]:
    """The names rotated by a number of positions, in reverse order for every second number."""
    start = by % max(len(names), 1)
    rotated = [*names[start:], *names[:start]]
    return rotated[::-1] if by % 2 else rotated
