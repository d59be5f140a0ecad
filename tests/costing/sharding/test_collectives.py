"""Seconds of collectives, worked by hand, and the links and nodes that they use."""

from __future__ import annotations

import numpy as np
import pytest

from placewise.costing.sharding.collectives import (
    GroupLink,
    collective_seconds,
    find_class_link,
    find_group_link,
    find_nodes,
)
from placewise.model.cluster import Cluster, Device, Link

LINK = GroupLink(latency=1e-3, per_byte=1e-6)


@pytest.mark.parametrize(
    ("kind", "nbytes", "degree", "expected"),
    [
        # ring: 2 · 3 steps and 2 · 3/4 of the bytes; trees: 2 · 2 steps and twice the bytes
        ("all-reduce", 1e6, 4, 6e-3 + 1.5),
        ("all-reduce", 100.0, 4, 4e-3 + 2e-4),
        ("all-reduce", 1e6, 2, 2e-3 + 1.0),
        # a ring has 3 steps, recursive doubling 2
        ("all-gather", 1e6, 4, 2e-3 + 0.75),
        ("reduce-scatter", 1e6, 4, 2e-3 + 0.75),
        ("all-gather", 3e6, 3, 2e-3 + 2.0),
        # every device keeps a quarter of its quarter; Bruck sends an eighth twice
        ("all-to-all", 1e6, 4, 3e-3 + 0.75 / 4),
        ("all-to-all", 100.0, 4, 2e-3 + 2 * 100 / 8 * 1e-6),
        ("all-reduce", 1e6, 1, 0.0),
    ],
)
def test_seconds(kind, nbytes, degree, expected):
    """The faster of ring and tree."""
    assert collective_seconds(kind, nbytes, degree, LINK) == pytest.approx(expected, rel=1e-12)


def test_one_shot():
    """Where every pair has a link of its own, small tensors are sent to all others at once."""
    meshed = LINK._replace(meshed=True)
    assert collective_seconds("all-reduce", 100.0, 4, meshed) == pytest.approx(1e-3 + 3 * 100e-6)
    assert collective_seconds("all-reduce", 1e6, 4, meshed) == pytest.approx(6e-3 + 1.5)
    assert collective_seconds("all-gather", 1e6, 4, meshed) == pytest.approx(1e-3 + 0.75)
    assert collective_seconds("all-to-all", 1e6, 4, meshed) == pytest.approx(1e-3 + 3e6 / 16 * 1e-6)


def devices(*names, kind="gpu"):
    return tuple(Device(name, kind, memory=1e9, peak_flops={"float32": 1e12}) for name in names)


def pairs(names, bandwidth, latency=0.0, shared=""):
    return [Link(a, b, bandwidth, latency, shared) for a in names for b in names if a != b]


def hosts(names, bandwidth, shared=""):
    return [
        link
        for name in names
        for link in (Link(name, "host", bandwidth, 1e-5, shared), Link("host", name, bandwidth, 1e-5, shared))
    ]


def test_direct_links():
    """The slowest link of the ring counts, and its latency."""
    names = "abc"
    links = [Link("a", "b", 1e9, 1e-6), Link("b", "c", 2e9, 5e-6), Link("c", "a", 4e9, 2e-6)]
    links += [Link("b", "a", 8e9), Link("c", "b", 8e9), Link("a", "c", 8e9)]
    cluster = Cluster(devices(*names), (*links, *hosts(names, 1e8)), "direct")
    assert find_group_link(cluster, [0, 1, 2]) == GroupLink(5e-6, 1e-9, meshed=True)
    assert find_group_link(cluster, [0]) == GroupLink()


def test_staged_links():
    """Every transfer goes up and down; devices on one wire share it: each of two sends and receives."""
    cluster = Cluster(devices("a", "b"), tuple(hosts("ab", 1e9)), "staged")
    assert find_group_link(cluster, [0, 1]) == GroupLink(2e-5, 2e-9)
    cluster = Cluster(devices("a", "b"), tuple(hosts("ab", 1e9, "bus")), "staged")
    assert find_group_link(cluster, [0, 1]) == GroupLink(2e-5, pytest.approx(8e-9))


def two_nodes():
    """Two nodes of two devices, and a device of another kind."""
    fast = pairs("ab", 1e11, 1e-6) + pairs("cd", 1e11, 1e-6)
    slow = [Link(x, y, 1e9, 1e-5) for x in "abcd" for y in "abcd" if x != y and {x, y} not in ({"a", "b"}, {"c", "d"})]
    other = [link for x in "abcd" for link in (Link(x, "e", 1e9), Link("e", x, 1e9))]
    return Cluster(
        (*devices("a", "b", "c", "d"), *devices("e", kind="other")),
        (*fast, *slow, *other, *hosts("abcde", 1e9)),
        "direct",
    )


def test_nodes():
    """Devices of a class that their fastest links join are a node; staged devices all are."""
    kinds = np.array([0, 0, 0, 0, 1], np.int32)
    cluster = two_nodes()
    assert find_nodes(cluster, kinds).tolist() == [0, 0, 2, 2, 4]
    staged = Cluster(devices("a", "b", "c"), tuple(hosts("abc", 1e9)), "staged")
    assert find_nodes(staged, np.array([0, 0, 0], np.int32)).tolist() == [0, 0, 0]


def test_links_of_a_class():
    """Groups lie inside a node; a class without room for one has no link."""
    kinds = np.array([0, 0, 0, 0, 1], np.int32)
    cluster = two_nodes()
    node = find_nodes(cluster, kinds)
    assert find_class_link(cluster, kinds, node, 0, 2) == GroupLink(1e-6, 1e-11, meshed=True)
    assert find_class_link(cluster, kinds, node, 0, 4) is None
    assert find_class_link(cluster, kinds, node, 1, 1) == GroupLink()
    assert find_class_link(cluster, kinds, np.zeros(5, np.int32), 0, 4) == GroupLink(1e-5, 1e-9, meshed=True)
