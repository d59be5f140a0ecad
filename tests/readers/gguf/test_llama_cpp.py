"""The graph of a model counts what llama.cpp's own arithmetic does; the real llama.cpp is asked about other types."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_models import FAMILIES, write_model
from soak import later, sample

from placewise.readers.gguf.header import read_header
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.readers.gguf.llama_memory import count_bytes
from placewise.readers.gguf.reader import read_gguf
from placewise.runtimes.llama_cpp.log import ROUNDED
from placewise.runtimes.llama_cpp.runtime import run_llama

pytest.importorskip("gguf")
CONTEXT = 4096


def counted(path: Path, cache: tuple[str, str] = ("f16", "f16"), context: int = CONTEXT) -> tuple[int, int]:
    """Bytes of weights and of the cache of the graph."""
    graph = read_gguf(path, dims={"prompt": 16, "tokens": 8, "context": context}, cache_type=",".join(cache)).graph
    return int(graph.weights.bytes.sum()), int(graph.ops.state_bytes.sum())


@pytest.mark.parametrize("family", sample([*FAMILIES]))
def test_the_graph_has_the_bytes_of_the_flags(family: str, tmp_path: Path) -> None:
    """Windows, latent attention, grouped queries, tied embeddings, experts; tests of the runtime ask the real one."""
    path = write_model(tmp_path / "model.gguf", family)
    for cache in (("f16", "f16"), ("bf16", "bf16") if family == "deepseek2" else ("q8_0", "q4_0")):
        flags = LlamaFlags(context=CONTEXT, cache=cache)
        theirs = count_bytes(read_header(path), flags)["CPU"]
        assert counted(path, cache) == (theirs.weights, theirs.cache)


def test_sequences_have_caches_of_their_own(tmp_path: Path) -> None:
    """Each of several sequences has its positions, padded like those of one, in the graph and by the flags."""
    path = write_model(tmp_path / "model.gguf", "gemma3")
    sizes = {"prompt": 16, "tokens": 8, "context": 1000, "batch": 2, "sequences": 3}
    counted = int(read_gguf(path, dims=sizes).graph.ops.state_bytes.sum())
    assert counted == count_bytes(read_header(path), LlamaFlags(context=6 * 1000, parallel=6))["CPU"].cache


@pytest.mark.parametrize("kind", [later("F32"), later("BF16"), later("Q5_1"), "MXFP4"])
def test_types_of_weights_in_the_real_llama_cpp(kind: str, tmp_path: Path) -> None:
    """Matrices have the bytes of their type there, too."""
    pytest.importorskip("xllamacpp")
    path = write_model(tmp_path / "model.gguf", "mixtral", kind=kind)
    found = run_llama(path, LlamaFlags(context=512, repack=False), prompt=4, tokens=1, repeats=1).allocation
    for ours, real in zip(counted(path, context=512), (found.weights, found.cache), strict=True):
        assert abs(sum(real.values()) - ours) <= 0.003 * ours + 2 * ROUNDED
