"""The real llama.cpp: what it allocates is what is counted, and it runs at some speed."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_models import FAMILIES, write_model
from llama_models import Sizes, write_published
from soak import later, sample

from placewise.errors import InputError, RunError
from placewise.readers.gguf.header import read_header
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.readers.gguf.llama_memory import count_bytes, count_compute, place_tensors
from placewise.readers.gguf.reader import read_gguf
from placewise.runtimes.llama_cpp.log import ROUNDED
from placewise.runtimes.llama_cpp.runtime import run_llama

pytest.importorskip("xllamacpp")
pytest.importorskip("gguf")
NEAR = 0.03


def assert_counted(path: Path, flags: LlamaFlags) -> None:
    """Weights, cache and compute buffer are those of llama.cpp's log."""
    header = read_header(path)
    counted = count_bytes(header, flags)["CPU"]
    found = run_llama(path, flags, prompt=4, tokens=1, repeats=1).allocation
    for nbytes, real, buffers in (
        (counted.weights, found.weights, found.buffers["model"]),
        (counted.cache, found.cache, found.buffers["KV"]),
        (count_compute(header, flags)["CPU"], found.compute, 1),
    ):
        assert abs(nbytes - sum(real.values())) <= NEAR * sum(real.values()) + buffers * ROUNDED


@pytest.mark.parametrize("family", sample([*FAMILIES], 6))
def test_bytes_of_every_family(family: str, tmp_path: Path) -> None:
    """Weights, cache and compute buffer of every family, with weights repacked as llama.cpp comes."""
    path = write_model(tmp_path / "model.gguf", family)
    assert_counted(path, LlamaFlags(context=2048))


@pytest.mark.parametrize(
    "flags",
    [
        later(LlamaFlags(context=2048, cache=("q8_0", "q8_0"))),
        LlamaFlags(context=2048, cache=("q8_0", "f16")),
        LlamaFlags(context=32000, cache=("f32", "f32"), parallel=4),
        later(LlamaFlags(context=32000, cache=("f16", "f32"))),
        LlamaFlags(context=2048, flash="off"),
        later(LlamaFlags(context=5000, ubatch=128)),
        LlamaFlags(context=4 * 1000, parallel=4),
        LlamaFlags(context=2048, repack=False, n_cpu_moe=1),
    ],
    ids=["q8_0", "q8_0-f16", "f32", "f16-f32", "no flash attention", "odd context", "four sequences", "no repacking"],
)
def test_bytes_under_other_flags(flags: LlamaFlags, tmp_path: Path) -> None:
    """Types of the cache, attention that is not fused, micro-batches and contexts change what is allocated."""
    assert_counted(write_model(tmp_path / "model.gguf", "mixtral"), flags)


def test_a_larger_micro_batch_has_a_larger_cache_of_windows(tmp_path: Path) -> None:
    """llama.cpp keeps a window and a micro-batch, and the graph counts as much."""
    path = write_model(tmp_path / "model.gguf", "gemma3")
    counted = []
    for ubatch in (512, 1024):
        graph = read_gguf(path, dims={"context": 4096, "prompt": 64, "tokens": 8, "ubatch": ubatch}).graph
        counted.append(int(graph.ops.state_bytes.sum()))
        flags = LlamaFlags(context=4096, ubatch=ubatch)
        allocated = run_llama(path, flags, prompt=4, tokens=1, repeats=1).allocation.cache
        assert sum(allocated.values()) == pytest.approx(counted[-1], rel=0.01)
    assert counted[0] < counted[1]


def test_bytes_at_other_widths(tmp_path: Path) -> None:
    """Where queries are wider than the model and the feed-forward part is narrow, other results decide."""
    path = write_published(tmp_path / "model.gguf", "llama", Sizes(512, 512, 16, 16, 64, 320), layers=2)
    assert_counted(path, LlamaFlags(context=1024))


def test_overridden_tensors_are_those_that_are_counted_elsewhere(tmp_path: Path) -> None:
    """llama.cpp's regular expressions match the tensors that ours do."""
    flags = LlamaFlags(context=512, repack=False, n_cpu_moe=2, overrides=((r"blk\.(2)\.attn_(q|k)\.", "CPU"),))
    path = write_model(tmp_path / "model.gguf", "mixtral")
    found = run_llama(path, flags, prompt=4, tokens=1, repeats=1).allocation.overridden
    placed = place_tensors(read_header(path), LlamaFlags(ngl=99, n_cpu_moe=2, overrides=flags.overrides), ["GPU0"])
    inputs = {"token_embd.weight"}
    assert set(found) == {name for name, device in placed.items() if device == "CPU"} - inputs
    assert len(found) == 2 * 3 + 2
    assert set(found.values()) == {"CPU"}


def test_speed_is_measured(tmp_path: Path) -> None:
    """A prompt and tokens take time, and speeds are tokens by seconds."""
    run = run_llama(write_model(tmp_path / "model.gguf"), LlamaFlags(context=256), prompt=16, tokens=4, repeats=1)
    assert run.prompt_speed * run.prompt_seconds == pytest.approx(16)
    assert run.token_speed * run.token_seconds == pytest.approx(4)
    assert len(run.allocation.layers) == 4


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    """What llama.cpp does not load is a RunError, and no crash of this process."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(RunError, match="does not load"):
        run_llama(path)


def test_an_unknown_buffer_is_refused(tmp_path: Path) -> None:
    """A build without GPUs has no buffer of a GPU."""
    with pytest.raises(RunError, match="unknown buffer type"):
        run_llama(write_model(tmp_path / "model.gguf"), LlamaFlags(overrides=(("attn", "CUDA0"),)))


def test_a_prompt_longer_than_the_context_is_refused(tmp_path: Path) -> None:
    """Before a process is started."""
    with pytest.raises(InputError, match="do not fit the context"):
        run_llama(tmp_path / "none.gguf", LlamaFlags(context=16), prompt=16, tokens=1)
