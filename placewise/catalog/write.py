"""Write a cluster as the text of a cluster file, with all its figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping

from placewise.model.cluster import Cluster, Device


def format_cluster(cluster: Cluster, about: Iterable[str] = ()) -> str:
    """TOML text that `read_cluster` reads back as the same cluster; the lines of `about` become leading comments."""
    blocks = ["\n".join([*(f"# {line}" for line in about), f'transfers = "{cluster.transfers}"'])]
    blocks += [_format_table("devices", _device_fields(device)) for device in cluster]
    for link in cluster.links:
        values = {"source": link.source, "target": link.target, "bandwidth": link.bandwidth, "latency": link.latency}
        blocks.append(_format_table("links", {**values, **({"shared": link.shared} if link.shared else {})}))
    return "\n\n".join(blocks) + "\n"


def _device_fields(device: Device) -> dict[str, object]:
    fields: dict[str, object] = {
        "name": device.name, "kind": device.kind, "memory": device.memory, "reserved": device.reserved,
        "peak_flops": dict(device.peak_flops), "memory_bandwidth": device.memory_bandwidth,
        "efficiency": dict(device.efficiency), "op_overhead": device.op_overhead,
        "call_overhead": device.call_overhead, "streams": device.streams,
    }  # fmt: skip
    if math.isfinite(device.weight_bandwidth):
        fields["weight_bandwidth"] = device.weight_bandwidth
    if device.unsupported:
        fields["unsupported"] = sorted(device.unsupported)
    if device.supported is not None:
        fields["supported"] = sorted(device.supported)
    if not device.available:
        fields["available"] = False
    if device.node:
        fields["node"] = device.node
    if device.error:
        fields["error"] = device.error
    return {**fields, "notes": list(device.notes)}


def _format_table(name: str, values: Mapping[str, object]) -> str:
    return "\n".join([f"[[{name}]]", *(f"{key} = {_format_value(value)}" for key, value in values.items())])


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return "inf" if math.isinf(value) else repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_format_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_format_value(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)
