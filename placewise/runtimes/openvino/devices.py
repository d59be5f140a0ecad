"""The devices of a cluster as OpenVINO knows them: logical names, and properties of their plugins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from placewise.errors import ClusterError
from placewise.runtimes.binding import Place

_THREADS, _PRECISION = "INFERENCE_NUM_THREADS", "INFERENCE_PRECISION_HINT"
_ORDER = ("f32", "f16", "bf16")
_DTYPES = {"f16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Logical:
    """A device of OpenVINO under the name by which HETERO tells it from others (``CPU2``): what it really is, and how
    it is set.
    """

    name: str
    real: str
    properties: Mapping[str, str] = field(default_factory=dict)


def logical_devices(places: Sequence[Place], used: Iterable[int], available: Sequence[str]) -> dict[int, Logical]:
    """For each of the cluster's devices that are `used`, what it is to OpenVINO.

    Cores are the CPU plugin with as many threads; a second set of cores is a second logical CPU. Sums are in f32
    unless the place's options say otherwise: left alone, plugins take what is fastest. Raises ClusterError for a device
    that OpenVINO does not see here, or that two devices share.
    """
    found: dict[int, Logical] = {}
    for device in sorted(used):
        place = places[device]
        real = _real(place, available)
        taken = [other.real for other in found.values()]
        if real in taken and real != "CPU":
            remedy = "bind one of them to another device, or to cores"
            raise ClusterError(f"two devices of the cluster are both OpenVINO's {real}", remedy=remedy)
        threads = {_THREADS: str(len(place.cores))} if place.cores else {}
        precision = {_PRECISION: "f32"} if real.startswith(("CPU", "GPU")) else {}
        name = real if real not in taken else f"{real}{taken.count(real) + 1}"
        found[device] = Logical(name, real, {**threads, **precision, **place.options})
    return found


def cores_of(places: Sequence[Place], used: Iterable[int]) -> tuple[int, ...]:
    """The cores that the process may use: those of all the places, or any if none says."""
    return tuple(sorted({core for device in used for core in places[device].cores}))


def precision_of(devices: Iterable[Logical]) -> str:
    """The lowest element type in which a device computes, "" if all compute in float32."""
    said = [device.properties.get(_PRECISION, "f16") for device in devices]
    lowest = max((_ORDER.index(hint) for hint in said if hint in _ORDER), default=0)
    return _DTYPES.get(_ORDER[lowest], "")


def _real(place: Place, available: Sequence[str]) -> str:
    if place.kind == "cores":
        return "CPU"
    if place.kind != "openvino":
        remedy = f"bind it to cores or to openvino:NAME with one of {', '.join(available)}"
        raise ClusterError(f"OpenVINO has no device for {place}", remedy=remedy)
    name = _plain(place.name)
    if name not in map(_plain, available):
        remedy = f"OpenVINO sees {', '.join(available) or 'none'}"
        raise ClusterError(f"the device {place} is not on this machine", remedy=remedy)
    return name


def _plain(name: str) -> str:
    """``gpu.0`` is ``GPU`` by its full name."""
    return name.upper().removesuffix(".0")
