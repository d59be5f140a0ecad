"""What a runtime does without a placer: the whole model with its own threads on all cores, and copies of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise._util.units import format_bytes
from placewise.errors import RunError
from placewise.runtimes.base import Closing, Job, PreparedPlacement, Realised, Runtime
from placewise.runtimes.binding import Place
from placewise.runtimes.inputs import Arrays
from placewise.simulate.blocks import storage_bytes

COPY_SHARE = 0.5
"""Of the free memory that the weights of all copies may take."""


def all_cores(places: Sequence[Place]) -> tuple[int, ...]:
    """The cores of all places together, in their order."""
    return tuple(dict.fromkeys(core for place in places if place.kind == "cores" for core in place.cores))


def on_all_cores(job: Job) -> Job | None:
    """The job of the whole model on all cores of its places, with a thread per core.

    None if the placement of `job`, one device, has all of them already, or if the places have one core or none.
    """
    cores = all_cores(job.places)
    single = job.places[int(job.placement.device[0])] if len(job.placement) else None
    if len(cores) < 2 or single is None or (single.kind == "cores" and set(single.cores) == set(cores)):
        return None
    return _on_cores(job, cores)


def copies_by_device(job: Job) -> list[Job]:
    """A job of the whole model for each place on cores."""
    rows = [row for row, place in enumerate(job.places) if place.kind == "cores"]
    return [job.alone(row) for row in rows] if _are_apart([job.places[row] for row in rows]) else []


def copies_by_core(job: Job) -> list[Job]:
    """A job of the whole model for each core; none where every place has one core, since copies by device are these."""
    on_cores = [place for place in job.places if place.kind == "cores"]
    if not on_cores or max(len(place.cores) for place in on_cores) < 2:
        return []
    return [_on_cores(job, (core,)) for core in all_cores(job.places)]


def _on_cores(job: Job, cores: tuple[int, ...]) -> Job:
    """The whole model on the first place of these cores, with `cores` as its cores."""
    row = next(row for row, place in enumerate(job.places) if place.kind == "cores" and set(place.cores) & set(cores))
    options = {name: value for name, value in job.places[row].options.items() if name != "threads"}
    places = list(job.places)
    shares = [place.quota * len(place.cores) for place in places if set(place.cores) & set(cores)]
    quota = min(1.0, sum(shares) / len(cores))
    places[row] = replace(job.places[row], cores=cores, options=options, quota=quota, bandwidth=math.inf)
    return replace(job.alone(row), places=tuple(places))


def _are_apart(places: Sequence[Place]) -> bool:
    """Whether all places can be busy at once: no two share a core, but by quotas."""
    used = [sum(place.quota for place in places if core in place.cores) for core in all_cores(places)]
    return len(places) > 1 and max(used, default=0.0) <= 1 + 1e-9


class Copies(Closing):
    """Copies of the whole model that serve a stream together, each in its own worker: a `PreparedPlacement`.

    Raises RunError if a copy cannot be prepared, or if the weights of all copies do not fit into the free memory.
    """

    def __init__(self, runtime: Runtime, jobs: Sequence[Job]) -> None:
        self._copies: list[PreparedPlacement] = []
        self.notes: tuple[str, ...] = ()
        self.realised = Realised((1,) * len(jobs))
        _require_memory(jobs)
        try:
            for job in jobs:
                self._copies.append(runtime.prepare(job))
        except BaseException:
            self.close()
            raise

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """As `PreparedPlacement.run`, by the first copy."""
        return self._copies[0].run(inputs)

    def time(self, samples: Sequence[Arrays], *, in_flight: int = 1) -> list[float]:
        """One figure: the mean seconds per sample that all copies serve together, each one sample after another.

        Every copy times its share of the samples while the others do; their rates add up.
        """
        count = len(self._copies)
        shares = [samples[row::count] or samples[:1] for row in range(count)]
        with ThreadPoolExecutor(count) as pool:
            times = list(pool.map(lambda copy, share: copy.time(share), self._copies, shares))
        return [1 / sum(1 / float(np.mean(seconds)) for seconds in times)]

    def close(self) -> None:
        """End all workers."""
        for copy in self._copies:
            copy.close()
        self._copies = []


def _require_memory(jobs: Sequence[Job]) -> None:
    needed, free = len(jobs) * int(storage_bytes(jobs[0].problem.graph).sum()), _free_memory()
    if needed > COPY_SHARE * free:
        need, have = format_bytes(needed), format_bytes(free)
        raise RunError(f"the weights of {len(jobs)} copies take {need}, and {have} of memory are free")


def _free_memory() -> int:
    """Bytes that new programs may take without swapping."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024
