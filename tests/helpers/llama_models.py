"""GGUF files at the widths of published models, with few layers and random weights, for the real llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_CHUNK = 1 << 16
"""Entries that are random; larger tensors repeat them."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a transformer; `experts` of 0 is a dense one, `used` are those of a token."""

    width: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    experts: int = 0
    used: int = 0


PUBLISHED = {
    "llama-3.2-1b": ("llama", Sizes(2048, 8192, 32, 8, 64, 4096)),
    "llama-3-8b": ("llama", Sizes(4096, 14336, 32, 8, 128, 4096)),
    "qwen3-4b": ("qwen3", Sizes(2560, 9728, 32, 8, 128, 4096)),
    "qwen3-30b-a3b": ("qwen3moe", Sizes(2048, 768, 32, 4, 128, 4096, 128, 8)),
    "mixtral-8x7b": ("llama", Sizes(4096, 14336, 32, 8, 128, 4096, 8, 2)),
}
"""Architecture and widths of published models, with a smaller vocabulary."""


def write_published(
    path: Path, arch: str, sizes: Sizes, *, layers: int = 1, kind: str = "Q4_0", down: str = "", experts: str = ""
) -> Path:
    """Write a model whose matrices are of a type; those into the residual stream, or of experts, of another.

    Matrices of a type that gguf cannot write are zeros.
    """
    import gguf

    writer = gguf.GGUFWriter(path, arch)
    keys: dict[str, Any] = {
        "block_count": layers, "context_length": 32768, "embedding_length": sizes.width,
        "feed_forward_length": sizes.inner, "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.kv_heads, "attention.key_length": sizes.head,
        "attention.value_length": sizes.head, "rope.dimension_count": sizes.head, "vocab_size": sizes.vocabulary,
    }  # fmt: skip
    if sizes.experts:
        keys |= {"expert_count": sizes.experts, "expert_used_count": sizes.used}
        keys["expert_feed_forward_length"] = sizes.inner
    for name, value in keys.items():
        writer.add_uint32(f"{arch}.{name}", value)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5)
    _add_tokenizer(writer, sizes.vocabulary)
    rng = np.random.default_rng(0)
    for name, shape in _tensors(arch, sizes, layers):
        plain = len(shape) == 1 or "gate_inp" in name
        other = experts if "_exps" in name else down if "down" in name or "attn_v" in name else ""
        wanted = gguf.GGMLQuantizationType["F32" if plain else other or kind]
        writer.add_tensor(name, _fill(rng, shape, wanted, plain and "norm" in name), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(arch: str, sizes: Sizes, layers: int) -> list[tuple[str, tuple[int, ...]]]:
    query, kv, width, inner = sizes.heads * sizes.head, sizes.kv_heads * sizes.head, sizes.width, sizes.inner
    parts: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,), "attn_q": (query, width), "attn_k": (kv, width), "attn_v": (kv, width),
        "attn_output": (width, query), "ffn_norm": (width,),
    }  # fmt: skip
    if arch.startswith("qwen3"):
        parts |= {"attn_q_norm": (sizes.head,), "attn_k_norm": (sizes.head,)}
    if sizes.experts:
        each, down = (sizes.experts, inner, width), (sizes.experts, width, inner)
        parts |= {"ffn_gate_inp": (sizes.experts, width), "ffn_gate_exps": each, "ffn_up_exps": each}
        parts["ffn_down_exps"] = down
    else:
        parts |= {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
    ends = {"token_embd": (sizes.vocabulary, width), "output_norm": (width,), "output": (sizes.vocabulary, width)}
    return [(f"{name}.weight", shape) for name, shape in ends.items()] + [
        (f"blk.{layer}.{name}.weight", shape) for layer in range(layers) for name, shape in parts.items()
    ]


def _fill(rng: np.random.Generator, shape: tuple[int, ...], kind: Any, norm: bool) -> Any:
    """Random entries, quantized; a large tensor repeats the bytes of its first ones."""
    import gguf

    count, (block, nbytes) = int(np.prod(shape)), gguf.GGML_QUANT_SIZES[kind]
    if kind.name.endswith("_K"):
        return np.zeros((*shape[:-1], shape[-1] // block * nbytes), np.uint8)
    if count <= _CHUNK:
        data = (rng.standard_normal(shape) * 0.02).astype(np.float32)
        return gguf.quantize(data + 1 if norm else data, kind)
    chunk = gguf.quantize((rng.standard_normal(_CHUNK) * 0.02).astype(np.float32), kind).reshape(-1)
    row = shape[-1] // block * nbytes // chunk.itemsize
    return np.resize(chunk, count // shape[-1] * row).reshape(*shape[:-1], row)


def _add_tokenizer(writer: Any, vocabulary: int) -> None:
    """The least tokenizer that llama.cpp loads."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"▁t{number}" for number in range(vocabulary - len(tokens))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * vocabulary)
    writer.add_token_types([2, 3, 3, *([6] * 256), *([1] * (vocabulary - 259))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
