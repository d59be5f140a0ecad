"""Links: those that the user gives, and the defaults for the rest, each written into the devices' notes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from placewise._util.units import format_seconds
from placewise.catalog.entries import UNIFIED, LinkEntry, catalog
from placewise.catalog.parts import Part, noted
from placewise.errors import ClusterError
from placewise.model.cluster import HOST, Cluster, Link, Transfers

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Speed:
    """What a link does: bytes/s, seconds per copy, and the wire that it shares ("" for a private one)."""

    bandwidth: float
    latency: float = 0.0
    shared: str = ""


def speed_of(entry: LinkEntry) -> Speed:
    """What a link of the catalogue does, with the share of its bandwidth that is reached."""
    return Speed(entry.bandwidth * entry.efficiency, entry.latency)


@dataclass(slots=True)
class _Wiring:
    """Links while they are being chosen, and what to tell the user of each device."""

    speeds: dict[Pair, Speed]
    default: Speed | None
    notes: dict[str, list[str]] = field(default_factory=dict)

    def add(self, pair: Pair, link: str, to: str) -> None:
        """Link a pair, if nothing did, by the default or else by a link of the catalogue."""
        if pair not in self.speeds:
            self.speeds[pair] = self.default or self._catalogued(link, to, pair[0] if pair[1] == HOST else pair[-1])

    def _catalogued(self, link: str, to: str, name: str) -> Speed:
        entry = catalog().links[link]
        self.notes.setdefault(name, []).append(f"link to {to}: {entry.title}, {_said(entry)}")
        return speed_of(entry)


def wired(
    parts: Sequence[Part],
    *,
    given: Mapping[Pair, Speed] | None = None,
    default: Speed | None = None,
    transfers: Transfers | None = None,
) -> Cluster:
    """The cluster of named parts. `given` pairs come first, then `default`, then the catalogue.

    Without `transfers`, devices send to each other where a link between two of them is given or two of
    the same model have NVLink; otherwise everything is staged through host memory. Raises ClusterError.
    """
    accelerators = [part for part in parts if not part.device.is_host]
    peers = [(a, b) for a in accelerators for b in accelerators if a is not b]
    wiring = _Wiring(_on_host(parts, given or {}), default)
    way = transfers or _usual_way(peers, wiring)
    _refuse_one_memory_of_two(peers, wiring)
    for part in accelerators:
        name, link = part.device.name, part.host_link or catalog().defaults.link
        wiring.add((name, HOST), link, "host memory")
        wiring.add((HOST, name), link, "host memory")
        if transfers is None:
            wiring.notes.setdefault(name, []).append(_MEANING[way])
    for a, b in peers if way == "direct" else ():
        if default or _have_nvlink(a, b):
            wiring.add((a.device.name, b.device.name), a.peer_link, f"other {a.model}")
    devices = (noted(part.device, *dict.fromkeys(wiring.notes.get(part.device.name, ()))) for part in parts)
    links = (Link(*pair, s.bandwidth, s.latency, s.shared) for pair, s in wiring.speeds.items())
    return Cluster(tuple(devices), tuple(links), way)


_MEANING: Mapping[Transfers, str] = {
    "direct": "transfers are not given: direct between devices",
    "staged": "transfers are not given: staged through host memory",
}


def _said(entry: LinkEntry) -> str:
    """The speed of a link of the catalogue in words."""
    if math.isinf(entry.bandwidth):
        return (
            f"nothing is copied; {format_seconds(entry.latency)} per hand-over, assumed" if entry.latency else "no time"
        )
    return (
        f"{entry.bandwidth * entry.efficiency / 1e9:.3g} GB/s each way ({entry.efficiency:.0%} "
        f"of {entry.bandwidth / 1e9:.4g} GB/s) and {format_seconds(entry.latency)} per copy, assumed"
    )


def _usual_way(peers: Sequence[tuple[Part, Part]], wiring: _Wiring) -> Transfers:
    given = any((a.device.name, b.device.name) in wiring.speeds for a, b in peers)
    nvlink = wiring.default is None and any(_have_nvlink(a, b) for a, b in peers)
    return "direct" if given or nvlink else "staged"


def _refuse_one_memory_of_two(peers: Sequence[tuple[Part, Part]], wiring: _Wiring) -> None:
    """Two of a model that shares the host's memory are in two machines, and only the user knows what joins these."""
    for a, b in peers:
        pair = a.device.name, b.device.name
        if a.host_link == UNIFIED and a.model == b.model and wiring.default is None and pair not in wiring.speeds:
            raise ClusterError(
                f"{pair[0]} and {pair[1]} each share memory with a host, and nothing says how these are linked",
                remedy="add their link, such as link=ethernet-10 in one line or [[links]] in a cluster file",
            )


def _have_nvlink(a: Part, b: Part) -> bool:
    return bool(a.peer_link) and a.model == b.model


def _on_host(parts: Sequence[Part], given: Mapping[Pair, Speed]) -> dict[Pair, Speed]:
    """The given pairs, with host memory where they name a CPU."""
    hosts = {part.device.name for part in parts if part.device.is_host}
    return {(HOST if a in hosts else a, HOST if b in hosts else b): speed for (a, b), speed in given.items()}
