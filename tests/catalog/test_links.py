"""Links by name, in one line and in files, and as `nvidia-smi topo -m` prints them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from soak import examples

from placewise.catalog import read_cluster
from placewise.catalog.links import SHARES
from placewise.catalog.topology import read_topology
from placewise.errors import ClusterError
from placewise.model.cluster import HOST, Cluster

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the interconnect between NUMA nodes
  NV#  = Connection traversing a bonded set of # NVLinks
"""
"""Below the matrix, in the form of the command's own; these lines begin with codes and hold none."""

OLD = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tmlx5_1\tCPU Affinity
GPU0\t X \tNV1\tNV2\tSOC\tPIX\tSOC\t0-19,40-59
GPU1\tNV1\t X \tPHB\tNV2\tPIX\tSOC\t0-19,40-59
GPU2\tNV2\tPHB\t X \tPXB\tSOC\tPIX\t20-39,60-79
GPU3\tSOC\tNV2\tPXB\t X \tSOC\tPIX\t20-39,60-79
mlx5_0\tPIX\tPIX\tSOC\tSOC\t X \tSOC\t
mlx5_1\tSOC\tSOC\tPIX\tPIX\tSOC\t X \t
"""
"""Half of a DGX-1 as drivers before 2018 print it: cards beside the GPUs, SOC between sockets."""

NEW = """\
\x1b[4m        GPU0    GPU1    NIC0    NIC1    CPU Affinity    NUMA Affinity   GPU NUMA ID\x1b[0m
GPU0     X      NV18    PIX     SYS     0-55,112-167    0               N/A
GPU1    NV18     X      NODE    SYS     0-55,112-167    0               N/A
NIC0    PIX     NODE     X      SYS
NIC1    SYS     SYS     SYS      X

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
"""Two of a node of H100 as new drivers print it: underlined, with numbered cards and a legend of theirs."""


def links_of(cluster: Cluster) -> dict[tuple[str, str], float]:
    return {(link.source, link.target): link.bandwidth for link in cluster.links}


@pytest.fixture
def topology(tmp_path: Path) -> object:
    """Write a text as ``topo.txt`` and give its path."""

    def write(text: str) -> Path:
        path = tmp_path / "topo.txt"
        path.write_text(text + LEGEND, "utf-8")
        return path

    return write


def test_an_old_topology_by_hand(topology: object) -> None:
    """Bricks of 25 GB/s count, bridges run at PCIe 3.0, all at 80 %; what crosses the host goes through its memory."""
    cluster = read_cluster(f"4xV100,cpu,topology={topology(OLD)}")  # type: ignore[operator]
    links = links_of(cluster)
    assert cluster.transfers == "direct"
    assert links["cuda:0", "cuda:1"] == links["cuda:1", "cuda:0"] == pytest.approx(0.8 * 25e9)
    assert links["cuda:0", "cuda:2"] == links["cuda:3", "cuda:1"] == pytest.approx(0.8 * 50e9)
    assert links["cuda:2", "cuda:3"] == links["cuda:0", HOST] == pytest.approx(0.8 * 15.75e9)
    assert {("cuda:0", "cuda:3"), ("cuda:1", "cuda:2")}.isdisjoint(links) and len(links) == 8 + 8
    through = cluster.class_bandwidth[cluster.link_class[0, 3]]
    assert through == pytest.approx(0.8 * 15.75e9 / 2)
    assert "NV1 to cuda:1; NV2 to cuda:2; SOC to cuda:3" in " ".join(cluster.devices[0].notes)


def test_a_new_topology_and_fewer_devices_than_it_has(topology: object, tmp_path: Path) -> None:
    """Colours, cards, their legend and affinities are passed over; a file finds the topology beside it."""
    path = topology(NEW)  # type: ignore[operator]
    assert read_topology(path) == {(0, 0): "X", (0, 1): "NV18", (1, 0): "NV18", (1, 1): "X"}
    assert links_of(read_cluster(f"2xH100,topology={path}"))["cuda:0", "cuda:1"] == pytest.approx(0.8 * 450e9)
    assert links_of(read_cluster(f"2xH100,topology={path}")) == links_of(read_cluster("2xH100"))
    assert len(read_cluster(f"H100,cpu,topology={path}")) == 2
    file = tmp_path / "c.toml"
    file.write_text('topology = "topo.txt"\ndevices = [{ model = "H100", count = 2 }, { name = "npu" }]')
    assert links_of(read_cluster(str(file)))["cuda:1", "cuda:0"] == pytest.approx(0.8 * 450e9)
    given = '\nlinks = [{ source = "cuda:0", target = "cuda:1", bandwidth = "1GB/s" }]'
    file.write_text(f"{file.read_text()}{given}")
    assert links_of(read_cluster(str(file)))["cuda:1", "cuda:0"] == 1e9


def test_without_a_link_between_devices_a_topology_means_staged_transfers(topology: object) -> None:
    """Where all ways cross the host, equals with NVLink are not said to have it."""
    text = "\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n"
    assert read_cluster(f"2xA100,cpu,topology={topology(text)}").transfers == "staged"  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "devices", "message"),
    [
        ("", "2xV100", "this is not a matrix with a row and a column per GPU"),
        ("no GPU here\nGPU0 X", "V100", "this is not a matrix"),
        (OLD.replace("GPU3\tSOC", "GPU7\tSOC"), "2xV100", "this is not a matrix"),
        (
            OLD.replace("\tNV1\tNV2\tSOC", "\tNVX\tNV2\tSOC"),
            "2xV100",
            "'NVX' between GPU0 and GPU1 is unknown",
        ),
        (
            OLD.replace("NV1", "NV" + "9" * 400),
            "2xV100",
            "the code 'NV999999999999999999' between GPU0 and GPU1 is unknown",
        ),
        (OLD.replace("NV1", "NV" + "9" * 5000), "2xV100", "'NV999999999999999999' between GPU0 and GPU1"),
        (
            OLD.replace("PHB\t X \tPXB", "PHB\t X \tPIX"),
            "2xV100",
            "GPU2 is connected to GPU3 by PIX, and back by 'PXB'",
        ),
        ("GPU0 GPU1\nGPU0 X\nGPU1 X NV1", "2xV100", "'' between GPU0 and GPU1"),
        (OLD, "8xV100", "describes 4 GPUs, and cuda:4 is not one of them"),
        (OLD, "2xFlex-170", "the cluster has no cuda:0"),
        (OLD, "4xL4", "cuda:0 and cuda:1 are connected by NV1, and the generation of"),
    ],
)
def test_topologies_that_cannot_be_read(topology: object, text: str, devices: str, message: str) -> None:
    """One sentence with the file's name, what is wrong and what to do."""
    with pytest.raises(ClusterError, match=message) as error:
        read_cluster(f"{devices},topology={topology(text)}")  # type: ignore[operator]
    assert "topo.txt" in str(error.value) and "; " in str(error.value) and "\n" not in str(error.value)


@examples(60)
@given(st.text(max_size=80) | st.lists(st.sampled_from([*OLD.split("\t"), "GPU0", "\n", "X", "NV2"])).map(" ".join))
def test_any_text_is_a_topology_or_a_refusal(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """No text raises anything but our own error."""
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        codes = read_topology(path)
    except ClusterError:
        return
    assert codes


def test_links_by_name() -> None:
    """In one line the link of all accelerators; in a file wherever a bandwidth stands, with figures that replace it."""
    cluster = read_cluster("2xRTX-3090,cpu,link=nvlink-bridge")
    assert cluster.transfers == "direct"
    assert links_of(cluster)["cuda:0", "cuda:1"] == pytest.approx(0.8 * 56.25e9)
    assert links_of(read_cluster("2xM2-Ultra,link=Thunderbolt 5"))["mps:0", "mps:1"] == pytest.approx(0.8 * 8e9)


def test_links_by_name_in_a_file(tmp_path: Path) -> None:
    """The model's bandwidth and latency, unless the table has its own."""
    file = tmp_path / "c.toml"
    file.write_text("""
        devices = [{ model = "L4", count = 3 }]
        [default_link]
        model = "InfiniBand HDR"
        shared = "network"
        [[links]]
        source = "cuda:0"
        target = "cuda:1"
        model = "PCIe 4.0"
        latency = "3us"
    """)
    speeds = {(x.source, x.target): (x.bandwidth, x.latency, x.shared) for x in read_cluster(str(file)).links}
    assert speeds["cuda:1", "cuda:2"] == (pytest.approx(0.8 * 25e9), pytest.approx(5e-6), "network")
    assert speeds["cuda:1", "cuda:0"] == (pytest.approx(0.8 * 31.5e9), pytest.approx(3e-6), "")
    file.write_text('devices = [{ model = "L4" }]\ndefault_link = { model = "tachyons" }')
    with pytest.raises(ClusterError, match=r"c\.toml: default_link: there is no link called 'tachyons'"):
        read_cluster(str(file))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("2xL4,link=", "'link=' is not known; write link=NAME or topology=FILE"),
        ("2xL4,lnik=pcie4", "'lnik=pcie4' is not known"),
        ("2xL4,link=pcie4,link=pcie5", "'link=pcie5' comes after another link"),
        ("2xL4,topology=none.txt", r"none\.txt: cannot be read \(No such file or directory\)"),
        ("topo.txt", "'topo.txt' looks like a topology, which does not name devices; write it like"),
        ("devices.json", "'devices.json' is no cluster file; describe devices in a .toml file"),
        ("2xM2-Max,cpu", "mps:0 and mps:1 each share memory with their own host, .*; add their link"),
    ],
)
def test_one_line_without_sense(spec: str, message: str) -> None:
    """One sentence each."""
    with pytest.raises(ClusterError, match=message):
        read_cluster(spec)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("M2-Max,cpu", 0),
        ("M2-Max@64GiB,cpu@16GiB", 0),
        ("M2-Max@64GiB,cpu@24GiB", 1),
        ("M2-Max", 0),
        ("Arc-155H,cpu", 1),
        ("M2@16GB,cpu", 0),
        ("M2@16GB,cpu@16GB", 1),
        ("RTX-4090,cpu", 0),
        ("2xM2-Max,link=pcie4", 0),
    ],
)
def test_memory_that_a_host_shares_is_said(spec: str, said: int) -> None:
    """Where a GPU and its host may both use all of it."""
    cluster = read_cluster(spec)
    notes = [note for device in cluster for note in device.notes]
    assert sum(note.startswith(SHARES) for note in notes) == said
    if spec == "M2@16GB,cpu":
        assert sum(device.memory for device in cluster) == pytest.approx(16e9)
