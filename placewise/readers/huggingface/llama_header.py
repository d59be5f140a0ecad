"""A configuration → the header of the GGUF file that llama.cpp's converter writes for it: sizes, and no weights.

Known are the names and shapes that decide what llama.cpp computes in which order (convert_hf_to_gguf.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from placewise.readers.gguf.header import Header, Tensor

ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {"mistral": "llama", "mixtral": "llama", "cohere": "command-r", "deepseek_v2": "deepseek2",
     "deepseek_v3": "deepseek2", "gemma3_text": "gemma3", "ernie4_5": "ernie4_5",
     "ernie4_5_moe": "ernie4_5-moe", "gpt_bigcode": "starcoder", "gpt_oss": "gpt-oss",
     "hunyuan_v1_dense": "hunyuan-dense", "hunyuan_v1_moe": "hunyuan-moe", "llama4_text": "llama4", "phi": "phi2",
     "seed_oss": "seed_oss"}
)  # fmt: skip
"""Names that llama.cpp has for types of models, besides those without their underscores."""
JOINED = frozenset({"bloom", "falcon", "gpt2", "gptneox", "phi2", "phi3", "starcoder"})
"""Architectures whose queries, keys and values are one matrix."""
PLACED = frozenset({"gpt2", "starcoder"})
"""Architectures that learn an embedding of every position."""
UNGATED = frozenset({"bloom", "falcon", "gpt2", "gptneox", "phi2", "starcoder", "starcoder2"})
PARALLEL = frozenset({"cohere2", "command-r", "falcon", "phi2"})
"""Architectures without a norm between attention and feed-forward part."""
NORMED_BEHIND = frozenset({"exaone4", "gemma2", "gemma3", "glm4", "olmo2"})
"""Architectures with norms behind both parts."""
NORMED_HEADS = frozenset({"gemma3", "olmo2", "olmoe", "qwen3", "qwen3moe"})
NORMED_WHOLE = frozenset({"olmo2", "olmoe"})
"""Those of them whose norms are of all heads together."""
LLAMA_4 = "llama4"
"""Its norms of queries and keys have no weights, and each of its mixtures has an expert for all tokens: configurations
say neither."""
KEYS = frozenset((
    "first_k_dense_replace", "head_dim", "hidden_size", "interleave_moe_layer_step", "intermediate_size",
    "intermediate_size_mlp", "kv_lora_rank", "model_type", "moe_intermediate_size", "multi_query", "n_embd",
    "n_head", "n_inner", "n_layer", "n_positions", "n_routed_experts", "n_shared_experts",
    "new_decoder_architecture", "num_attention_heads", "num_experts", "num_experts_per_tok", "num_hidden_layers",
    "num_key_value_heads", "num_kv_heads", "num_local_experts", "num_nextn_predict_layers", "q_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "shared_expert_intermediate_size", "sliding_window",
    "tie_word_embeddings", "use_qk_norm", "use_sliding_window", "v_head_dim", "vocab_size",
))  # fmt: skip
"""What is read of a configuration."""
NONE: Mapping[str, int | str] = MappingProxyType({})
PREDICTS_AHEAD = frozenset({"glm4moe"})
"""Architectures whose files keep the layers of multi-token prediction, which llama.cpp counts."""


def find_defaults(values: Mapping[str, Any], config: Any) -> dict[str, int | str]:
    """What a configuration leaves to its class in transformers, of which `config` is the instance, of `KEYS`."""
    with suppress(ValueError):  # several parts of a model are texts
        config = config.get_text_config()
    given, known = _find_text(values), config.to_dict()
    found = {key: known.get(key) for key in sorted(KEYS) if given.get(key) is None}
    return {key: value for key, value in found.items() if isinstance(value, (int, str)) and (value or value is False)}


def build_header(values: Mapping[str, Any], weights: int, defaults: Mapping[str, int | str] = NONE) -> Header | None:
    """The header of a model that generates text, whose weights have so many bytes in all; None for any other.

    `defaults` are what the values leave out (`find_defaults`).
    """
    given = {key: value for key, value in _find_text(values).items() if value is not None}
    sizes = _Sizes({**defaults, **given})
    kind = str(sizes.values.get("model_type", ""))
    name = ARCHITECTURES.get(kind, kind.replace("_", ""))
    layers, width = sizes.find("num_hidden_layers", "n_layer"), sizes.find("hidden_size", "n_embd")
    heads, vocabulary = sizes.find("num_attention_heads", "n_head"), sizes.find("vocab_size")
    if not (layers and width and heads and vocabulary):
        return None
    head = sizes.find("head_dim") or width // heads
    window = 0 if sizes.values.get("use_sliding_window") is False else sizes.find("sliding_window")
    ahead = sizes.find("num_nextn_predict_layers") if name in PREDICTS_AHEAD else 0
    latent, turned = sizes.find("kv_lora_rank"), sizes.find("qk_rope_head_dim")
    kept = _count_kept_heads(sizes, name, heads)
    keys = {
        "block_count": layers + ahead, "nextn_predict_layers": ahead, "embedding_length": width,
        "attention.head_count": heads,
        "attention.head_count_kv": 1 if latent else kept,
        "attention.key_length": latent + turned if latent else head,
        "attention.value_length": latent or head, "attention.kv_lora_rank": latent, "rope.dimension_count": turned,
        "attention.key_length_mla": turned + sizes.find("qk_nope_head_dim"),
        "attention.value_length_mla": sizes.find("v_head_dim"),
        "attention.sliding_window": window,
        "expert_used_count": sizes.find("num_experts_per_tok"),
    }  # fmt: skip
    query, key = heads * head, kept * head
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (vocabulary, width), "output_norm": (width,)}
    if values.get("tie_word_embeddings", sizes.values.get("tie_word_embeddings")) is False:
        shapes["output"] = (vocabulary, width)
    if name in PLACED and (positions := sizes.find("n_positions")):
        shapes["position_embd"] = (positions, width)
    if name == "bloom":
        shapes["token_embd_norm"] = (width,)
    matrices: dict[str, tuple[int, ...]] = {"attn_q": (query, width), "attn_k": (key, width), "attn_v": (key, width)}
    own = {"attn_qkv": (query + 2 * key, width)} if name in JOINED else matrices
    own = {"attn_norm": (width,), **own, "attn_output": (width, query)}
    if latent:
        own = {"attn_norm": (width,), **_list_latent(sizes, width, heads)}
    if name in NORMED_HEADS or (sizes.values.get("use_qk_norm") is True and name != LLAMA_4):
        own |= {"attn_q_norm": (query,), "attn_k_norm": (key,)} if name in NORMED_WHOLE else {
            "attn_q_norm": (head,), "attn_k_norm": (head,),
        }  # fmt: skip
    if name in ("olmo2", "exaone4"):
        del own["attn_norm"]
    elif name not in PARALLEL:
        own["post_attention_norm" if name in ("gpt-oss", "glm4moe") else "ffn_norm"] = (width,)
    if name in NORMED_BEHIND:
        own |= {"post_attention_norm": (width,), "post_ffw_norm": (width,)}
    for layer in range(layers):
        parts = own | _list_parts(sizes, name, width, layer)
        shapes |= {f"blk.{layer}.{part}": shape for part, shape in parts.items()}
    return _join(name, keys, shapes, weights)


def _count_kept_heads(sizes: _Sizes, name: str, heads: int) -> int:
    """Heads of keys and values."""
    if name != "falcon":
        return sizes.find("num_key_value_heads", default=heads)
    if sizes.values.get("new_decoder_architecture"):
        return sizes.find("num_kv_heads", default=heads)
    return heads if sizes.values.get("multi_query") is False else 1


def _find_text(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of the part that generates text."""
    inner = values.get("text_config")
    return inner if isinstance(inner, dict) else values


def _list_latent(sizes: _Sizes, width: int, heads: int) -> dict[str, tuple[int, ...]]:
    """The matrices of multi-head latent attention."""
    latent, turned = sizes.find("kv_lora_rank"), sizes.find("qk_rope_head_dim")
    rank, plain, value = (sizes.find(name) for name in ("q_lora_rank", "qk_nope_head_dim", "v_head_dim"))
    query: dict[str, tuple[int, ...]] = {"attn_q": (heads * (plain + turned), width)}
    if rank:
        query = {"attn_q_a": (rank, width), "attn_q_a_norm": (rank,), "attn_q_b": (heads * (plain + turned), rank)}
    return query | {
        "attn_kv_a_mqa": (latent + turned, width), "attn_kv_a_norm": (latent,), "attn_k_b": (heads, latent, plain),
        "attn_v_b": (heads, value, latent), "attn_output": (width, heads * value),
    }  # fmt: skip


def _list_parts(sizes: _Sizes, name: str, width: int, layer: int) -> dict[str, tuple[int, ...]]:
    """The feed-forward part or the experts of a layer."""
    inner = sizes.find("intermediate_size", "n_inner", default=4 * width)
    step = sizes.find("interleave_moe_layer_step", default=1)
    experts = sizes.find("num_experts", "num_local_experts", "n_routed_experts")
    if experts and layer >= sizes.find("first_k_dense_replace") and (layer + 1) % step == 0:
        each = sizes.find("moe_intermediate_size") or inner
        alike = sizes.find("n_shared_experts", default=int(name == LLAMA_4))
        shared = sizes.find("shared_expert_intermediate_size") or each * alike
        parts = {
            "ffn_gate_inp": (experts, width), "ffn_gate_exps": (experts, each, width),
            "ffn_up_exps": (experts, each, width), "ffn_down_exps": (experts, width, each),
        }  # fmt: skip
        if shared:
            parts |= {"ffn_gate_shexp": (shared, width), "ffn_up_shexp": (shared, width)}
            parts["ffn_down_shexp"] = (width, shared)
        return parts
    inner = sizes.find("intermediate_size_mlp", default=inner)
    if name in ("phi3", "glm4"):
        return {"ffn_up": (2 * inner, width), "ffn_down": (width, inner)}
    parts = {"ffn_up": (inner, width), "ffn_down": (width, inner)}
    return parts if name in UNGATED else {"ffn_gate": (inner, width), **parts}


def _join(name: str, keys: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]], weights: int) -> Header:
    """A header whose vectors are in four bytes, and whose matrices share the rest of all weights by their entries."""
    vectors = sum(4 * prod(shape) for shape in shapes.values() if len(shape) == 1)
    entries, rest = sum(prod(shape) for shape in shapes.values() if len(shape) > 1), max(weights - vectors, 0)
    tensors = tuple(
        Tensor(f"{tensor}.weight", shape, "F16", prod(shape) * rest // entries, Path())
        if len(shape) > 1 else Tensor(f"{tensor}.weight", shape, "F32", 4 * prod(shape), Path())
        for tensor, shape in shapes.items()
    )  # fmt: skip
    return Header(name, {f"{name}.{key}": value for key, value in keys.items() if value}, tensors, "")


class _Sizes:
    """Whole numbers of a configuration; 0 where it has none."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def find(self, *names: str, default: int = 0) -> int:
        assert KEYS.issuperset(names)
        found = (self.values.get(name) for name in names)
        return next((value for value in found if isinstance(value, int) and value > 0), default)
