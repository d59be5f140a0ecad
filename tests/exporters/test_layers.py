"""Targets that split by layers: what they write, what is read back, and the models that they refuse."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from export_models import KINDS, on, stack_graph, stack_problem
from huggingface_configs import SMALL

import placewise as pw
from placewise.catalog import read_cluster
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.errors import ExportError
from placewise.exporters.base import Exported
from placewise.exporters.megatron import read_layout
from placewise.exporters.registry import create_exporter
from placewise.exporters.stack import find_stack
from placewise.exporters.stages import require_stack
from placewise.exporters.writing import Export, export_placement
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.readers.gguf.llama_flags import assign_layers

BY_LAYER = ("deepspeed", "llama.cpp", "megatron", "vllm")


def text_of(made: Export) -> str:
    (content,) = made.exported.files.values()
    assert isinstance(content, str)
    return content


def command_of(made: Export) -> str:
    (line,) = [line for line in text_of(made).splitlines() if not line.startswith("#")]
    return line


def late(first: int, layers: int, parts: tuple[str, ...] = ("attn", "mlp")) -> dict[str, str]:
    """The layers from `first`, and the head, on cuda:1."""
    return {"head": "cuda:1"} | {
        f"layers.{n}.{part}": "cuda:1" for n in range(first, layers) for part in parts
    }  # fmt: skip


@pytest.fixture
def problem() -> Problem:
    return stack_problem(stack_graph(5))


def test_vllm_names_layers_per_stage_and_the_order_of_devices(problem: Problem) -> None:
    """Two layers on cuda:1, then three on cuda:0: a partition of 2,3, and CUDA_VISIBLE_DEVICES in that order."""
    early = {"embed": "cuda:1"} | {f"layers.{n}.{part}": "cuda:1" for n in (0, 1) for part in ("attn", "mlp")}
    made = export_placement(problem, on(problem, early), "vllm")
    assert not made.projected and made.loss == 0
    assert command_of(made).startswith("CUDA_VISIBLE_DEVICES=1,0 VLLM_PP_LAYER_PARTITION=2,3 vllm serve ")
    assert command_of(made).endswith("--tensor-parallel-size 1 --pipeline-parallel-size 2")


@pytest.mark.parametrize("target", ["vllm", "deepspeed", "megatron"])
def test_stages_over_nodes_name_them(target: str, problem: Problem) -> None:
    """Each stage's comment has its node; numbers of devices in one machine say nothing in two."""
    devices = tuple(
        replace(device, node=node) for device, node in zip(problem.cluster, ('a "b" c', "d", ""), strict=True)
    )
    cluster = Cluster(devices, problem.cluster.links, problem.cluster.transfers)
    apart = problem.with_(cluster=cluster)
    made = export_placement(apart, on(apart, late(2, 5)), target)
    text = "".join(map(str, made.exported.files.values()))
    assert re.search(r"(?m)^# .*\"cuda:0\".*a 'b' c", text) and re.search(r"(?m)^# .*\"cuda:1\".*\(d\)", text)
    assert "CUDA_VISIBLE_DEVICES" not in text
    assert target != "vllm" or "2 nodes" in " ".join(made.exported.notes)
    assert made.loss == export_placement(problem, on(problem, late(2, 5)), target).loss


def test_megatron_writes_a_layout(problem: Problem) -> None:
    """E before the first layer, L behind the last, a bar between stages."""
    made = export_placement(problem, on(problem, late(4, 5)), "megatron")
    assert command_of(made) == (
        "--num-layers 5 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*4|tL'"
    )
    assert read_layout("Et|t*12|tttL".replace("ttt", "t*3")) == [1, 12, 3]
    for broken in ("t*2|tL", "Et*2|t", "Et*2||tL", "Et*2|mL"):
        with pytest.raises(ExportError, match="layout"):
            read_layout(broken)


def test_deepspeed_writes_parts_of_a_list_with_both_ends(problem: Problem) -> None:
    """Five layers are seven entries: the first stage has one more for the embedding, the last one for the head."""
    made = export_placement(problem, on(problem, late(2, 5)), "deepspeed")
    values = {
        node.targets[0].id: ast.literal_eval(node.value)  # type: ignore[attr-defined]
        for node in ast.parse(text_of(made)).body if isinstance(node, ast.Assign)
    }  # fmt: skip
    assert values == {"PARTS": [0, 3, 7], "DEVICES": ["cuda:0", "cuda:1"]}


def test_deepspeed_gives_ends_stages_of_their_own(problem: Problem) -> None:
    """The head alone on cuda:1, or the embedding alone on cuda:0: as it is for DeepSpeed, projected for vLLM."""
    for away, parts, note in (
        (late(5, 5), [0, 6, 7], "after the last"),
        (late(0, 5), [0, 1, 7], "before the first"),
    ):
        placement = on(problem, away)
        made = export_placement(problem, placement, "deepspeed")
        assert (
            not made.projected and f"PARTS = {parts}" in text_of(made) and f"what comes {note} layer" in text_of(made)
        )
        assert export_placement(problem, placement, "vllm").projected


def test_llama_cpp_puts_the_first_layers_on_the_host(problem: Problem) -> None:
    """Of five layers, the host has one: four layers and the output are 5 for -ngl, in proportions of 2 and 3."""
    host = {"embed": "cpu", "layers.0.attn": "cpu", "layers.0.mlp": "cpu"}
    made = export_placement(problem, on(problem, host | late(3, 5)), "llama.cpp")
    assert not made.projected
    assert "--device CUDA0,CUDA1 -ngl 5 --split-mode layer --tensor-split 2,3" in command_of(made)


def test_llama_cpp_moves_the_embedding_to_the_host_and_says_what_that_costs(problem: Problem) -> None:
    """The embedding is never on a GPU: cuda:0 has 6 s instead of 7, and cuda:1 with 5 s waits no longer."""
    made = export_placement(problem, on(problem, late(3, 5)), "llama.cpp")
    assert made.projected and made.moved == 1
    assert (made.asked.value, made.said.value) == (pytest.approx(7.0), pytest.approx(6.0))
    assert made.loss == pytest.approx(6 / 7 - 1)


def test_llama_cpp_overrides_experts() -> None:
    """The experts of layers 1 and 2 are on the host, what is around them on GPUs."""
    graph = stack_graph(4, ("attn", "experts"))
    problem = stack_problem(graph)
    away = {"embed": "cpu", "layers.1.experts": "cpu", "layers.2.experts": "cpu"}
    made = export_placement(problem, on(problem, late(2, 4, ("attn", "experts")) | away), "llama.cpp")
    assert not made.projected
    assert command_of(made).endswith(
        r"-ngl 5 --split-mode layer --tensor-split 2,3 --override-tensor 'blk\.(1|2)\.ffn_.*_exps=CPU'"
    )


def test_llama_cpp_names_the_first_layers_with_experts_on_the_host_by_their_number() -> None:
    """Layer 0 is on the host, layers 1 and 2 are on GPUs without their experts, and layer 0 counts."""
    graph = stack_graph(4, ("attn", "experts"))
    problem = stack_problem(graph)
    away = {"embed": "cpu", "layers.0.attn": "cpu", **{f"layers.{n}.experts": "cpu" for n in range(3)}}
    made = export_placement(problem, on(problem, late(2, 4, ("attn", "experts")) | away), "llama.cpp")
    assert not made.projected
    assert command_of(made).endswith("-ngl 4 --split-mode layer --tensor-split 1,3 -ncmoe 3")


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ("2xRX-7900-XTX,cpu", ["ROCm0", "ROCm1"]), ("M2-Max,cpu", ["MTL0"]), ("Arc-A770,cpu", ["SYCL0"]),
        ("RTX4090,RX-7900-XTX,cpu", ["Vulkan0", "Vulkan1"]), ("2xRTX4090,cpu", ["CUDA0", "CUDA1"]),
    ],
)  # fmt: skip
def test_llama_cpp_names_devices_as_their_build_does(devices: str, names: list[str]) -> None:
    """Cards of AMD, Apple and Intel, and those of several makers; the command is read back."""
    cluster = read_cluster(devices)
    graph = stack_graph(4)
    seconds = np.ones((graph.n_ops, len(cluster)))
    problem = Problem(
        graph, cluster, CostTable.given(seconds, np.zeros((graph.n_tensors, len(cluster.class_bandwidth)))), Objective()
    )
    gpus = [device for device, host in enumerate(cluster.is_host.tolist()) if not host]
    layer = np.array([int(scope.split(".")[1]) if "." in scope else -1 for scope in graph.ops.scope])
    device = np.where(layer >= 2, gpus[-1], gpus[0]).astype(np.int32)
    device[graph.ops.scope.equals("embed")] = cluster.index("cpu")
    device[graph.ops.scope.equals("head")] = gpus[-1]
    made = export_placement(problem, Placement(device), "llama.cpp")
    assert not made.projected and f"--device {','.join(names)} " in command_of(made)


def test_llama_cpp_runs_on_no_neural_processor() -> None:
    """Which is said by name."""
    with pytest.raises(ExportError, match="does not run on tpu:0"):
        pw.place("hf:gpt2", "TPU-v4,cpu", target="llama.cpp")


def test_llama_cpp_without_a_host_says_so() -> None:
    """A cluster of GPUs alone: the embedding counts with the first layer, with a note."""
    problem = stack_problem(stack_graph(3), cpu=False)
    made = export_placement(problem, on(problem, late(1, 3)), "llama.cpp")
    assert not made.projected and "host memory" in made.exported.notes[0]
    assert "-ngl 4 --split-mode layer --tensor-split 1,3" in command_of(made)


@pytest.mark.parametrize(
    ("ngl", "split", "places"),
    [(0, [], [-1] * 4), (4, [1], [0] * 4), (99, [3, 1], [0, 0, 0, 1]), (2, [1, 1], [-1, -1, 0, 1])],
)
def test_how_llama_cpp_shares_out_layers(ngl: int, split: list[int], places: list[int]) -> None:
    """Three layers and the output, worked by hand: the last `ngl` go to the GPUs, in these proportions."""
    assert assign_layers(3, ngl, split) == places


def test_any_counts_survive_the_proportions() -> None:
    """Whole numbers of layers per GPU come back, whatever they are: the rule of llama.cpp divides in float32."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        counts = rng.integers(1, 40, rng.integers(1, 8)).tolist()
        host = int(rng.integers(0, 5))
        layers = host + sum(counts) - 1
        wanted = [-1] * host + [gpu for gpu, count in enumerate(counts) for _ in range(count)]
        assert assign_layers(layers, sum(counts), counts) == wanted


@pytest.fixture(scope="module", params=["gpt2", "mixtral"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Problem:
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "config.json").write_text(json.dumps({"model_type": request.param, **SMALL[request.param]}))
    options = ProblemOptions(objective="throughput", contiguous=False, dims={"prompt": 8, "tokens": 4})
    return build(str(folder), "2xL4,cpu", options)


@pytest.mark.parametrize("target", BY_LAYER)
def test_models_of_hugging_face_are_cut_between_layers(decoder: Problem, target: str) -> None:
    """Prompt and decode share one placement, cut anywhere: the projection keeps layers whole, and is read back."""
    stack = find_stack(decoder)
    assert stack is not None and stack.count == 3
    device = np.empty(decoder.n_ops, np.int32)
    device[np.argsort(stack.of, kind="stable")] = np.arange(decoder.n_ops) * 2 // decoder.n_ops
    made = export_placement(decoder, Placement(device), target)
    said = made.exported.placement.device
    assert made.projected and set(said[(stack.of >= 0) & (stack.of < 3)].tolist()) == {0, 1}
    for layer in range(3):
        assert len(set(said[stack.of == layer].tolist())) == 1


@pytest.mark.parametrize("target", BY_LAYER)
def test_tied_weights_on_two_devices_are_told(target: str) -> None:
    """The head uses the table of the embedding, on another device: a note names it."""
    builder, ops = GraphBuilder(), ("embed", "layers.0.attn", "layers.1.attn", "head")
    table, last = builder.add_weight("table", shape=(4,), dtype="int8"), builder.add_tensor(-1, nbytes=1)
    for scope in ops:
        op = builder.add_op(scope, KINDS[scope.rpartition(".")[2]], scope=scope)
        builder.add_edge(last, op)
        builder.use_weight(
            table if scope in ("embed", "head") else builder.add_weight(scope, shape=(1,), dtype="int8"), op
        )
        last = builder.add_tensor(op, nbytes=1)
    problem = stack_problem(builder.build(), cpu=False)
    apart = export_placement(problem, Placement(np.array([0, 0, 1, 1])), target)
    assert any("the same weights: table" in note for note in apart.exported.notes)
    together = export_placement(problem, Placement(np.array([0, 0, 0, 0])), target)
    assert not any("weights" in note for note in together.exported.notes)


@pytest.mark.parametrize("target", ["megatron", "vllm"])
@pytest.mark.parametrize(("dtype", "shape"), [("int64", (2, 8)), ("float32", (2, 8)), ("int64", (2,))])
def test_a_model_without_token_ids_is_told(target: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Layers with attention may be a picture's: a target of language models says that it runs no other."""
    graph = stack_graph(3)
    builder = GraphBuilder()
    last = builder.add_tensor(-1, shape=shape, dtype=dtype, name="input")
    for number, scope in enumerate(scope for scope in graph.ops.scope):
        op = builder.add_op(graph.ops.name[number], graph.ops.kind[number], scope=scope)
        builder.add_edge(last, op)
        last = builder.add_tensor(op, shape=(1,), dtype="int8")
    problem = stack_problem(builder.build())
    made = export_placement(problem, Placement(np.zeros(problem.n_ops, np.int32)), target)
    assert any("language models only" in note for note in made.exported.notes) is ((dtype, shape) != ("int64", (2, 8)))


@pytest.mark.parametrize("target", BY_LAYER)
def test_a_file_that_was_changed_is_not_read_back(target: str, problem: Problem) -> None:
    """A stage too many, too few or one without layers is an error, not another placement."""
    made = export_placement(problem, on(problem, late(2, 5)), target)
    (name,) = made.exported.files
    text, changes = text_of(made), {"2,3": "2,4", "*2|t*3": "*2|t*4", "[0, 3, 7]": "[0, 3, 8]", "split 2,4": "split 2"}
    (change,) = [(old, new) for old, new in changes.items() if old in text]
    broken = Exported({name: text.replace(*change)}, made.exported.placement)
    with pytest.raises(ExportError):
        create_exporter(target).read_back(broken, problem)


@pytest.mark.parametrize(("layers", "inside", "words"), [(1, "attn", "number no layers"), (3, "mlp", "no attention")])
@pytest.mark.parametrize("target", ["llama.cpp", "megatron", "vllm"])
def test_what_is_no_transformer_is_refused(target: str, layers: int, inside: str, words: str) -> None:
    """A model without numbered layers, or without attention, gets a sentence that leads to the other targets."""
    problem = stack_problem(stack_graph(layers, (inside,)))
    with pytest.raises(ExportError, match=words) as caught:
        export_placement(problem, on(problem, {}), target)
    assert "export --list" in str(caught.value)


@pytest.mark.parametrize("target", BY_LAYER)
def test_stages_need_accelerators(target: str) -> None:
    """A cluster without any is refused, and so is a plan that uses none, but for llama.cpp: it has -ngl 0."""
    problem, alone = stack_problem(stack_graph(3)), stack_problem(stack_graph(3), gpus=0)
    for asked, host, words in ((problem, 2, "accelerator"), (alone, 0, "accelerators, and the cluster has none")):
        placement = Placement.on(host, asked.n_ops)
        if target == "llama.cpp":
            made = export_placement(asked, placement, target)
            assert "--device none -ngl 0" in text_of(made) and not made.projected
        else:
            with pytest.raises(ExportError, match=words):
                export_placement(asked, placement, target)


def test_a_few_layers_in_a_large_model_are_no_list_of_layers() -> None:
    """Three layers beside twenty ops of other modules: no target of layers takes it, and says why."""
    builder = GraphBuilder()
    last = builder.add_tensor(-1, shape=(1,), dtype="int8", name="ids")
    for scope in (*(f"te.{layer}.linear" for layer in range(3)), *(f"down{number}.conv" for number in range(20))):
        op = builder.add_op(scope, "Conv", scope=scope)
        builder.add_edge(last, op)
        last = builder.add_tensor(op, shape=(1,), dtype="int8", output=scope == "down19.conv")
    problem = stack_problem(builder.build(), gpus=2)
    with pytest.raises(ExportError, match="the layers of te have only 13% of the ops"):
        require_stack(problem, "deepspeed", transformer=False)
