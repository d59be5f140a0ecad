"""The links of a cluster: those that the user gives, and defaults for the rest, reported in the devices' notes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from placewise._util.units import format_seconds
from placewise.catalog.device_specs import DeviceSpec, add_notes
from placewise.catalog.entries import UNIFIED, LinkEntry, catalog
from placewise.errors import ClusterError
from placewise.model.cluster import HOST, MEANT, Cluster, Link, Transfers

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """The speed of a link: bytes/s, seconds per copy, and the name of the shared link ("" if it is not shared)."""

    bandwidth: float
    latency: float = 0.0
    shared: str = ""


def catalog_speed(entry: LinkEntry) -> LinkSpeed:
    """The achieved speed of a link of the catalogue."""
    return LinkSpeed(entry.bandwidth * entry.efficiency, entry.latency)


@dataclass(slots=True)
class _LinkBuilder:
    """The links chosen so far, and the notes for each device."""

    speeds: dict[Pair, LinkSpeed]
    default: LinkSpeed | None
    notes: dict[str, list[str]] = field(default_factory=dict)

    def add(self, pair: Pair, link: str, to: str) -> None:
        """Link a pair that has no link yet, by the default or else by a link of the catalogue."""
        if pair not in self.speeds:
            self.speeds[pair] = self.default or self._catalogued(link, to, pair[0] if pair[1] == HOST else pair[-1])

    def _catalogued(self, link: str, to: str, name: str) -> LinkSpeed:
        entry = catalog().links[link]
        self.notes.setdefault(name, []).append(f"link to {to}: {entry.title}, {_describe_link(entry)}")
        return catalog_speed(entry)


def build_cluster(
    specs: Sequence[DeviceSpec],
    *,
    explicit: Mapping[Pair, LinkSpeed] | None = None,
    default: LinkSpeed | None = None,
    transfers: Transfers | None = None,
) -> Cluster:
    """The cluster of named devices. Links come from `explicit`, then `default`, then the catalogue.

    Without `transfers`, devices send to each other directly if a link between two of them is given or two of the same
    model have NVLink; otherwise transfers are staged through host memory. Raises ClusterError.
    """
    accelerators = [spec for spec in specs if not spec.device.is_host]
    peers = [(a, b) for a in accelerators for b in accelerators if a is not b]
    builder = _LinkBuilder(_redirect_hosts(specs, explicit or {}), default)
    mode = transfers or _default_transfers(peers, builder)
    _check_unified_memory(peers, builder)
    for spec in accelerators:
        name, link = spec.device.name, spec.host_link or catalog().defaults.link
        builder.add((name, HOST), link, "host memory")
        builder.add((HOST, name), link, "host memory")
        if transfers is None:
            builder.notes.setdefault(name, []).append(_TRANSFER_NOTES[mode])
        if _may_fill_host(spec, _list_hosts(spec, specs)):
            builder.notes.setdefault(name, []).append(f"{SHARES}: limit them, as {spec.model}@16GiB,cpu@8GiB")
    for a, b in peers if mode == "direct" else ():
        if default or _have_nvlink(a, b):
            builder.add((a.device.name, b.device.name), a.peer_link, f"other {a.model}")
    devices = (add_notes(spec.device, *dict.fromkeys(builder.notes.get(spec.device.name, ()))) for spec in specs)
    links = (Link(*pair, s.bandwidth, s.latency, s.shared) for pair, s in builder.speeds.items())
    return Cluster(tuple(devices), tuple(links), mode)


SHARES = f"{MEANT}its memory is the host's too, and both may use all of it"


def _list_hosts(spec: DeviceSpec, specs: Sequence[DeviceSpec]) -> list[float]:
    """The memory [bytes] of the processors of a device's node."""
    beside = [other.device for other in specs if other.device.node == spec.device.node]
    return [device.memory for device in beside if device.kind == "cpu"]


def _may_fill_host(spec: DeviceSpec, hosts: Sequence[float]) -> bool:
    """Whether a GPU shares the memory of its hosts [bytes], and neither is limited to a part of it."""
    entry = catalog().devices.get(spec.model)
    if entry is None or not hosts or spec.host_link != UNIFIED or spec.device.kind != "gpu":
        return False
    return sum(hosts) > spec.rest if spec.rest else spec.device.memory >= entry.memory


_TRANSFER_NOTES: Mapping[Transfers, str] = {
    "direct": "transfers are not given: direct between devices",
    "staged": "transfers are not given: staged through host memory",
}


def _describe_link(entry: LinkEntry) -> str:
    """The achieved speed of a link as text."""
    if math.isinf(entry.bandwidth):
        return (
            f"nothing is copied; {format_seconds(entry.latency)} per hand-over, assumed" if entry.latency else "no time"
        )
    return (
        f"{entry.bandwidth * entry.efficiency / 1e9:.3g} GB/s each way ({entry.efficiency:.0%} "
        f"of {entry.bandwidth / 1e9:.4g} GB/s) and {format_seconds(entry.latency)} per copy, assumed"
    )


def _default_transfers(peers: Sequence[tuple[DeviceSpec, DeviceSpec]], builder: _LinkBuilder) -> Transfers:
    has_link = any((a.device.name, b.device.name) in builder.speeds for a, b in peers)
    has_nvlink = builder.default is None and any(_have_nvlink(a, b) for a, b in peers)
    return "direct" if has_link or has_nvlink else "staged"


def _check_unified_memory(peers: Sequence[tuple[DeviceSpec, DeviceSpec]], builder: _LinkBuilder) -> None:
    """Refuse two equal devices with unified memory without a given link: they must be two separate machines.

    NPUs of unknown model are taken to be on one host.
    """
    for a, b in peers:
        pair = a.device.name, b.device.name
        alike = a.host_link == b.host_link == UNIFIED and (a.model, a.device.kind) == (b.model, b.device.kind)
        if alike and (a.model or a.device.kind != "npu") and builder.default is None and pair not in builder.speeds:
            raise ClusterError(
                f"{pair[0]} and {pair[1]} each share memory with their own host, and no link between these is given",
                remedy="add their link, such as link=ethernet-10 in one line or [[links]] in a cluster file",
            )


def _have_nvlink(a: DeviceSpec, b: DeviceSpec) -> bool:
    return bool(a.peer_link) and a.model == b.model


def _redirect_hosts(specs: Sequence[DeviceSpec], explicit: Mapping[Pair, LinkSpeed]) -> dict[Pair, LinkSpeed]:
    """The given pairs, with CPUs replaced by host memory."""
    hosts = {spec.device.name for spec in specs if spec.device.is_host}
    return {(HOST if a in hosts else a, HOST if b in hosts else b): speed for (a, b), speed in explicit.items()}
