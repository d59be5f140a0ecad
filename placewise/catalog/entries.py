"""The catalogue: devices and links from the files in `data/`, looked up by common names."""

from __future__ import annotations

import difflib
import functools
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from placewise.catalog.fields import Bytes, BytesPerSecond, FlopsPerSecond, Seconds, Share, Table, validate_table
from placewise.errors import ClusterError

FILES = (
    "behaviour", "links", "nvidia", "nvidia_pro", "nvidia_older", "geforce", "geforce_laptop", "amd", "intel_gpus",
    "others", "apple", "npus", "cpus", "server_cpus", "desktop_cpus",
)  # fmt: skip
"""The files of the catalogue, in listing order."""

OWN_LINKS = ("in-place", "core-to-core")
"""Links between cores of the local machine; users cannot name them."""

MAX_LISTED = 6

FITTED_CORES = 16
"""Cores of a CPU beyond which no further loss is assumed: the measurements that were fitted end there."""

UNIFIED = "unified"
"""The link of a device that shares host memory."""
APPLE = "apple_gpu"
"""How GPUs behave that have a part of the memory of their machine."""

_LISTED = "`placewise devices` lists all known names"
_MAKERS = ("nvidia", "tesla", "geforce", "amd", "instinct", "intel", "xeon", "core", "apple")


class Behaviour(Table):
    """Achieved performance on a kind of device: fractions of peak and bandwidth, seconds per op.

    With more than one core, an op also waits `core_overhead` for each of them, and every doubling of the cores keeps
    the fraction `scaling` of the peak's efficiency, up to `FITTED_CORES`. Memory bandwidth is shared and keeps its own.
    `error` is the relative error of whole models beside published measurements (None: not known).
    """

    source: str
    op_overhead: Seconds
    efficiency: Mapping[str, Share]
    core_overhead: Seconds = 0.0
    scaling: Share = 1.0
    error: Share | None = None

    def overhead_on(self, cores: float) -> float:
        """Seconds per op on a device with this many cores (0: none that are counted)."""
        return self.op_overhead + (self.core_overhead * min(cores, FITTED_CORES) if cores > 1 else 0.0)

    def efficiency_on(self, cores: float) -> dict[str, float]:
        """Fractions by class of op on a device with this many cores."""
        kept = self.scaling ** math.log2(min(max(cores, 1), FITTED_CORES))
        return {name: share if name == "memory" else share * kept for name, share in self.efficiency.items()}


class LinkEntry(Table):
    """A transfer route: published bytes/s in one direction, the achieved fraction, and seconds per copy.

    `brick` is the bytes/s of one NVLink brick, as counted by ``nvidia-smi topo -m`` (0: none).
    """

    title: str
    aliases: tuple[str, ...] = ()
    bandwidth: BytesPerSecond
    brick: BytesPerSecond = 0.0
    efficiency: Share
    latency: Seconds
    source: str


class DiskEntry(Table):
    """A disk: published bytes/s of large reads, and the achieved fraction."""

    title: str
    bandwidth: BytesPerSecond
    efficiency: Share
    source: str


class DeviceEntry(Table):
    """A device as published. `prefix` starts generated names; `behaviour` and the links refer to other tables.

    `tier` says in which machines it is found, `cores` how many a CPU has. `peer_link` connects equal devices by
    default; `nvlink` is the NVLink that an optional bridge provides. `chip_cpu` is the CPU on the same chip. `url` is
    where its maker publishes the figures.
    """

    title: str
    aliases: tuple[str, ...] = ()
    kind: Literal["gpu", "npu", "cpu"]
    prefix: str
    behaviour: str
    memory: Bytes
    memory_bandwidth: BytesPerSecond
    cores: int = 0
    tier: Literal["consumer", "workstation", "datacenter"]
    peak_flops: Mapping[str, FlopsPerSecond]
    host_link: str = ""
    peer_link: str = ""
    nvlink: str = ""
    chip_cpu: str = ""
    source: str
    url: str


class Defaults(Table):
    """The entries used when the user names no model; `cuda` by rising memory."""

    cuda: tuple[str, ...]
    intel_gpu: str
    apple_gpu: str
    phone_npu: str
    cpu: str
    desktop_cpu: str
    apple_cpu: str
    link: str
    rpc_link: str
    disk: str


class Catalog(Table):
    """The contents of all catalogue files."""

    defaults: Defaults
    behaviour: Mapping[str, Behaviour]
    links: Mapping[str, LinkEntry]
    disks: Mapping[str, DiskEntry]
    devices: Mapping[str, DeviceEntry]


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A known device: memory in bytes, peak FLOP/s per element type, bytes/s, and the source of these figures."""

    name: str
    title: str
    aliases: tuple[str, ...]
    kind: str
    memory: float
    peak_flops: Mapping[str, float]
    memory_bandwidth: float
    source: str
    url: str


@dataclass(frozen=True, slots=True)
class KnownLink:
    """A known link: published bytes/s each way, achieved fraction, seconds per copy, and the source."""

    name: str
    title: str
    aliases: tuple[str, ...]
    bandwidth: float
    efficiency: float
    latency: float
    source: str


@functools.cache
def catalog() -> Catalog:
    """The catalogue shipped with Placewise; read once."""
    tables: dict[str, dict[str, object]] = {}
    for name in FILES:
        text = resources.files("placewise.catalog").joinpath("data", f"{name}.toml").read_text("utf-8")
        for key, rows in tomllib.loads(text).items():
            tables.setdefault(key, {}).update(rows)
    return validate_table(Catalog, tables, "the catalogue")


def known_devices() -> tuple[KnownDevice, ...]:
    """All devices of the catalogue, in order."""
    return tuple(
        KnownDevice(
            name, e.title, e.aliases, e.kind, e.memory, dict(e.peak_flops), e.memory_bandwidth, e.source, e.url
        )
        for name, e in catalog().devices.items()
    )  # fmt: skip


def known_links() -> tuple[KnownLink, ...]:
    """All links of the catalogue that users can name, in order."""
    return tuple(
        KnownLink(name, e.title, e.aliases, e.bandwidth, e.efficiency, e.latency, e.source)
        for name, e in catalog().links.items()
        if name not in OWN_LINKS
    )


def find_device(name: str) -> str:
    """The canonical name of a device. Case, punctuation and the vendor's name do not matter.

    Words may be left out where one device alone has all the others, a number among them. Raises ClusterError,
    suggesting similar names.
    """
    names = _device_names()
    if canonical := names.get(_normalize_name(name)) or _find_by_words(name):
        return canonical
    raise ClusterError(f"there is no device called {name[:60]!r}", remedy=f"{_suggest_names(name, names)}{_LISTED}")


def describe_family(name: str) -> str:
    """What a name stands for if other devices carry it with something after it, and which these are; else ""."""
    found, short = find_device(name), re.sub(r"[\s_-]+", "-", name.strip()).lower()
    others = [other for other in catalog().devices if other.lower().startswith(f"{short}-") and other != found]
    entry = catalog().devices[found]
    if not others or (found.lower() == short and (entry.tier == "consumer" or "-" in found)):
        return ""
    listed = ", ".join(others[:MAX_LISTED]) + (", …" if len(others) > MAX_LISTED else "")
    size = "" if entry.kind == "cpu" else f" ({entry.memory / 1e9:.0f} GB)"
    return f"{name.strip()}{size} is {entry.title}; also on offer: {listed}"


def card_like(memory: float) -> str:
    """The NVIDIA card that is assumed for this memory in bytes: the smallest with as much, or the largest."""
    cards = catalog().defaults.cuda
    return next((card for card in cards if catalog().devices[card].memory / 1e9 * 2**30 >= memory), cards[-1])


def default_cpu(names: Iterable[str], others: Iterable[str] = ()) -> str:
    """The CPU of a machine with devices of these names: Apple's beside its GPUs, and that of the chip of which another
    GPU or NPU is a part; else a server's, but a desktop's where these and those of `others`, machines of the same
    cluster, are consumers' cards.
    """
    own, defaults = _list_entries(names), catalog().defaults
    chips = [entry.chip_cpu for entry in own if entry.chip_cpu]
    if any(entry.behaviour == APPLE for entry in own):
        return defaults.apple_cpu
    if chips:
        return chips[0]
    tiers = {entry.tier for entry in (*own, *_list_entries(others))}
    return defaults.desktop_cpu if tiers and "datacenter" not in tiers else defaults.cpu


def is_part_of_chip(cpu: str) -> bool:
    """Whether a CPU is on one chip with a GPU or an NPU."""
    chips = {entry.chip_cpu for entry in catalog().devices.values()}
    return bool(cpu) and cpu in (catalog().defaults.apple_cpu, *chips)


def _list_entries(names: Iterable[str]) -> list[DeviceEntry]:
    """The entries of those names that are models."""
    models = (_device_names().get(_normalize_name(name)) for name in names)
    return [catalog().devices[model] for model in models if model]


def find_link(name: str) -> LinkEntry:
    """The catalogue entry of a link. Raises ClusterError, suggesting similar names."""
    names = _link_names()
    if canonical := names.get(_normalize_name(name)):
        return catalog().links[canonical]
    raise ClusterError(f"there is no link called {name[:60]!r}", remedy=f"{_suggest_names(name, names)}{_LISTED}")


def _suggest_names(name: str, names: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(_normalize_name(name), names, n=3, cutoff=0.5)
    suggestions = dict.fromkeys(names[match] for match in close)
    return f"did you mean {' or '.join(suggestions)}? " if suggestions else ""


def _find_by_words(name: str) -> str:
    """The only device one of whose names has all these words, at least one with a digit; "" if there are others."""
    words = set(_split_words(name))
    if not any(re.search(r"\d", word) for word in words):
        return ""
    named = {d for d, entry in catalog().devices.items() for n in (d, *entry.aliases) if words <= set(_split_words(n))}
    return named.pop() if len(named) == 1 else ""


@functools.cache
def _device_names() -> dict[str, str]:
    return _index_names({name: entry.aliases for name, entry in catalog().devices.items()})


@functools.cache
def _link_names() -> dict[str, str]:
    return _index_names({name: entry.aliases for name, entry in catalog().links.items() if name not in OWN_LINKS})


def _index_names(aliases: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    names: dict[str, str] = {}
    for name, others in aliases.items():
        for text in (name, *others):
            names.setdefault(_normalize_name(text), name)
    return names


def _normalize_name(name: str) -> str:
    return "".join(_split_words(name))


def _split_words(name: str) -> list[str]:
    """The words and numbers of a name in lower case, without its maker and the unit of its memory."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(\d)gb\b", r"\1", name.lower()))
    return [word for word in words if word not in _MAKERS] or words
