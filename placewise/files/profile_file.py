"""Profiles: measured times of all ops of a model on the devices of a machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from placewise._util.safe_open import open_regular
from placewise.errors import CostError, locate_errors
from placewise.files.cluster_record import ClusterRecord
from placewise.files.graph_file import SourceRecord
from placewise.files.plan_file import ToolRecord
from placewise.files.records import Record, Whole, read_record, write_record

FORMAT = "placewise-profile"
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_START = 4096


class Figures(Record):
    """The times of one device, idle or loaded, in seconds per run of the whole model."""

    whole: float | None = Field(None, description="median time of the whole model in one call, without the profiler")
    spread: float = Field(0.0, description="interquartile range of the runs, as a fraction of the median")
    runs: Whole = Field(0, description="number of runs of the whole model")
    kernels: float = Field(0.0, description="total time of all kernels, by the profiler")
    outside: float = Field(0.0, description="the part of `kernels` that belongs to no op: layout changes, copies")
    dispatch: float = Field(0.0, description="overhead of the run per kernel; included in `ops`")
    slowdown: float = Field(1.0, description="kernel time with the profiler over that without; divides `ops`")
    ops: tuple[float | None, ...] = Field(
        description="per op; with the call overhead they add up to `whole`; null: no separate kernel"
    )


class PilotRecord(Record):
    """A placement that was run to see what the costs miss."""

    chosen: bool = Field(description="whether the costs chose it, borders included; else it taught what borders cost")
    pieces: Whole = Field(0, description="number of pieces in which it ran")
    predicted: float = Field(description="seconds, by the costs")
    measured: float = Field(description="seconds, by its ratio to the single device in the same rounds")
    error: float = Field(0.0, description="relative error of `measured`: half its interval of 95 %")


class RunsRecord(Record):
    """Runs of whole placements, each in turns with a single device; that of the single device is its `whole` time."""

    own_threads: float | None = Field(None, description="seconds with the runtime's own threads on all cores")
    own_threads_error: float = Field(
        0.0, description="relative error of `own_threads`: half its interval of 95 %, or how far batches of rounds lie"
    )
    cores: Whole = Field(0, description="number of these cores")
    border_seconds: float = Field(0.0, description="what a tensor from another device costs, whatever its size")
    border_bytes_per_second: float = Field(0.0, description="what it costs by its size; 0: nothing")
    pilots: tuple[PilotRecord, ...] = ()


class LlamaRecord(Record):
    """Rates of llama.cpp on a device, by which seconds of other sizes and of other models of these types follow."""

    prompt: Mapping[str, Amount] = Field(
        description="seconds by term: per FLOP of products and per byte of weights that a micro-batch reads, by type, "
        "per FLOP of attention, per byte of other values, per micro-batch"
    )
    token: Mapping[str, Amount] = Field(
        description="seconds by term: per byte of weights by type, per FLOP of attention, per byte of the cache, per "
        "op, per token"
    )
    own: tuple[Amount, Amount] = Field(
        (1.0, 1.0), description="how much longer the profiled file takes than these rates say: prompts, tokens"
    )


class DeviceProfile(Record):
    """The measurements of one device."""

    name: str
    place: str = Field("", description="location on the machine")
    processor: str = Field("", description="name of the processor; times of another one do not apply")
    call_overhead: float = Field(0.0, description="seconds of an empty call")
    measured: str = Field("", description="time of the measurement, in UTC")
    cached: bool = Field(False, description="all ops were measured before; nothing ran")
    fused: tuple[tuple[int, ...], ...] = Field((), description="groups of ops that one kernel computes")
    idle: Figures = Field(description="while the other devices were idle")
    loaded: Figures | None = Field(None, description="while the other devices ran the same model")
    llama: LlamaRecord | None = Field(None, description="rates of llama.cpp; null: of another runtime")

    def figures(self, *, loaded: bool) -> Figures:
        """The loaded figures if wanted and measured, else the idle ones."""
        return self.loaded if loaded and self.loaded is not None else self.idle


class BorderFigures(Record):
    """What a tensor costs that goes between the stages of two devices, in either direction; it occupies both."""

    source: str
    target: str
    latency: float = Field(ge=0, description="seconds of a tensor, whatever its size", allow_inf_nan=False)
    bandwidth: float = Field(gt=0, description="bytes per second", allow_inf_nan=False)
    spread: float = Field(0.0, description="interquartile range of the latency, as a fraction of the median")


class ProfileFile(Record):
    """A profile. All lists per op are in the order of `ops`."""

    format: Literal["placewise-profile"] = "placewise-profile"
    version: Literal[1] = 1
    runtime: str
    runtime_version: str = ""
    source: SourceRecord | None = Field(None, description="the model file")
    graph_hash: str = Field("", description="sha256 of the graph's structure and shapes")
    ops: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    flops: tuple[float, ...] = Field((), description="per op, counted from shapes")
    bytes: tuple[float, ...] = Field((), description="per op, read and written")
    classes: tuple[str, ...] = Field((), description="class of op, as in the efficiency of devices")
    dtypes: tuple[str, ...] = Field((), description="element type of the arithmetic")
    cluster: ClusterRecord | None = Field(None, description="the devices, with assumed figures")
    devices: tuple[DeviceProfile, ...] = Field(min_length=1)
    borders: tuple[BorderFigures, ...] = Field((), description="between stages; runtimes of stages only")
    runs: RunsRecord | None = Field(None, description="runs of whole placements; null: none were made")
    notes: tuple[str, ...] = ()
    tool: ToolRecord | None = None

    def device(self, name: str) -> DeviceProfile:
        """The profile of the device `name`. Raises CostError."""
        for device in self.devices:
            if device.name == name:
                return device
        raise CostError(f"has no times of {name!r}", remedy=f"it has {', '.join(d.name for d in self.devices)}")


def save_profile(profile: ProfileFile, path: str | os.PathLike[str]) -> None:
    """Write a profile, atomically. Raises OutputError."""
    write_record(profile, path)


def load_profile(path: str | os.PathLike[str]) -> ProfileFile:
    """The profile in a file. Raises CostError, naming the file and the field."""
    profile = read_record(path, ProfileFile, CostError)
    with locate_errors(path):
        _check_profile(profile)
    return profile


def is_profile(path: str | os.PathLike[str]) -> bool:
    """Whether the start of a file marks it as a Placewise profile."""
    try:
        with open_regular(path) as file:
            start = file.read(_START)
    except OSError:
        return False
    return start.lstrip()[:1] == b"{" and f'"{FORMAT}"'.encode() in start


def _check_profile(profile: ProfileFile) -> None:
    count = len(profile.ops)
    columns = {name: getattr(profile, name) for name in ("kinds", "flops", "bytes", "classes", "dtypes")}
    for name, column in columns.items():
        if column and len(column) != count:
            raise CostError(f"{name!r} has {len(column)} entries for {count} ops", remedy="profile the model again")
    if len({device.name for device in profile.devices}) < len(profile.devices):
        raise CostError("a device occurs twice", remedy="profile the model again")
    for device in profile.devices:
        for figures in filter(None, (device.idle, device.loaded)):
            if len(figures.ops) != count:
                problem = f"has {len(figures.ops)} times for {count} ops"
                raise CostError(problem, where=device.name, remedy="profile the model again")
            bad = next((t for t in figures.ops if t is not None and not 0 <= t < float("inf")), None)
            if bad is not None:
                raise CostError(f"{bad} is not a time", where=device.name, remedy="profile the model again")
        if any(not 0 <= op < count for fused in device.fused for op in fused):
            raise CostError("'fused' names an op that does not exist", where=device.name, remedy="profile it again")
