"""Clusters in one line and as memory by device."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from soak import examples

from placewise.catalog import read_cluster, this_machine
from placewise.catalog.detect import core_count
from placewise.catalog.device_specs import set_memory
from placewise.catalog.entries import catalog
from placewise.errors import ClusterError, InputError
from placewise.model.cluster import HOST


def links_of(cluster):
    return {(link.source, link.target): link for link in cluster.links}


def test_two_a100_and_a_cpu():
    """Names, figures, NVLink between the equals and PCIe to the host, worked by hand."""
    cluster = read_cluster("2xA100-80GB,cpu")
    assert cluster.names == ("cuda:0", "cuda:1", "cpu")
    assert cluster.transfers == "direct"
    gpu, cpu = cluster.devices[0], cluster.devices[2]
    assert (gpu.kind, gpu.memory, gpu.peak_flops["float16"], gpu.memory_bandwidth) == ("gpu", 80e9, 312e12, 2039e9)
    assert cpu.is_host
    links = links_of(cluster)
    assert links["cuda:0", "cuda:1"].bandwidth == pytest.approx(0.8 * 300e9)
    assert links["cuda:1", "cuda:0"].latency == pytest.approx(5e-6)
    assert links["cuda:0", HOST].bandwidth == links[HOST, "cuda:0"].bandwidth == pytest.approx(0.8 * 31.5e9)
    assert len(links) == 6


def test_every_default_is_noted():
    """A device says its source, its assumed efficiency, the links and the way of transfer that were taken."""
    notes = "\n".join(read_cluster("2xA100-80GB,cpu").devices[0].notes)
    for text in ("datasheet", "assumed", "PCIe 4.0", "NVLink 3", "transfers are not given: direct"):
        assert text in notes
    server = catalog().devices["Xeon-8358"].title
    assert f"assumed: like {server}, since no model is given" in read_cluster("cpu").devices[0].notes


def test_cores_share_the_machine():
    """Cores of this machine split its peak and share its memory; what one makes takes a moment to reach the other."""
    machine, cluster = this_machine(), read_cluster("2xcore")
    assert cluster.names == ("core:0", "core:1") and cluster.transfers == "direct"
    assert {device.memory for device in cluster} == {machine.memory}
    assert cluster.devices[0].peak_flops["float32"] * core_count() == pytest.approx(machine.peak_flops["float32"])
    from_host, between = cluster.link_class[2, 0], cluster.link_class[0, 1]
    assert cluster.class_bandwidth[from_host] == math.inf and cluster.class_latency[from_host] == 0
    assert cluster.class_latency[between] > 0
    assert len(read_cluster("cores")) == max(int(core_count()), 1)
    assert read_cluster("core@2GiB").devices[0].memory == 2 * 2**30


@pytest.mark.parametrize("spec", ["2xL4", "A100-80GB,H100", "V100-16GB,V100-32GB", "2xFlex-170", "A100,cpu", "4xK80"])
def test_without_nvlink_between_equals_transfers_are_staged(spec):
    """PCIe devices, single devices and different models go through host memory."""
    cluster = read_cluster(spec)
    assert cluster.transfers == "staged"
    assert all(HOST in pair for pair in links_of(cluster))


def test_mixed_devices_get_names_in_order():
    """NVIDIA devices share one numbering, Intel GPUs another; several CPUs are numbered, one is not."""
    cluster = read_cluster("L4, 2 x A100-40GB ,Flex-170,2xcpu,H100")
    assert cluster.names == ("cuda:0", "cuda:1", "cuda:2", "GPU.0", "cpu:0", "cpu:1", "cuda:3")
    assert cluster.transfers == "direct"
    links = links_of(cluster)
    assert ("cuda:1", "cuda:2") in links and ("cuda:0", "cuda:1") not in links


def test_explicit_memory():
    """`@` sets the memory of every device of the item; zero keeps it out of the placement."""
    cluster = read_cluster("2xA100@20GiB,L4@0,cpu@1.5GB")
    assert [device.memory for device in cluster] == [20 * 2**30, 20 * 2**30, 0, 1.5e9]
    assert [device.available for device in cluster] == [True, True, False, True]


def test_this_machine_in_a_line():
    """`this` is the machine at hand, called `cpu`."""
    cluster = read_cluster("this")
    assert cluster.names == ("cpu",)
    assert cluster.devices[0].peak_flops == this_machine().peak_flops


def test_memory_by_device():
    """Models are unknown, so stand-ins are noted and no NVLink is taken; 0 bytes exclude a device."""
    cluster = read_cluster({0: "20GiB", "cuda:1": 10e9, "GPU.0": "8GiB", "cpu": "60GiB", "2": 0})
    assert cluster.names == ("cuda:0", "cuda:1", "GPU.0", "cpu", "cuda:2")
    assert [device.memory for device in cluster] == [20 * 2**30, 10e9, 8 * 2**30, 60 * 2**30, 0]
    assert not cluster.devices[4].available
    assert cluster.transfers == "staged"
    for device, like in zip(cluster, ("RTX-4090", "RTX-3080", "Flex-170", "i9-13900K"), strict=False):
        stand_in = catalog().devices[like]
        assert device.peak_flops.items() >= stand_in.peak_flops.items()
        assert any(note.startswith(f"assumed: like {stand_in.title}") for note in device.notes)


def test_memory_by_device_is_that_of_one_host():
    """A card, an Apple GPU and NPUs are on one host, also where several share its memory; two Apple GPUs are not."""
    for sizes in (
        {"cuda:0": "24GiB", "npu:0": "16GiB", "npu:1": "16GiB", "cpu": "64GiB"}, {"mps": "32GiB", "npu:0": "16GiB"},
    ):  # fmt: skip
        cluster = read_cluster(sizes)
        assert cluster.names == tuple(sizes) and cluster.transfers == "staged"
    with pytest.raises(ClusterError, match="mps:0 and mps:1 each share memory with their own host"):
        read_cluster({"mps:0": "32GiB", "mps:1": "32GiB"})


@pytest.mark.parametrize(
    ("memory", "like"),
    [
        ("8GiB", "RTX-4060"), ("11GiB", "RTX-4070"), ("24GiB", "RTX-4090"), ("24.5GiB", "RTX-5090"),
        ("40GiB", "A100-40GB"), ("48GiB", "RTX-6000-Ada"), ("80GiB", "A100-80GB"), ("141GiB", "H200"), ("1TiB", "B200"),
    ],
)  # fmt: skip
def test_a_card_of_unknown_model_is_like_one_of_its_memory(memory, like):
    """The smallest card, in GiB as its maker calls it, that has as much memory; its note says so."""
    gpu = read_cluster({"cuda:0": memory}).devices[0]
    assert gpu.peak_flops.items() >= catalog().devices[like].peak_flops.items()
    assert f"assumed: like {catalog().devices[like].title}, by its memory, since no model is given" in gpu.notes


@pytest.mark.parametrize(
    ("spec", "model"),
    [
        ("cpu", "Xeon-8358"), ("2xRTX-4090,cpu", "i9-13900K"), ("M2-Max,cpu@8GB", "M1-Max-CPU"),
        ("A770,cpu", "i9-13900K"), ("A100,cpu", "Xeon-8358"), ("RTX-4090,L4,cpu", "Xeon-8358"),
        ("RTX-A6000,2xcpu", "i9-13900K"),
        ({"cuda:0": "24GiB", "cpu": "60GiB"}, "i9-13900K"), ({"cuda:0": "80GiB", "cpu": "60GiB"}, "Xeon-8358"),
        ({"mps": "24GiB", "cpu": "8GiB"}, "M1-Max-CPU"),
        ("Arc-155H,RTX-4050-Laptop,cpu", "Ultra-155H"), ("Arc-140V,cpu", "Ultra-258V"), ("NPU-155H,cpu", "Ultra-155H"),
    ],
)  # fmt: skip
def test_the_cpu_is_that_of_a_desktop_beside_consumers_cards(spec, model):
    """A server's everywhere else, and a desktop has 64 GiB unless that is said."""
    cpu, entry = read_cluster(spec).devices[-1], catalog().devices[model]
    assert cpu.peak_flops.items() >= entry.peak_flops.items() and catalog().devices["i9-13900K"].memory == 64 * 2**30
    assert any(note.startswith(f"assumed: like {entry.title}") for note in cpu.notes)
    assert cpu.memory == entry.memory or "@" in spec or isinstance(spec, dict)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("A100", "meant: A100 (40 GB) is NVIDIA A100 SXM4 40 GB; also on offer: A100-80GB, A100-40GB-PCIe"),
        ("H100", "meant: H100 (80 GB) is NVIDIA H100 SXM5 80 GB; also on offer: H100-PCIe, H100-NVL"),
        ("Xeon", "meant: Xeon is Intel Xeon Platinum 8358"),
        ("Ryzen 9", "meant: Ryzen 9 is AMD Ryzen 9 7950X; also on offer: Ryzen-9-9950X"),
        ("A100-40GB", ""), ("RTX-4070", ""), ("4090", ""), ("T4", ""), ("L4", ""),
        ("M1", "meant: macOS lets it have 9.93 GiB of 14.9 GiB"),
    ],
)  # fmt: skip
def test_a_short_name_says_what_it_means(name, said):
    """A name of several devices says which was taken and which others there are; a full name says nothing."""
    notes = [note for note in read_cluster(name).devices[0].notes if note.startswith("meant: ")]
    assert [note[: len(said)] for note in notes] == ([said] if said else [])


@pytest.mark.parametrize(
    ("spec", "usable"),
    [
        ("M2-Max", 72e9),
        ("M2-Max@64GB", 48e9),
        ("M1@16GB", 16e9 * 2 / 3),
        ("M1-Pro@32GiB", (32 << 30) * 2 / 3),
        ("M3-Pro@36GB", 27e9),
    ],
)
def test_a_gpu_of_apple_has_a_part_of_the_memory(spec: str, usable: float) -> None:
    """What macOS lets it have; a limit that is given otherwise holds as it is."""
    assert read_cluster(spec).devices[0].memory == pytest.approx(usable)
    assert any("macOS lets it have" in note for note in read_cluster(spec).devices[0].notes)
    assert read_cluster({"mps": "64GB"}).devices[0].memory == 64e9
    given = set_memory(read_cluster(spec).devices[0], 40e9)
    assert given.memory == 40e9 and not any("macOS" in note and "lets it have" in note for note in given.notes)


@pytest.mark.parametrize(
    ("spec", "bandwidth"),
    [
        ("M1,cpu", 68.25e9),
        ("M2-Max@64GB,cpu@8GB", 400e9),
        ("2xM2-Ultra,cpu,link=pcie4", 800e9),
        ("M1,i9-13900K", 89.6e9),
        ("M1@16GB,M1-Max-CPU", 68.25e9),
    ],
)
def test_a_processor_of_apple_reads_the_memory_of_its_gpu(spec: str, bandwidth: float) -> None:
    """Slower than the GPU does; one of a known model keeps its own."""
    gpu, *_, cpu = read_cluster(spec)
    assert cpu.memory_bandwidth == pytest.approx(bandwidth, rel=1e-3)
    assert cpu.efficiency["memory"] < gpu.efficiency["memory"] or "i9" in spec


def test_a_server_beside_a_mac_is_no_mac() -> None:
    """Of unknown model: nothing says that it has the memory of Apple's largest chips."""
    server = next(device for device in read_cluster("M1,rpc:10.0.0.2:50052,cpu") if device.name.startswith("rpc:"))
    assert server.memory_bandwidth == catalog().devices["i9-13900K"].memory_bandwidth


def test_json_says_the_same_as_the_mapping():
    """On the command line the mapping is a JSON text."""
    memory = {"cuda:0": "20GiB", "cpu": "60GiB"}
    from_text, from_mapping = read_cluster(json.dumps(memory)), read_cluster(memory)
    assert (from_text.devices, from_text.links) == (from_mapping.devices, from_mapping.links)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "'' is not a device"),
        ("A100,", "'' is not a device"),
        ("A100@", "is not a device"),
        ("A100@many", "'many' is not a size"),
        ("A100@-1", "'-1' is not a size"),
        ("A100@12", "'12' has no unit; write it like '12GiB'"),
        ("A100@12.5", "'12.5' has no unit; write it like '12.5GiB'"),
        ({"cuda:0": "20"}, "cuda:0: '20' has no unit"),
        ("0xA100", "makes 0 devices"),
        ("257xL4", "ask for 1 to 256 devices"),
        ("200xL4,200xH100", "makes 400 devices"),
        ("9" * 5000 + "xL4", "ask for 1 to 256 devices"),
        ("2xA10G", "no device called 'A10G'"),
        ("{", "is not JSON"),
        ("[" * 60000, "is not JSON"),
        ('["cuda:0"]', "not a mapping"),
        ('{"cuda:0": 1, "cuda:0": 2}', "named twice"),
        ("{}", "no device is given"),
        ({0: "1GiB", "cuda:0": "1GiB"}, "both called 'cuda:0'"),
        ({"cuda:0": None}, "cuda:0: None is not a size"),
        ({"cuda:0": True}, "True is not a size"),
        ({"cuda:0": math.nan}, "nan"),
        ({-1: "1GiB"}, "'-1' is not a known device name"),
        ({"tape": "1GiB"}, "describe it in a cluster file"),
        (dict.fromkeys(range(300), 1), "300 devices are too many"),
        ("x" * 70000, "this is not a cluster"),
        (7, "this is not a cluster"),
    ],
)
def test_bad_specifications_get_one_clear_sentence(spec, message):
    """Whatever is wrong, the message says what and what to do, in bounded time."""
    with pytest.raises(ClusterError) as error:
        read_cluster(spec)
    assert message in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


@examples(150)
@given(st.text(max_size=30) | st.from_regex(r"(\d?x?(A100|L4|cpu|this|foo)(@\d+GiB)?,?){1,3}", fullmatch=True))
def test_any_text_is_a_cluster_or_an_input_error(text):
    """No text raises anything but our own error."""
    try:
        cluster = read_cluster(text)
    except InputError:
        return
    assert len(cluster) >= 1


def test_wide_gaps_in_a_line():
    """Spaces are none, however many there are."""
    gap = " " * 10_000
    assert read_cluster(f"{gap}2{gap}x{gap}L4{gap}@{gap}10GiB{gap}").devices[0].memory == 10 * 2**30
    with pytest.raises(ClusterError, match="is not a size"):
        read_cluster(f"L4{gap}@{gap}@")
