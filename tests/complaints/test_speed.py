"""What people complain of, rebuilt (docs/complaints.md): idle and slowing devices, storms of copies, uneven stages."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run
from decoder_files import MIB, dataless, decoder
from huggingface_configs import write_config
from onnx import ModelProto, TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import placewise as pw
from placewise.exporters.writing import export_placement

BRIEF = ("--time-limit", "30s", "--gap", "25%")
"""A search ends where its answer is proved to be so good, however slow the machine."""
ONE = ("--dim", "batch=1", "--dim", "tokens=1")


def placed(model: object, devices: object, *options: object) -> Any:
    """The plan that `placewise place` prints as JSON."""
    return json.loads(run("place", model, "-d", devices, *BRIEF, "--json", *options).stdout)


def used(plan: Any) -> list[str]:
    return [use["device"] for use in plan["devices"] if use["ops"]]


def test_same_input_same_plan(tmp_path: Path) -> None:
    """accelerate#448: the map differs between runs. A cluster file, no limit of time: one plan, and one hash to say so.

    Other memory is another input, and mostly another plan.
    """
    model, cluster = decoder(tmp_path / "m.onnx", [200] * 3, width=4096), tmp_path / "cards.toml"
    hashes = []
    for room in ("500MiB", "500MiB", "300MiB"):
        cluster.write_text(f'[[devices]]\nmodel = "L4"\ncount = 2\nmemory = "{room}"\n[[devices]]\nmodel = "cpu"\n')
        done = run("place", model, "-d", cluster, *ONE, "--gap", "25%", "-o", tmp_path / "plan.json", "-q")
        plan = json.loads((tmp_path / "plan.json").read_text())
        assert f"placement {plan['placement_hash'][:12]}" in done.stdout and plan["violations"] == []
        hashes.append(plan["placement_hash"])
    assert hashes[0] == hashes[1] != hashes[2]


def test_two_gpus_are_used_or_it_is_said(tmp_path: Path) -> None:
    """openvino#38250: HETERO with PIPELINE_PARALLEL puts all on GPU.0 where it fits, and says nothing.

    For one request at a time one device is best, and plan and export name the idle ones. As a pipeline both have their
    share; every layer of the IR has an affinity, so nothing is left to the policy.
    """
    pytest.importorskip("openvino")
    from openvino_models import branching

    model, cluster = branching(tmp_path, layers=24), tmp_path / "gpus.toml"
    cluster.write_text(
        '[[devices]]\nname = "GPU.0"\nmodel = "Flex-170"\n[[devices]]\nname = "GPU.1"\nmodel = "Flex-170"\n'
    )
    plan = placed(model, cluster, "--dim", "batch=64", "--gap", "90%", "-o", tmp_path / "one.json")
    (alone,) = used(plan)
    (idle,) = {"GPU.0", "GPU.1"} - {alone}
    told = run("export", tmp_path / "one.json", "--to", "openvino", "-o", tmp_path / "one")
    assert f"{idle}: no op of this plan runs there" in told.stderr
    assert json.loads((tmp_path / "one" / "affinities.json").read_text())["target"] == alone
    plan = placed(model, cluster, "--dim", "batch=64", "--objective", "throughput", "-o", tmp_path / "two.json")
    compute = {use["device"]: use["compute"] for use in plan["devices"]}
    assert min(compute.values()) > 0.4 * sum(compute.values()) > 0
    told = run("export", tmp_path / "two.json", "--to", "openvino", "-o", tmp_path / "two")
    said = json.loads((tmp_path / "two" / "affinities.json").read_text())
    assert "no op" not in told.stderr and said["target"] in ("HETERO:GPU.0,GPU.1", "HETERO:GPU.1,GPU.0")
    assert set(said["affinity"].values()) == {"GPU.0", "GPU.1"}
    assert all(said["affinity"][layer] == plan["assignment"][op] for op, own in said["ops"].items() for layer in own)


def tokenizer(rounds: int) -> ModelProto:
    """Rounds of an op that no GPU runs and of two cheap ones that any device does, then four large products."""
    nodes, weights, last, large = [], [], "x", [512, 4096]
    for n in range(rounds):
        nodes += [
            make_node("Tokenize", [last], [f"split{n}"], f"/tokenizer/{n}/split", domain="custom"),
            make_node("Relu", [f"split{n}"], [f"clipped{n}"], f"/tokenizer/{n}/clip"),
            make_node("Neg", [f"clipped{n}"], [f"shifted{n}"], f"/tokenizer/{n}/shift"),
        ]
        last = f"shifted{n}"
    for n in range(4):
        weights.append(dataless(f"weight{n}", 4096, 4096))
        nodes.append(make_node("MatMul", [last, f"weight{n}"], [f"hidden{n}"], f"/encoder/{n}/product"))
        last = f"hidden{n}"
    known = [make_tensor_value_info(f"split{n}", TensorProto.FLOAT16, large) for n in range(rounds)]
    ends = [make_tensor_value_info(name, TensorProto.FLOAT16, large) for name in ("x", last)]
    graph = make_graph(nodes, "tokenizer", ends[:1], ends[1:], weights, value_info=known)
    return make_model(graph, opset_imports=[make_opsetid("", 18), make_opsetid("custom", 1)])


def test_storms_of_copies_are_counted_and_avoided(tmp_path: Path) -> None:
    """onnxruntime#23154, #6299: ops that must be on the CPU inside a GPU graph, a copy around each, and silence.

    All cheap ops on the GPU take six copies there and six back, each of 4 MiB; the plan keeps them on the CPU and
    takes two. What the GPU cannot run is named.
    """
    model, cluster = tmp_path / "tokenizer.onnx", tmp_path / "gpu.toml"
    model.write_bytes(tokenizer(6).SerializeToString())
    cluster.write_text(
        '[[devices]]\nmodel = "A100-80GB"\nunsupported = ["custom::Tokenize"]\n[[devices]]\nmodel = "cpu"\n'
    )
    storm = run(
        "place", model, "-d", cluster, *BRIEF, "--pin", "clip|shift|encoder=cuda:0", "-q", "-o", tmp_path / "a.json"
    )
    calm = run("place", model, "-d", cluster, *BRIEF, "--gap", "14%", "-q", "-o", tmp_path / "b.json")
    for done, there, back in ((storm, 6, 6), (calm, 1, 1)):
        assert "cuda:0 cannot run custom::Tokenize: 6 ops are on other devices" in done.stdout
        rows = re.findall(r"^(\S+ → \S+) +(\d+) +(\S+ MiB)", done.stdout, re.MULTILINE)
        ways = (("cuda:0 → host", back), ("host → cuda:0", there))
        assert sorted(rows) == [(way, str(count), f"{4 * count} MiB") for way, count in ways]
    plans = [json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json")]
    assert plans[1]["value"] < 0.9 * plans[0]["value"]
    homes = plans[1]["assignment"]
    assert {homes[f"/tokenizer/{n}/clip"] for n in range(5)} == {"cpu"}
    assert {homes[f"/encoder/{n}/product"] for n in range(4)} == {"cuda:0"}


def test_more_devices_are_never_worse(tmp_path: Path) -> None:
    """llama.cpp#4014, #11864: a second GPU makes it up to ten times slower.

    With one, two and three devices, of which each is slower than the one before: the plan uses the first alone, says
    that a split is not worth it, and its value is that of the first alone.
    """
    model = decoder(tmp_path / "m.onnx", [300] * 12, width=4096, vocab=32_000, last=True)
    one, two, three = (placed(model, devices, *ONE) for devices in ("H100", "H100,L4", "H100,L4,L4"))
    assert used(one) == used(two) == used(three) == ["cuda:0"]
    assert one["value"] == pytest.approx(two["value"]) == pytest.approx(three["value"])
    assert two["baselines"]["naive balanced split"]["value"] > 1.2 * two["value"]
    assert "A split is not worth it" in run("place", model, "-d", "H100,L4", *BRIEF, *ONE, "-q").stdout


def test_layers_in_the_order_that_was_asked_for(tmp_path: Path) -> None:
    """llama.cpp#13314: GPU0 first, then RPC0, the rest on the CPU; by numbers of layers, or filled as memory allows.

    By numbers, two expressions and what is left. By memory, a card for 30 layers and one for 11 have at most as many,
    and layers go from device to device in the order asked for.
    """
    model, cluster = decoder(tmp_path / "m.onnx", [100] * 48, width=2048), tmp_path / "three.toml"
    cluster.write_text(
        '[[devices]]\nname = "gpu0"\nmodel = "L4"\nmemory = "3.2GB"\n'
        '[[devices]]\nname = "rpc0"\nmodel = "L4"\nmemory = "1.2GB"\n[[devices]]\nmodel = "cpu"\n'
        '[[links]]\nsource = "rpc0"\ntarget = "host"\nbandwidth = "1Gb/s"\nlatency = "200us"\n'
    )
    pins = (r"layers\.([0-9]|[12][0-9])$=gpu0", r"layers\.3[0-9]$=rpc0", r"layers\.4[0-7]$=cpu")
    pinned = placed(model, cluster, *ONE, *(word for pin in pins for word in ("--pin", pin)))
    homes = [pinned["assignment"][f"/layers.{n}/up"] for n in range(48)]
    assert homes == ["gpu0"] * 30 + ["rpc0"] * 10 + ["cpu"] * 8 and pinned["violations"] == []
    filled = placed(model, cluster, *ONE, "--in-order", "--gap", "10%", "--time-limit", "5s")
    homes = [filled["assignment"][f"/layers.{n}/up"] for n in range(48)]
    assert homes == sorted(homes, key=["gpu0", "rpc0", "cpu"].index) and filled["violations"] == []
    assert 0 < homes.count("gpu0") <= 30 and 0 < homes.count("rpc0") <= 11 and filled["value"] < 1.05 * pinned["value"]


def test_an_even_split_of_uneven_layers(tmp_path: Path) -> None:
    """llama.cpp#12654: first layers much larger than later ones; equal counts overflow GPU 0 while GPU 1 has room."""
    model = decoder(tmp_path / "m.onnx", [1200] * 8 + [300] * 24, width=4096)
    cards = json.dumps({"0": "9GiB", "1": "9GiB"})
    assert 8 * 1200 + 8 * 300 > 9 * 1024, "sixteen layers each do not fit"
    plan = placed(model, cards, *ONE, "--no-split", r"layers\.\d+")
    homes = [plan["assignment"][f"/layers.{n}/up"] for n in range(32)]
    assert plan["violations"] == [] and set(homes) == {"cuda:0", "cuda:1"}
    assert homes[:16] != ["cuda:0"] * 16 and homes[:16] != ["cuda:1"] * 16


FLEET = {
    "laptop": (36, 264.4), "studio-a": (96, 344.0), "studio-b": (64, 308.7), "studio-c": (96, 351.2),
    "studio-d": (36, 177.6),
}  # fmt: skip
"""Memory in GB and measured bandwidth in GB/s, as a comment in exo#957 gives them."""


def fleet(path: Path, memory: float = 1.0, latency: str = "0us", **others: str) -> Path:
    """Their cluster file: no peak speeds; `memory` is the share that may be used."""
    tables = [
        f'[[devices]]\nname = "{name}"\nmemory = "{room * memory}GB"\nmemory_bandwidth = "{speed}GB/s"\n'
        for name, (room, speed) in FLEET.items()
    ]
    link = f'[default_link]\nbandwidth = "10Gb/s"\nlatency = "{latency}"\n'
    path.write_text('transfers = "direct"\n' + "".join(tables) + link + "".join(others.values()))
    return path


def test_layers_by_bandwidth_and_not_by_memory(tmp_path: Path) -> None:
    """exo#957: 40 layers of 1 GB in proportion to memory take 34.88 ms (12 on studio-a); FLOPs are not known.

    By hand: 29.07 ms, 10 layers on studio-a, is the least time in which 7, 10, 8, 10 and 5 layers fit, and 40 in all.
    The plan has exactly these, with proof; missing peak speeds are no division by zero.
    """
    model = decoder(tmp_path / "m.onnx", [1e9 / MIB] * 40, width=4096, vocab=64)
    plan = placed(model, fleet(tmp_path / "fleet.toml"), *ONE, "--objective", "throughput", "--gap", "0%",
                  "--no-split", r"layers\.\d+")  # fmt: skip
    homes = [plan["assignment"][f"/layers.{n}/up"] for n in range(40)]
    assert plan["status"] == "optimal" and plan["value"] == pytest.approx(10 / 344, rel=0.005)
    least = max(homes.count(name) / speed for name, (_, speed) in FLEET.items())
    assert least == pytest.approx(10 / 344) and plan["value"] < 0.84 * 34.88e-3
    told = run("devices", tmp_path / "fleet.toml").stdout
    assert told.count("peak speed is not given: only memory bandwidth counts") == 5
    bare = tmp_path / "bare.toml"
    bare.write_text('[[devices]]\nname = "new"\nmemory = "36GB"\n')
    refused = run("place", model, "-d", bare, *ONE, code=2).stderr
    assert "device 'new': it has no peak speed and no memory bandwidth" in refused


def test_the_ring_is_chosen_for_its_links(tmp_path: Path) -> None:
    """exo#957, #284: one request takes the sum of C_i + L_i, and which devices take part is to be chosen.

    All in one memory: one device, no link. A fifth of the memory: at least three devices, the fastest ones first, and
    with links of 20 ms as few as hold it.
    """
    model = decoder(tmp_path / "m.onnx", [1e9 / MIB] * 40, width=4096, vocab=64)
    rules = (*ONE, "--no-split", r"layers\.\d+")
    assert used(placed(model, fleet(tmp_path / "a.toml", latency="1ms"), *rules)) == ["studio-c"]
    small = placed(model, fleet(tmp_path / "b.toml", 0.2, "20ms"), *rules)
    assert used(small) == ["studio-a", "studio-b", "studio-c"] and small["violations"] == []
    layers = {name: [small["assignment"][f"/layers.{n}/up"] for n in range(40)].count(name) for name in used(small)}
    compute = sum(count / FLEET[name][1] for name, count in layers.items())
    assert small["value"] == pytest.approx(compute + 4 * 0.02, rel=0.02), "two links between, one in and one out"


def test_stages_leave_room_for_embedding_and_head(tmp_path: Path) -> None:
    """vllm#6920: equal layers, and the stage with the head is the slowest and the fullest (1.46× after a rebalance).

    The partition gives it fewer layers, none is empty, and the pace is better than that of equal layers.
    """
    pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 16, "hidden_size": 512, "intermediate_size": 1408, "vocab_size": 32_000}
    problem_options = pw.ProblemOptions(
        objective="throughput", dims={"prompt": 64, "tokens": 8}, together=(r"model\.layers\.\d+",)
    )  # fmt: skip
    problem = pw.build(write_config(tmp_path, "llama", **sizes), "4xL4", problem_options)
    plan = pw.place(problem, budget="30s")
    assert plan.placement is not None and plan.value == pytest.approx(plan.lower_bound)
    made = export_placement(problem, plan.placement, "vllm")
    command = str(made.exported.files["vllm.sh"])
    layers = [int(count) for count in re.search(r"VLLM_PP_LAYER_PARTITION=([\d,]+)", command)[1].split(",")]  # type: ignore[index]
    assert sum(layers) == 16 and len(layers) == 4 and min(layers) >= 1 and layers[-1] < max(layers)
    assert not made.projected and plan.value < 0.95 * even(problem, 16)


def even(problem: pw.Problem, layers: int) -> float:
    """The seconds of equal layers on four stages, embedding on the first one and head on the last."""
    numbers = [re.search(r"layers\.(\d+)", scope) for scope in problem.graph.ops.scope]
    stages, last = [], 0
    for match, scope in zip(numbers, problem.graph.ops.scope, strict=True):
        last = int(match[1]) * 4 // layers if match else 3 if "norm" in scope or "head" in scope or not scope else 0
        stages.append(last)
    return pw.judge(problem, pw.Placement(stages)).value  # type: ignore[arg-type]


def parts_of(folder: Path, layers: int, stages: int, ends: float) -> list[int]:
    """PARTS for DeepSpeed of a decoder whose layers take a second each, and its embedding and head so many."""
    model, costs = decoder(folder / "m.onnx", [100] * layers), folder / "costs.csv"
    inside = [f"/layers.{n}/{part}" for n in range(layers) for part in ("up", "act", "down", "sum")]
    seconds = dict.fromkeys(inside, 0.25) | {"/embed": ends, "/head/product": ends}
    rows = [f"{op},cuda:{card},{time}" for op, time in seconds.items() for card in range(stages)]
    costs.write_text("\n".join(["op,device,seconds", *rows, ""]))
    asked = ("--objective", "throughput", "--costs", costs, "--gap", "1%", "--no-split", r"layers\.\d+")
    placed(model, f"{stages}xH100", *ONE, *asked, "-o", folder / "plan.json")
    text = run("export", folder / "plan.json", "--to", "deepspeed", "--costs", costs).stdout
    found: list[int] = json.loads(re.search(r"^PARTS = (.*)$", text, re.MULTILINE)[1])  # type: ignore[index]
    assert found[0] == 0 and found[-1] == layers + 2
    return found


def test_no_stage_is_empty(tmp_path: Path) -> None:
    """DeepSpeed#5078: of 42 layers on 16 ranks, the last two get none. Here 14 or more have three each at most."""
    stages = [end - start for start, end in pairwise(parts_of(tmp_path, 42, 16, 0.1))]
    assert min(stages) >= 1 and 14 <= len(stages) <= 16
    layers = [stages[0] - 1, *stages[1:-1], stages[-1] - 1]
    assert max(layers) == 3


def test_a_vocabulary_that_counts_as_layers(tmp_path: Path) -> None:
    """Megatron-DeepSpeed#186, DeepSpeed#1378: an embedding as dear as two layers wants a stage of its own.

    Four layers on four cards, as asked for there: embedding; two layers; two layers; head.
    """
    assert parts_of(tmp_path, 4, 4, 2.0) == [0, 1, 3, 5, 6]
