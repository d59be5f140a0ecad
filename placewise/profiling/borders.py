"""measure_borders(): what a tensor costs that goes from one stage of PyTorch's pipelining to the next."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations

import numpy as np

from placewise.files.profile_file import BorderFigures
from placewise.processes.limits import Network
from placewise.processes.scratch import scratch_folder
from placewise.processes.worker import START, Worker, collect_answers
from placewise.runtimes.binding import Place

SMALL, LARGE = 16, 1 << 18
"""Elements (float32) of the tensors: a cache line, and the result of a layer."""
SAMPLES, ROUNDS = 32, 9
MAX_PAIRS = 3
_RANK = "placewise.profiling.servers.border:BorderRank"


def measure_borders(places: Sequence[Place], *, seconds: float = 120.0) -> tuple[BorderFigures, ...]:
    """The figures of the borders between devices on cores, both directions alike; of many pairs, some are measured,
    or all where devices have limits.

    Two stages that compute nothing hand on a stream of tensors, as the runtime `pipelining` does, so that the
    conversions, gloo, and Python's part of a micro-batch count. Raises RunError.
    """
    on_cores = [place for place in places if place.kind == "cores"]
    pairs = list(combinations(on_cores, 2))
    some = len(pairs) if any(place.limits for place in on_cores) else MAX_PAIRS
    rows = sorted({row * len(pairs) // some for row in range(some)}) if pairs else []
    figures = []
    for one, other in (pairs[row] for row in rows):
        small, large = _time_pair((one, other), seconds)
        latency, whole = float(np.median(small)), float(np.median(large))
        low, high = np.percentile(small, (25, 75)).tolist()
        rate = 4 * (LARGE - SMALL) / max(whole - latency, 1e-9)
        spread = (high - low) / latency
        figures.append(
            BorderFigures(source=one.device, target=other.device, latency=latency, bandwidth=rate, spread=spread)
        )
    return tuple(figures)


def _time_pair(pair: tuple[Place, Place], seconds: float) -> tuple[list[float], list[float]]:
    """Seconds per tensor of streams of small and of large ones."""
    with ExitStack() as stack:
        network = stack.enter_context(Network([place.bandwidth for place in pair]))
        meeting = str(stack.enter_context(scratch_folder()) / "meeting")
        workers = [
            stack.enter_context(
                Worker(
                    _RANK, rank, meeting, seconds,
                    name=str(place), cores=place.cores, quota=place.quota, network=network.namespaces[rank],
                    environment=network.environment, start=None,
                )
            )
            for rank, place in enumerate(pair)
        ]  # fmt: skip
        collect_answers(workers, START + seconds)
        found = []
        for elements in (SMALL, LARGE):
            for worker in workers:
                worker.tell("stream", elements, SAMPLES, ROUNDS)
            found.append(collect_answers(workers, seconds)[1])
    return found[0], found[1]
