"""Sweep files (JSON): a model at several sizes on several clusters, what fits, how fast it is and what it costs."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from placewise.errors import InputError, ModelFileError, locate_errors
from placewise.files.records import Amount, Record, read_record, write_record

Sizes = dict[str, Annotated[int, Field(ge=0, lt=1 << 40)]]


class MemoryRecord(Record):
    """The memory of one device at a point, in bytes."""

    device: str
    peak: Amount = Field(description="bytes in use at the worst moment")
    capacity: Amount = Field(description="bytes that may be used; null: unlimited")

    @property
    def free(self) -> float:
        return self.capacity - self.peak


class NeedsRecord(Record):
    """What the model itself takes at these sizes, wherever it is placed, in bytes."""

    weights: float
    state: float = Field(description="KV caches and other state that stays with ops")
    activations: float = Field(description="of all tensors together")
    largest: float = Field(description="of the largest tensor")


class PointRecord(Record):
    """One point of a sweep: sizes, a cluster, and the plan that was found. Times in seconds, memory in bytes."""

    sizes: Sizes = Field(description="the sizes that vary, by dimension")
    devices: str = Field(default="", description="the cluster; empty: the model brings its own")
    status: str = Field(description="optimal, feasible, infeasible, unknown or error")
    reason: str = Field(default="", description="why there is no plan")
    value: Amount = Field(default=math.inf, description="the objective, in seconds; null: no plan")
    lower_bound: Amount = 0.0
    latency: float | None = Field(default=None, description="seconds of one run of the plan")
    throughput: float | None = Field(default=None, description="samples per second")
    tokens_per_second: float | None = Field(default=None, description="of the whole batch while decoding")
    memory: tuple[MemoryRecord, ...] = Field(default=(), description="of each device that may run an op")
    needs: NeedsRecord | None = Field(default=None, description="what the model takes; null: it was not read")
    baseline: str = Field(default="", description="the best that people do without a placer")
    baseline_ratio: float | None = Field(default=None, description="its time over that of the plan; null: none can run")
    verdict: str = Field(default="", description="whether the split is worth it")
    placer: str = ""
    probe: bool = Field(default=False, description="whether bisection added this point")
    price_per_hour: float | None = None
    price_per_million_tokens: float | None = None
    price_per_million_samples: float | None = None
    pareto: bool = Field(default=False, description="on the Pareto front, docs/guides/sizes.md")

    @property
    def fits(self) -> bool | None:
        """Whether a plan was found; None if that is not known."""
        if self.status in ("optimal", "feasible"):
            return True
        return False if self.status == "infeasible" else None

    @property
    def used_memory(self) -> float:
        """Bytes at the worst moment of every device, added up."""
        return math.fsum(device.peak for device in self.memory)

    @property
    def free_memory(self) -> float | None:
        """Bytes that remain on the accelerator, or else the device, that is fullest; None without a plan."""
        free = [device.free for device in self.memory if device.peak > 0]
        return min(free, default=None)


class LargestRecord(Record):
    """The largest size of one dimension that fits, for given other sizes and a cluster."""

    name: str = Field(description="the dimension")
    others: Sizes = Field(default={}, description="the other sizes that vary")
    devices: str = ""
    fits: int | None = Field(description="the largest size with a plan; null: none of them")
    fails: int | None = Field(description="the next larger size that was tried, which has none; null: all fit")
    method: Literal["bisection", "trying"]
    monotone: bool = Field(description="whether memory grows with the size at every point that was tried")
    known: bool = Field(default=True, description="false: no proof that the next size does not fit")


class AnswerRecord(Record):
    """The first cluster, by price or by size, that reaches the goal at these sizes."""

    sizes: Sizes
    devices: str | None = Field(description="null: none of the clusters does")
    untried: int = Field(0, description="clusters that come later and were not tried")


class ListPriceRecord(Record):
    """A list price that the sweep used."""

    device: str
    per_hour: float
    source: str
    date: str


class SweepFile(Record):
    """A sweep: its points in order, the largest sizes that fit, and the answers to a goal."""

    format: Literal["placewise-sweep"] = "placewise-sweep"
    version: Literal[1] = 1
    model: str
    run: str = Field(default="", description="sha256 of the model, the options and the search")
    objective: str = ""
    varied: tuple[str, ...] = Field(default=(), description="the dimensions that vary")
    clusters: tuple[str, ...] = ()
    complete: bool = Field(default=True, description="false: interrupted")
    points: tuple[PointRecord, ...] = ()
    largest: tuple[LargestRecord, ...] = ()
    until: str = Field(default="", description="the goal")
    cheapest: bool = Field(default=False, description="answers are the cheapest clusters; false: the smallest")
    answers: tuple[AnswerRecord, ...] = ()
    list_prices: tuple[ListPriceRecord, ...] = Field(default=(), description="not given by the user, in USD")


def save_sweep(sweep: SweepFile, path: str | os.PathLike[str]) -> None:
    """Write a sweep file, atomically. Raises OutputError."""
    write_record(sweep, path)


def load_sweep(path: str | os.PathLike[str]) -> SweepFile:
    """The sweep of a file. Raises ModelFileError."""
    sweep = read_record(path, SweepFile)
    with locate_errors(path):
        _check(sweep)
    return sweep


def _check(sweep: SweepFile) -> None:
    """Raise ModelFileError if points, largest sizes or answers do not belong to what varies."""
    varied, clusters = set(sweep.varied), set(sweep.clusters)
    remedy = "make the file again"
    for point in sweep.points:
        if set(point.sizes) != varied or point.devices not in clusters:
            raise ModelFileError("a point has other sizes or another cluster than the sweep", remedy=remedy)
    for line in sweep.largest:
        if {line.name, *line.others} != varied or line.name in line.others or line.devices not in clusters:
            raise ModelFileError("a largest size belongs to another sweep", remedy=remedy)
    known = {(point.devices, *sorted(point.sizes.items())) for point in sweep.points}
    for answer in sweep.answers:
        if answer.devices is not None and (answer.devices, *sorted(answer.sizes.items())) not in known:
            raise ModelFileError("an answer names no point", remedy=remedy)


def points_to_reuse(path: Path, run: str, *, resume: bool) -> tuple[PointRecord, ...]:
    """The points of an interrupted sweep that the file holds; none if it does not exist.

    Raises InputError if it exists and `resume` is False, and ModelFileError if it is of another `run`.
    """
    if not path.exists():
        return ()
    if not resume:
        raise InputError(
            "holds a sweep already", where=str(path), remedy="go on from it with --resume, or name another"
        )
    sweep = load_sweep(path)
    if sweep.run != run:
        remedy = "give the model and the options that it was made with, or name another file"
        raise ModelFileError("is the sweep of another model, or with other options", where=str(path), remedy=remedy)
    return sweep.points
