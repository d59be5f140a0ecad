"""Plans for one target: what was searched is what is exported, to the last bit, in every target."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run
from export_models import on, stack_graph, stack_problem
from huggingface_configs import SMALL, write_config
from locations import EXAMPLES
from onnx_files import make_node, model, saved, weight
from soak import SOAKS
from tensorflow_files import DATA as TENSORFLOW

import placewise as pw
from placewise.core.target_rules import MOVED, TARGETS, run_on_target
from placewise.errors import ExportError, InputError, PlacewiseError
from placewise.exporters import registry
from placewise.exporters.writing import export_placement
from placewise.model.cost_error import estimate_error
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.targets.kept import describe_kept, list_kept
from placewise.targets.place_for import place_for

pytestmark = pytest.mark.usefixtures("traced_once")
LAYERS = ("deepspeed", "llama.cpp", "megatron", "vllm")
PIPELINED = tuple(name for name, rule in TARGETS.items() if rule.overlaps)


def require_same(plan: pw.Plan, target: str, path: Path) -> None:
    """The exported files say exactly the plan; the plan that was saved says the same."""
    assert plan.placement is not None and plan.result.target == target
    plan.save(path)
    made = pw.export(path)
    assert made.info.name == target and not made.projected and made.loss == 0
    assert np.array_equal(made.exported.placement.device, plan.placement.device)
    assert made.said.value == plan.value and made.said.valid
    again = pw.Plan.load(path)
    assert (again.value, again.lower_bound, again.status) == (plan.value, plan.lower_bound, plan.status)
    assert again.result.target == target


@pytest.fixture(scope="module", params=[*SMALL] if SOAKS else ["llama", "mixtral", "gpt2"])
def transformer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Problem:
    """A small transformer on a GPU that is too small, one that is not, and a CPU."""
    pytest.importorskip("transformers")
    config = tmp_path_factory.mktemp(request.param) / "config.json"
    config.write_text(json.dumps({"model_type": request.param, **SMALL[request.param]}))
    roomy = pw.build(config, {0: "1GiB", 1: "1GiB", "cpu": "1GiB"})
    whole = pw.judge(roomy, Placement.on(0, roomy.n_ops)).devices[0].peak
    return pw.build(config, {0: 0.9 * whole, 1: 1.1 * whole, "cpu": "1GiB"})


def test_every_target_that_runs_models_has_a_rule() -> None:
    """Pictures have none, and torch, which takes plans with stages alone."""
    assert set(registry.names()) - set(TARGETS) == {"dot", "trace", "torch"}


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("target", LAYERS)
@pytest.mark.parametrize("name", ["zoo:bert-base", "zoo:gnmt-2", "zoo:random-layered"])
def test_layers_of_the_zoo(target: str, objective: str, name: str, tmp_path: Path) -> None:
    """Optimal among all splits and exported as it is, or refused in one sentence that names the target."""
    if objective == "throughput" and target not in PIPELINED:
        with pytest.raises(InputError, match="no two samples overlap"):
            pw.place(name, "2xL4,cpu", target=target, objective=objective)
        return
    try:
        plan = pw.place(name, "2xL4,cpu", target=target, objective=objective)
    except ExportError as error:
        assert target != "deepspeed" and target in str(error)
        return
    searched = "of whole layers in llama.cpp" if target == "llama.cpp" else f"that {target} can express"
    assert plan.status == "optimal" and f"splits {searched}" in plan.result.bound.method
    require_same(plan, target, tmp_path / "plan.json")


@pytest.mark.parametrize("target", [*LAYERS, "device-map"])
def test_families_of_transformers(transformer: Problem, target: str) -> None:
    """Small configurations: experts, tied weights, caches."""
    try:
        result = place_for(transformer, target, "auto", pw.Budget(seconds=0.1))
    except ExportError as error:
        assert SOAKS and target in str(error)
        return
    assert result.placement is not None
    made = export_placement(result.problem, result.placement, target)
    assert not made.projected and made.said.value == result.value


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("target", ["onnx", "onnx-annotated", "openvino"])
def test_onnx(target: str, objective: str, tmp_path: Path) -> None:
    """Branches on an accelerator and a CPU."""
    if target == "openvino":
        pytest.importorskip("openvino")
    nodes = [make_node("MatMul", ["x", "w"], ["a"]), make_node("Relu", ["a"], ["b"]),
             make_node("Sigmoid", ["a"], ["c"]), make_node("Add", ["b", "c"], ["y"])]  # fmt: skip
    path = saved(tmp_path, model(nodes, {"x": [64, 64]}, {"y": [64, 64]}, [weight("w", 64, 64)]))
    devices = {"GPU.0": "1GiB", "cpu": "1GiB"} if target == "openvino" else "2xL4,cpu"
    plan = pw.place(path, devices, target=target, objective=objective, time_limit="0.3s")
    require_same(plan, target, tmp_path / "plan.json")
    if target == "onnx-annotated" and plan.placement is not None:
        assert not set(plan.assignment.values()) >= {"cuda:0", "cuda:1"}


@pytest.mark.parametrize("target", ["onnx", "onnx-annotated", "vllm", "llama.cpp", "megatron", "deepspeed"])
@pytest.mark.parametrize(
    ("name", "dims"),
    [("bert_base", {"batch": 1, "seq": 16}), ("gpt2", {"batch": 1, "seq": 16}), ("resnet50", {"batch": 1})],
)
def test_examples(target: str, name: str, dims: dict[str, int], tmp_path: Path) -> None:
    """The models that come with Placewise: as they are, or refused in one sentence."""
    if not SOAKS and name == "gpt2" and target.startswith("onnx"):
        pytest.skip("as BERT, but larger: make soak")
    try:
        plan = pw.place(EXAMPLES / f"{name}.onnx", "2xL4,cpu", target=target, dims=dims, time_limit="0.3s")
    except ExportError as error:
        assert "list of layers" in str(error)
        return
    require_same(plan, target, tmp_path / "plan.json")


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_tensorflow(objective: str, tmp_path: Path) -> None:
    """Nodes that stand for several ops stay on one device."""
    path = TENSORFLOW / "attention.pb"
    plan = pw.place(path, "2xL4,cpu", target="tensorflow", dims={"batch": 4}, objective=objective, time_limit="0.3s")
    require_same(plan, "tensorflow", tmp_path / "plan.json")


@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
@pytest.mark.parametrize(("target", "objective"), [("pipelining", "latency"), ("pipelining", "throughput"),
                                                   ("device-map", "latency")])  # fmt: skip
def test_programs(target: str, objective: str, tmp_path: Path) -> None:
    """A program whose first value is read by the last op; no device holds all weights."""
    import torch

    layers = [torch.nn.Linear(64, 64) for _ in range(6)]
    torch.export.save(torch.export.export(torch.nn.Sequential(*layers), (torch.ones(8, 64),)), tmp_path / "m.pt2")
    devices = {0: "60kB", 1: "90kB"}
    plan = pw.place(tmp_path / "m.pt2", devices, target=target, objective=objective, time_limit="0.3s")
    assert len(set(plan.assignment.values())) == 2
    require_same(plan, target, tmp_path / "plan.json")


def test_a_split_that_no_target_runs_is_not_promised(tmp_path: Path) -> None:
    """Llama 3 8B on two L4 and a CPU for one request: what vLLM, llama.cpp and Accelerate run, one L4 does as well."""
    pytest.importorskip("transformers")
    problem = pw.build("hf:llama-3-8b", "2xL4,cpu")
    free = pw.place(problem, placer="heft")
    kept = {one.target: one for one in list_kept(free.result)}
    assert kept["vllm"].loss > 0.2 and kept["device-map"].loss > 0.2 and "vllm" in free.summary()
    for target in ("vllm", "llama.cpp", "device-map"):
        result = place_for(problem, target, "auto", pw.Budget(seconds=2))
        assert result.gap < 1e-3 and result.placement is not None
        made = export_placement(result.problem, result.placement, target)
        assert not made.projected and made.said.value == result.value
        assert result.value < export_placement(problem, free.placement, target).said.value * (1 + 1e-2)  # type: ignore[arg-type]
        assert "not worth it" in pw.Plan(result).summary() or target == "llama.cpp"


@pytest.mark.soak
def test_a_large_model_keeps_its_gpus_in_llama_cpp(tmp_path: Path) -> None:
    """Llama 3 70B on two cards of 24 GB and a CPU: 13 layers on each, a quarter faster than the CPU alone."""
    pytest.importorskip("transformers")
    problem = pw.build("hf:llama-3-70b", "2xRTX-4090,cpu@256GiB")
    plan = pw.place(problem, target="llama.cpp")
    alone = plan.result.baselines["best single device"][1].value
    assert plan.status == "optimal" and plan.value < 0.75 * alone
    text = "".join(map(str, pw.export(plan).exported.files.values()))
    assert "-ngl 26 --split-mode layer --tensor-split 13,13" in text and not pw.export(plan).projected
    short = place_for(problem, "vllm")
    assert (str(short.status.outcome) == "infeasible" and "llama.cpp could run it" in short.unmet) or (
        "llama.cpp" in short.unmet
    )


def test_weights_in_host_memory_are_moved_to_the_first_gpu(tmp_path: Path) -> None:
    """Accelerate's price of a module on the CPU: its time on the GPU, and its bytes over the link; room is kept."""
    pytest.importorskip("transformers")
    config = tmp_path / "config.json"
    wide = {**SMALL["llama"], "hidden_size": 512, "intermediate_size": 2048}
    config.write_text(json.dumps({"model_type": "llama", **wide}))
    devices = {0: "24MB", "cpu": "1GiB"}
    plan = pw.place(config, devices, target="device-map", pins={"lm_head": "cuda:0"}, time_limit="0.5s")
    require_same(plan, "device-map", tmp_path / "plan.json")
    assert set(plan.assignment.values()) == {"cuda:0", "cpu"}
    problem, placement = plan.problem, plan.placement
    assert placement is not None and MOVED in problem.costs.sources
    graph, table, cluster = problem.graph, problem.costs.op_seconds, problem.cluster
    size = np.zeros(problem.n_ops)
    for weight_, op in zip(graph.weight_edges.value, graph.weight_edges.consumer, strict=True):
        size[op] += graph.weights.bytes[weight_]
    moved = size / cluster.class_bandwidth[cluster.link_class[2, 0]] * graph.op_repeats
    latency = cluster.class_latency[cluster.link_class[2, 0]] * graph.op_repeats * (size > 0)
    assert np.allclose(table[:, 1], table[:, 0] + moved + latency)
    stored = placement.device == 1
    assert plan.result.judgement is not None
    kept = cluster.devices[0].memory - plan.result.judgement.devices[0].peak
    assert kept >= size[stored].max() + graph.ops.state_bytes[stored].sum()


def test_hosts_stay_idle_for_pipelines() -> None:
    """A CPU never has a stage of vLLM, also where it is the faster one; llama.cpp starts there."""
    problem = stack_problem(stack_graph(4), objective=Objective())
    assert set(place_for(problem, "vllm").placement.device.tolist()) <= {0, 1}  # type: ignore[union-attr]
    result = place_for(problem, "llama.cpp")
    assert result.placement is not None and result.placement.device[0] == 2


def test_experts_go_to_the_host_before_whole_layers() -> None:
    """Where GPUs are too small for experts, llama.cpp keeps attention on them: the layers' experts are overridden."""
    graph = stack_graph(4, ("attn", "experts"), weight=1)
    slow = {"embed": 0.1, "head": 0.1, **{f"layers.{n}.attn": 5.0 for n in range(4)}}
    problem = stack_problem(graph, gpus=1, memory=5.0, seconds=slow, objective=Objective(execution="sequential"))
    table = problem.costs.op_seconds.copy()
    table[:, 1] *= 4
    costs = type(problem.costs).given(table, problem.costs.transfer_seconds)
    result = place_for(problem.with_(costs=costs), "llama.cpp")
    assert result.placement is not None and result.status.outcome.value == "optimal"
    made = export_placement(result.problem, result.placement, "llama.cpp")
    assert not made.projected and "-ncmoe " in str(made.exported.files)
    assert re.fullmatch(r"all \d+ splits in llama\.cpp with the experts of the first n layers on the host",
                        result.bound.method)  # fmt: skip


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("vlm", {}, "did you mean 'vllm'"),
        ("device_map", {}, "did you mean 'device-map'"),
        ("torch", {}, "takes the plans of --tensor-parallel: leave it out, then export --to torch"),
        ("nothing-like-it", {}, "choose from deepspeed"),
        ("vllm", {"contiguous": False}, "form a chain"),
        ("vllm", {"execution": "operator"}, "the execution 'sequential', not 'operator'"),
        ("tensorflow", {"execution": "sequential"}, "the execution 'operator'"),
        ("vllm", {"replicas": 2, "objective": "throughput"}, "does not support replicas"),
        ("device-map", {"objective": "throughput"}, "no two samples overlap"),
        ("deepspeed", {"placer": "heft"}, "leave out the placer"),
        ("pipelining", {"communication": "overlap", "objective": "throughput"}, "'blocking', not 'overlap'"),
    ],
)
def test_options_that_contradict_a_target(target: str, options: dict[str, Any], words: str) -> None:
    """One sentence with the remedy."""
    with pytest.raises(PlacewiseError, match=words) as caught:
        pw.place("zoo:bert-base", "2xL4,cpu", target=target, **options)
    assert isinstance(caught.value, InputError) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "words"),
    [("onnx", "onnx"), ("openvino", "openvino"), ("tensorflow", "tensorflow"), ("pipelining", "torch.export")],
)
def test_models_that_a_target_cannot_take(target: str, words: str) -> None:
    """One sentence that says why."""
    if target in ("openvino", "pipelining") and find_spec({"pipelining": "torch"}.get(target, target)) is None:
        pytest.skip("its library is not installed")
    with pytest.raises(ExportError, match=words):
        pw.place("zoo:bert-base", "2xL4,cpu", target=target)


def test_pipelining_has_blocking_transfers() -> None:
    """Whatever the problem says of communication, it is priced so; a target that does not care keeps it."""
    objective = Objective("throughput", communication="overlap", execution="sequential")
    problem = stack_problem(stack_graph(4), objective=objective)
    assert run_on_target(problem, "pipelining").objective.communication == "blocking"
    assert run_on_target(problem, "vllm").objective.communication == "overlap"


def test_what_fits_nowhere_in_a_target_names_those_where_it_fits() -> None:
    """Four layers of one byte each on two GPUs of two bytes: with a CPU, llama.cpp has room for them."""
    problem = stack_problem(stack_graph(4, ("attn",)), memory=2.0, objective=Objective())
    result = place_for(problem, "megatron")
    assert result.status.outcome.value == "infeasible" and "llama.cpp" in result.unmet
    assert pw.Plan(result).summary().startswith("infeasible: ")


def test_a_start_is_projected() -> None:
    """A plan that the target cannot express is a start all the same."""
    problem = stack_problem(stack_graph(4), objective=Objective())
    start = on(problem, {"layers.1.attn": "cuda:1", "layers.3.mlp": "cpu"})
    result = pw.place(problem, target="deepspeed", start=start).result
    assert result.status.outcome.value == "optimal"


def test_a_model_of_pictures_is_not_offered_to_servers_of_text(tmp_path: Path) -> None:
    """A vision transformer has numbered layers, but neither vLLM nor llama.cpp serves it; they do serve a Llama."""
    pytest.importorskip("transformers")
    for kind, served in (("vit", False), ("llama", True)):
        plan = pw.place(write_config(tmp_path, kind), "2xL4", placer="single")
        targets = {one.target for one in list_kept(plan.result)}
        assert "deepspeed" in targets and ({"vllm", "llama.cpp"} <= targets) == served


def test_weights_that_are_moved_have_the_error_of_links(tmp_path: Path) -> None:
    """Their time is not exact because no op computes in it."""
    pytest.importorskip("transformers")
    problem = run_on_target(pw.build(write_config(tmp_path, "llama"), "RTX-4090,cpu"), "device-map")
    stored = estimate_error(problem, [(Placement.on(1, problem.n_ops), 0.0)])
    assert stored.error == pytest.approx(0.15) and stored.source == "assumed speeds of links"


def test_a_plan_for_no_target_says_what_each_would_keep() -> None:
    """Everything on one GPU: vLLM and DeepSpeed run it as it is."""
    problem = stack_problem(stack_graph(4), objective=Objective(execution="sequential"))
    plan = pw.place(problem, placer="single")
    kept = list_kept(plan.result)
    assert {one.target for one in kept} >= {"deepspeed", "vllm"}
    assert describe_kept(kept).startswith("Exported to ") and describe_kept(kept) in plan.summary()
    assert list_kept(place_for(problem, "vllm")) == () and describe_kept(()) == ""


def test_the_command_line(tmp_path: Path) -> None:
    """place --for, and export without --to; a plan for one target is exported to another as any plan."""
    plan = tmp_path / "plan.json"
    out = run("place", "zoo:bert-base", "-d", "2xL4,cpu", "--for", "vllm", "-o", plan).stdout
    assert "proved optimal (all 12 splits that vllm can express)" in out and "made for vllm" in out
    assert json.loads(plan.read_text())["target"] == "vllm"
    assert "VLLM_PP_LAYER_PARTITION=12" in run("export", plan).stdout
    assert "--num-layers 12" in run("export", plan, "--to", "megatron").stdout
    refused = run("place", "zoo:bert-base", "-d", "2xL4,cpu", "--for", "vllm", "--free", code=2).stderr
    assert "form a chain" in refused
    run("place", "zoo:bert-base", "-d", "2xL4,cpu", "--placer", "single", "-o", plan)
    assert "target" not in json.loads(plan.read_text())
    assert "export takes a plan and a target" in run("export", plan, code=2).stderr
