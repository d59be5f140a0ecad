"""The catalogue: what `catalog.toml` says of devices and links, found by the names that people use."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from placewise.catalog.fields import Bytes, BytesPerSecond, FlopsPerSecond, Seconds, Share, Table, validated
from placewise.errors import ClusterError

FILE = "catalog.toml"
_MAKERS = ("nvidia", "tesla", "intel", "xeon", "core")


class Behaviour(Table):
    """What programs reach on a kind of device: shares of the peak and of the bandwidth, seconds per op."""

    source: str
    op_overhead: Seconds
    efficiency: Mapping[str, Share]


class LinkEntry(Table):
    """A way between two memories: published bytes/s in one direction, the share reached, seconds per copy."""

    title: str
    bandwidth: BytesPerSecond
    efficiency: Share
    latency: Seconds
    source: str


class DeviceEntry(Table):
    """A device as published. `prefix` begins its names; `behaviour`, `host_link` and `peer_link` name tables."""

    title: str
    aliases: tuple[str, ...] = ()
    kind: Literal["gpu", "cpu"]
    prefix: str
    behaviour: str
    memory: Bytes
    memory_bandwidth: BytesPerSecond
    peak_flops: Mapping[str, FlopsPerSecond]
    host_link: str = ""
    peer_link: str = ""
    source: str


class Defaults(Table):
    """Which entries stand in when a user names no model."""

    cuda: str
    intel_gpu: str
    cpu: str
    link: str


class Catalog(Table):
    """The whole file."""

    defaults: Defaults
    behaviour: Mapping[str, Behaviour]
    links: Mapping[str, LinkEntry]
    devices: Mapping[str, DeviceEntry]


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """One line of the list of known devices: bytes, FLOP/s per element type, bytes/s, and who says so."""

    name: str
    title: str
    aliases: tuple[str, ...]
    kind: str
    memory: float
    peak_flops: Mapping[str, float]
    memory_bandwidth: float
    source: str


@functools.cache
def catalog() -> Catalog:
    """The catalogue that comes with Placewise, read once."""
    text = resources.files("placewise.catalog").joinpath(FILE).read_text("utf-8")
    return validated(Catalog, tomllib.loads(text), FILE)


def known_devices() -> tuple[KnownDevice, ...]:
    """Every device of the catalogue, in its order."""
    return tuple(
        KnownDevice(
            name, e.title, e.aliases, e.kind, e.memory, dict(e.peak_flops), e.memory_bandwidth, e.source
        )
        for name, e in catalog().devices.items()
    )  # fmt: skip


def find(name: str) -> str:
    """The catalogue's own name of a device, whatever case, dashes and maker's name the user writes.

    Raises ClusterError with the nearest names and the whole list.
    """
    plain = _plain(name)
    names = _names()
    if plain in names:
        return names[plain]
    close = difflib.get_close_matches(plain, names, n=3, cutoff=0.5)
    likely = dict.fromkeys(names[match] for match in close)
    guess = f"did you mean {' or '.join(likely)}? " if likely else ""
    raise ClusterError(
        f"there is no device called {name[:60]!r}",
        remedy=f"{guess}known: {', '.join(catalog().devices)}, cpu, this, core",
    )


@functools.cache
def _names() -> dict[str, str]:
    names: dict[str, str] = {}
    for name, entry in catalog().devices.items():
        for text in (name, *entry.aliases):
            names.setdefault(_plain(text), name)
    return names


def _plain(name: str) -> str:
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "".join(word for word in words if word not in _MAKERS)
