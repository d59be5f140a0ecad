"""`read_cluster`: one line, a TOML file, or memory by device → Cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

from placewise._util.units import parse_bytes
from placewise.catalog.cluster_file import read_cluster_file
from placewise.catalog.detect import core_count
from placewise.catalog.device_specs import (
    MAX_DEVICES,
    DeviceSpec,
    default_spec,
    leave_rest,
    name_devices,
    parse_device,
    rename_device,
    with_memory,
)
from placewise.catalog.entries import card_like, catalog, default_cpu, find_link
from placewise.catalog.links import build_cluster, catalog_speed
from placewise.catalog.topology import apply_topology
from placewise.errors import ClusterError, InputError
from placewise.model.cluster import Cluster

_ITEM = re.compile(r"\s*(?:(\d+)\s*[x×*]\s*)?([^@\s][^@]*?)\s*(?:@\s*(.+?)\s*)?")
_LIKE = "2xA100-80GB,cpu"
_DEVICE_LIMIT = f"ask for 1 to {MAX_DEVICES} devices"
MAX_TEXT = 1 << 16
"""Characters of a one-line cluster."""


def read_cluster(spec: str | Path | Mapping[Any, object]) -> Cluster:
    """Read a cluster; the devices' notes report every assumed default.

    Parameters
    ----------
    spec : str, path or mapping
        One line (``2xA100-80GB,cpu``; ``2xA100@20GiB``; ``this`` for the local machine); a path, or a text, that ends
        in ``.toml``: a cluster file (docs/devices.md); or a mapping from device to memory in bytes or as text
        (``{"cuda:0": "20GiB", "cpu": "60GiB"}``; 0: unused), also as JSON text.

    Returns
    -------
    Cluster
        Devices and the links between them.

    Raises
    ------
    ClusterError
        If `spec` cannot be read, or names an unknown device.

    Examples
    --------
    >>> read_cluster("2xA100-80GB,cpu").names
    ('cuda:0', 'cuda:1', 'cpu')
    >>> read_cluster({"cuda:0": "20GiB", "cpu": 60 * 2**30}).names
    ('cuda:0', 'cpu')

    """
    if isinstance(spec, Mapping):
        return cluster_from_memory(spec)
    if isinstance(spec, Path):
        return read_cluster_file(spec)
    if not isinstance(spec, str) or len(spec) > MAX_TEXT or "\0" in spec:
        raise ClusterError("this is not a cluster", where="devices", remedy="write it like '2xA100-80GB,cpu'")
    text = spec.strip()
    if text.startswith(("{", "[")):
        return parse_json(text)
    if text.endswith(".toml"):
        return read_cluster_file(Path(text))
    try:
        return parse_line(text)
    except ClusterError as error:
        raise error.at("devices") from None


def parse_line(text: str) -> Cluster:
    """Parse comma-separated items such as ``2xA100-80GB``, ``cpu``, ``this``, ``cores``, ``2xA100@20GiB``.

    ``link=NAME`` connects all accelerators by a link of the catalogue; ``topology=FILE`` reads the output of
    ``nvidia-smi topo -m``. Raises ClusterError.
    """
    specs, limited = list[DeviceSpec](), list[bool]()
    settings: dict[str, str] = {}
    cpu = default_cpu(match[2] for item in text.split(",") if (match := _match_item(item)))
    for item in text.split(","):
        key, sign, value = (piece.strip() for piece in item.partition("="))
        if not sign:
            more = _parse_item(item, MAX_DEVICES - len(specs), cpu)
            specs, limited = [*specs, *more], [*limited, *["@" in item] * len(more)]
        elif key not in ("link", "topology") or not value:
            raise ClusterError(f"{item[:60].strip()!r} is not known", remedy="write link=NAME or topology=FILE")
        elif settings:
            raise ClusterError(f"{item[:60].strip()!r} comes after another link", remedy="give one link or topology")
        else:
            settings[key] = value
    named = name_devices(leave_rest(specs, limited))
    if "topology" in settings:
        named, speeds = apply_topology(named, Path(settings["topology"]))
        return build_cluster(named, explicit=speeds)
    speed = catalog_speed(find_link(settings["link"])) if settings else None
    accelerators = [spec.device.name for spec in named if not spec.device.is_host]
    return build_cluster(named, explicit=dict.fromkeys(permutations(accelerators, 2), speed) if speed else None)


def drop_count(item: str) -> str:
    """The device that an entry of a one-line cluster names: "L4@20GiB" of "2 x L4@20GiB"."""
    match = _match_item(item)
    return item if match is None or not match[1] else f"{match[2]}{f'@{match[3]}' if match[3] else ''}"


def _match_item(item: str) -> re.Match[str] | None:
    return _ITEM.fullmatch(" ".join(item.split()))


def _parse_item(item: str, room: int, cpu: str) -> list[DeviceSpec]:
    match = _match_item(item)
    if match is None:
        raise ClusterError(f"{item[:60]!r} is not a device", remedy=f"write devices like {_LIKE!r}")
    count, name = int(match[1] or 1) if len(match[1] or "") < 9 else MAX_DEVICES + 1, match[2]
    if name.lower() == "cores":
        count, name = count if match[1] else int(max(core_count(), 1)), "core"
    if not 1 <= count <= room:
        raise ClusterError(f"{item[:60].strip()!r} makes {MAX_DEVICES - room + count} devices", remedy=_DEVICE_LIMIT)
    if name.lower().endswith(".txt"):
        problem = f"{name[:60]!r} looks like a topology, which does not name devices"
        raise ClusterError(problem, remedy="write it like '8xH100,cpu,topology=topo.txt'")
    if name.lower().endswith((".json", ".yaml", ".yml")):
        problem = f"{name[:60]!r} is no cluster file"
        raise ClusterError(problem, remedy="describe devices in a .toml file, or give memory by device as JSON text")
    return [parse_device(name, None if match[3] is None else _parse_size(match[3]), cpu=cpu)] * count


def cluster_from_memory(memory: Mapping[object, object]) -> Cluster:
    """A cluster from memory by device name (0: unused). Models are unknown; notes report the assumed figures."""
    if len(memory) > MAX_DEVICES:
        raise ClusterError(f"{len(memory)} devices are too many", remedy=_DEVICE_LIMIT)
    sizes = {_device_name(key): (key, value) for key, value in memory.items()}
    cards = [
        card_like(_parse_size(value, name)) for name, (_, value) in sizes.items() if re.fullmatch(r"cuda:\d+", name)
    ]
    cpu = default_cpu([*cards, *(catalog().defaults.apple_gpu for name in sizes if name.startswith("mps"))])
    specs = [_device_by_name(key, value, cpu) for key, value in memory.items()]
    return build_cluster(name_devices(specs))


def parse_json(text: str) -> Cluster:
    """A cluster from the same mapping as JSON text."""
    try:
        values = json.loads(text, object_pairs_hook=_refuse_duplicates)
    except (ValueError, RecursionError) as error:
        raise ClusterError(
            f"this is not JSON ({error})", where="devices", remedy='write it like \'{"cuda:0": "20GiB"}\''
        ) from None
    if not isinstance(values, dict):
        raise ClusterError("this is not a mapping from device to memory", where="devices")
    return cluster_from_memory(values)


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[object, object]:
    values = dict[object, object](pairs)
    if len(values) < len(pairs):
        raise ClusterError("a device is named twice", where="devices", remedy="give each its memory once")
    return values


def _device_name(key: object) -> str:
    name = f"cuda:{key}" if isinstance(key, int) and not isinstance(key, bool) else str(key).strip()
    return f"cuda:{name}" if name.isdigit() else name


def _device_by_name(key: object, value: object, cpu: str) -> DeviceSpec:
    name, defaults = _device_name(key), catalog().defaults
    if re.fullmatch(r"disk(:\d+)?", name):
        return rename_device(parse_device("disk", _parse_size(value, name)), name)
    if re.fullmatch(r"cuda:\d+", name):
        size = _parse_size(value, name)
        spec = default_spec(card_like(size), ", by its memory")
        return rename_device(with_memory(spec, size), name)
    for pattern, model in (
        (r"GPU(\.\d+)?|xpu(:\d+)?", defaults.intel_gpu), (r"cpu(:\d+)?", cpu),
        (r"mps(:\d+)?", defaults.apple_gpu), (r"npu(:\d+)?", defaults.phone_npu),
    ):  # fmt: skip
        if re.fullmatch(pattern, name):
            return rename_device(with_memory(default_spec(model), _parse_size(value, name)), name)
    raise ClusterError(
        f"{str(key)[:60]!r} is not a known device name",
        remedy="use cuda:0, GPU.0 or cpu, or describe it in a cluster file",
    )


def _parse_size(value: object, name: str = "") -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ClusterError(f"{value!r} is not a size", where=name, remedy="write it like '20GiB'")
    try:
        return parse_bytes(value)
    except InputError as error:
        raise ClusterError(error.problem, where=name, remedy=error.remedy) from None
