"""Plans for llama.cpp keep its compute buffer free; other plans, and users who say how much is, are left alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_models import ARCHITECTURES, FAMILIES, write_model
from huggingface_configs import SMALL

import placewise as pw
from placewise._util.units import format_bytes
from placewise.core.build import build
from placewise.core.compute_buffer import Buffers, count_buffers, describe_unknown, find_header, keep_compute_buffer
from placewise.core.options import ProblemOptions
from placewise.core.target_rules import run_on_target
from placewise.errors import InputError
from placewise.exporters.llama_cpp.buffers import find_buffers
from placewise.exporters.registry import create_exporter
from placewise.model.placement import Placement
from placewise.model.result import Outcome
from placewise.readers.gguf.header import read_header
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.readers.gguf.llama_graph import COMPARED
from placewise.readers.gguf.llama_memory import count_compute
from placewise.simulate import judge_placement

pytest.importorskip("gguf")
SIZES = {"prompt": 16, "tokens": 8, "context": 4096}
DEVICES = {"cpu": "8GiB", "cuda:0": "1GiB"}


def count_alone(path: Path, flags: LlamaFlags, gpus: int = 1) -> dict[str, int]:
    """The buffers where as many accelerators have all three layers, without a pipeline."""
    names = [f"CUDA{number}" for number in range(gpus)]
    return count_compute(read_header(path), replace(flags, ngl=4, split=(1.0,) * gpus), names, pipelined=False)


def test_a_plan_keeps_the_buffer_free(tmp_path: Path) -> None:
    """By the bytes that the flags of its command allocate, with a note; the saved plan is judged in the same way."""
    path = write_model(tmp_path / "model.gguf", "llama")
    plan = pw.place(path, DEVICES, target="llama.cpp", dims={**SIZES, "batch": 2}, cache_type="q8_0")
    room = count_alone(path, LlamaFlags(context=8192, parallel=2, cache=("q8_0", "q8_0")))
    problem = plan.problem
    assert problem.capacity[problem.cluster.index("cuda:0")] == pytest.approx((1 << 30) - room["CUDA0"], abs=1)
    assert problem.capacity[problem.cluster.index("cpu")] == (8 << 30) - room["CPU"]
    assert any("stay free for llama.cpp's compute buffer" in note for note in plan.result.notes)
    plan.save(tmp_path / "plan.json")
    again = pw.judge(path, tmp_path / "plan.json")
    assert [device.capacity for device in again.devices] == problem.capacity.tolist()


def test_a_layer_goes_to_the_cpu_where_the_buffer_takes_its_place(tmp_path: Path) -> None:
    """Weights and cache alone fill the accelerator: with the buffer, something has to leave it."""
    path = write_model(tmp_path / "model.gguf", "llama", layers=6)
    free = pw.place(path, DEVICES, target="llama.cpp", dims=SIZES, headroom=0)
    assert free.result.judgement is not None
    on_gpu = next(device.peak for device in free.result.judgement.devices if device.device == "cuda:0")
    tight = {**DEVICES, "cuda:0": on_gpu + 1}
    kept, whole = (pw.place(path, tight, target="llama.cpp", dims=SIZES, **more) for more in ({}, {"headroom": 0}))
    assert whole.value == pytest.approx(free.value)
    assert kept.placement is not None and kept.value > whole.value


def test_a_plan_and_its_export_say_what_their_own_buffers_lack(tmp_path: Path) -> None:
    """By the command of the plan, whatever was kept free; where there is room, what they take is said alone."""
    path = write_model(tmp_path / "model.gguf", "llama", layers=6)
    whole = pw.place(path, DEVICES, target="llama.cpp", dims=SIZES, headroom=0)
    assert whole.result.judgement is not None
    peak = next(device.peak for device in whole.result.judgement.devices if device.device == "cuda:0")
    full = pw.place(path, {**DEVICES, "cuda:0": peak + 1}, target="llama.cpp", dims=SIZES, headroom=0)
    for plan, lacks in ((whole, False), (full, True)):
        assert plan.placement is not None
        found = find_buffers(plan.problem, plan.placement)
        assert found.sizes["cuda:0"] > 1 << 20 and (found.missing.keys() == {"cuda:0"}) == lacks
        exported = create_exporter("llama.cpp").export(plan.problem, plan.placement, {})
        for notes in (plan.result.notes, exported.notes):
            assert any(note.startswith("the compute buffers of this plan") for note in notes)
            assert any("llama.cpp will lack" in note and "of cuda:0" in note for note in notes) == lacks


def test_a_long_prompt_takes_no_more_than_its_buffers(tmp_path: Path) -> None:
    """llama.cpp computes it by micro-batches, whose buffer is kept free; a saved plan is judged in the same way."""
    path, dims = write_model(tmp_path / "model.gguf", "llama"), {"prompt": 30000, "tokens": 8, "context": 32768}
    graph = build(path, DEVICES, ProblemOptions(dims=dims)).graph
    resident = int(graph.weights.bytes.sum() + graph.ops.state_bytes.sum())
    assert graph.tensors.bytes.max() > resident / 2
    room = count_alone(path, LlamaFlags(context=32768))["CUDA0"]
    plan = pw.place(path, {**DEVICES, "cuda:0": resident + room}, target="llama.cpp", dims=dims)
    assert plan.problem.objective.memory == "resident" and plan.result.judgement is not None
    peaks = {device.device: device.peak for device in plan.result.judgement.devices}
    assert sum(peaks.values()) == resident and peaks["cuda:0"] > 0.8 * resident
    plan.save(tmp_path / "plan.json")
    again = pw.judge(path, tmp_path / "plan.json")
    assert again.valid and {device.device: device.peak for device in again.devices} == peaks


def test_a_plan_whose_buffers_do_not_fit_is_searched_again(tmp_path: Path) -> None:
    """Both cards have the bytes of the model, and no split into layers that fits: one on the host makes their buffer
    larger than what is kept.

    With the size of that buffer kept free, one more layer leaves; a headroom of the user is left as it is.
    """
    path = write_model(tmp_path / "model.gguf", "llama", layers=6)
    devices = {"cpu": "8GiB", "cuda:0": 7_408_833, "cuda:1": 10_860_983}
    dims = {**SIZES, "context": 1024}
    kept = int(count_buffers(build(path, devices, ProblemOptions(dims=dims))).accelerator)
    again, left = (
        pw.place(path, devices, target="llama.cpp", dims=dims, headroom=asked)
        for asked in (None, {"cuda:0": f"{kept}B", "cuda:1": f"{kept}B"})
    )
    assert again.placement is not None and again.value > left.value
    found = find_buffers(again.problem, again.placement)
    largest, card = max((size, name) for name, size in found.sizes.items() if name != "cpu")
    assert largest > kept and not found.missing
    assert f"searched again with {format_bytes(largest)} of {card} kept free" in " ".join(again.result.notes)
    assert any("llama.cpp will lack" in note for note in left.result.notes)


def test_buffers_that_were_not_compared_are_called_approximate(tmp_path: Path) -> None:
    """By the name of the architecture; those of which a model is compared with the real llama.cpp are not."""
    known, other = (write_model(tmp_path / name, "llama") for name in ("model.gguf", "other.gguf"))
    other.write_bytes(known.read_bytes().replace(b"llama.", b"gemmo.").replace(
        b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama",
        b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0gemmo",
    ))  # fmt: skip
    for path, approximate in ((known, False), (other, True)):
        plan = pw.place(path, DEVICES, target="llama.cpp", dims=SIZES)
        assert any("approximate" in note for note in plan.result.notes) == approximate
    assert {ARCHITECTURES.get(name, name) for name in FAMILIES} == COMPARED


def test_a_gpu_beside_servers_borrows_the_weights_of_the_host(tmp_path: Path) -> None:
    """Wherever it is in the row: servers have none of them."""
    header = read_header(write_model(tmp_path / "model.gguf", "mixtral"))
    flags = LlamaFlags(ngl=4, split=(1.0, 1.0), n_cpu_moe=3, context=4096)
    mixed = count_compute(header, flags, ["RPC0", "CUDA0"])
    servers = count_compute(header, flags, ["RPC0", "RPC1"])
    assert mixed["CUDA0"] > servers["RPC1"] and mixed["RPC0"] <= servers["RPC0"]


@pytest.mark.parametrize(
    ("kind", "length", "more", "known"),
    [
        ("mistral", 4096, {}, False), ("mistral", 64, {}, True), ("gemma2", 4096, {}, True),
        ("qwen2", 1033, {"use_sliding_window": False}, True), ("olmo3", 1033, {}, True),
    ],
)  # fmt: skip
def test_windows_that_llama_cpp_does_not_know_are_refused(
    kind: str, length: int, more: dict[str, Any], known: bool, tmp_path: Path
) -> None:
    """It keeps the whole context in layers of a Mistral, also where they have windows; it knows those of Gemma 2, and
    nothing is said of kinds that are not known here. A window that is not used is none.
    """
    pytest.importorskip("transformers")
    small = SMALL.get(kind, SMALL["llama"]) | {"model_type": kind, "sliding_window": 128}
    (tmp_path / "config.json").write_text(json.dumps(small | {"max_position_embeddings": 4096} | more))
    problem = build(
        tmp_path / "config.json", DEVICES, ProblemOptions(dims={"prompt": 16, "tokens": 8, "length": length})
    )
    if known:
        assert run_on_target(problem, "llama.cpp").n_ops
    else:
        with pytest.raises(InputError, match="knows no sliding window in llama models"):
            run_on_target(problem, "llama.cpp")
    assert run_on_target(problem, "vllm").n_ops


@pytest.mark.parametrize(("outer", "kind"), [("gemma3", "gemma3_text"), ("", "gemma2"), ("", "llama")])
def test_what_a_configuration_leaves_out_is_that_of_its_class(outer: str, kind: str, tmp_path: Path) -> None:
    """Sizes that published wrappers leave to transformers count as if they were written out."""
    transformers = pytest.importorskip("transformers")
    given = {"model_type": kind, "num_hidden_layers": 2, "hidden_size": 512}
    whole = transformers.AutoConfig.for_model(**given).to_dict()
    found = []
    for name, text in (("short", given), ("long", {key: value for key, value in whole.items() if value is not None})):
        config = {"model_type": outer, "text_config": text} if outer else text
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"dtype": "float16", **config}))
        problem = build(tmp_path / name, DEVICES, ProblemOptions(dims={"prompt": 16, "tokens": 8}))
        header = find_header(problem)
        assert header is not None and not describe_unknown(problem)
        found.append((count_buffers(problem), header.metadata, [tensor.shape for tensor in header.tensors]))
    assert found[0] == found[1] and found[0][0].accelerator > 0


def test_a_model_that_llama_cpp_may_not_know_is_said(tmp_path: Path) -> None:
    """Its sizes have names that are not read: no buffer is kept, and a note says so."""
    pytest.importorskip("transformers")
    config = {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 320, "dtype": "float16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    problem = build(tmp_path, DEVICES, ProblemOptions(dims={"prompt": 16, "tokens": 8}))
    assert find_header(problem) is None and "are not known" in describe_unknown(problem)[0]


def test_others_are_left_alone(tmp_path: Path) -> None:
    """No room is added for other targets, under a headroom of the user, or for models of other formats."""
    path = write_model(tmp_path / "model.gguf", "llama")
    plain = build(path, DEVICES, ProblemOptions(dims=SIZES))
    assert run_on_target(plain, "vllm").constraints.spare == ()
    asked = build(path, DEVICES, ProblemOptions(dims=SIZES, headroom=0.02))
    assert keep_compute_buffer(asked) is asked
    kept = run_on_target(plain, "llama.cpp")
    assert run_on_target(kept, "llama.cpp").constraints == kept.constraints != plain.constraints
    other = build("zoo:bert-base", "L4,cpu")
    assert count_buffers(other) == Buffers() and keep_compute_buffer(other) is other


@pytest.mark.parametrize("zero", [0, "0", "0%", "0GiB", {"": 0}])
def test_no_headroom_is_an_answer(zero: object, tmp_path: Path) -> None:
    """A headroom of 0 keeps nothing free, in the plan and where the plan is judged again; without one the buffer is."""
    path = write_model(tmp_path / "model.gguf", "llama")
    plan = pw.place(path, DEVICES, target="llama.cpp", dims=SIZES, headroom=zero)
    assert plan.problem.capacity[plan.problem.cluster.index("cuda:0")] == 1 << 30
    assert not any("stay free" in note for note in plan.result.notes)
    plan.save(tmp_path / "plan.json")
    again = pw.judge(path, tmp_path / "plan.json")
    assert [device.capacity for device in again.devices] == plan.problem.capacity.tolist()
    options = ProblemOptions(headroom=zero)  # type: ignore[arg-type]
    assert replace(options, dims={"batch": 2}).spare == options.spare != ()


def test_a_headroom_of_one_device_leaves_the_buffer_on_others(tmp_path: Path) -> None:
    """What is said of one accelerator holds there, and the buffer stays free on the other; the note says which."""
    path = write_model(tmp_path / "model.gguf", "llama")
    devices = {**DEVICES, "cuda:1": "1GiB"}
    plan = pw.place(path, devices, target="llama.cpp", dims=SIZES, headroom={"cuda:0": "16MiB"})
    room = count_buffers(build(path, devices, ProblemOptions(dims=SIZES))).accelerator
    names, capacity = plan.problem.cluster.names, plan.problem.capacity
    assert {name: (1 << 30) - capacity[names.index(name)] for name in ("cuda:0", "cuda:1")} == {
        "cuda:0": 16 << 20, "cuda:1": room,
    }  # fmt: skip
    assert any("of each accelerator without a headroom of its own stay free" in note for note in plan.result.notes)
    assert keep_compute_buffer(plan.problem) is plan.problem


def test_several_accelerators_keep_the_largest_buffer_free(tmp_path: Path) -> None:
    """Where the model fits them; where it does not, a part is on the host, and they keep room for weights of the host
    that they multiply by, which RPC servers do not.
    """
    path, cards = write_model(tmp_path / "model.gguf", "mixtral"), {"cpu": "8GiB", "cuda:0": "1GiB", "cuda:1": "1GiB"}
    flags = LlamaFlags(context=4096)
    together, alone = count_alone(path, flags, 2), count_alone(path, flags)
    kept = count_buffers(build(path, cards, ProblemOptions(dims=SIZES)))
    on_cards = (together["CUDA0"], together["CUDA1"], alone["CUDA0"])
    assert kept == Buffers(max(on_cards), max(together["CPU"], alone["CPU"]), min(on_cards))
    small = {**cards, "cuda:0": "8MiB", "cuda:1": "8MiB"}
    parted = count_buffers(build(path, small, ProblemOptions(dims=SIZES)))
    on_host = count_compute(read_header(path), replace(flags, ngl=3), ["CUDA0"])
    assert alone["CUDA0"] < on_host["CUDA0"] <= parted.accelerator
    servers = "cpu,rpc:10.0.0.1:50052@8MiB,rpc:10.0.0.2:50052@8MiB"
    assert count_buffers(build(path, servers, ProblemOptions(dims=SIZES))).accelerator < parted.accelerator


def test_no_room_for_a_pipeline_is_no_proof_that_nothing_fits(tmp_path: Path) -> None:
    """llama.cpp does without a pipeline: cards that hold the layers and the buffers without one are enough."""
    path = write_model(tmp_path / "model.gguf", "llama", layers=6)
    flags, names = LlamaFlags(context=4096, ngl=7, split=(1.0, 1.0)), ["CUDA0", "CUDA1"]
    pipelined, single = (
        max(count_compute(read_header(path), flags, names, pipelined=asked)[name] for name in names)
        for asked in (True, False)
    )
    graph = build(path, DEVICES, ProblemOptions(dims=SIZES)).graph
    held = int(graph.weights.bytes.sum() + graph.ops.state_bytes.sum())
    size = held // 2 + pipelined
    assert single < pipelined
    plan = pw.place(path, {"cuda:0": size, "cuda:1": size}, target="llama.cpp", dims=SIZES)
    assert plan.placement is not None
    assert not find_buffers(plan.problem, plan.placement).missing


def test_a_configuration_has_the_buffer_of_its_file(tmp_path: Path) -> None:
    """A plan for llama.cpp keeps as much free for a model of Hugging Face as for the file that is made of it."""
    pytest.importorskip("transformers")
    path = write_model(tmp_path / "model.gguf", "llama", kind="F16")
    config = {
        "model_type": "llama", "vocab_size": 320, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "tie_word_embeddings": False,
        "dtype": "float16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    sizes = {"prompt": 16, "tokens": 8}
    for devices in (DEVICES, {**DEVICES, "cuda:0": "9MiB"}):
        ours, theirs = (
            count_buffers(build(one, devices, ProblemOptions(dims={**sizes, name: 4096})))
            for one, name in ((path, "context"), (tmp_path / "config.json", "length"))
        )
        assert ours.accelerator > 0
        assert theirs.accelerator == pytest.approx(ours.accelerator, rel=0.001) and theirs.host == ours.host
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_size": 512}))
    problem = build(tmp_path / "config.json", DEVICES, ProblemOptions(dims=sizes))
    (tmp_path / "config.json").unlink()
    assert count_buffers(problem) == Buffers()


def test_only_what_fits_under_no_split_is_called_impossible(tmp_path: Path) -> None:
    """By brute force over all splits of layers, with the buffers of each, on cards of many sizes around the need."""
    path = write_model(tmp_path / "model.gguf", "llama", layers=4)
    whole = build(path, "2xL4", ProblemOptions(dims=SIZES, headroom=0))
    layer = [re.match(r"blk\.(\d+)", scope) for scope in whole.graph.ops.scope]
    last = ["output" in scope or "sample" in scope for scope in whole.graph.ops.scope]
    order = np.array([int(match[1]) if match else 4 if end else -1 for match, end in zip(layer, last, strict=True)])
    held = int(whole.graph.weights.bytes.sum() + whole.graph.ops.state_bytes.sum())
    room, outcomes = count_buffers(whole).accelerator, set()
    rng = np.random.default_rng(0)
    for _ in range(24):
        sizes = [int(share * held + part * room) for share, part in rng.uniform((0.2, 0.5), (1.0, 1.1), (2, 2))]
        cards = {"cuda:0": sizes[0], "cuda:1": sizes[1]}
        problem = build(path, cards, ProblemOptions(dims=SIZES, headroom=0))
        problem = run_on_target(problem, "llama.cpp")
        splits = [Placement((order >= cut).astype(np.int32)) for cut in range(6)]
        splits += [Placement((order < cut).astype(np.int32)) for cut in range(1, 5)]
        possible = [
            split for split in splits
            if judge_placement(problem, split).valid and not find_buffers(problem, split).missing
        ]  # fmt: skip
        result = pw.place(path, cards, target="llama.cpp", dims=SIZES, budget="20s").result
        assert bool(possible) or result.placement is None
        assert not possible or result.status.outcome is not Outcome.INFEASIBLE
        assert result.placement is None or not find_buffers(result.problem, result.placement).missing
        outcomes.add(result.status.outcome)
    assert {Outcome.OPTIMAL, Outcome.INFEASIBLE} <= outcomes
