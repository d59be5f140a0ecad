"""The real llama.cpp loads every family of models, and allocates the bytes that the graph counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_models import FAMILIES, write_model
from llama_cpp_loads import ROUNDED, load

from placewise.readers.gguf.reader import read_gguf

pytest.importorskip("xllamacpp")
pytest.importorskip("gguf")
CONTEXT = 4096


def assert_counted(path: Path, cache: tuple[str, str] = ("f16", "f16"), context: int = CONTEXT) -> None:
    """Weights and cache are those of llama.cpp's log, to its last digit."""
    loaded = load(path, context=context, cache=cache)
    graph = read_gguf(path, dims={"prompt": 16, "tokens": 8, "context": context}, cache_type=",".join(cache)).graph
    counted = {"model": int(graph.weights.bytes.sum()), "KV": int(graph.ops.state_bytes.sum())}
    for what, nbytes in counted.items():
        off = loaded.nbytes[what] - nbytes
        assert abs(off) <= 1.2 * ROUNDED * loaded.buffers[what] + 0.003 * nbytes, f"{what}: {off} of {nbytes} bytes"


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_and_cache_are_what_llama_cpp_allocates(family: str, tmp_path: Path) -> None:
    """Windows, latent attention, grouped queries, tied embeddings, experts: every family generates, as counted."""
    assert_counted(write_model(tmp_path / "model.gguf", family, kind="Q4_0"))


@pytest.mark.parametrize("cache", [("q8_0", "q8_0"), ("q4_0", "q4_0"), ("f16", "q8_0"), ("f32", "f32")])
def test_types_of_the_cache(cache: tuple[str, str], tmp_path: Path) -> None:
    """The cache has the bytes of the types of its keys and of its values."""
    assert_counted(write_model(tmp_path / "model.gguf", "llama"), cache)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q5_1", "Q4_1", "MXFP4"])
def test_types_of_weights(kind: str, tmp_path: Path) -> None:
    """Matrices of other types have the bytes of their type."""
    assert_counted(write_model(tmp_path / "model.gguf", "mixtral", kind=kind), context=512)
