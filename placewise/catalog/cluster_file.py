"""Cluster files (TOML): devices from the catalogue or with figures of their own, and the links between them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from placewise.catalog.entries import catalog
from placewise.catalog.fields import Bytes, BytesPerSecond, FlopsPerSecond, Seconds, Share, Table, validated
from placewise.catalog.parts import MAX_DEVICES, Part, noted, numbered, part_of, renamed, with_memory
from placewise.catalog.wiring import Pair, Speed, wired
from placewise.errors import ClusterError
from placewise.model.cluster import HOST, Cluster, Device, Transfers
from placewise.model.dtypes import DTYPES

MAX_FILE = 1 << 20
"""Bytes; a cluster file is a page of text."""


class DeviceTable(Table):
    """``[[devices]]``: a `model` of the catalogue, figures of its own, or a model with some figures changed."""

    model: str = ""
    name: str = ""
    count: Annotated[int, Field(strict=True, ge=1, le=MAX_DEVICES)] = 1
    kind: str | None = None
    memory: Bytes | None = None
    reserved: Bytes | None = None
    peak_flops: Mapping[str, FlopsPerSecond] | None = None
    memory_bandwidth: BytesPerSecond | None = None
    efficiency: Mapping[str, Share] | None = None
    op_overhead: Seconds | None = None
    call_overhead: Seconds | None = None
    streams: Annotated[int, Field(strict=True, ge=1)] | None = None
    unsupported: frozenset[str] | None = None
    available: Annotated[bool, Field(strict=True)] | None = None


class SpeedTable(Table):
    """``[default_link]``: every pair that nothing else names."""

    bandwidth: BytesPerSecond
    latency: Seconds = 0.0
    shared: str = ""

    @property
    def speed(self) -> Speed:
        return Speed(self.bandwidth, self.latency, self.shared)


class LinkTable(SpeedTable):
    """``[[links]]``: from `source` to `target`, and back unless the way back has a table of its own."""

    source: str
    target: str


class GroupTable(SpeedTable):
    """``[[groups]]``: every pair of `devices`, both ways."""

    devices: Annotated[tuple[str, ...], Field(min_length=2)]


class ClusterTable(Table):
    """A cluster file."""

    devices: Annotated[tuple[DeviceTable, ...], Field(min_length=1, max_length=MAX_DEVICES)]
    links: tuple[LinkTable, ...] = ()
    groups: tuple[GroupTable, ...] = ()
    default_link: SpeedTable | None = None
    transfers: Transfers | None = None


def read_file(path: Path) -> Cluster:
    """The cluster that a TOML file describes; raises ClusterError with the file and the key in front."""
    where = str(path)
    try:
        size = path.stat().st_size
        if size > MAX_FILE:
            raise ClusterError(f"{size} bytes are too many for a cluster file", where=where)
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ClusterError(f"cannot be read ({error.strerror})", where=where) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ClusterError(f"this is not TOML ({error})", where=where) from None
    table = validated(ClusterTable, values, where)
    try:
        return _cluster(table)
    except ClusterError as error:
        raise error.at(where) from None


def _cluster(table: ClusterTable) -> Cluster:
    parts: list[Part] = []
    for row, device in enumerate(table.devices):
        try:
            parts += _parts(device)
        except ClusterError as error:
            raise error.at(f"devices[{row}]") from None
    named = numbered(parts)
    default = table.default_link.speed if table.default_link else None
    return wired(named, given=_given(table, named), default=default, transfers=table.transfers)


def _parts(table: DeviceTable) -> list[Part]:
    part = part_of(table.model) if table.model else _unknown(table)
    changes: dict[str, Any] = {
        name: value
        for name in DeviceTable.model_fields
        if name not in ("model", "name", "count", "memory") and (value := getattr(table, name)) is not None
    }
    known = {"peak_flops": DTYPES, "efficiency": tuple(catalog().behaviour["cpu"].efficiency)}
    for key in changes.keys() & known.keys():
        unknown = changes[key].keys() - set(known[key])
        if unknown:
            raise ClusterError(f"{key} has no {min(unknown)!r}", remedy=f"it knows {', '.join(known[key])}")
        changes[key] = {**getattr(part.device, key), **changes[key]}
    part = with_memory(replace(part, device=replace(part.device, **changes)), table.memory)
    if table.name and table.count == 1:
        part = renamed(part, table.name)
    elif table.name:
        part = replace(part, prefix=f"{table.name}:")
    return [part] * table.count


def _unknown(table: DeviceTable) -> Part:
    """A device without a model: what the file leaves out is unlimited, and the notes say so."""
    is_cpu = table.kind == "cpu"
    if not table.name and not is_cpu:
        raise ClusterError("the device has neither a model nor a name", remedy="give it one of the two")
    absent = {
        "memory": "memory is not given: unlimited",
        "memory_bandwidth": "memory bandwidth is not given: unlimited",
        "peak_flops": "peak speed is not given: costs must be given too",
        "efficiency": "efficiency is not given: the whole peak is reached",
    }
    notes = tuple(note for key, note in absent.items() if getattr(table, key) is None)
    return Part(noted(Device(table.name or "cpu"), *notes), prefix="cpu" if is_cpu else "")


def _given(table: ClusterTable, parts: tuple[Part, ...]) -> dict[Pair, Speed]:
    known = {*(part.device.name for part in parts), HOST}
    speeds: dict[Pair, Speed] = {}
    for row, group in enumerate(table.groups):
        _check(known, group.devices, f"groups[{row}]")
        speeds |= {(a, b): group.speed for a in group.devices for b in group.devices if a != b}
    seen: set[Pair] = set()
    for row, link in enumerate(table.links):
        _check(known, (link.source, link.target), f"links[{row}]")
        pair = (link.source, link.target)
        if pair in seen or link.source == link.target:
            problem = "ends where it begins" if link.source == link.target else "is given twice"
            raise ClusterError(f"the link {link.source} → {link.target} {problem}", where=f"links[{row}]")
        seen.add(pair)
        speeds[pair] = link.speed
        if (pair[1], pair[0]) not in seen:
            speeds[pair[1], pair[0]] = link.speed
    return speeds


def _check(known: set[str], names: tuple[str, ...], where: str) -> None:
    for name in names:
        if name not in known:
            raise ClusterError(f"there is no device {name!r}", where=where, remedy=f"known: {', '.join(sorted(known))}")
