"""The devices of a cluster in OpenVINO: logical names, and properties of their plugins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from placewise.errors import ClusterError
from placewise.runtimes.binding import Place

_THREADS, _PRECISION = "INFERENCE_NUM_THREADS", "INFERENCE_PRECISION_HINT"
_HINT_OF_DTYPE = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class LogicalDevice:
    """A device under the name that HETERO uses (``CPU2``), the real device behind it, and its properties."""

    name: str
    real: str
    properties: Mapping[str, str] = field(default_factory=dict)


def logical_devices(
    places: Sequence[Place], used: Iterable[int], available: Sequence[str], dtype: str = "float32"
) -> dict[int, LogicalDevice]:
    """The logical device of each of the cluster's devices that are `used`, by number.

    Cores are the CPU plugin with as many threads; a second set of cores is a second logical CPU. Devices compute in
    `dtype`, the model's own, unless the options of the place say otherwise, since plugins choose the fastest precision
    by default. Raises ClusterError for a device that OpenVINO does not see here, or that two devices share.
    """
    devices: dict[int, LogicalDevice] = {}
    for device in sorted(used):
        place = places[device]
        real = _real_device(place, available)
        taken = [other.real for other in devices.values()]
        if real in taken and real != "CPU":
            remedy = "bind one of them to another device, or to cores"
            raise ClusterError(f"two devices of the cluster are both OpenVINO's {real}", remedy=remedy)
        threads = {_THREADS: str(len(place.cores))} if place.cores else {}
        precision = {_PRECISION: _HINT_OF_DTYPE[dtype]} if real.startswith(("CPU", "GPU")) else {}
        name = real if real not in taken else f"{real}{taken.count(real) + 1}"
        devices[device] = LogicalDevice(name, real, {**threads, **precision, **place.options})
    return devices


def confine_cores(places: Sequence[Place], used: Iterable[int], *, overlapping: bool) -> list[int]:
    """The cores of the process that runs all `used` devices: all of theirs if pieces may overlap.

    Pieces that run one after another get no more cores than one device has, those of the device that has most: the
    threads of OpenVINO's plugins float over all cores of the process, so that a device would borrow the cores of others
    that have nothing to do.
    """
    own = sorted((places[device].cores for device in sorted(used)), key=len, reverse=True)
    if overlapping:
        return sorted({core for cores in own for core in cores})
    return sorted(own[0]) if own else []


def _real_device(place: Place, available: Sequence[str]) -> str:
    if place.kind == "cores":
        return "CPU"
    if place.kind != "openvino":
        remedy = f"bind it to cores or to openvino:NAME with one of {', '.join(available)}"
        raise ClusterError(f"OpenVINO has no device for {place}", remedy=remedy)
    name = _normalize(place.name)
    if name not in map(_normalize, available):
        remedy = f"OpenVINO sees {', '.join(available) or 'none'}"
        raise ClusterError(f"the device {place} is not on this machine", remedy=remedy)
    return name


def _normalize(name: str) -> str:
    """The short name of a device: ``GPU`` for ``gpu.0``."""
    return name.upper().removesuffix(".0")
