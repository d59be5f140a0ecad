"""Cluster files in TOML."""

from __future__ import annotations

import math

import numpy as np
import pytest
from locations import ROOT

from placewise.catalog import read_cluster
from placewise.catalog.links import SHARES
from placewise.catalog.write import format_cluster
from placewise.core.build import ProblemOptions, build
from placewise.errors import ClusterError
from placewise.model.cluster import HOST


@pytest.fixture
def read(tmp_path):
    """Read a cluster from TOML text; the file is called ``c.toml``."""

    def read_text(text):
        path = tmp_path / "c.toml"
        path.write_text(text, "utf-8")
        return read_cluster(str(path))

    return read_text


def speeds(cluster):
    return {(link.source, link.target): (link.bandwidth, link.latency, link.shared) for link in cluster.links}


def test_models_and_own_figures(read):
    """A model with changed figures, a device of its own, several of one kind, and a CPU."""
    cluster = read("""
        [[devices]]
        model = "A100-80GB"
        count = 2
        memory = "70GiB"
        reserved = "1GiB"
        peak_flops = { float32 = "156T" }
        efficiency = { matmul = 0.6 }
        unsupported = ["Loop"]

        [[devices]]
        name = "npu"
        count = 2
        memory = "16GiB"
        memory_bandwidth = "200GB/s"
        peak_flops = { float16 = "50TFLOP/s", float32 = 1e13 }
        efficiency = { matmul = 0.5, memory = 0.8 }
        op_overhead = "10us"
        call_overhead = "50us"
        streams = 2
        available = false

        [[devices]]
        model = "cpu"
    """)
    assert cluster.names == ("cuda:0", "cuda:1", "npu:0", "npu:1", "cpu")
    gpu, npu = cluster.devices[0], cluster.devices[2]
    assert (gpu.memory, gpu.reserved) == (70 * 2**30, 2**30)
    assert (gpu.peak_flops["float32"], gpu.peak_flops["float16"]) == (156e12, 312e12)
    assert (gpu.efficiency["matmul"], gpu.efficiency["conv"]) == (0.6, 0.5)
    assert gpu.unsupported == {"Loop"}
    assert (npu.kind, npu.memory_bandwidth, npu.peak_flops) == (
        "accelerator",
        200e9,
        {"float16": 5e13, "float32": 1e13},
    )
    assert (npu.op_overhead, npu.call_overhead, npu.streams) == (pytest.approx(1e-5), pytest.approx(5e-5), 2)
    assert not npu.available


def test_the_cpu_of_a_file_is_a_desktop_beside_a_card(read):
    """Figures of the file go over those of the assumed CPU, also in nodes."""
    desktop = read('devices = [{ model = "cpu", op_overhead = "2us" }, { model = "RTX-3090" }]').devices[0]
    assert desktop.peak_flops == read("devices = [{ model = 'i9-13900K' }]").devices[0].peak_flops
    assert desktop.op_overhead == pytest.approx(2e-6)
    node = read('nodes = [{ devices = [{ model = "A100-80GB" }, { model = "cpu" }] }]').devices[1]
    assert node.peak_flops == read("devices = [{ model = 'Xeon-8358' }]").devices[0].peak_flops


def test_supported_lists_all_that_a_device_takes(read):
    """Everything else is forbidden there; without a list everything is taken but what is unsupported."""
    npu, gpu = read(
        'devices = [{ name = "npu", supported = ["Conv", "Relu"], unsupported = ["Loop"] }, { name = "g" }]'
    )
    assert [npu.can_run(kind) for kind in ("Conv", "Relu", "Add", "Loop")] == [True, True, False, False]
    assert gpu.supported is None and gpu.can_run("Add")


def test_numbers_go_around_names_that_are_taken(read):
    """A device that the file calls cuda:0 keeps its name; the others take the next numbers."""
    cluster = read('devices = [{ model = "L4", count = 2 }, { model = "L4", name = "cuda:0" }]')
    assert cluster.names == ("cuda:1", "cuda:2", "cuda:0")


def test_what_a_file_leaves_out_is_noted(read):
    """Memory, bandwidth, peak and efficiency of a device without a model are unlimited or absent, and it says so."""
    device = read('devices = [{ name = "thing" }]').devices[0]
    assert (device.memory, device.memory_bandwidth, device.peak_flops) == (math.inf, math.inf, {})
    notes = "\n".join(device.notes)
    for text in ("memory is not given", "bandwidth is not given", "peak speed is not given", "PCIe 3.0"):
        assert text in notes


def test_links_before_groups_before_the_default(read):
    """One table serves both ways unless the way back has its own; groups are all pairs; the rest is the default."""
    cluster = read("""
        devices = [{ name = "a" }, { name = "b" }, { name = "c" }, { name = "d" }, { kind = "cpu" }]
        transfers = "direct"
        [default_link]
        bandwidth = "10Gb/s"
        latency = "20us"
        shared = "network"
        [[groups]]
        devices = ["a", "b", "c"]
        bandwidth = "100GB/s"
        [[links]]
        source = "a"
        target = "b"
        bandwidth = "200GB/s"
        latency = "1us"
        [[links]]
        source = "b"
        target = "a"
        bandwidth = "50GB/s"
        [[links]]
        source = "cpu"
        target = "d"
        bandwidth = "25GB/s"
        shared = "slot"
    """)
    links = speeds(cluster)
    assert links["a", "b"] == (200e9, pytest.approx(1e-6), "")
    assert links["b", "a"] == (50e9, 0, "")
    assert links["a", "c"] == links["c", "b"] == (100e9, 0, "")
    assert links[HOST, "d"] == links["d", HOST] == (25e9, 0, "slot")
    assert links["a", "d"] == links["a", HOST] == (1.25e9, pytest.approx(2e-5), "network")
    assert len(links) == 4 * 3 + 4 * 2
    assert cluster.wires == ("network", "slot")


def test_nodes_in_racks(read):
    """Two racks of two machines of two devices: each level has its link, a shared wire is its machine's own."""
    cluster = read("""
        [[nodes]]
        count = 2
        link = { bandwidth = "100Gb/s", latency = "10us" }
        [[nodes.nodes]]
        count = 2
        devices = [{ model = "A100-80GB", count = 2 }]
        link = { bandwidth = "240GB/s", shared = "switch" }
        [node_link]
        bandwidth = "25Gb/s"
    """)
    links = speeds(cluster)
    assert cluster.names == tuple(f"cuda:{number}" for number in range(8)) and cluster.transfers == "direct"
    assert links["cuda:0", "cuda:1"] == (240e9, 0, "switch@0.0") and links["cuda:3", "cuda:2"][2] == "switch@0.1"
    assert links["cuda:1", "cuda:2"] == links["cuda:3", "cuda:0"] == (12.5e9, pytest.approx(1e-5), "")
    assert links["cuda:3", "cuda:4"] == links["cuda:7", "cuda:0"] == (3.125e9, 0, "")
    assert len(cluster.wires) == 4


def test_devices_know_their_nodes(read):
    """Nodes have the names of the file, with a number where one table makes several, or numbers; a device may say."""
    rack = 'nodes = [{ devices = [{ model = "L4", count = 2 }], count = 2 }]'
    cluster = read(f"""
        devices = [{{ name = "a" }}, {{ name = "b", node = "desk" }}]
        node_link = {{ bandwidth = "10Gb/s" }}
        nodes = [
            {{ devices = [{{ model = "L4" }}] }},
            {{ name = "rack", count = 2, link = {{ bandwidth = "25Gb/s" }}, {rack} }},
            {{ name = "store", devices = [{{ model = "cpu" }}] }},
        ]
    """)
    racks = tuple(f"rack:{n}/{k}" for n in (0, 1) for k in (0, 0, 1, 1))
    assert cluster.nodes == ("", "desk", "node 0", *racks, "store")
    assert read(format_cluster(cluster)).nodes == cluster.nodes


def test_nodes_beside_devices_groups_and_links(read):
    """A device in no node is as far as another node; links and groups go before nodes; CPUs are in no node."""
    cluster = read("""
        devices = [{ name = "a" }]
        nodes = [{ devices = [{ name = "b", count = 2 }, { kind = "cpu" }], link = { bandwidth = 4e9 } }]
        node_link = { bandwidth = 1e9 }
        links = [{ source = "a", target = "b:0", bandwidth = 9e9 }]
        default_link = { bandwidth = 2e9 }
    """)
    links = speeds(cluster)
    assert links["b:0", "b:1"][0] == 4e9 and links["a", "b:1"][0] == 1e9
    assert links["a", "b:0"][0] == 9e9 and links["b:0", HOST][0] == 2e9


def test_the_order_of_the_two_ways_does_not_matter(read):
    """A way back that was written first keeps its own figures."""
    head = 'devices = [{ name = "a" }, { name = "b" }]\n'
    there = '[[links]]\nsource = "a"\ntarget = "b"\nbandwidth = "2GB/s"\n'
    back = '[[links]]\nsource = "b"\ntarget = "a"\nbandwidth = "1GB/s"\n'
    assert speeds(read(head + there + back)) == speeds(read(head + back + there))


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ('devices = [{ model = "H100", count = 2 }]', "direct"),
        ('transfers = "staged"\ndevices = [{ model = "H100", count = 2 }]', "staged"),
        ('devices = [{ model = "H100", count = 2 }]\ndefault_link = { bandwidth = "1GB/s" }', "staged"),
        ('devices = [{ name = "a", count = 2 }]', "staged"),
        ('devices = [{ name = "a", count = 2 }]\ngroups = [{ devices = ["a:0", "a:1"], bandwidth = 1e9 }]', "direct"),
    ],
)
def test_the_way_of_transfers(read, text, way):
    """Said by the file, else direct where a link between devices is given or equals have NVLink."""
    assert read(text).transfers == way


A = 'devices = [{ name = "a" }, { name = "b" }]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices = [", "this is not TOML"),
        ("x = " + "[" * 5000, "this is not TOML"),
        ("", "c.toml: devices: is missing"),
        ("devices = []", "c.toml: devices"),
        ('devices = [{ model = "A11" }]', "c.toml: devices[0]: there is no device called 'A11'"),
        ('devices = [{ memory = "1GiB" }]', "c.toml: devices[0]: the device has neither a model nor a name"),
        (
            'devices = [{ name = "a", memry = 1 }]',
            "c.toml: devices[0].memry: unknown key; did you mean 'memory'",
        ),
        ('devices = [{ name = "a", memory = "1 potato" }]', "c.toml: devices[0].memory: '1 potato' is not a size"),
        ('devices = [{ name = "a", memory = true }]', "devices[0].memory: True is neither a number"),
        ('devices = [{ name = "a", count = 0 }]', "c.toml: devices[0].count"),
        ('devices = [{ name = "a", count = 1000 }]', "c.toml: devices[0].count"),
        ('devices = [{ name = "a", count = true }]', "devices[0].count: must be a whole number"),
        ('devices = [{ name = "a", count = 2.5 }]', "devices[0].count: must be a whole number"),
        ('devices = [{ name = "a", available = 1 }]', "devices[0].available: must be true or false"),
        ('devices = [{ name = "a", unsupported = "Conv" }]', "devices[0].unsupported: must be a list"),
        ('devices = [{ name = "a", supported = [] }]', "devices[0].supported: needs 1 or more entries"),
        (
            'devices = [{ name = "a", supported = ["Conv", "Add"], unsupported = ["Conv"] }]',
            "Conv is both supported and unsupported: take it out of one",
        ),
        ('devices = [{ name = "a", efficiency = 0.5 }]', "efficiency: must be a table of names and values"),
        ('devices = [{ name = "a", efficiency = { matmul = 2 } }]', "efficiency.matmul: must be 1 or less"),
        ('devices = [{ name = "a", efficiency = { matmul = true } }]', "efficiency.matmul: must be a number"),
        ("devices = 3", "c.toml: devices: must be a list"),
        ('devices = [{ name = "a", streams = 0 }]', "devices[0].streams: must be 1 or more"),
        ('devices = [{ name = "a", memory_bandwidth = 0 }]', "memory_bandwidth is 0"),
        ('devices = [{ name = "a", peak_flops = { float31 = 1 } }]', "peak_flops has no 'float31'"),
        ('devices = [{ name = "a", efficiency = { matmull = 1 } }]', "efficiency has no 'matmull'; it knows matmul"),
        ('devices = [{ name = "a", efficiency = { matmul = 0 } }]', "devices[0].efficiency.matmul: must be above 0"),
        ('devices = [{ name = "host" }]', "cannot be called 'host'"),
        ('devices = [{ name = "a" }, { name = "a" }]', "both called 'a'"),
        ('transfers = "quick"\n' + A, "c.toml: transfers"),
        (A + 'links = [{ source = "a", target = "b", bandwidth = 0 }]', "c.toml: link a → b: bandwidth is 0"),
        (A + 'links = [{ source = "a", target = "b" }]', "links[0]: the link has neither a model nor a bandwidth"),
        (A + 'links = [{ source = "a", target = "z", bandwidth = 1 }]', "links[0]: there is no device 'z'"),
        (A + 'links = [{ source = "a", target = "a", bandwidth = 1 }]', "ends where it begins"),
        (A + 'groups = [{ devices = ["a"], bandwidth = 1 }]', "c.toml: groups[0].devices"),
        ("nodes = [{}]", "c.toml: nodes[0]: the node has no devices"),
        (
            'nodes = [{ name = "a", devices = [{ model = "L4" }] }, { name = "a", devices = [{ model = "L4" }] }]',
            "both called 'a'",
        ),
        ("nodes = [{ devices = [{}] }]", "c.toml: nodes[0].devices[0]: the device has neither"),
        ("nodes = [{ count = 200, nodes = [{ count = 200, devices = [{ name = 'a' }] }] }]", "too many devices"),
        ('nodes = [{ count = 2, devices = [{ model = "A100-80GB" }] }]', "add [node_link]"),
        ('[[nodes]]\n[[nodes.nodes]]\ncount = 2\ndevices = [{ model = "A100-80GB" }]', "nodes: the link between"),
        ('nodes = [{ devices = [{ name = "a" }], lnik = { bandwidth = 1 } }]', "did you mean 'link'?"),
        (A + 'groups = [{ devices = ["a", "z"], bandwidth = 1 }]', "groups[0]: there is no device 'z'"),
        (A + 'default_link = { bandwidth = "1GB/s", latency = "soon" }', "default_link.latency: 'soon' is not a time"),
        (A + 'default_link = { bandwidth = "1GB/s", latency = "inf" }', "latency is inf"),
    ],
)
def test_bad_files_name_file_and_key(read, text, message):
    """Every mistake is one sentence with the file's name and the key."""
    with pytest.raises(ClusterError) as error:
        read(text)
    assert message in str(error.value)
    assert "c.toml" in str(error.value) and "\n" not in str(error.value)


def test_a_pair_given_twice_is_refused(read):
    """Two tables for one way contradict each other."""
    link = '[[links]]\nsource = "a"\ntarget = "b"\nbandwidth = 1\n'
    with pytest.raises(ClusterError, match="is given twice"):
        read(A + link + link)


def test_missing_large_and_binary_files(tmp_path):
    """What cannot be read is refused before it is parsed."""
    with pytest.raises(ClusterError, match=r"none.toml: cannot be read \(No such file"):
        read_cluster(str(tmp_path / "none.toml"))
    with pytest.raises(ClusterError, match="cannot be read"):
        read_cluster(tmp_path)
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (2 << 20))
    with pytest.raises(ClusterError, match="larger than 1048576 bytes"):
        read_cluster(large)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ClusterError, match="not TOML"):
        read_cluster(binary)


def test_the_documented_example_reads(read):
    """The cluster file in docs/devices.md is one, and means what its comments say."""
    text = (ROOT / "docs" / "devices.md").read_text("utf-8")
    cluster = read(text.split("```toml\n")[1].split("```")[0])
    assert cluster.names == ("cuda:0", "cuda:1", "npu", "cpu")
    links = speeds(cluster)
    assert links["npu", "cuda:0"] == (10e9, pytest.approx(5e-6), "")
    assert links["cuda:1", "cuda:0"][0] == 240e9
    assert links["cuda:1", "npu"] == links["npu", HOST] == (25e9 / 8, pytest.approx(3e-5), "network")


def test_the_documented_nodes_read(read):
    """The racks of docs/devices.md: sixteen devices, and the link that each of the comments says."""
    text = (ROOT / "docs" / "devices.md").read_text("utf-8")
    cluster = read(text.split("```toml\n")[2].split("```")[0])
    links = speeds(cluster)
    assert len(cluster) == 16
    assert [links["cuda:0", f"cuda:{d}"][0] for d in (3, 4, 7, 8)] == [240e9, 12.5e9, 12.5e9, 3.125e9]


def test_streams_and_rates_at_the_end_of_their_range(tmp_path):
    """Streams are at most what 32 bits hold; a rate of next to nothing makes ops that never end, without a warning."""
    path = tmp_path / "c.toml"
    path.write_text('[[devices]]\nname = "a"\nstreams = 10000000000000000000000\n')
    with pytest.raises(ClusterError, match="streams"):
        read_cluster(path)
    path.write_text('[[devices]]\nname = "a"\npeak_flops = { float32 = 1e-320 }\n')
    problem = build("zoo:random-layered", path, ProblemOptions(dims={"n_ops": 5}))
    assert np.isinf(problem.costs.op_seconds).any()


def test_a_mac_among_other_machines_has_a_processor_of_its_own(read) -> None:
    """Only the processor of its node reads its memory, and what the file says of one holds."""
    cluster = read("""
        node_link = { model = "ethernet-10" }
        [[nodes]]
        devices = [{ model = "M1" }, { model = "cpu" }]
        [[nodes]]
        devices = [{ model = "A100-80GB" }, { model = "cpu" }]
        [[nodes]]
        devices = [{ model = "M2-Ultra" }, { model = "cpu", memory_bandwidth = "400GB/s", memory = "32GB" }]
    """)
    own, server, given = (device for device in cluster if device.kind == "cpu")
    assert own.memory_bandwidth == 68.25e9 and own.memory == pytest.approx(16e9 / 3)
    assert any("Xeon" in note for note in server.notes)
    assert given.memory_bandwidth == 400e9 and given.memory == 32e9
    assert not any(note.startswith(SHARES) for device in cluster for note in device.notes)


def test_a_mac_that_is_a_server_shares_no_memory_here(read) -> None:
    """Another machine's GPU: the processor is that of the card beside it, or of the Mac that is here."""
    server = '{ model = "M4-Max", name = "rpc:10.0.0.2:50052" }'
    desktop = read(f'devices = [{{ model = "RTX-4090" }}, {server}, {{ model = "cpu" }}]').devices[-1]
    assert any("i9-13900K" in note for note in desktop.notes) and desktop.memory == 64 * 2**30
    own = read(f'devices = [{{ model = "M2-Max" }}, {server}, {{ model = "cpu" }}]').devices[-1]
    assert own.memory == pytest.approx(24e9) and own.memory_bandwidth == 400e9
