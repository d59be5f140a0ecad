"""Cluster: devices, the links between their memories, and how tensors travel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Literal

import numpy as np

from placewise.errors import ClusterError
from placewise.model.columns import Bools, Floats, Ints, frozen

HOST = "host"
"""The name of host memory as an end of a link; the model's inputs and outputs live there."""
MAX_STREAMS = 1024
"""Ops that a device runs at once, at most: schedules keep the time of each stream."""

ASSUMED, MEANT = "assumed: ", "meant: "
"""How notes about a device begin that say which model was taken: where none was given, and for a short name."""

RPC = "rpc:"
"""How names of devices begin that are RPC servers of llama.cpp: rpc:HOST:PORT."""

Transfers = Literal["direct", "staged"]

_VIEWS, _FRAMES = "placewise.reporting.model_views", "placewise.reporting.frames"
"""Where notebooks' views and tables live: imported when they are asked for, since data knows no views."""


def is_rpc(name: str) -> bool:
    """Whether a device of this name is an RPC server of llama.cpp: ``rpc:192.168.1.5:50052``."""
    host, colon, port = name.removeprefix(RPC).rpartition(":")
    return name.startswith(RPC) and bool(host and colon) and port.isdecimal()


@dataclass(frozen=True, slots=True)
class Device:
    """One place where ops can run.

    `kind` "cpu" means that the device works in host memory, "disk" that it does too, and that the weights of its ops
    lie on a disk. Speeds are FLOP/s per element type and bytes/s; `op_overhead` is seconds per op, `call_overhead`
    seconds per piece that is handed over as one call; `efficiency` the reached share of the peak by class of op;
    `streams` how many ops it runs at once; `supported` the only op kinds that it runs (None: all) and `unsupported`
    those that it does not; `weight_bandwidth`, where it is finite, the bytes/s at which weights are read anew at every
    run; `error` the relative error of the times that these figures give, where it was measured (else 0). `notes` says
    which defaults were taken. `node` is the machine that holds the device, where the cluster names any.
    """

    name: str
    kind: str = "accelerator"
    memory: float = math.inf
    reserved: float = 0.0
    peak_flops: Mapping[str, float] = field(default_factory=dict)
    memory_bandwidth: float = math.inf
    op_overhead: float = 0.0
    call_overhead: float = 0.0
    efficiency: Mapping[str, float] = field(default_factory=dict)
    streams: int = 1
    weight_bandwidth: float = math.inf
    unsupported: frozenset[str] = frozenset()
    supported: frozenset[str] | None = None
    available: bool = True
    error: float = 0.0
    notes: tuple[str, ...] = ()
    node: str = ""

    def __post_init__(self) -> None:
        where = f"device {self.name!r}"
        if not self.name or self.name == HOST:
            raise ClusterError(f"a device cannot be called {self.name!r}", remedy="choose another name")
        positive = {"memory_bandwidth": self.memory_bandwidth, "weight_bandwidth": self.weight_bandwidth}
        positive |= {"streams": self.streams}
        positive |= {f"peak_flops[{dtype}]": speed for dtype, speed in self.peak_flops.items()}
        positive |= {f"efficiency[{kind}]": share for kind, share in self.efficiency.items()}
        for name, value in positive.items():
            if not value > 0:
                raise ClusterError(f"{name} is {value}", where=where, remedy="give a number above zero")
        if self.streams > MAX_STREAMS:
            raise ClusterError(f"streams is {self.streams}", where=where, remedy=f"give at most {MAX_STREAMS}")
        amounts = {"memory": self.memory, "reserved": self.reserved}
        amounts |= {"op_overhead": self.op_overhead, "call_overhead": self.call_overhead, "error": self.error}
        for name, value in amounts.items():
            if not value >= 0:
                raise ClusterError(f"{name} is {value}", where=where, remedy="give zero or more")

    @property
    def is_host(self) -> bool:
        return self.kind in ("cpu", "disk")

    def without_names(self) -> Device:
        """What the device is, whatever it is called and wherever it stands: equal for equal devices."""
        return replace(self, name="device", notes=(), node="")

    def can_run(self, kind: str) -> bool:
        """Whether the device takes ops of this kind."""
        return kind not in self.unsupported and (self.supported is None or kind in self.supported)


@dataclass(frozen=True, slots=True)
class Link:
    """A directed way from one memory to another: bytes/s, seconds of latency, and the wire it shares.

    Links with the same non-empty `shared` name use one wire: in throughput its load is the sum of their
    traffic, in latency they queue behind each other.
    """

    source: str
    target: str
    bandwidth: float
    latency: float = 0.0
    shared: str = ""

    def __post_init__(self) -> None:
        where = f"link {self.source} → {self.target}"
        if not self.bandwidth > 0:
            raise ClusterError(f"bandwidth is {self.bandwidth}", where=where, remedy="give bytes per second above zero")
        if not 0 <= self.latency < math.inf:
            raise ClusterError(f"latency is {self.latency}", where=where, remedy="give seconds, zero or more")


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """Devices and links. `direct`: devices send to each other; `staged`: everything goes through host memory.

    Every device has a *location*: itself, or, for devices that work in host memory, the host
    (index ``n_devices``). Derived tables over locations [n_devices + 1, n_devices + 1]: `link_class` (0 is
    free, c > 0 indexes `class_bandwidth` and `class_latency`), `queue` (links that share a wire share a
    queue; −1 on the diagonal) and `wire` (index into `wires`, −1 for a private link).

    A pair without a link of its own goes through host memory, store and forward, and loads the wire that the
    halves of this way share. Raises ClusterError for unknown or repeated names, for a device that nothing can
    reach, and where those halves share different wires.
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    transfers: Transfers = "staged"
    location: Ints = field(init=False)
    is_host: Bools = field(init=False)
    link_class: Ints = field(init=False)
    class_bandwidth: Floats = field(init=False)
    class_latency: Floats = field(init=False)
    queue: Ints = field(init=False)
    wire: Ints = field(init=False)
    wires: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.devices)
        if not count:
            raise ClusterError("a cluster needs at least one device")
        names = [device.name for device in self.devices]
        if len(set(names)) < count:
            repeated = next(name for name in names if names.count(name) > 1)
            raise ClusterError(f"two devices are both called {repeated!r}", remedy="give each its own name")
        if self.transfers not in ("direct", "staged"):
            raise ClusterError(f"transfers are {self.transfers!r}", remedy="say 'direct' or 'staged'")
        is_host = np.array([device.is_host for device in self.devices])
        location = np.where(is_host, count, np.arange(count))
        tables = _link_tables(self, dict(zip(names, location.tolist(), strict=True)))
        tables |= {"location": frozen(location, np.int32), "is_host": frozen(is_host, np.bool_)}
        for name, value in tables.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.devices)

    def __iter__(self) -> Iterator[Device]:
        return iter(self.devices)

    def __repr__(self) -> str:
        return f"Cluster({', '.join(device.name for device in self.devices)}; {self.transfers})"

    def _repr_html_(self) -> str:
        html: str = import_module(_VIEWS).cluster_html(self)
        return html

    def to_frame(self) -> Any:
        """A row per device: bytes, bytes/s, seconds, and FLOP/s by element type.

        A pandas.DataFrame. Raises MissingExtraError without the extra `pandas`.
        """
        return import_module(_FRAMES).cluster_frame(self)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.devices)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The node of every device [n_devices], "" for one in none."""
        return tuple(device.node for device in self.devices)

    def index(self, name: str) -> int:
        """The position of the device called `name`; raises ClusterError with the names that exist."""
        for position, device in enumerate(self.devices):
            if device.name == name:
                return position
        raise ClusterError(f"there is no device {name!r}", remedy=f"the cluster has {', '.join(self.names)}")


def _link_tables(cluster: Cluster, location: dict[str, int]) -> dict[str, object]:
    count = len(cluster.devices)
    place = {**location, HOST: count}
    direct: dict[tuple[int, int], Link] = {}
    for link in cluster.links:
        for end in (link.source, link.target):
            if end not in place:
                raise ClusterError(
                    f"the link {link.source} → {link.target} ends at {end!r}, which does not exist",
                    remedy=f"the cluster has {', '.join(cluster.names)} and {HOST}",
                )
        pair = place[link.source], place[link.target]
        if pair[0] != pair[1]:
            direct[pair] = link
    wires = tuple(sorted({link.shared for link in cluster.links if link.shared}))
    shape = (count + 1, count + 1)
    link_class, queue = np.zeros(shape, np.int32), np.full(shape, -1, np.int32)
    wire = np.full(shape, -1, np.int32)
    classes: dict[tuple[float, float], int] = {}
    active = sorted(set(place.values()) | {count})
    queues = len(wires)
    staged = cluster.transfers == "staged"
    for source in active:
        for target in [count] if staged and source != count else active:
            if source == target:
                continue
            found = direct.get((source, target)) or _via_host(direct, source, target, count)
            if found is None:
                names = (*cluster.names, HOST)
                raise ClusterError(
                    f"nothing links {names[source]} to {names[target]}", remedy="add a link or a default link"
                )
            key = (found.bandwidth, found.latency)
            link_class[source, target] = classes.setdefault(key, len(classes) + 1)
            if found.shared:
                wire[source, target] = queue[source, target] = wires.index(found.shared)
            else:
                queue[source, target] = queues
                queues += 1
    speeds = np.array([(math.inf, 0.0), *classes], np.float64).reshape(-1, 2)
    return {
        "link_class": frozen(link_class, np.int32),
        "class_bandwidth": frozen(speeds[:, 0], np.float64),
        "class_latency": frozen(speeds[:, 1], np.float64),
        "queue": frozen(queue, np.int32),
        "wire": frozen(wire, np.int32),
        "wires": wires,
    }


def _via_host(direct: dict[tuple[int, int], Link], source: int, target: int, host: int) -> Link | None:
    up, down = direct.get((source, host)), direct.get((host, target))
    if up is None or down is None:
        return None
    if up.shared and down.shared and up.shared != down.shared:
        raise ClusterError(
            f"no link of their own joins {up.source} to {down.target}, and the two halves of the way through host "
            f"memory share different wires, {up.shared!r} and {down.shared!r}: one transfer can load only one",
            remedy=f"add a link from {up.source} to {down.target} with its speed and the wire that it loads",
        )
    pace = 1 / up.bandwidth + 1 / down.bandwidth
    bandwidth = 1 / pace if pace else math.inf
    return Link(up.source, down.target, bandwidth, up.latency + down.latency, up.shared or down.shared)
