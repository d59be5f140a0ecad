"""The catalogue itself: every figure is there, has a source, and its names are found as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewise.catalog import known_devices
from placewise.catalog.entries import catalog, find
from placewise.errors import ClusterError
from placewise.model.dtypes import DTYPES
from placewise.units import parse_bandwidth, parse_bytes, parse_flops, parse_seconds


def test_the_nine_devices_are_there():
    """The devices that the catalogue promises, with their published memory."""
    memory = {device.name: device.memory for device in known_devices()}
    expected = {
        "H100": 80e9, "A100-40GB": 40e9, "A100-80GB": 80e9, "L4": 24e9, "V100-16GB": 16e9, "V100-32GB": 32e9,
        "P100": 16e9, "K80": 12e9, "Flex-170": 16e9, "i9-12900K": 64e9, "Xeon-8358": 256e9,
    }  # fmt: skip
    assert memory == expected


def test_entries_are_complete_and_refer_to_what_exists():
    """Peaks in known element types, bandwidth, a source, a behaviour and links of the catalogue."""
    book = catalog()
    for name, entry in book.devices.items():
        assert entry.source and entry.title and entry.memory_bandwidth > 1e10, name
        assert {"float32", "float64"} <= set(entry.peak_flops) or name == "Flex-170"
        assert set(entry.peak_flops) <= set(DTYPES)
        assert entry.behaviour in book.behaviour
        assert {entry.host_link, entry.peer_link} - {""} <= set(book.links)
        assert bool(entry.host_link) == (entry.kind == "gpu")
    assert all(link.source and link.bandwidth > 1e9 for link in book.links.values())
    assert all(part.source and set(part.efficiency.values()) for part in book.behaviour.values())
    assert {book.defaults.cuda, book.defaults.intel_gpu, book.defaults.cpu} <= set(book.devices)


def test_derived_peaks_follow_from_cores_and_clocks():
    """The figures that nobody publishes are the products that their sources say."""
    peaks = {device.name: device.peak_flops for device in known_devices()}
    assert peaks["i9-12900K"]["float32"] == pytest.approx(8 * 5.1e9 * 32 + 8 * 3.9e9 * 16, rel=1e-3)
    assert peaks["Xeon-8358"]["float32"] == pytest.approx(32 * 2.6e9 * 64, rel=2e-3)
    assert peaks["Flex-170"]["float32"] == pytest.approx(32 * 2.05e9 * 256, rel=2e-3)
    assert peaks["Flex-170"]["float16"] == pytest.approx(32 * 2.05e9 * 2048, rel=3e-3)
    assert peaks["Flex-170"]["int8"] == pytest.approx(32 * 2.05e9 * 4096, rel=3e-3)
    assert peaks["K80"]["float32"] == pytest.approx(8.73e12 / 2)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("A100", "A100-40GB"), ("a100-80gb", "A100-80GB"), ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("v100", "V100-16GB"), ("H100", "H100"), ("NVIDIA H100 80GB HBM3", "H100"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"), ("Tesla K80", "K80"),
        ("flex170", "Flex-170"), ("Intel Core i9-12900K", "i9-12900K"), ("Intel Xeon Platinum 8358", "Xeon-8358"),
    ],
)  # fmt: skip
def test_names_are_found_as_people_write_them(written, name):
    """Case, dashes and the maker's name do not matter; a bare family name is its smallest member."""
    assert find(written) == name


def test_an_unknown_name_lists_near_and_known_ones():
    """The message names the device, the nearest names and the whole list."""
    with pytest.raises(
        ClusterError, match=r"no device called 'A100-90GB'.*did you mean A100-80GB.*known: H100"
    ) as error:
        find("A100-90GB")
    assert all(device.name in str(error.value) for device in known_devices())


def test_the_documented_figures_are_the_catalogues():
    """Every device and every efficiency of docs/costs.md says what the catalogue says."""
    text = (Path(__file__).parents[1] / "docs" / "costs.md").read_text("utf-8")
    rows = {cells[0].split(" (")[0]: cells for cells in (row.strip("| ").split(" | ") for row in text.splitlines())}
    for device in known_devices():
        cells = rows[device.name]
        assert parse_flops(cells[2].replace(" ", "")) == device.peak_flops["float32"]
        assert parse_bytes(cells[4].split(" (")[0]) == device.memory
        assert parse_bandwidth(cells[5]) == device.memory_bandwidth
    for name, behaviour in catalog().behaviour.items():
        assert [float(cell) for cell in rows[name][1:-1]] == list(behaviour.efficiency.values())
        assert parse_seconds(rows[name][-1].replace(" ", "")) == behaviour.op_overhead
