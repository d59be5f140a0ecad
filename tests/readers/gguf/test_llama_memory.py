"""Bytes by device under llama.cpp's flags, without llama.cpp."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest
from gguf_models import write_model

from placewise.errors import InputError, ModelFileError
from placewise.readers.gguf.header import Header, read_header
from placewise.readers.gguf.llama_compute import Result, size_buffer
from placewise.readers.gguf.llama_flags import LlamaFlags, parse_flags
from placewise.readers.gguf.llama_memory import count_bytes, count_cache, list_cells, place_tensors
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


def test_a_hole_is_used_by_what_fits_it() -> None:
    """A freed result leaves a hole, which the next takes if it is no larger; larger ones go to the end."""
    first = [Result("a", 64), Result("b", 32, ("a",))]
    assert size_buffer([*first, Result("c", 64, ("b",))]) == 96
    assert size_buffer([*first, Result("c", 96, ("b",))]) == 192
    assert size_buffer([Result("a", 64), Result("b", 64, ("a",), in_place=True)]) == 64
    assert size_buffer([Result("a", 64), Result("b", 64, ("a",), in_place=True), Result("c", 64, ("a", "b"))]) == 192


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
