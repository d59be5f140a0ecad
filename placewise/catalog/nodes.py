"""Nested nodes of devices in a cluster file: expand them into devices, and derive the links between these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, permutations

from placewise.catalog.device_specs import MAX_DEVICES, DeviceSpec
from placewise.catalog.links import LinkSpeed, Pair
from placewise.catalog.tables import ClusterTable, DeviceTable, NodeTable
from placewise.errors import ClusterError

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
