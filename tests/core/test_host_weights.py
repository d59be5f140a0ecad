"""Prompts of what is in host memory, as llama.cpp computes them: on an accelerator that gets copies of the weights."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf_models import write_model
from llama_configurations import read_both

import placewise as pw
from placewise.core.build import build
from placewise.core.host_weights import count_prompt_copies, describe_prompt_copies, find_lender, offload_prompts
from placewise.core.options import ProblemOptions
from placewise.core.target_rules import run_on_target
from placewise.costing.work import count_weight_bytes
from placewise.errors import ExportError
from placewise.exporters.registry import create_exporter
from placewise.model.cost_error import OFFLOADED
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Outcome
from placewise.simulate import judge_placement
from placewise.targets.split_search import count_splits

pytest.importorskip("gguf")
SIZES = {"prompt": 1024, "tokens": 8}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model.gguf", "mixtral")


def problem_of(path: Path, devices: str = "RTX4090,RTX3060,cpu", **dims: int) -> Problem:
    return build(path, devices, ProblemOptions(dims=SIZES | dims))


def test_products_of_a_prompt_take_a_copy_for_every_micro_batch(path: Path) -> None:
    """Two of 512 tokens: the time of the first card, and twice the link's; of four experts, those that are chosen."""
    before = problem_of(path)
    after, graph = offload_prompts(before), before.graph
    first, host = before.cluster.index("cuda:0"), before.cluster.index("cpu")
    way = before.cluster.link_class[len(before.cluster), first]
    latency, bandwidth = before.cluster.class_latency[way], before.cluster.class_bandwidth[way]
    experts, weights = graph.ops.kind.equals("Experts"), count_weight_bytes(graph)
    touched = np.where(experts, 1 - 0.5**512, 1.0)
    copies = np.where(weights > 0, 2 * (latency + touched * weights / bandwidth), 0.0)
    changed = after.costs.op_seconds[:, host] != before.costs.op_seconds[:, host]
    attention = changed & graph.ops.kind.equals("Attention")
    assert attention.sum() == 3
    changed &= ~attention
    assert (experts & changed).sum() == 2
    wanted = before.costs.op_seconds[:, first] + copies
    assert after.costs.op_seconds[changed, host] == pytest.approx(wanted[changed])
    assert {after.costs.sources[code] for code in after.costs.op_source[changed, host]} == {OFFLOADED}
    others = np.flatnonzero(np.arange(len(before.cluster)) != host)
    assert (after.costs.op_seconds[:, others] == before.costs.op_seconds[:, others]).all()


@pytest.mark.parametrize(("ubatch", "positions"), [(512, 512 + 1000), (1024, 1000), (64, 64 * 120 + 1000)])
def test_attention_takes_a_copy_of_the_cache_for_every_micro_batch(path: Path, ubatch: int, positions: int) -> None:
    """Of the positions until its end, keys and values in their types; the cache itself is written on the host."""
    before = build(path, "RTX4090,cpu", ProblemOptions(dims={"prompt": 1000, "ubatch": ubatch}, cache_type="f16,q8_0"))
    after, graph = offload_prompts(before), before.graph
    attention = np.flatnonzero(graph.ops.kind.equals("Attention") & (graph.ops.phase == 0))
    update = next(graph.tensors.producer[tensor] for tensor in graph.inputs_of(attention[0])[1:])
    heads, width = graph.tensors.shape[graph.outputs_of(update)[0]][1::2]
    way = before.cluster.link_class[len(before.cluster), 0]
    nbytes = positions * heads * width * (2 + 34 / 32)
    copies = nbytes / before.cluster.class_bandwidth[way] + -(-1000 // ubatch) * before.cluster.class_latency[way]
    wanted = before.costs.op_seconds[attention, 0] + copies
    assert after.costs.op_seconds[attention, 1] == pytest.approx(wanted)
    assert after.costs.op_seconds[update, 1] == before.costs.op_seconds[update, 1]


def test_a_window_bounds_the_copies_of_the_cache(tmp_path: Path) -> None:
    """A layer with one copies its cells; those of the others grow with the prompt."""
    path = write_model(tmp_path / "model.gguf", "gpt-oss")
    copies = []
    for prompt in (2048, 4096):
        before = problem_of(path, "RTX4090,cpu", prompt=prompt)
        after, graph = offload_prompts(before), before.graph
        attention = np.flatnonzero(graph.ops.kind.equals("Attention") & (graph.ops.phase == 0))
        seconds = after.costs.op_seconds[attention, 1] - before.costs.op_seconds[attention, 0]
        windows = [graph.ops.attributes[op]["window"] > 0 for op in attention]
        copies.append((seconds[windows].max(), seconds[np.invert(windows)].max()))
    assert copies[1][0] < 2.2 * copies[0][0] and copies[1][1] > 3 * copies[0][1]


def test_a_larger_micro_batch_copies_less_often(path: Path) -> None:
    """One of 1024 tokens: the link's time once, which a plan's note offers and its command asks for."""
    costs, plans = [], []
    for dims in ({}, {"ubatch": 1024}, {"prompt": 5000, "ubatch": 4096}):
        before = problem_of(path, **dims)
        after, host = offload_prompts(before), before.cluster.index("cpu")
        first = before.costs.op_seconds[:, before.cluster.index("cuda:0")]
        changed = after.costs.op_seconds[:, host] != before.costs.op_seconds[:, host]
        changed &= ~before.graph.ops.kind.equals("Experts") & (count_weight_bytes(before.graph) > 0)
        costs.append((after.costs.op_seconds[:, host] - first)[changed])
        plans.append((before, Placement(np.full(before.n_ops, host, np.int32))))
    assert costs[0] == pytest.approx(2 * costs[1]) and costs[2] == pytest.approx(costs[0])
    assert [count_prompt_copies(*plan) for plan in plans] == [2, 1, 2]
    notes = [describe_prompt_copies(*plan) for plan in plans]
    assert "--dim ubatch=1024 copies them once" in notes[0][0] and not notes[1] and not notes[2]


@pytest.mark.parametrize(
    ("ubatch", "words"), [(512, "-np 1 --"), (1024, "-np 1 -ub 1024 "), (4096, "-b 4096 -ub 4096 ")]
)
def test_the_command_asks_for_the_micro_batch(ubatch: int, words: str, path: Path) -> None:
    """And for a batch that holds it, where llama.cpp's own does not."""
    plan = pw.place(path, "RTX4090,cpu", target="llama.cpp", dims={**SIZES, "ubatch": ubatch}, time_limit="5s")
    made = create_exporter("llama.cpp").export(plan.problem, plan.placement, {})
    assert words in str(made.files["llama.sh"])


def test_what_stays_on_the_host(path: Path) -> None:
    """Tokens, lookups, the cache, and what is computed for the last token alone: the last experts, and the output."""
    before = problem_of(path)
    after, graph, host = offload_prompts(before), before.graph, before.cluster.index("cpu")
    changed = np.flatnonzero(after.costs.op_seconds[:, host] != before.costs.op_seconds[:, host])
    assert (graph.ops.phase[changed] == 0).all()
    kinds = {str(graph.ops.kind[op]) for op in changed}
    assert kinds == {"Gemm", "Experts", "RMSNormalization", "Attention", "RotaryEmbedding", "TopK", "Add"}
    assert not [op for op in changed if graph.ops.scope[op].startswith(("output.", "blk.2.experts"))]


@pytest.mark.parametrize(
    ("devices", "dims"),
    [("RTX4090,cpu", {"prompt": 31}), ("cpu,rpc:10.0.0.1:50052@8GiB", {}), ("2xcore", {})],
)
def test_nothing_is_offloaded(devices: str, dims: dict[str, int], path: Path) -> None:
    """Fewer than 32 tokens, and no accelerator but servers."""
    problem = problem_of(path, devices, **dims)
    assert (offload_prompts(problem).costs.op_seconds == problem.costs.op_seconds).all()


def test_doing_it_twice_changes_nothing(path: Path) -> None:
    """And models of other formats, and other targets, are left alone."""
    once = run_on_target(problem_of(path), "llama.cpp")
    assert run_on_target(once, "llama.cpp").costs is once.costs
    other = build("zoo:bert-base", "L4,cpu")
    assert offload_prompts(other) is other
    assert OFFLOADED not in run_on_target(problem_of(path), "vllm").costs.sources


def test_batches_count_together(path: Path) -> None:
    """Four sequences of 16 tokens are 64 of a prompt; tokens of 32 sequences are computed together, too."""
    for prompt, batch, phases in ((16, 4, {0}), (16, 32, {0, 1}), (16, 1, set())):
        before = problem_of(path, prompt=prompt, batch=batch)
        after, host = offload_prompts(before), before.cluster.index("cpu")
        changed = after.costs.op_seconds[:, host] != before.costs.op_seconds[:, host]
        assert set(before.graph.ops.phase[changed].tolist()) == phases


def test_products_per_head_are_computed_for_the_tokens(tmp_path: Path) -> None:
    """Their results have a row per head and token, of which llama.cpp counts the tokens."""
    problem = problem_of(write_model(tmp_path / "model.gguf", "deepseek2"))
    offloaded, host = offload_prompts(problem), problem.cluster.index("cpu")
    changed = offloaded.costs.op_seconds[:, host] != problem.costs.op_seconds[:, host]
    assert changed.any() and (problem.graph.ops.phase[changed] == 0).all()


def test_a_card_without_layers_is_named_where_prompts_are_computed_there(path: Path) -> None:
    """All layers on the host, or on a server: -ngl counts none on the card, and the command is read back."""
    problem = run_on_target(problem_of(path, "rpc:10.0.0.1:50052@8GiB,RTX4090,cpu"), "llama.cpp")
    exporter, host, server = create_exporter("llama.cpp"), problem.cluster.index("cpu"), 0
    assert problem.cluster.names[find_lender(problem)] == "cuda:0"
    last = [scope.startswith(("blk.2", "output", "sample")) for scope in problem.graph.ops.scope]
    split = np.where(last, server, host).astype(np.int32)
    for device, words in (
        (np.full(problem.n_ops, host, np.int32), "--device CUDA0 -ngl 0"),
        (split, "--rpc 10.0.0.1:50052 --device CUDA0,RPC0 -ngl 2 --split-mode layer --tensor-split 0,2"),
    ):
        made = exporter.export(problem, Placement(device), {})
        assert str(made.files["llama.sh"]).strip().endswith(words)
        assert (exporter.read_back(made, problem) == device).all()


def test_a_saved_plan_has_the_same_value(path: Path, tmp_path: Path) -> None:
    """Costs are made again as the target runs it."""
    plan = pw.place(path, "RTX4090@1MiB,cpu", target="llama.cpp", dims=SIZES, headroom=0)
    plan.save(tmp_path / "plan.json")
    assert pw.judge(path, tmp_path / "plan.json").value == plan.value


@pytest.mark.parametrize("devices", ["RTX3060,RTX4090,cpu", "RTX4090,RTX3060,cpu"])
def test_the_fastest_card_computes_prompts_of_the_host_and_is_named_first(path: Path, devices: str) -> None:
    """Whatever the order of the cards, and of a placement: llama.cpp takes the first of the command."""
    problem = run_on_target(problem_of(path, devices), "llama.cpp")
    exporter, host = create_exporter("llama.cpp"), problem.cluster.index("cpu")
    fast = next(index for index, device in enumerate(problem.cluster) if "4090" in device.notes[0])
    assert find_lender(problem) == fast
    layers = np.array([int(scope[4]) if scope.startswith("blk.") else 3 for scope in problem.graph.ops.scope])
    layers[problem.graph.ops.kind.equals("Gather")] = 0
    for kept in ((host, fast, 1 - fast, 1 - fast), (host, 1 - fast, 1 - fast, fast), (host, *[1 - fast] * 3)):
        placement = exporter.project(problem, Placement(np.array(kept, np.int32)[layers]))
        made = exporter.export(problem, placement, {})
        assert f"--device CUDA{fast},CUDA{1 - fast} -ngl 3" in str(made.files["llama.sh"])
        assert (exporter.read_back(made, problem) == placement.device).all()
        assert (placement.device == fast).any() == (fast in kept)


def test_more_than_llama_cpp_takes_is_one_sentence(path: Path) -> None:
    """Sequences of a cache, and numbers of --tensor-split; devices that a plan leaves out do not count."""
    for devices, dims, words in (
        ("L4,cpu", {"batch": 257}, "at most 256 sequences at a time, and not 257; give a --dim batch of 256 or less"),
        ("16xL4,cpu", {}, "at most 15 accelerators, and not 16; leave out 1"),
    ):
        with pytest.raises(ExportError, match=words):
            pw.place(path, devices, target="llama.cpp", dims=SIZES | dims)
    assert pw.place(path, "15xL4,cpu", target="llama.cpp", dims=SIZES, time_limit="5s").placement is not None
    problem = problem_of(path, "16xL4,cpu")
    assert create_exporter("llama.cpp").export(problem, Placement(np.zeros(problem.n_ops, np.int32)), {}).files


def test_servers_may_come_before_the_card(path: Path) -> None:
    """They compute no prompts of the host: the order stays, and the search has it among its splits."""
    problem = run_on_target(problem_of(path, "rpc:10.0.0.1:50052@8GiB,RTX4090,cpu"), "llama.cpp")
    exporter, scopes = create_exporter("llama.cpp"), problem.graph.ops.scope
    layers = np.array([int(scope[4]) if scope.startswith("blk.") else 3 for scope in scopes])
    layers[problem.graph.ops.kind.equals("Gather")] = 0
    placement = Placement(np.array([2, 0, 1, 1], np.int32)[layers])
    assert (exporter.project(problem, placement).device == placement.device).all()
    made = exporter.export(problem, placement, {})
    assert "--device RPC0,CUDA0 " in str(made.files["llama.sh"]) and "computed on" not in " ".join(made.notes)
    assert all(line.lead < 0 for line in exporter.space(problem).lines)


def test_a_card_comes_first_with_what_it_can_hold(path: Path) -> None:
    """The fast card has room for the output alone, or for one layer: it comes first with that, or with nothing.

    Where the others are full as well, that is said, and such a plan is not taken.
    """
    problem = run_on_target(problem_of(path, "RTX3060,RTX4090,cpu"), "llama.cpp")
    exporter, scopes = create_exporter("llama.cpp"), problem.graph.ops.scope
    layers = np.array([int(scope[4]) if scope.startswith("blk.") else 3 for scope in scopes])
    layers[problem.graph.ops.kind.equals("Gather")] = 0
    behind, alone = (Placement(np.array(devices, np.int32)[layers]) for devices in ((2, 0, 1, 1), (2, 0, 0, 1)))

    def tighten(placement: Placement, *full: int) -> Problem:
        """The problem in which some devices have the memory that a placement needs, and no more."""
        judged, devices = judge_placement(problem, placement).devices, [*problem.cluster.devices]
        for device in full:
            spare = float(problem.capacity[device]) - judged[device].peak
            devices[device] = replace(devices[device], memory=devices[device].memory - spare)
        return problem.with_(cluster=replace(problem.cluster, devices=tuple(devices)))

    for own, placement, words in (
        (problem, behind, "--device CUDA1,CUDA0 -ngl 3 --split-mode layer --tensor-split 2,1"),
        (tighten(behind, 1), behind, "--device CUDA1,CUDA0 -ngl 3 --split-mode layer --tensor-split 1,2"),
        (tighten(alone, 1), alone, "--device CUDA1,CUDA0 -ngl 3 --split-mode layer --tensor-split 0,3"),
    ):
        made = exporter.export(own, exporter.project(own, placement), {})
        assert words in str(made.files["llama.sh"]) and "computed on" not in " ".join(made.notes)
    full = tighten(alone, 0, 1, 2)
    assert judge_placement(full, alone).valid
    notes = exporter.export(full, alone, {}).notes
    assert any("are computed on cuda:0, and costs are those of cuda:1" in note for note in notes)
    with pytest.raises(ExportError, match="computed on cuda:0"):
        exporter.project(full, alone)


def test_the_search_knows_which_card_comes_first(path: Path) -> None:
    """Of two unlike cards with little memory: the best of all splits whose first card is the fast one, with a proof."""
    for devices, fast in (("RTX3060@1MiB,RTX4090@1MiB,cpu", 1), ("RTX4090@1MiB,RTX3060@1MiB,cpu", 0)):
        plan = pw.place(path, devices, target="llama.cpp", dims=SIZES, headroom=0)
        assert plan.result.status.outcome is Outcome.OPTIMAL
        posed = run_on_target(plan.problem, "llama.cpp")
        exporter = create_exporter("llama.cpp")
        assert {line.lead for line in exporter.space(posed).lines} == {fast} == {find_lender(posed)}
        assert f"--device CUDA{fast}" in str(exporter.export(posed, plan.placement, {}).files["llama.sh"])
        lines = exporter.space(posed).lines
        assert f"all {sum(count_splits(posed, line) for line in lines):,} " in plan.result.bound.method
        free = sum(count_splits(posed, replace(line, lead=-1)) for line in lines)
        assert free > sum(count_splits(posed, line) for line in lines)


def test_without_hosts_the_first_card_keeps_the_embedding(tmp_path: Path) -> None:
    """`--no-offload` is a cluster without its CPU: the same splits fit, and the same command comes out."""
    path = write_model(tmp_path / "model.gguf", "llama")
    sizes = {"prompt": 64, "tokens": 8}
    alone = pw.place(path, "RTX4090", target="llama.cpp", dims=sizes)
    asked = pw.place(path, "RTX4090,cpu", target="llama.cpp", dims=sizes, offload=False)
    made = [create_exporter("llama.cpp").export(plan.problem, plan.placement, {}) for plan in (alone, asked)]
    assert made[0].files == made[1].files and asked.value == alone.value


def test_a_processor_alone_is_a_target_too(tmp_path: Path) -> None:
    """Its only split is the whole model on the host, for a file of any name."""
    file = write_model(tmp_path / "it's a\nmodel #1.gguf", "llama")
    plan = pw.place(file, "cpu", target="llama.cpp", dims={"prompt": 64, "tokens": 8})
    exporter = create_exporter("llama.cpp")
    made = exporter.export(plan.problem, plan.placement, {})
    words = shlex.split(str(made.files["llama.sh"]), comments=True)
    assert words[:3] == ["llama-server", "-m", str(file)] and words[-4:] == ["--device", "none", "-ngl", "0"]
    assert (exporter.read_back(made, plan.problem) == plan.placement.device).all()
    assert plan.result.status.outcome is Outcome.OPTIMAL


def test_copies_within_one_memory_take_time_too(path: Path) -> None:
    """A GPU of Apple shares the host's memory, and llama.cpp copies all the same, by way of a buffer."""
    before = problem_of(path, "M2-Max,cpu")
    after = offload_prompts(before)
    gpu, host = before.cluster.index("mps"), before.cluster.index("cpu")
    moved = after.costs.op_seconds[:, host] - before.costs.op_seconds[:, gpu]
    products = (
        (before.graph.ops.phase == 0) & before.graph.ops.kind.equals("Gemm") & (count_weight_bytes(before.graph) > 0)
    )
    products &= np.array([after.costs.sources[code] == OFFLOADED for code in after.costs.op_source[:, host]])
    least = 2 * 4 * count_weight_bytes(before.graph) / before.cluster.devices[gpu].memory_bandwidth
    assert products.any() and (moved[products] >= least[products]).all()


@pytest.mark.parametrize("devices", ["2xM2-Ultra,cpu,link=thunderbolt-4", "M2-Max,RTX3060,cpu"])
def test_a_machine_of_apple_has_no_other_card(devices: str, path: Path) -> None:
    """Metal has one device there: other machines are servers, and cards that are not used are no matter."""
    with pytest.raises(ExportError, match="a machine with a GPU of Apple has no other card"):
        pw.place(path, devices, target="llama.cpp", dims=SIZES)
    other = r"mps:1|cuda.*"
    assert pw.place(path, devices, target="llama.cpp", dims=SIZES, exclude=[other]).placement is not None


def test_macs_are_known_whatever_they_are_called(path: Path, tmp_path: Path) -> None:
    """Two of a cluster file, with names of the user's, are refused as well."""
    file = tmp_path / "two.toml"
    file.write_text("""
        devices = [{ model = "M2-Max", name = "left" }, { model = "M2-Max", name = "right" }, { model = "cpu" }]
        [[links]]
        source = "left"
        target = "right"
        bandwidth = "4GB/s"
    """)
    with pytest.raises(ExportError, match="left, right are several"):
        pw.place(path, file, target="llama.cpp", dims=SIZES)


def test_a_factor_of_the_embedding_is_no_copy_of_weights(tmp_path: Path) -> None:
    """Gemma multiplies its embedding on the host by a number: no larger micro-batch is advised for that."""
    pytest.importorskip("transformers")
    problem, _ = read_both("gemma2", tmp_path, prompt=2048)
    plan = pw.place(tmp_path, "RTX4090,cpu", target="llama.cpp", dims={"prompt": 2048, "tokens": 8})
    assert plan.placement is not None and find_lender(problem) >= 0
    assert count_prompt_copies(plan.problem, plan.placement) == 0
    assert not any("are copied for every micro-batch" in note for note in plan.result.notes)
