"""A disk: weights that no memory holds are read anew at every run, by ops that the CPU computes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run
from onnx_files import make_node, model, saved, weight

import placewise as pw
from placewise.catalog import read_cluster
from placewise.catalog.entries import catalog
from placewise.catalog.write import format_cluster
from placewise.errors import ClusterError, ExportError
from placewise.exporters.writing import export_placement
from placewise.files.cluster_record import ClusterRecord, cluster_of, cluster_to_dict

MiB = 2**20
SIDE = 512
"""Two products by weights of 1 MiB each."""


def chain(folder: Path) -> Path:
    """x · v · w, then a sum with the same weight w: its op has one more weight to read, a Relu none."""
    nodes = [make_node("MatMul", ["x", "v"], ["a"]), make_node("MatMul", ["a", "w"], ["b"])]
    nodes += [make_node("Add", ["b", "w"], ["c"]), make_node("Relu", ["c"], ["y"])]
    weights = [weight("v", SIDE, SIDE), weight("w", SIDE, SIDE)]
    return saved(folder, model(nodes, {"x": (SIDE, SIDE)}, ["y"], weights))


def test_an_op_on_a_disk_takes_as_long_as_on_the_cpu_and_its_weights_to_read(tmp_path: Path) -> None:
    """Worked by hand: 1 MiB at 80 % of 3.5 GB/s each; ops without weights take what they take on the CPU."""
    problem = pw.build(chain(tmp_path), "EPYC,nvme3")
    cpu, disk = problem.costs.op_seconds.T
    np.testing.assert_allclose(disk - cpu, np.array([1, 1, 1, 0]) * MiB / (0.8 * 3.5e9), atol=1e-12)
    assert problem.cluster.names == ("cpu", "disk") and problem.cluster.is_host.all()
    assert (problem.costs.transfer_seconds[:, problem.cluster.link_class[2, 2]] == 0).all()
    assert "computed by cpu" in " ".join(problem.cluster.devices[1].notes)


def test_what_fits_in_memory_stays_there(tmp_path: Path) -> None:
    """With room for all nothing is read; with room for one weight, one is on the disk, and the plan is optimal."""
    path = chain(tmp_path)
    wide = pw.place(path, "cpu,disk", placer="exhaustive")
    assert set(wide.assignment.values()) == {"cpu"}
    tight = pw.place(path, f"cpu@{3.5 * MiB:.0f},disk", placer="exhaustive")
    assert tight.problem.cluster.devices[0].memory == 3.5 * MiB
    assert tight.assignment == {"a": "disk", "b": "cpu", "c": "cpu", "y": "cpu"}
    with pytest.raises(ClusterError, match="'many' is not a size"):
        pw.place(path, "cpu,disk@many")


def test_a_disk_as_people_say_it(tmp_path: Path) -> None:
    """In one line, by its kind, in a memory mapping and in a file, with a speed and a capacity of its own."""
    for spec, capacity, speed in (
        ("cpu,disk", np.inf, 5.6e9), ("cpu,disk@1TB", 1e12, 5.6e9), ("cpu,sata", np.inf, 0.48e9),
        ({"cpu": "8GiB", "disk": "1TB"}, 1e12, 5.6e9), ('{"cpu": "8GiB", "disk": "1TB"}', 1e12, 5.6e9),
    ):  # fmt: skip
        device = read_cluster(spec).devices[-1]
        assert (device.name, device.kind, device.memory) == ("disk", "disk", capacity)
        assert device.weight_bandwidth == pytest.approx(speed)
    assert read_cluster("i9,disk").devices[1].peak_flops == catalog().devices["i9-12900K"].peak_flops
    file = tmp_path / "c.toml"
    file.write_text('devices = [{ model = "cpu" }, { model = "disk", name = "ssd", weight_bandwidth = "2GB/s" }]')
    cluster = read_cluster(str(file))
    assert (cluster.names, cluster.devices[1].weight_bandwidth) == (("cpu", "ssd"), 2e9)
    again = cluster_of(ClusterRecord.model_validate(json.loads(json.dumps(cluster_to_dict(cluster)))))
    assert again.devices == cluster.devices
    file.write_text(format_cluster(cluster))
    assert read_cluster(str(file)).devices[1].weight_bandwidth == 2e9


def test_a_plan_with_a_disk_from_the_command_line(tmp_path: Path) -> None:
    """It is placed, checked and shown; a target that cannot say it says so, one that can writes it."""
    path, plan = chain(tmp_path), tmp_path / "plan.json"
    text = run("place", path, "-d", f"cpu@{3.5 * MiB:.0f},disk", "-o", plan, "--time-limit", "2s").stdout
    assert "disk" in text
    assert "keeps every rule" in run("check", path, plan).stdout
    assert (
        "cannot express that weights are on 'disk'"
        in run("export", plan, "--to", "onnx", "-o", tmp_path, code=2).stderr
    )
    assert "disk" in run("export", plan, "--to", "dot").stdout
    streamed = pw.build(path, "cpu,disk", pw.ProblemOptions(objective="throughput"))
    assert "one processor computes for both" in " ".join(streamed.warnings)


def test_accelerate_runs_a_map_with_a_disk(tmp_path: Path) -> None:
    """What no memory holds goes to the disk, the map says so, and the model gives what it gave before."""
    torch, accelerate = pytest.importorskip("torch"), pytest.importorskip("accelerate")
    net: Any = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).eval()
    inputs, size = (torch.randn(2, 64),), 64 * 65 * 4
    given: dict[str, Any] = {"example_inputs": inputs, "headroom": 0, "budget": 0.5}
    made = pw.device_map(net, {"cpu": int(2.2 * size), "disk": "1GiB"}, **given)
    assert set(made.values()) == {"cpu", "disk"}
    ran = accelerate.dispatch_model(copy.deepcopy(net), made, main_device="cpu", offload_dir=tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(ran(*inputs), net(*inputs))
    assert pw.device_map(net, {0: "1GiB", "cpu": "1GiB", "disk": "1GiB"}, **given) == {"": 0}
    problem = pw.build(net, "cpu,disk", example_inputs=inputs)
    there = pw.Placement(np.ones(problem.n_ops, np.int32))
    with pytest.raises(ExportError, match="cannot express that weights are on 'disk'"):
        export_placement(problem, there, "pipelining")
