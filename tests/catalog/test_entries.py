"""The catalogue itself: every figure is there, has a source, and its names are found as people write them."""

from __future__ import annotations

import runpy

import numpy as np
import pytest
from locations import ROOT

from placewise.catalog import known_devices, read_cluster
from placewise.catalog.entries import OWN_LINKS, catalog, find_device, find_link
from placewise.errors import ClusterError
from placewise.model.cost_error import ASSUMED
from placewise.model.dtypes import RATES

FAMILIES = (
    "H200", "H100", "A100-40GB", "A100-80GB", "L40S", "L4", "T4", "V100-16GB", "P100", "K80", "RTX-4090", "RTX-3090",
    "MI300X", "MI250X", "MI325X", "Flex-170", "RTX-A6000", "RTX-6000-Ada", "RX-7900-XTX", "RX-9070", "Arc-A770",
    "Arc-B580", "Gaudi-2", "Gaudi-3", "TPU-v4", "TPU-v5e", "TPU-v5p", "TPU-v6e", "Snapdragon-X-NPU", "Hailo-8",
    "M4-ANE", "Ryzen-AI-HX-370-NPU", "NPU-258V", "i9-13900K", "Ryzen-9-7950X", "Threadripper-7980X",
    "RTX-4060-Laptop", *(f"RTX-{n}" for n in (3060, 3070, 3080, 4060, 4070, 4080, 5060, 5070, 5080, 5090)), "B200",
    *(f"M{n}{size}" for n in (1, 2, 3, 4) for size in ("", "-Pro", "-Max")), "M1-Ultra", "M2-Ultra", "M3-Ultra",
    "Arc-155H", "Xeon-8358", "EPYC-9654", "i9-12900K", "M2-Max", "Jetson-Orin", "A17-Pro-NPU",
)  # fmt: skip
LINKS = (
    *(f"nvlink{n}" for n in range(1, 6)), *(f"pcie{n}" for n in range(3, 7)),
    *(f"ethernet-{n}" for n in (1, 10, 25, 40, 50, 100, 200, 400)), *(f"infiniband-{n}" for n in ("edr", "hdr", "ndr")),
    *(f"thunderbolt-{n}" for n in (3, 4, 5)),
)  # fmt: skip
DENSE = {
    ("B200", "float16"): 4500, ("B200", "float8_e4m3"): 9000, ("H200", "float16"): 1978.9, ("H100", "int8"): 3957.8,
    ("H100-PCIe", "float16"): 1513, ("L40S", "float16"): 733, ("L40S", "int8"): 1466, ("L4", "float16"): 242,
    ("A100-80GB", "float16"): 624, ("A100-80GB", "int8"): 1248, ("A10", "float16"): 250, ("A10", "int8"): 500,
    ("MI300X", "float16"): 2614.9, ("MI300X", "int8"): 5229.8, ("RTX-4090", "float16"): 330.4,
    ("RTX-3090", "float16"): 142, ("Jetson-Orin", "int8"): 170,
}  # fmt: skip
"""What makers print in bold, in tera-operations per second: twice the dense rate, by 2:4 sparsity."""


def test_what_is_promised_is_there():
    """Every device and every link of the promise, by its own name."""
    assert set(FAMILIES) <= set(catalog().devices)
    assert set(LINKS) <= set(catalog().links)


def test_errors_are_those_of_published_measurements():
    """The median over models that were not fitted, where there are three or more and it is above what is assumed."""
    errors: dict[str, list[float]] = {}
    rows = (ROOT / "benchmarks" / "results" / "published_models.md").read_text().splitlines()
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows if row.count("|") == 10]
    for _, device, *_, factor, fitted, _ in cells[2:]:
        if not fitted:
            found = errors.setdefault(catalog().devices[device].behaviour, [])
            found.append(max(float(factor), 1 / float(factor)) - 1)
    known = {name: np.median(found) for name, found in errors.items() if len(found) > 2}
    known = {name: round(float(error), 2) for name, error in known.items() if error > ASSUMED}
    assert known and {name: entry.error for name, entry in catalog().behaviour.items() if entry.error} == known


def test_peaks_are_those_without_sparsity():
    """Each is half of the sparse figure that its maker advertises (the L40S datasheet has 362.05 for half of 733)."""
    for (name, dtype), sparse in DENSE.items():
        assert catalog().devices[name].peak_flops[dtype] == pytest.approx(sparse * 1e12 / 2, rel=13e-3), (name, dtype)


def test_figures_are_in_proportion():
    """Narrower types are no slower, by powers of two; bandwidth and peak fit; NVLink is whole bricks."""
    for name, entry in catalog().devices.items():
        peaks = entry.peak_flops
        for wide, narrow in (("float64", "float32"), ("float16", "int8"), ("float16", "float8_e4m3"), ("int8", "int4")):
            if {wide, narrow} <= set(peaks) and (wide, name[:4]) not in (("float16", "Xeon"), ("float64", "K80")):
                ratio = peaks[narrow] / peaks[wide]
                assert ratio > 0.99 and abs(np.log2(ratio) - round(np.log2(ratio))) < 0.03, (name, wide, narrow, ratio)
        if {"float16", "bfloat16"} <= set(peaks) and entry.kind == "gpu":
            assert peaks["float16"] == peaks["bfloat16"], name
        best = max(peaks.get(dtype, 0.0) for dtype in ("float32", "float16", "bfloat16"))
        assert 3 < best / entry.memory_bandwidth < 570 or entry.kind == "npu", name
        assert 0.005 < entry.memory / entry.memory_bandwidth < 1.3 or entry.kind == "cpu" or name == "Hailo-8", name
    for name, link in catalog().links.items():
        bricks = link.bandwidth / link.brick if link.brick else 1
        assert bricks == int(bricks) and (link.brick > 0) == name.startswith("nvlink"), name


def test_entries_are_complete_and_refer_to_what_exists():
    """Peaks in known element types, bandwidth, a source, a behaviour and links of the catalogue."""
    book = catalog()
    for name, entry in book.devices.items():
        assert entry.source and entry.title and entry.memory_bandwidth > 3e9, name
        assert "float32" in entry.peak_flops or entry.kind == "npu"
        assert set(entry.peak_flops) <= set(RATES)
        assert entry.url.startswith("https://") and " " not in entry.url, name
        assert (entry.cores > 0) == (entry.kind == "cpu"), name
        assert entry.behaviour in book.behaviour
        assert {entry.host_link, entry.peer_link} - {""} <= set(book.links)
        assert bool(entry.host_link) == (entry.kind != "cpu")
    assert all(link.source and link.bandwidth > 1e8 for link in book.links.values())
    assert all(part.source and set(part.efficiency.values()) for part in book.behaviour.values())
    assert {
        getattr(book.defaults, name) for name in ("intel_gpu", "apple_gpu", "phone_npu", "cpu", "desktop_cpu")
    } <= set(book.devices)
    sizes = [book.devices[name].memory for name in book.defaults.cuda]
    assert sizes == sorted(sizes)
    assert {book.defaults.link, book.defaults.rpc_link} <= set(book.links) and book.defaults.disk in book.disks
    assert all(disk.source and disk.bandwidth > 5e8 for disk in book.disks.values())
    assert {entry.nvlink for entry in book.devices.values()} - {""} <= set(book.links)


def test_every_name_makes_a_cluster():
    """Each name and other name of a device, in one line beside a CPU, is that device; links and their names too."""
    for name, entry in catalog().devices.items():
        for word in (name, name.lower(), *entry.aliases):
            cluster = read_cluster(f"{word},cpu")
            assert cluster.devices[0].notes[0].startswith(f"{entry.title}:"), word
    for name, link in catalog().links.items():
        for word in (name, *link.aliases) if name not in OWN_LINKS else ():
            assert find_link(word) == link


def test_derived_peaks_follow_from_cores_and_clocks():
    """The figures that nobody publishes are the products that their sources say."""
    peaks = {device.name: device.peak_flops for device in known_devices()}
    assert peaks["i9-12900K"]["float32"] == pytest.approx(8 * 5.1e9 * 32 + 8 * 3.9e9 * 16, rel=1e-3)
    assert peaks["Xeon-8358"]["float32"] == pytest.approx(32 * 2.6e9 * 64, rel=2e-3)
    assert peaks["Flex-170"]["float32"] == pytest.approx(32 * 2.05e9 * 256, rel=2e-3)
    assert peaks["Flex-170"]["float16"] == pytest.approx(32 * 2.05e9 * 2048, rel=3e-3)
    assert peaks["Flex-170"]["int8"] == pytest.approx(32 * 2.05e9 * 4096, rel=3e-3)
    assert peaks["K80"]["float32"] == pytest.approx(8.73e12 / 2)
    assert peaks["M1"]["float32"] == pytest.approx(8 * 128 * 2 * 1.278e9, rel=1e-2)
    assert peaks["M2-Ultra"]["float32"] == pytest.approx(76 * 128 * 2 * 1.398e9, rel=1e-2)
    assert peaks["Arc-140V"]["int8"] == pytest.approx(8 * 2.05e9 * 4096, rel=2e-3)
    clocks = 6 * 4.8e9 * 32 + 8 * 3.8e9 * 16 + 2 * 2.5e9 * 16
    assert peaks["Ultra-155H"]["float32"] == pytest.approx(clocks, rel=1e-3)
    assert peaks["Orin-CPU"]["float32"] == pytest.approx(12 * 2.2e9 * 16, rel=2e-3)
    assert peaks["EPYC-9654"]["float32"] == pytest.approx(96 * 2.4e9 * 32, rel=2e-3)
    assert peaks["Xeon-8480"]["int8"] == pytest.approx(56 * 2.0e9 * 2048, rel=2e-3)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("A100", "A100-40GB"), ("a100-80gb", "A100-80GB"), ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("v100", "V100-16GB"), ("H100", "H100"), ("NVIDIA H100 80GB HBM3", "H100"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"), ("Tesla K80", "K80"), ("4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"), ("rtx4090", "RTX-4090"), ("m2-max", "M2-Max"),
        ("NVIDIA H100 PCIe", "H100-PCIe"), ("Tesla V100-PCIE-16GB", "V100-16GB-PCIe"), ("a100-80", "A100-80GB"),
        ("AMD Instinct MI300X", "MI300X"), ("Apple M1 Max", "M1-Max"), ("EPYC", "EPYC-9654"), ("Xeon", "Xeon-8358"),
        ("Jetson Orin", "Jetson-Orin"), ("arc", "Arc-155H"), ("Core i9", "i9-12900K"), ("NVIDIA H200", "H200"),
        ("flex170", "Flex-170"), ("NVIDIA GeForce RTX 4080 SUPER", "RTX-4080-Super"), ("RTX A6000", "RTX-A6000"),
        ("NVIDIA GeForce RTX 4070 Laptop GPU", "RTX-4070-Laptop"), ("7900 XTX", "RX-7900-XTX"),
        ("Gaudi 3", "Gaudi-3"), ("AMD Ryzen 9 7950X", "Ryzen-9-7950X"), ("Intel Arc B580", "Arc-B580"),
        ("Ryzen 7950X", "Ryzen-9-7950X"), ("Ryzen-7950X", "Ryzen-9-7950X"), ("8358", "Xeon-8358"),
        ("5070 Ti", "RTX-5070-Ti"), ("Intel Core i9-12900K", "i9-12900K"), ("Intel Xeon Platinum 8358", "Xeon-8358"),
    ],
)  # fmt: skip
def test_names_are_found_as_people_write_them(written, name):
    """Case, dashes, the maker and words that no other device needs do not matter; a family is its smallest member."""
    assert find_device(written) == name


@pytest.mark.parametrize(
    ("written", "guess"),
    [
        ("A100-90GB", "A100-80GB"),
        ("RTX 4085", "RTX-4080"),
        ("M9 Max", "M[1-4]-Max"),
        ("H300", "H200"),
        ("Ryzen 7 7950X", "Ryzen-9-7950X"),
    ],
)
def test_an_unknown_name_lists_near_ones(written, guess):
    """The message names the device, the nearest names and where the whole list is."""
    with pytest.raises(
        ClusterError, match=rf"called '{written}'; did you mean .*{guess}.*\? `placewise devices` lists"
    ):
        find_device(written)
    with pytest.raises(ClusterError, match=r"no link called 'nvlink9'; did you mean nvlink"):
        find_link("nvlink9")


def test_the_documented_tables_are_current():
    """docs/catalogue.md is what scripts/write_device_tables.py would write now."""
    page, script = (ROOT / name for name in ("docs/catalogue.md", "scripts/write_device_tables.py"))
    text = page.read_text("utf-8")
    assert runpy.run_path(str(script))["written"](text) == text, f"run python {script.relative_to(ROOT)}"
