"""Binding the devices of a cluster to this machine: to cores of the processor, a GPU, or a device of OpenVINO."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from placewise._util.cores import pinnable_cores
from placewise._util.units import parse_bandwidth, parse_fraction
from placewise.errors import ClusterError, InputError
from placewise.model.cluster import Cluster, is_rpc

_CUDA = re.compile(r"(?:cuda|gpu)[:.]?(\d+)?", re.IGNORECASE)
_PROCESSOR = ("cpu", "core")
"""Kinds of devices that are bound to cores by default."""
LIMITS, LEAST_QUOTA, LEAST_BANDWIDTH, MOST_BANDWIDTH = ("quota", "bandwidth"), 0.01, 1e3, 1e12
"""What makes a device of cores slower, and the quotas and bytes per second that Linux can keep."""
_EXAMPLE = "cpu=cores:0-3, npu=openvino:NPU, fast=cuda:0, slow=cores:4;INFERENCE_PRECISION_HINT=f32"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the device `device` of a cluster is.

    `kind` is ``cores`` (of the processor), ``cuda``, ``openvino`` or ``rpc`` (llama.cpp's server on another machine);
    `name` is the number of the GPU, OpenVINO's name of the device, or the server's address. `cores` are the processors
    that its process may use, `quota` the share of their time that it gets, and `bandwidth` the bytes per second that
    may leave it. `options` are the runtime's own, by name.
    """

    device: str
    kind: str
    name: str = ""
    cores: tuple[int, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    quota: float = 1.0
    bandwidth: float = math.inf

    @property
    def limits(self) -> dict[str, str]:
        """The limits that make it slower than its cores, as text by name."""
        found = {} if self.quota == 1 else {"quota": f"{self.quota:.4g}"}
        return found if self.bandwidth == math.inf else {**found, "bandwidth": f"{self.bandwidth / 1e6:.4g}MB/s"}

    def __str__(self) -> str:
        if self.kind == "cores":
            limits = "".join(f"; {name}={value}" for name, value in self.limits.items())
            return f"{self.device} (cores {', '.join(map(str, self.cores))}{limits})"
        return f"{self.device} ({self.kind}:{self.name})"


def bind(cluster: Cluster, bindings: Mapping[str, str] | None = None) -> tuple[Place, ...]:
    """A place for every device of `cluster`, in its order.

    `bindings` maps names of devices to places, as ``cores:0-3``, ``cuda:1`` or ``openvino:GPU.0``, with options after
    semicolons; on cores, ``quota=0.4`` and ``bandwidth=25MB/s`` make slower devices of them. By default, devices of the
    kinds ``cpu`` and ``core`` share the unbound cores in equal parts and in order, with the threads of one core side by
    side, and ``cuda:1`` is the GPU with this number. Raises ClusterError for a device that is not on this machine and
    for a disk, InputError for a place that cannot be parsed.
    """
    bindings = dict(bindings or {})
    for name in bindings:
        if name not in cluster.names:
            remedy = f"the cluster has {', '.join(cluster.names)}"
            raise ClusterError(f"there is no device {name!r} to bind", remedy=remedy)
    disks = [device.name for device in cluster if device.kind == "disk"]
    if disks:
        raise ClusterError(
            f"no runtime reads weights from {disks[0]!r} at every run", remedy="name devices without a disk"
        )
    allowed = pinnable_cores()
    bound = {name: parse_place(name, text, allowed) for name, text in bindings.items()}
    taken = {core for place in bound.values() for core in place.cores}
    free = sorted((core for core in allowed if core not in taken), key=lambda core: (*physical_core(core), core))
    hosts = [device.name for device in cluster if device.kind in _PROCESSOR and device.name not in bound]
    shares = dict(zip(hosts, _divide_cores(hosts, free), strict=True))
    return tuple(bound.get(device.name) or _default_place(device.name, shares) for device in cluster)


def bind_remotely(cluster: Cluster) -> tuple[Place, ...]:
    """A place for every device on whatever machine it will be: a processor, or a GPU of its own.

    Raises ClusterError for devices that are neither.
    """
    places = []
    for device in cluster:
        if device.kind not in _PROCESSOR and not _CUDA.fullmatch(device.name):
            raise ClusterError(
                f"{device.name!r} is neither a processor nor a GPU of CUDA", remedy="name others with -d"
            )
        places.append(Place(device.name, "cores" if device.kind in _PROCESSOR else "cuda"))
    return tuple(places)


def parse_place(device: str, text: str, allowed: Sequence[int]) -> Place:
    """Parse ``cores:0-1,3;OPTION=value``. Raises InputError, and ClusterError for a core that is not here."""
    where, *options = (part.strip() for part in text.split(";"))
    split = [[word.strip() for word in option.split("=", 1)] for option in options]
    pairs = {word[0].lower() if word[0].lower() in LIMITS else word[0]: (word[1:] or [""])[0] for word in split}
    kind, _, name = where.partition(":")
    kind = kind.lower()
    if kind in ("cores", "core"):
        quota = parse_fraction(pairs.pop("quota", "1"))
        bandwidth = parse_bandwidth(pairs.pop("bandwidth")) if "bandwidth" in pairs else math.inf
        if quota < LEAST_QUOTA or (math.isfinite(bandwidth) and not LEAST_BANDWIDTH <= bandwidth <= MOST_BANDWIDTH):
            remedy = f"give a quota of {LEAST_QUOTA:.0%} or more, and a bandwidth from 1kB/s to 1TB/s"
            raise InputError(f"{text!r} limits {device!r} by what cannot be kept", remedy=remedy)
        return Place(device, "cores", "", _parse_cores(device, name, allowed), pairs, quota, bandwidth)
    if limit := next((limit for limit in LIMITS if limit in pairs), None):
        raise InputError(f"{device!r} is on no cores, so it has no {limit}", remedy=f"leave out {limit}")
    if kind == "cuda" and (name or "0").isdecimal():
        return Place(device, "cuda", name or "0", options=pairs)
    if kind == "openvino" and name:
        return Place(device, "openvino", name, options=pairs)
    raise InputError(f"{text!r} is no place for the device {device!r}", remedy=f"write it like {_EXAMPLE}")


def require_limits(places: Sequence[Place], name: str, limits: Sequence[str] = ()) -> None:
    """Raise InputError for a place with limits other than those that the runtime `name` can keep."""
    for place in places:
        for limit in place.limits:
            if limit not in limits:
                raise InputError(
                    f"the runtime {name!r} gives devices no {limit} of their own, and {place.device!r} has one",
                    remedy="give --runtime pipelining, or leave it out",
                )


def require_no_options(places: Sequence[Place]) -> None:
    """Raise InputError for a place with options, for runtimes whose places have none."""
    for place in places:
        for option in place.options:
            raise InputError(
                f"{place.device!r} has no option {option!r} in PyTorch",
                remedy=f"leave it out, or give {' or '.join(LIMITS)}",
            )


def physical_core(core: int) -> tuple[int, int]:
    """The system's numbers of the socket and the physical core of a processor: the same for two threads of a core."""
    topology = Path(f"/sys/devices/system/cpu/cpu{core}/topology")
    try:
        return int((topology / "physical_package_id").read_text()), int((topology / "core_id").read_text())
    except (OSError, ValueError):
        return 0, core


def _default_place(name: str, shares: Mapping[str, tuple[int, ...]]) -> Place:
    if name in shares:
        return Place(name, "cores", cores=shares[name])
    if is_rpc(name):
        return Place(name, "rpc", name.partition(":")[2])
    match = _CUDA.fullmatch(name)
    if match is None:
        raise ClusterError(
            f"the device {name!r} is not on this machine", remedy=f"bind it with --bind, like {_EXAMPLE}"
        )
    return Place(name, "cuda", match[1] or "0")


def _divide_cores(hosts: Sequence[str], free: Sequence[int]) -> list[tuple[int, ...]]:
    if len(hosts) > len(free):
        remedy = "bind several of them to the same cores with --bind, or use fewer"
        verb = "devices share" if len(hosts) > 1 else "device has"
        raise ClusterError(f"{len(hosts)} {verb} {len(free)} free cores of this machine", remedy=remedy)
    edges = [number * len(free) // max(len(hosts), 1) for number in range(len(hosts) + 1)]
    return [tuple(sorted(free[first:last])) for first, last in pairwise(edges)]


def _parse_cores(device: str, text: str, allowed: Sequence[int]) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or int(first) > int(last or first):
            raise InputError(f"{text!r} names no cores for {device!r}", remedy="write it like cores:0-3,6")
        cores = range(int(first), int(last or first) + 1)
        missing = next((core for core in cores if core not in allowed), None)
        if missing is None:
            numbers += cores
            continue
        remedy = f"this process may use {', '.join(map(str, allowed))}"
        raise ClusterError(f"core {missing} is not here, to which {device!r} is bound", remedy=remedy)
    return tuple(dict.fromkeys(numbers))
