"""Bytes by device under llama.cpp's flags, without llama.cpp."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from gguf_models import tiny_model, write_mixture, write_model

from placewise.errors import InputError, ModelFileError
from placewise.readers.gguf.header import Header, read_header
from placewise.readers.gguf.llama_compute import ComputeResult, assign_homes, size_buffers, split_results
from placewise.readers.gguf.llama_flags import LlamaFlags, parse_flags
from placewise.readers.gguf.llama_memory import (
    count_bytes,
    count_cache,
    count_compute,
    count_copies,
    list_cells,
    place_tensors,
)
from placewise.readers.gguf.shape import read_shape

pytest.importorskip("gguf")


def test_every_byte_is_on_a_device(tmp_path: Path) -> None:
    """Weights and caches on all devices come to those of one device."""
    header = read_header(write_model(tmp_path / "model.gguf", "mixtral", layers=4))
    alone = count_bytes(header, LlamaFlags())["CPU"]
    split = count_bytes(header, LlamaFlags(ngl=4, split=(3, 1)), ["A", "B"])
    assert sum(part.weights for part in split.values()) == alone.weights
    assert sum(part.cache for part in split.values()) == alone.cache
    assert all(part.weights > 0 for part in split.values())


def test_experts_of_the_first_layers_stay_in_host_memory(tmp_path: Path) -> None:
    """--n-cpu-moe moves the experts of the first layers and leaves their cache."""
    header = read_header(write_model(tmp_path / "model.gguf", "mixtral", layers=4))
    flags = LlamaFlags(ngl=99, n_cpu_moe=3)
    places = place_tensors(header, flags, ["A"])
    experts = {name: place for name, place in places.items() if "_exps" in name}
    assert {name[4] for name, place in experts.items() if place == "CPU"} == {"0", "1", "2"}
    assert count_bytes(header, flags, ["A"])["CPU"].cache == 0


def test_the_first_override_decides(tmp_path: Path) -> None:
    """A tensor goes where the first expression that matches it says."""
    header = read_header(write_model(tmp_path / "model.gguf", layers=2))
    flags = LlamaFlags(ngl=99, split=(1, 1), overrides=((r"attn_q\.", "B"), ("attn", "CPU")))
    places = place_tensors(header, flags, ["A", "B"])
    assert places["blk.0.attn_q.weight"] == "B"
    assert places["blk.0.attn_k.weight"] == "CPU"
    assert places["blk.0.ffn_up.weight"] == "A"
    assert places["token_embd.weight"] == "CPU"
    assert places["output.weight"] == "B"


def test_tied_weights_have_a_copy_where_the_output_is(tmp_path: Path) -> None:
    """The input embedding stays in host memory, and the GPU with the output has it as well."""
    header = read_header(write_model(tmp_path / "model.gguf", "gemma"))
    embedding = next(tensor for tensor in header.tensors if tensor.name == "token_embd.weight")
    everything = sum(tensor.nbytes for tensor in header.tensors)
    counted = count_bytes(header, LlamaFlags(ngl=99), ["A"])
    assert counted["CPU"].weights == embedding.nbytes
    assert counted["A"].weights == everything


def test_windows_keep_a_micro_batch_more(tmp_path: Path) -> None:
    """A cache with a window has the window and a micro-batch, in multiples of 256, at most the context."""
    shape = read_shape(read_header(write_model(tmp_path / "model.gguf", "gemma3")))
    cells, window = list_cells(shape, LlamaFlags(context=8000))
    assert cells == 8192
    assert window % 256 == 0
    assert max(shape.windows) + 512 <= window < max(shape.windows) + 512 + 256
    assert list_cells(shape, LlamaFlags(context=8000, swa_full=True)) == (8192, 8192)
    assert list_cells(shape, LlamaFlags(context=4 * 8000, parallel=4)) == (cells, window)


@pytest.mark.parametrize(
    ("architecture", "layers", "said", "windows"),
    [
        ("gemma2", 4, {}, (4096, 0, 4096, 0)),
        ("llama4", 5, {}, (8192, 8192, 8192, 0, 8192)),
        ("llama4", 4, {"sliding_window": 0}, (0,) * 4),
        ("exaone4", 64, {}, (4096, 4096, 4096, 0) * 16),
        ("exaone4", 8, {"sliding_window": 512}, (0,) * 8),
        ("smallthinker", 5, {"sliding_window": 4096}, (0, 4096, 4096, 4096, 0)),
        ("gemma3", 7, {"sliding_window": 512}, (512,) * 5 + (0, 512)),
        ("gemma3", 3, {"sliding_window": 512, "sliding_window_pattern": 2}, (512, 0, 512)),
        ("llama", 2, {"sliding_window": 512}, (0, 0)),
    ],
)
def test_windows_are_those_of_llama_cpp(
    architecture: str, layers: int, said: dict[str, int], windows: tuple[int, ...]
) -> None:
    """Where the file does not say which layers have a window, or how wide it is, llama.cpp's rules do."""
    more = {f"{architecture}.attention.{name}": value for name, value in said.items()}
    assert read_shape(make_header(architecture, layers, more)).windows == windows


def test_layers_with_windows_may_have_other_heads_and_no_cache() -> None:
    """Gemma 4: heads of layers with a window have their own width, and the last layers read the caches of others."""
    name = "gemma4.attention."
    said = {f"{name}key_length": 128, f"{name}value_length": 128, f"{name}key_length_swa": 64}
    said |= {f"{name}value_length_swa": 64, f"{name}sliding_window": 512, f"{name}shared_kv_layers": 4}
    pattern = (True, True, True, False) * 2
    header = make_header("gemma4", 8, {**said, f"{name}sliding_window_pattern": pattern})
    window, whole = 1024 * 2 * 64 * 2 * 2, 16384 * 2 * 128 * 2 * 2
    assert count_cache(read_shape(header), LlamaFlags(context=16384)) == [window] * 3 + [whole] + [0] * 4
    with pytest.raises(ModelFileError, match="shared_kv_layers is 8 of 8 layers"):
        read_shape(make_header("gemma4", 8, {**said, f"{name}shared_kv_layers": 8}))


def make_header(architecture: str, layers: int, more: Mapping[str, object]) -> Header:
    """A header without tensors, of four heads that share two pairs of keys and values."""
    sizes = {"block_count": layers, "embedding_length": 256, "attention.head_count": 4, "attention.head_count_kv": 2}
    return Header(architecture, {**{f"{architecture}.{name}": n for name, n in sizes.items()}, **more}, (), "")


def size_one(*results: ComputeResult) -> int:
    """The bytes of the only buffer."""
    return size_buffers(results)[""]


def test_a_hole_is_used_by_what_fits_it() -> None:
    """A freed result leaves a hole, which the next takes if it is no larger; larger ones go to the end."""
    first = [ComputeResult("in", 0), ComputeResult("a", 64, ("in",)), ComputeResult("b", 32, ("a",))]
    assert size_one(*first, ComputeResult("c", 64, ("b",))) == 96
    assert size_one(*first, ComputeResult("c", 96, ("b",))) == 192
    in_place = [*first[:2], ComputeResult("b", 64, ("a",), in_place=True)]
    assert size_one(*in_place) == 64
    assert size_one(*in_place, ComputeResult("c", 64, ("a", "b"))) == 192


def test_of_equal_holes_the_last_is_used() -> None:
    """Then the first one joins what is freed before it, and has room for a larger result."""
    held = [ComputeResult("in", 0), *(ComputeResult(name, 64, ("in",)) for name in "abcde")]
    freed = [ComputeResult("f", 0, ("b",)), ComputeResult("g", 0, ("d",)), ComputeResult("h", 64, ("in",))]
    larger = [ComputeResult("i", 0, ("a",)), ComputeResult("j", 128, ("in", "c", "e", "h"))]
    assert size_one(*held, *freed, *larger) == 5 * 64


def test_results_are_computed_where_their_neighbours_are() -> None:
    """Inputs on the host; results without weights with the GPU before or behind them, the host's last."""
    results = [
        ComputeResult("in", 8), ComputeResult("embedded", 8, ("in",), home="CPU"),
        ComputeResult("before", 8, ("embedded",)),
        ComputeResult("layer", 8, ("before",), home="A"), ComputeResult("between", 8, ("layer",)),
        ComputeResult("other", 8, ("between",), home="B"), ComputeResult("after", 8, ("other",)),
    ]  # fmt: skip
    homes = assign_homes(results, ["A", "B", "CPU"])
    assert [homes[one.name] for one in results] == ["CPU", "CPU", "A", "A", "A", "B", "B"]
    splits = split_results(results, homes)
    assert [(split.device, split.copied) for split in splits] == [("CPU", []), ("A", ["embedded"]), ("B", ["between"])]


def test_copies_of_inputs_are_kept_under_pipeline_parallelism() -> None:
    """Four of each, on the host and on every device that reads them; alone, one goes when it was read."""
    results = [
        ComputeResult("in", 32), ComputeResult("a", 64, ("in",), home="A"),
        ComputeResult("b", 64, ("a", "in"), home="B"),
        ComputeResult("c", 96, ("b",), home="B"),
    ]  # fmt: skip
    assert size_buffers(results, ["A", "B", "CPU"]) == {"A": 32 + 64, "B": 64 + 32 + 64, "CPU": 32}
    kept = size_buffers(results, ["A", "B", "CPU"], copies=4)
    assert kept == {"A": 4 * 32 + 64, "B": 4 * (64 + 32) + 64 + 96, "CPU": 4 * 32}


def test_copies_of_weights_follow_each_other() -> None:
    """A GPU that multiplies by weights in host memory has one of them at a time."""
    weights = [ComputeResult(name, 640, home="CPU", stored="weight") for name in ("w0", "w1")]
    product = [
        ComputeResult("in", 32),
        ComputeResult("a", 32, ("in", "w0"), home="A"),
        ComputeResult("b", 32, ("a", "w1"), home="A"),
    ]
    sizes = size_buffers([*weights, *product], ["A", "CPU"])
    assert sizes == {"A": 640 + 2 * 32, "CPU": 32}


MEBIBYTE = 1 << 20
LOGGED = {
    ("llama", 7, (2, 2, 3)): (18.55, 14.04, 14.04, 13.07), ("llama", 5, (2, 3)): (6.01, 6.01, 7.52),
    ("gemma3", 7, (2, 2, 3)): (13.56, 9.04, 17.07, 16.11), ("gemma3", 7, (1,)): (7.77, 4.78),
    ("phi2", 7, (2, 2, 3)): (17.30, 12.79, 12.79, 13.07), ("phi3", 7, (1,)): (7.01, 4.02),
    ("command-r", 5, (2, 3)): (6.51, 6.51, 7.52), ("cohere2", 5, (2, 3)): (6.27, 5.26, 8.28),
    ("gpt2", 7, (1,)): (4.51, 4.52), ("bloom", 7, (2, 2, 3)): (17.05, 12.53, 12.53, 13.06),
    ("falcon", 5, (2, 3)): (5.01, 4.76, 6.02), ("olmo2", 5, (2, 3)): (5.51, 6.51, 7.52),
    ("gpt-oss", 7, (2, 2, 3)): (25.09, 20.57, 20.57, 16.10), ("mixtral", 7, (1,)): (10.01, 4.02),
    ("gemma4", 7, (1, 1, 2)): (23.59, 23.01, 23.01, 16.49), ("gemma4", 5, (1, 2)): (7.25, 7.25, 8.65),
    ("gemma4-moe", 7, (1, 1, 2)): (25.09, 20.57, 20.57, 16.11), ("gemma4-moe", 5, (1, 2)): (9.27, 9.77, 11.28),
    ("deepseek2-older", 7, (2, 2, 3)): (21.57, 17.29, 17.29, 13.07),
    ("deepseek2-older", 5, (2, 3)): (9.51, 9.51, 10.52),
}  # fmt: skip
"""MiB of compute buffers in the log of llama.cpp 11434: of RPC servers and the host, for six layers and -c 2048.

For Gemma 4, it was built to look up embeddings of layers first, as build 11549 does.
"""


@pytest.mark.parametrize(("family", "ngl", "split"), LOGGED)
def test_compute_buffers_are_those_of_a_log(family: str, ngl: int, split: tuple[int, ...], tmp_path: Path) -> None:
    """Of several devices, with pipeline parallelism where no layer is on the host."""
    header = read_header(write_model(tmp_path / "model.gguf", family, layers=6))
    gpus = [f"RPC{number}" for number in range(len(split))]
    counted = count_compute(header, LlamaFlags(context=2048, ngl=ngl, split=split), gpus)
    real = dict(zip([*gpus, "CPU"], LOGGED[family, ngl, split], strict=True))
    assert {name: size / MEBIBYTE for name, size in counted.items()} == pytest.approx(real, rel=0.003)


def test_layers_without_the_embeddings_that_they_gate(tmp_path: Path) -> None:
    """Tensors of Gemma 4 without its tables take no part."""
    counted = []
    for tensors in ({}, {"blk.0.inp_gate.weight": (32, 32), "blk.0.proj.weight": (32, 32)}):
        path = tmp_path / "model.gguf"
        path.write_bytes(tiny_model(tensors=tensors))
        counted.append(count_compute(read_header(path), LlamaFlags()))
    assert counted[0] == counted[1]


@pytest.mark.parametrize(
    ("more", "gpus", "copies"),
    [
        ({}, 2, 4), ({}, 1, 1), ({"ngl": 2}, 2, 1), ({"n_cpu_moe": 1}, 2, 1), ({"overrides": (("x", "CPU"),)}, 2, 1),
    ],
)  # fmt: skip
def test_when_llama_cpp_works_as_a_pipeline(more: dict[str, object], gpus: int, copies: int, tmp_path: Path) -> None:
    """Several GPUs, no layer on the host, the output neither, and no overrides."""
    header = read_header(write_model(tmp_path / "model.gguf", layers=2))
    flags = LlamaFlags(**{"ngl": 3, "split": (1.0,) * gpus, **more})  # type: ignore[arg-type]
    assert count_copies(header, flags, [f"CUDA{number}" for number in range(gpus)]) == copies


def test_gpus_get_copies_of_weights_in_host_memory(tmp_path: Path) -> None:
    """One matrix of experts at a time, on the first GPU; RPC servers get none."""
    header = read_header(write_mixture(tmp_path / "model.gguf", layers=3, experts=32, inner=768, width=2048))
    experts = next(tensor.nbytes for tensor in header.tensors if tensor.name == "blk.0.ffn_up_exps.weight")
    flags = LlamaFlags(context=2048, ngl=4, n_cpu_moe=2, split=(1, 1))
    cards, servers = (count_compute(header, flags, [f"{name}0", f"{name}1"]) for name in ("CUDA", "RPC"))
    assert servers["RPC0"] < experts < cards["CUDA0"] < 3 * experts
    assert max(cards["CUDA1"], servers["RPC1"]) < experts


def test_the_norm_of_the_embedding_is_with_the_first_layer(tmp_path: Path) -> None:
    """The embedding itself is in host memory (BLOOM)."""
    header = read_header(write_model(tmp_path / "model.gguf", "bloom", layers=2))
    places = place_tensors(header, LlamaFlags(ngl=99, split=(1, 1)), ["A", "B"])
    assert (places["token_embd_norm.weight"], places["token_embd.weight"]) == ("A", "CPU")


@pytest.mark.parametrize(
    "asked",
    [
        {"cache": ("f16", "q3_k")},
        {"context": 0},
        {"parallel": 0},
        {"split": (0.0, 0.0)},
        {"flash": "maybe"},
        {"overrides": (("(", "CPU"),)},
    ],
)
def test_flags_that_llama_cpp_refuses(asked: dict[str, object]) -> None:
    """Numbers and names that llama.cpp does not take are refused."""
    with pytest.raises(InputError):
        LlamaFlags(**asked)  # type: ignore[arg-type]


def test_a_proportion_for_every_gpu(tmp_path: Path) -> None:
    """Two GPUs need two proportions."""
    header = read_header(write_model(tmp_path / "model.gguf"))
    with pytest.raises(InputError, match="1 proportions for 2 GPUs"):
        place_tensors(header, LlamaFlags(ngl=9), ["A", "B"])


def test_a_command_is_read() -> None:
    """Short and long names of flags, several overrides; what allocates nothing is passed over."""
    words = "llama-server -m x.gguf --device A,B -ngl 5 -ts 2,3 -ot a=CPU,b=B --override-tensor c=CPU -ctk q8_0"
    more = "--cache-type-v q4_0 -c 8192 -ncmoe 2 -fa on -np 3"
    flags = parse_flags(shlex.split(f"{words} {more}"))
    assert flags == LlamaFlags(
        ngl=5, split=(2, 3), overrides=(("a", "CPU"), ("b", "B"), ("c", "CPU")), n_cpu_moe=2, context=8192,
        cache=("q8_0", "q4_0"), flash="on", parallel=3,
    )  # fmt: skip


@pytest.mark.parametrize("words", [["-ngl"], ["-c", "many"], ["-ts", "1,x"]])
def test_a_command_whose_values_are_no_numbers(words: list[str]) -> None:
    """The flag is named."""
    with pytest.raises(InputError, match=words[0]):
        parse_flags(words)


@pytest.mark.parametrize(
    ("family", "dropped"), [("gemma4", ("blk.0.inp_gate.weight", "blk.0.proj.weight", "blk.0.post_norm.weight"))]
)
def test_layers_that_differ_are_counted(family: str, dropped: tuple[str, ...], tmp_path: Path) -> None:
    """The first layer has no embeddings of its own, and the others do: their buffer is counted all the same."""
    header = read_header(write_model(tmp_path / "model.gguf", family))
    kept = tuple(tensor for tensor in header.tensors if tensor.name not in dropped)
    assert len(kept) == len(header.tensors) - len(dropped)
    flags = LlamaFlags(ngl=99, context=256)
    assert count_compute(replace(header, tensors=kept), flags, ["CUDA0"])["CUDA0"] > 0
