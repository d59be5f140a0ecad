"""Rules about devices: memory over a cluster, devices left out, no offloading, headroom, kinds that a device lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run, workload
from onnx_files import make_node, model, saved, weight

import placewise as pw
from placewise.core.build import build_for_plan
from placewise.core.options import ProblemOptions
from placewise.errors import InputError, PlacewiseError
from placewise.files.problem_file import save_problem
from placewise.model.problem import Headroom

GiB, SIDE = 2**30, 256


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight products, each with 256 KiB of weights, and a Relu after each."""
    nodes, last = [], "x"
    for layer in range(8):
        nodes += [
            make_node("MatMul", [last, f"w{layer}"], [f"m{layer}"]),
            make_node("Relu", [f"m{layer}"], [f"r{layer}"]),
        ]
        last = f"r{layer}"
    weights = [weight(f"w{layer}", SIDE, SIDE) for layer in range(8)]
    return saved(tmp_path_factory.mktemp("chain"), model(nodes, {"x": (4, SIDE)}, [last], weights))


def capacities(model: Any, devices: str, **problem_options: Any) -> list[float]:
    return pw.build(model, devices, ProblemOptions(**problem_options)).capacity.tolist()


def test_memory_over_any_cluster(chain: Path, tmp_path: Path) -> None:
    """Sizes by name, also as Accelerate numbers GPUs, replace those of a line, of a file and of a workload."""
    assert capacities(chain, "2xL4,cpu", max_memory={0: "1GiB", "cpu": 2 * GiB}) == [GiB, 24e9, 2 * GiB]
    file = tmp_path / "c.toml"
    file.write_text('devices = [{ name = "npu", memory = "1GiB", peak_flops = { float32 = 1e12 } }]')
    assert capacities(chain, str(file), max_memory={"npu": "5MB"}) == [5e6]
    published = workload(tmp_path / "w.json")
    assert pw.build(published, options=ProblemOptions(max_memory={"acc0": 50})).capacity.tolist()[:2] == [
        50,
        100,
    ]
    problem = pw.build(chain, "2xL4,cpu", ProblemOptions(max_memory={"cuda:1": 0}))
    assert problem.allowed.any(axis=0).tolist() == [True, False, True] and problem.capacity[1] == 0


def test_a_device_closed_with_nothing_is_opened_with_something(chain: Path, tmp_path: Path) -> None:
    """Zero bytes in a line, a file, a problem or an option before; not where the device is out of use for itself."""
    limit = {"cuda:0": "1GiB"}
    file, closed = tmp_path / "c.toml", tmp_path / "closed.toml"
    device = 'name = "cuda:0", peak_flops = { float32 = 1e12 }'
    file.write_text(f'devices = [{{ {device}, memory = 0 }}, {{ model = "cpu" }}]')
    closed.write_text(f'devices = [{{ {device}, memory = "2GiB", available = false }}, {{ model = "cpu" }}]')
    save_problem(pw.build(chain, "L4,cpu", ProblemOptions(max_memory={"cuda:0": 0})), tmp_path / "problem.npz")
    for given, devices in ((chain, "L4@0,cpu"), (chain, str(file)), (tmp_path / "problem.npz", None)):
        assert not pw.build(given, devices).allowed[:, 0].any()
        opened = pw.build(given, devices, ProblemOptions(max_memory=limit))
        assert opened.allowed[:, 0].all() and opened.capacity[0] == GiB
        assert not any("0 bytes" in note for note in opened.cluster.devices[0].notes)
    assert not pw.build(chain, str(closed), ProblemOptions(max_memory=limit)).allowed[:, 0].any()
    assert not pw.build(chain, "L4,cpu", ProblemOptions(max_memory=limit, exclude=("cuda:0",))).allowed[:, 0].any()
    options = ("--max-memory", "cuda:0=0", "--max-memory", "cuda:0=1GiB", "--pin", ".*=cuda:0")
    assert "of 1 GiB" in run("place", chain, "-d", "L4,cpu", *options).stdout


def test_devices_left_out(chain: Path) -> None:
    """By name or by pattern, matched whole; without any device, or with one that is not there, one sentence."""
    used = pw.build(chain, "4xL4,cpu", ProblemOptions(exclude=(r"cuda:[12]", "cpu"))).allowed.any(axis=0)
    assert used.tolist() == [True, False, False, True, False]
    with pytest.raises(PlacewiseError, match="there is no device 'cuda' to leave out; the cluster has cuda:0"):
        pw.build(chain, "L4,cpu", ProblemOptions(exclude=("cuda",)))
    with pytest.raises(PlacewiseError, match="no device may be used"):
        pw.build(chain, "L4,cpu", ProblemOptions(exclude=(".*",)))


def test_no_offloading(chain: Path) -> None:
    """All is on accelerators, or a proof says by how many bytes it does not fit, and what is largest."""
    split = pw.place(chain, "2xL4@1.3MiB,cpu,disk", offload=False, budget=1)
    assert set(split.assignment.values()) == {"cuda:0", "cuda:1"}
    short = pw.place(chain, "L4@1MiB,cpu,disk", offload=False)
    assert short.status == "infeasible"
    assert "must fit on cuda:0, which is 1 MiB (1048576 bytes) more" in short.summary() and "256 KiB" in short.summary()
    assert pw.place(chain, "L4@1MiB,cpu", placer="greedy").status == "feasible"
    with pytest.raises(PlacewiseError, match="every device is a CPU or a disk, and these may not be used"):
        pw.build(chain, "cpu,disk", ProblemOptions(offload=False))


@pytest.mark.parametrize(
    ("headroom", "free"),
    [
        ("10%", [2.4e9, 2.4e9, 0]), (0.1, [2.4e9, 2.4e9, 0]), ("2GiB", [2 * GiB, 2 * GiB, 0]),
        ("500MiB", [500 * 2**20, 500 * 2**20, 0]), ({"cuda:1": "1GB", "cpu": "50%"}, [0, 1e9, 128e9]),
        (["10%", "cuda:1=1GB", "cpu=4GB"], [2.4e9, 1e9, 4e9]), (["1GB", "cuda:0=0%"], [0, 1e9, 0]),
        ("cuda:0=5%", [1.2e9, 0, 0]),
    ],
)  # fmt: skip
def test_headroom_in_every_form(chain: Path, headroom: Any, free: list[float]) -> None:
    """A share or a size of every accelerator, or of the devices that are named, these over all."""
    whole = np.array([24e9, 24e9, 256e9])
    np.testing.assert_allclose(capacities(chain, "2xL4,cpu", headroom=headroom), whole - free)


def test_headroom_of_a_plan_holds_until_another_is_given(chain: Path, tmp_path: Path) -> None:
    """It is in the plan; a new one, of any form, replaces it as a whole."""
    plan = tmp_path / "plan.json"
    run(
        "place",
        chain,
        "-d",
        "2xL4,cpu",
        "--headroom",
        "5%",
        "--headroom",
        "cuda:1=1GB",
        "--placer",
        "greedy",
        "-o",
        plan,
    )
    problem, _ = build_for_plan(chain, plan)
    assert problem.constraints.spare == (Headroom("", share=0.05), Headroom("cuda:1", bytes=1e9))
    assert problem.capacity.tolist() == [0.95 * 24e9, 23e9, 256e9]
    for again, capacity in (
        ("1GB", [23e9, 23e9, 256e9]),
        ("50%", [12e9, 12e9, 256e9]),
        ({"cuda:0": "4GB"}, [20e9, 24e9, 256e9]),
    ):
        problem_options: Any = ProblemOptions(headroom=again)  # type: ignore[arg-type]
        assert build_for_plan(chain, plan, options=problem_options)[0].capacity.tolist() == capacity


def test_kinds_that_a_device_cannot_run(chain: Path, tmp_path: Path) -> None:
    """By a pattern of kinds, matched whole, on top of what a file says; a plan keeps it."""
    plan = tmp_path / "plan.json"
    run("place", chain, "-d", "L4,cpu", "--unsupported", "Re.u=cuda:0", "--placer", "greedy", "-o", plan)
    assert all(json.loads(plan.read_text())["assignment"][f"r{layer}"] == "cpu" for layer in range(8))
    problem, placement = build_for_plan(chain, plan)
    assert problem.cluster.devices[0].unsupported == {"Relu"} and pw.judge(problem, placement).valid
    with pytest.raises(InputError, match="no op of the model is of a kind 'Rel'; see `placewise inspect`"):
        pw.build(chain, "L4,cpu", ProblemOptions(unsupported={"Rel": "cuda:0"}))  # type: ignore[arg-type]
    with pytest.raises(PlacewiseError, match="there is no device 'npu'"):
        pw.build(chain, "L4,cpu", ProblemOptions(unsupported={"Relu": "npu"}))  # type: ignore[arg-type]


def test_kinds_that_a_device_runs_and_no_others(chain: Path, tmp_path: Path) -> None:
    """Patterns of one device add up; all other kinds run elsewhere, in the plan too; a misspelt name is an error."""
    plan = tmp_path / "plan.json"
    rules = ("--supported", "MatMul|LSTM=cuda:0")
    run("place", chain, "-d", "2xL4,cpu", *rules, "--pin", "m.=cuda:0", "--placer", "greedy", "-o", plan)
    problem, placement = build_for_plan(chain, plan)
    kinds = {kind for kind, device in zip(problem.graph.ops.kind, placement.device, strict=True) if device == 0}
    assert kinds == {"MatMul"} and pw.judge(problem, placement).valid
    assert not problem.cluster.devices[0].can_run("Relu") and problem.cluster.devices[1].can_run("Relu")
    both: Any = ProblemOptions(supported=[("MatMul", "cuda:0"), ("Re.u", "cuda:0")], unsupported={"MatMul": "cuda:0"})  # type: ignore[arg-type]
    found = pw.build(chain, "L4,cpu", both)
    assert [kind for kind in found.graph.ops.kind.values if found.cluster.devices[0].can_run(kind)] == ["Relu"]
    for rule, words in (("MatMul|Rellu", "'Rellu' is not an op; did you mean 'Relu'?"), ("Rel", "of a kind 'Rel'")):
        assert words in run("place", chain, "-d", "L4,cpu", "--supported", f"{rule}=cuda:0", code=2).stderr


def test_a_device_with_a_list_of_what_it_takes(chain: Path, tmp_path: Path) -> None:
    """Only those kinds are placed there, which a plan keeps; a name that no op has is an error with the near one."""
    plan, npu = tmp_path / "plan.json", tmp_path / "npu.toml"
    npu.write_text('devices = [{ model = "L4", name = "npu", supported = ["MatMul"] }, { model = "cpu" }]')
    run("place", chain, "-d", npu, "--pin", "m.=npu", "--placer", "greedy", "-o", plan)
    problem, placement = build_for_plan(chain, plan)
    assert problem.cluster.devices[0].supported == {"MatMul"} and pw.judge(problem, placement).valid
    kinds = {kind for kind, device in zip(problem.graph.ops.kind, placement.device, strict=True) if device == 0}
    assert kinds == {"MatMul"}
    for key in ("supported", "unsupported"):
        npu.write_text(f'devices = [{{ model = "L4", {key} = ["MatMul", "Matmul"] }}]')
        for said in (run("place", chain, "-d", npu, code=2), run("devices", npu, code=2)):
            assert f"cuda:0: {key} lists 'Matmul', which is not an op; did you mean 'MatMul'?" in said.stderr
    npu.write_text('devices = [{ model = "L4", supported = ["MatMul", "Relu", "mine::Tokenize"] }]')
    assert pw.build(chain, str(npu)).allowed.all()


def test_the_rules_from_the_command_line(chain: Path, tmp_path: Path) -> None:
    """Together, in the words that people know; what is left out says so, and the plan is valid when read again."""
    plan = tmp_path / "plan.json"
    text = run(
        "place", chain, "-d", "3xL4,cpu", "--max-memory", "0=1MiB", "--max-memory", "cuda:1=1.5MiB",
        "--exclude", "cuda:2", "--no-offload", "--no-split", r"[mr]\d", "--headroom", "cuda:0=10%",
        "-o", plan, "--time-limit", "1s",
    ).stdout  # fmt: skip
    assert "left out" in text
    made = json.loads(plan.read_text())["assignment"]
    assert set(made.values()) == {"cuda:0", "cuda:1"}
    assert "keeps every rule" in run("check", chain, plan).stdout
    device = run(
        "place", chain, "-d", "2xL4,cpu", "--max-memory", '{"0": "1GiB", "1": 0}', "--json", "--placer", "single"
    ).stdout
    assert json.loads(device)["cluster"]["devices"][0]["memory"] == GiB


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max-memory", "cuda:9=1GiB"), "there is no device 'cuda:9'"),
        (("--max-memory", "cuda:0"), "has no '='"),
        (("--max-memory", "cuda:0=much"), "max_memory of 'cuda:0': 'much' is not a size"),
        (("--max-memory", '{"cuda:0"'), "--max-memory is not JSON"),
        (("--max-memory", '{"cuda:0": [1]}'), "the max_memory of 'cuda:0' is"),
        (("--headroom", "12"), "'12' is neither a share nor a size; write it like '10%' or '2GiB'"),
        (("--headroom", "cuda:0="), "is neither a share nor a size"),
        (("--headroom", "cuda:9=1GB"), "there is no device 'cuda:9'"),
        (("--headroom", "5%", "--headroom", "1GB"), "give one amount for each device"),
        (("--headroom", "cuda:0=100%"), "a headroom of 100 % leaves no memory to use; give less than 100 %"),
        (("--exclude", "("), "exclude holds '('; give regular expressions"),
        (("--unsupported", "Relu"), "--unsupported 'Relu' has no '='"),
        (("--unsupported", "(=cuda:0"), "is not a regular expression"),
    ],
)
def test_rules_without_sense(chain: Path, options: tuple[str, ...], message: str) -> None:
    """One sentence, exit code 2."""
    said = run("place", chain, "-d", "L4,cpu", *options, code=2).stderr
    assert message in said and said.count("error:") == 1 and said.strip().count("\n") == 0


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({}, (48e9, 16e9)),
        ({"mps": "56GB"}, (56e9, 8e9)),
        ({"mps": "40GB"}, (40e9, 24e9)),
        ({"mps": "64GB"}, (64e9, 0)),
        ({"cpu": "32GB"}, (32e9, 32e9)),
        ({"cpu": "8GB"}, (48e9, 8e9)),
        ({"mps": "50GB", "cpu": "10GB"}, (50e9, 10e9)),
    ],
)
def test_the_parts_of_one_memory_are_never_more_than_all(
    limits: dict[str, str], wanted: tuple[float, float], chain: Path
) -> None:
    """Of a Mac of 64 GB: what one part is given, the other lacks; macOS does not let the GPU have more by itself."""
    cluster = pw.build(chain, "M2-Max@64GB,cpu", ProblemOptions(max_memory=limits)).cluster
    assert tuple(device.memory for device in cluster) == pytest.approx(wanted)


def test_a_mac_of_a_file_has_one_memory_too(chain: Path) -> None:
    """That of its model; what the file says of a part is the part's."""
    file = chain.with_name("mac.toml")
    for memory, wanted in (("", (72e9, 24e9)), (', memory = "64GB"', (64e9, 32e9))):
        file.write_text(f'devices = [{{ model = "M2-Max"{memory} }}, {{ model = "cpu" }}]')
        cluster = pw.build(chain, file).cluster
        assert tuple(device.memory for device in cluster) == pytest.approx(wanted)
    file.write_text('devices = [{ model = "M2-Max" }, { model = "cpu" }]')
    cluster = pw.build(chain, file, ProblemOptions(max_memory={"mps": "90GB"})).cluster
    assert cluster.devices[1].memory == pytest.approx(6e9)


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [({}, (48e9, 8e9, 8e9)), ({"mps": "56GB"}, (56e9, 4e9, 4e9)), ({"cpu:0": "4GB"}, (48e9, 4e9, 8e9))],
)
def test_processors_of_a_mac_share_what_is_left(limits: dict[str, str], wanted: tuple[float, ...], chain: Path) -> None:
    """Two of them have a half each."""
    cluster = pw.build(chain, "M2-Max@64GB,2xcpu", ProblemOptions(max_memory=limits)).cluster
    assert tuple(device.memory for device in cluster) == pytest.approx(wanted)
