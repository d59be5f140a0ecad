"""Cluster files (TOML): devices from the catalogue, with explicit figures or in nodes, and the links between them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count, permutations
from pathlib import Path
from typing import Any

from placewise._util.safe_open import read_regular
from placewise.catalog.device_specs import (
    MAX_DEVICES,
    DeviceSpec,
    add_notes,
    leave_rest,
    name_devices,
    parse_device,
    rename_device,
    with_memory,
)
from placewise.catalog.entries import catalog, default_cpu
from placewise.catalog.fields import validate_table
from placewise.catalog.links import LinkSpeed, Pair, build_cluster
from placewise.catalog.tables import ClusterTable, DeviceTable, NodeTable
from placewise.catalog.topology import apply_topology
from placewise.errors import ClusterError, locate_errors
from placewise.model.cluster import HOST, Cluster, Device, is_rpc
from placewise.model.dtypes import RATES

NodePath = tuple[tuple[tuple[int, ...], LinkSpeed | None, str], ...]
"""The nodes that contain a device, outermost first: the index path of each, the link inside it, and its name."""


def expand_devices(table: ClusterTable) -> Iterator[tuple[str, DeviceTable, NodePath]]:
    """Every device table with its key and node path; devices outside nodes come first.

    Raises ClusterError for a node without devices, and for too many devices in total.
    """
    for row, device in enumerate(table.devices):
        yield f"devices[{row}]", device, ()
    for number, item in enumerate(_expand_nodes(table.nodes, "nodes", ())):
        if number >= MAX_DEVICES:
            raise ClusterError("the nodes hold too many devices", remedy=f"describe at most {MAX_DEVICES}")
        yield item


def _expand_nodes(
    nodes: Sequence[NodeTable], key: str, outside: NodePath
) -> Iterator[tuple[str, DeviceTable, NodePath]]:
    path = outside[-1][0] if outside else ()
    number, taken = count(), set[str]()
    for row, node in enumerate(nodes):
        where = f"{key}[{row}]"
        if not node.devices and not node.nodes:
            raise ClusterError(
                "the node has no devices", where=where, remedy="give it devices, or nodes that have some"
            )
        for copy in range(node.count):
            own = (*path, next(number))
            name = _node_name(node, copy, own)
            if name in taken:
                raise ClusterError(f"two nodes are both called {name!r}", where=where, remedy="give each its own name")
            taken.add(name)
            place = (*outside, (own, _node_speed(node, own), name))
            for position, device in enumerate(node.devices):
                yield f"{where}.devices[{position}]", device, place
            yield from _expand_nodes(node.nodes, f"{where}.nodes", place)


def _node_name(node: NodeTable, copy: int, path: tuple[int, ...]) -> str:
    """The name of a node among those beside it: its own, with a number for one of several copies, or its number."""
    if node.name:
        return f"{node.name}:{copy}" if node.count > 1 else node.name
    return str(path[-1]) if len(path) > 1 else f"node {path[-1]}"


def name_place(place: NodePath) -> str:
    """The names of the nodes around a device, outermost first: "node 0", "rack:1/0"; "" outside of nodes."""
    return "/".join(name for _, _, name in place)


def _node_speed(node: NodeTable, path: tuple[int, ...]) -> LinkSpeed | None:
    """The link of one node. Copies of a node get separate shared links."""
    if node.link is None or not node.link.shared:
        return node.link.speed if node.link else None
    return replace(node.link.speed, shared=f"{node.link.shared}@{'.'.join(map(str, path))}")


def link_nodes(specs: Sequence[DeviceSpec], places: Sequence[NodePath], table: ClusterTable) -> dict[Pair, LinkSpeed]:
    """The links between accelerators: that of the innermost common node, else the link between nodes.

    Devices of a node without a link get the default links. Raises ClusterError if the link between different nodes is
    not given.
    """
    between = table.node_link.speed if table.node_link else None
    placed = [(spec.device.name, place) for spec, place in zip(specs, places, strict=True) if not spec.device.is_host]
    speeds: dict[Pair, LinkSpeed] = {}
    for (a, here), (b, there) in permutations(placed, 2):
        common = [x for x, y in zip(here, there, strict=False) if x == y]
        speed = common[-1][1] if common else between
        if speed is not None and (here or there):
            speeds[a, b] = speed
        elif here != there and table.default_link is None and table.transfers != "staged":
            where, missing = ("nodes", "link") if common else ("", "[node_link]")
            problem = f"the link between {a!r} and {b!r}, which are in different nodes, is not given"
            raise ClusterError(problem, where=where, remedy=f"add {missing}")
    return speeds


MAX_FILE = 1 << 20
"""Bytes."""


def read_cluster_file(path: Path) -> Cluster:
    """The cluster that a TOML file describes. Raises ClusterError, prefixed with the file and the key."""
    table = _read_table(path)
    with locate_errors(path):
        return _build_cluster(table, path.parent)


def read_file_prices(path: Path) -> Mapping[str, float]:
    """The prices per hour in a cluster file, by model or name of a device. Raises ClusterError."""
    return _read_table(path).prices


def _read_table(path: Path) -> ClusterTable:
    where = str(path)
    try:
        values = tomllib.loads(read_regular(path, MAX_FILE).decode("utf-8"))
    except OSError as error:
        raise ClusterError(f"cannot be read ({error.strerror})", where=where) from None
    except (ValueError, RecursionError) as error:  # not text, not TOML, or a number with thousands of digits
        raise ClusterError(f"this is not TOML ({error})", where=where) from None
    return validate_table(ClusterTable, values, where)


def _build_cluster(table: ClusterTable, folder: Path) -> Cluster:
    if not table.devices and not table.nodes:
        raise ClusterError("is missing", where="devices", remedy="describe devices, or nodes that hold some")
    specs: list[DeviceSpec] = []
    places: list[NodePath] = []
    tables = list(expand_devices(table))
    models, limited = dict[str, list[str]](), list[bool]()
    for _, device, place in tables:
        models.setdefault(device.node or name_place(place), []).append("" if is_rpc(device.name) else device.model)
    for where, device, place in tables:
        node = device.node or name_place(place)
        try:
            expanded = _expand_device(device, default_cpu(models[node], chain(*models.values())))
        except ClusterError as error:
            raise error.at(where) from None
        specs += [replace(spec, device=replace(spec.device, node=node)) for spec in expanded]
        places += [place] * len(expanded)
        limited += [device.memory is not None] * len(expanded)
    named = name_devices(leave_rest(specs, limited))
    default = table.default_link.speed if table.default_link else None
    speeds = link_nodes(named, places, table)
    if table.topology:
        named, topology_links = apply_topology(named, folder / table.topology)
        speeds |= topology_links
    return build_cluster(
        named, explicit={**speeds, **_explicit_links(table, named)}, default=default, transfers=table.transfers
    )


def _expand_device(table: DeviceTable, cpu: str) -> list[DeviceSpec]:
    spec = parse_device(table.model, cpu=cpu) if table.model else _custom_device(table)
    changes: dict[str, Any] = {
        name: value
        for name in DeviceTable.model_fields
        if name not in ("model", "name", "node", "count", "memory", "notes")
        and (value := getattr(table, name)) is not None
    }
    known = {"peak_flops": RATES, "efficiency": tuple(catalog().behaviour["cpu"].efficiency)}
    for key in changes.keys() & known.keys():
        unknown = changes[key].keys() - set(known[key])
        if unknown:
            raise ClusterError(f"{key} has no {min(unknown)!r}", remedy=f"it knows {', '.join(known[key])}")
        changes[key] = {**getattr(spec.device, key), **changes[key]}
    device = add_notes(replace(spec.device, **changes), *table.notes)
    spec = replace(spec, device=device, shares=spec.shares and table.memory_bandwidth is None)
    if table.memory is not None:
        whole = spec.device.memory + spec.rest
        spec = replace(with_memory(spec, table.memory), rest=max(whole - table.memory, 0.0) if spec.rest else 0.0)
    if table.name and table.count == 1:
        spec = rename_device(spec, table.name)
    elif table.name:
        spec = replace(spec, prefix=f"{table.name}:")
    return [spec] * table.count


def _custom_device(table: DeviceTable) -> DeviceSpec:
    """A device without a model: missing figures are unlimited, and a note reports each."""
    is_cpu = table.kind == "cpu"
    if not table.name and not is_cpu:
        raise ClusterError("the device has neither a model nor a name", remedy="give it one of the two")
    notes_of_missing = {
        "memory": "memory is not given: unlimited",
        "memory_bandwidth": "memory bandwidth is not given: unlimited",
        "peak_flops": "peak speed is not given: only memory bandwidth counts",
        "efficiency": "efficiency is not given: the full peak is assumed",
    }
    notes = tuple(note for key, note in notes_of_missing.items() if getattr(table, key) is None)
    return DeviceSpec(add_notes(Device(table.name or "cpu"), *notes), prefix="cpu" if is_cpu else "")


def _explicit_links(table: ClusterTable, specs: tuple[DeviceSpec, ...]) -> dict[Pair, LinkSpeed]:
    known = {*(spec.device.name for spec in specs), HOST}
    speeds: dict[Pair, LinkSpeed] = {}
    for row, group in enumerate(table.groups):
        _require_known(known, group.devices, f"groups[{row}]")
        speeds |= {(a, b): group.speed for a in group.devices for b in group.devices if a != b}
    seen: set[Pair] = set()
    for row, link in enumerate(table.links):
        _require_known(known, (link.source, link.target), f"links[{row}]")
        pair = (link.source, link.target)
        if pair in seen or link.source == link.target:
            problem = "ends where it begins" if link.source == link.target else "is given twice"
            raise ClusterError(f"the link {link.source} → {link.target} {problem}", where=f"links[{row}]")
        seen.add(pair)
        speeds[pair] = link.speed
        if (pair[1], pair[0]) not in seen:
            speeds[pair[1], pair[0]] = link.speed
    return speeds


def _require_known(known: set[str], names: tuple[str, ...], where: str) -> None:
    for name in names:
        if name not in known:
            raise ClusterError(f"there is no device {name!r}", where=where, remedy=f"known: {', '.join(sorted(known))}")
