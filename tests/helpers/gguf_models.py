"""GGUF files of small language models, as llama.cpp's converters write them: real names of tensors, any weights."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from placewise.readers.gguf.types import TYPES

WIDTH, INNER, HEADS, KV_HEADS, HEAD, VOCABULARY = 256, 512, 4, 2, 64, 320
QUERY, KV = HEADS * HEAD, KV_HEADS * HEAD


@dataclass(frozen=True)
class Family:
    """An architecture: the parts of a layer with their shapes, and keys of its metadata.

    Parts end in ".bias" where they are one. `norms` have one entry per channel; `last` are tensors outside of layers,
    whose negative sizes are per layer. Keys may be functions of the number of layers. `ahead` layers of multi-token
    prediction follow the others. llama.cpp needs the `least` layers, one of which turns no keys.
    """

    parts: Mapping[str, tuple[int, ...]]
    keys: Mapping[str, Any] = field(default_factory=dict)
    last: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tied: bool = False
    first_dense: int = 0
    ahead: int = 0
    least: int = 1


def _separate(**more: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {
        "attn_norm": (WIDTH,), "attn_q": (QUERY, WIDTH), "attn_k": (KV, WIDTH), "attn_v": (KV, WIDTH),
        "attn_output": (WIDTH, QUERY), "ffn_norm": (WIDTH,), **more,
    }  # fmt: skip


DENSE = {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
PLAIN = {"ffn_up": (INNER, WIDTH), "ffn_up.bias": (INNER,), "ffn_down": (WIDTH, INNER), "ffn_down.bias": (WIDTH,)}
EXPERTS = {
    "ffn_gate_inp": (4, WIDTH), "ffn_gate_exps": (4, INNER, WIDTH), "ffn_up_exps": (4, INNER, WIDTH),
    "ffn_down_exps": (4, WIDTH, INNER),
}  # fmt: skip
SHARED = {"ffn_gate_shexp": (INNER, WIDTH), "ffn_up_shexp": (INNER, WIDTH), "ffn_down_shexp": (WIDTH, INNER)}
MIXED = {"expert_count": 4, "expert_used_count": 2}
BIASES = {"attn_q.bias": (QUERY,), "attn_k.bias": (KV,), "attn_v.bias": (KV,)}
NORMED = {"attn_q_norm": (HEAD,), "attn_k_norm": (HEAD,)}
FUSED = {"attn_norm": (WIDTH,), "attn_qkv": (QUERY + 2 * KV, WIDTH), "attn_output": (WIDTH, QUERY)}
AHEAD = {"nextn.eh_proj.weight": (WIDTH, 2 * WIDTH), "nextn.enorm.weight": (WIDTH,), "nextn.hnorm.weight": (WIDTH,)}
NORM_BIASES = {"attn_norm.bias": (WIDTH,), "ffn_norm": (WIDTH,), "ffn_norm.bias": (WIDTH,)}
LATENT = {
    "attn_norm": (WIDTH,), "attn_q_a": (64, WIDTH), "attn_q_a_norm": (64,), "attn_q_b": (HEADS * 48, 64),
    "attn_kv_a_mqa": (64 + 16, WIDTH), "attn_kv_a_norm": (64,), "attn_k_b": (HEADS, 64, 32),
    "attn_v_b": (HEADS, 32, 64),
    "attn_output": (WIDTH, HEADS * 32), "ffn_norm": (WIDTH,), **EXPERTS, **SHARED,
}  # fmt: skip
LATENT_KEYS = {
    **MIXED, "attention.q_lora_rank": 64, "attention.kv_lora_rank": 64, "attention.key_length": 80,
    "attention.value_length": 64, "attention.key_length_mla": 48, "attention.value_length_mla": 32,
    "rope.dimension_count": 16, "attention.head_count_kv": 1, "expert_feed_forward_length": INNER,
    "expert_shared_count": 1, "leading_dense_block_count": 1, "expert_weights_scale": 1.0,
}  # fmt: skip
EXPANDED = {
    **{name: shape for name, shape in LATENT.items() if name not in ("attn_k_b", "attn_v_b")},
    "attn_q_b": (HEADS * 64, 64), "attn_kv_b": (HEADS * (48 + 32), 64),
}  # fmt: skip
EXPANDED_KEYS = {
    **{name: value for name, value in LATENT_KEYS.items() if not name.endswith("_mla")},
    "attention.key_length": 64, "attention.value_length": 32, "attention.head_count_kv": HEADS,
}  # fmt: skip

GEMMA_4 = {
    **NORMED, "post_attention_norm": (WIDTH,), "post_ffw_norm": (WIDTH,), "layer_output_scale": (1,), **DENSE,
}  # fmt: skip
GEMMA_4_KEYS = {
    "attention.sliding_window": 32, "attention.key_length_swa": HEAD, "attention.value_length_swa": HEAD,
    "attention.sliding_window_pattern": lambda layers: [layer % 2 == 0 for layer in range(layers)],
    "rope.dimension_count_swa": HEAD, "embedding_length_per_layer_input": 0,
    "attention.shared_kv_layers": 0,
}  # fmt: skip

MIXTURE_OF_GLM = Family(
    {**{name: shape for name, shape in _separate().items() if name != "ffn_norm"}, **BIASES, **NORMED,
     "post_attention_norm": (WIDTH,), **EXPERTS, "exp_probs_b.bias": (4,), **SHARED},
    {**MIXED, "expert_shared_count": 1, "leading_dense_block_count": 1, "expert_feed_forward_length": INNER,
     "expert_gating_func": 2, "expert_weights_scale": 1.0}, first_dense=1,
)  # fmt: skip
FAMILIES: Mapping[str, Family] = {
    "llama": Family(_separate(**DENSE)),
    "mixtral": Family(_separate(**EXPERTS), MIXED),
    "qwen2": Family(_separate(**BIASES, **DENSE)),
    "qwen2moe": Family(
        _separate(**BIASES, **EXPERTS, **SHARED, ffn_gate_inp_shexp=(WIDTH,)),
        {**MIXED, "expert_feed_forward_length": INNER, "expert_shared_feed_forward_length": INNER},
    ),
    "qwen3": Family(_separate(**NORMED, **DENSE)),
    "qwen3moe": Family(_separate(**NORMED, **EXPERTS), {**MIXED, "expert_feed_forward_length": INNER}),
    "deepseek2": Family(LATENT, LATENT_KEYS, first_dense=1),
    "gemma": Family(_separate(**DENSE), tied=True),
    "gemma2": Family(
        _separate(**DENSE, post_attention_norm=(WIDTH,), post_ffw_norm=(WIDTH,)),
        {"attention.sliding_window": 32}, tied=True,
    ),
    "gemma3": Family(
        _separate(**DENSE, **NORMED, post_attention_norm=(WIDTH,), post_ffw_norm=(WIDTH,)),
        {"attention.sliding_window": 32}, tied=True,
    ),
    "gemma4": Family(
        _separate(**GEMMA_4, inp_gate=(32, WIDTH), proj=(WIDTH, 32), post_norm=(WIDTH,)),
        {**GEMMA_4_KEYS, "embedding_length_per_layer_input": 32,
         "attention.shared_kv_layers": lambda layers: layers - 2},
        {"rope_freqs": (HEAD // 2,), "per_layer_token_embd": (VOCABULARY, -32), "per_layer_model_proj": (-32, WIDTH),
         "per_layer_proj_norm": (32,)}, tied=True,
    ),
    "gemma4-moe": Family(
        {name: shape for name, shape in _separate(**GEMMA_4).items() if name != "attn_v"} | {
            "ffn_gate_inp": (4, WIDTH), "ffn_gate_inp.scale": (WIDTH,), "pre_ffw_norm_2": (WIDTH,),
            "post_ffw_norm_1": (WIDTH,), "post_ffw_norm_2": (WIDTH,), "ffn_gate_up_exps": (4, 2 * INNER, WIDTH),
            "ffn_down_exps": (4, WIDTH, INNER), "ffn_down_exps.scale": (4,),
        },
        {**GEMMA_4_KEYS, **MIXED, "expert_feed_forward_length": INNER}, {"rope_freqs": (HEAD // 2,)}, tied=True,
    ),
    "phi2": Family({**FUSED, "attn_norm.bias": (WIDTH,), "attn_qkv.bias": (QUERY + 2 * KV,),
                    "attn_output.bias": (WIDTH,), **PLAIN}, {"attention.layer_norm_epsilon": 1e-5},
                   {"output_norm.bias": (WIDTH,), "output.bias": (VOCABULARY,)}),
    "phi3": Family({**FUSED, "ffn_norm": (WIDTH,), "ffn_up": (2 * INNER, WIDTH), "ffn_down": (WIDTH, INNER)},
                   {"attention.sliding_window": 0}),
    "gpt-oss": Family(
        {
            **{name: shape for name, shape in _separate().items() if name != "ffn_norm"}, **BIASES,
            "attn_output.bias": (WIDTH,), "attn_sinks": (HEADS,), "post_attention_norm": (WIDTH,), **EXPERTS,
            "ffn_gate_inp.bias": (4,), "ffn_gate_exps.bias": (4, INNER), "ffn_up_exps.bias": (4, INNER),
            "ffn_down_exps.bias": (4, WIDTH),
        },
        {**MIXED, "attention.sliding_window": 32, "expert_feed_forward_length": INNER},
    ),
    "glm4": Family(_separate(post_attention_norm=(WIDTH,), post_ffw_norm=(WIDTH,), ffn_up=(2 * INNER, WIDTH),
                             ffn_down=(WIDTH, INNER))),
    "command-r": Family({name: shape for name, shape in _separate(**DENSE).items() if name != "ffn_norm"},
                        {"attention.layer_norm_epsilon": 1e-5, "logit_scale": 1.0}, tied=True),
    "falcon": Family({**FUSED, "attn_norm.bias": (WIDTH,), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)},
                     {"attention.layer_norm_epsilon": 1e-5}, {"output_norm.bias": (WIDTH,)}),
    "starcoder2": Family(_separate(**BIASES, **PLAIN, **NORM_BIASES, **{"attn_output.bias": (WIDTH,)}),
                         {"attention.layer_norm_epsilon": 1e-5}, {"output_norm.bias": (WIDTH,)}),
    "granite": Family(_separate(**DENSE), {"residual_scale": 1.0, "logit_scale": 1.0}, tied=True),
    "granitemoe": Family(_separate(**EXPERTS), {**MIXED, "residual_scale": 1.0, "logit_scale": 1.0}, tied=True),
    "olmo2": Family({**{name: shape for name, shape in _separate(**DENSE).items() if not name.endswith("_norm")},
                     "attn_q_norm": (QUERY,), "attn_k_norm": (KV,), "post_attention_norm": (WIDTH,),
                     "post_ffw_norm": (WIDTH,)}),
    "olmoe": Family(
        {**_separate(**EXPERTS), "attn_k": (QUERY, WIDTH), "attn_v": (QUERY, WIDTH), "attn_q_norm": (QUERY,),
         "attn_k_norm": (QUERY,)}, {**MIXED, "attention.head_count_kv": HEADS},
    ),
    "gpt2": Family({**FUSED, **NORM_BIASES, "attn_qkv.bias": (QUERY + 2 * KV,), "attn_output.bias": (WIDTH,), **PLAIN},
                   {"attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": HEADS},
                   {"position_embd": (2048, WIDTH), "output_norm.bias": (WIDTH,)}),
    "cohere2": Family({name: shape for name, shape in _separate(**DENSE).items() if name != "ffn_norm"},
                      {"attention.layer_norm_epsilon": 1e-5, "logit_scale": 1.0, "attention.sliding_window": 32},
                      tied=True),
    "stablelm": Family(_separate(**DENSE, **NORM_BIASES), {"attention.layer_norm_epsilon": 1e-5},
                       {"output_norm.bias": (WIDTH,)}),
    "internlm2": Family(_separate(**DENSE)),
    "bloom": Family({**FUSED, **NORM_BIASES, "attn_qkv.bias": (QUERY + 2 * KV,), "attn_output.bias": (WIDTH,), **PLAIN},
                    {"attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": HEADS},
                    {"token_embd_norm": (WIDTH,), "token_embd_norm.bias": (WIDTH,), "output_norm.bias": (WIDTH,)}),
    "llama4": Family(_separate(**EXPERTS, **SHARED), {**MIXED, "expert_used_count": 1, "interleave_moe_layer_step": 1,
                     "expert_feed_forward_length": INNER}, least=4),
    "glm4moe": MIXTURE_OF_GLM,
    "glm4moe-ahead": replace(MIXTURE_OF_GLM, ahead=1),
    "deepseek2-older": Family(EXPANDED, EXPANDED_KEYS, first_dense=1),
}  # fmt: skip
"""By name."""
ARCHITECTURES = {"mixtral": "llama", "gemma4-moe": "gemma4", "glm4moe-ahead": "glm4moe", "deepseek2-older": "deepseek2"}
"""What a family's files call it, where that is not its name."""


def write_model(
    path: Path, family: str = "llama", *, layers: int = 3, kind: str = "Q4_0", split: int = 0, seed: int = 0,
    scale: float = 0.02, tokenizer: bool = True,
) -> Path:  # fmt: skip
    """Write a model with random weights whose matrices are of a type; the path of the file, or of its first part."""
    import gguf

    arch, known = ARCHITECTURES.get(family, family), FAMILIES[family]
    layers = max(layers, known.least)
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split)
    keys: dict[str, Any] = {
        "block_count": layers + known.ahead, "nextn_predict_layers": known.ahead, "context_length": 2048,
        "embedding_length": WIDTH, "feed_forward_length": INNER,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": HEAD,
        "vocab_size": VOCABULARY, **known.keys,
    }  # fmt: skip
    if "attn_qkv" in known.parts and family == "gpt2":
        keys["attention.head_count_kv"] = HEADS
    adders = {float: writer.add_float32, int: writer.add_uint32, list: writer.add_array}
    for name, given in keys.items():
        value = given(layers) if callable(given) else given
        adders[type(value)](f"{arch}.{name}", value)
    if tokenizer:
        _add_tokenizer(writer)
    rng = np.random.default_rng(seed)
    for name, shape in _list_tensors(family, known, layers):
        plain = "norm" in name or "gate_inp" in name or name.endswith(".bias")
        quantized = len(shape) > 1 and shape[-1] % 32 == 0 and not plain
        wanted = gguf.GGMLQuantizationType[kind if quantized else "F32"]
        data = (rng.standard_normal(shape) * scale).astype(np.float32)
        data = data + 1 if "norm.weight" in name else data
        writer.add_tensor(name, gguf.quantize(data, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if not split else sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))[0]


def _list_tensors(family: str, known: Family, layers: int) -> Sequence[tuple[str, tuple[int, ...]]]:
    found: list[tuple[str, tuple[int, ...]]] = [
        ("token_embd.weight", (VOCABULARY, WIDTH)),
        ("output_norm.weight", (WIDTH,)),
    ]
    if not known.tied:
        found.append(("output.weight", (VOCABULARY, WIDTH)))
    for name, shape in known.last.items():
        shape = tuple(-size * layers if size < 0 else size for size in shape)
        found.append((name if "." in name else f"{name}.weight", shape))
    qkv = QUERY * 3 if family in ("gpt2", "bloom") else QUERY + 2 * KV
    for layer in range(layers + known.ahead):
        parts = {**known.parts, **(AHEAD if layer >= layers else {})}
        if layer < known.first_dense:
            parts = {
                name: shape for name, shape in parts.items() if "exp" not in name and name != "ffn_gate_inp"
            } | DENSE
        for name, shape in parts.items():
            size = (qkv, *shape[1:]) if name.startswith("attn_qkv") else shape
            full = name if "." in name else f"{name}.weight"
            found.append((f"blk.{layer}.{full}", size))
    return found


def _add_tokenizer(writer: Any) -> None:
    """The least tokenizer that llama.cpp loads: bytes and a few pieces."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"▁t{number}" for number in range(VOCABULARY - len(tokens))]
    kinds = [2, 3, 3, *([6] * 256), *([1] * (VOCABULARY - 259))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def tiny_model(
    *, experts: bool = False, layers: int = 2, head: int = 16, tensors: Mapping[str, tuple[int, ...]] = {},
    **changed: Any,
) -> bytes:  # fmt: skip
    """A whole file of a few kilobytes: layers of width 32, the last of them, if asked, a mixture of two experts.

    A `head` is so wide. `changed` are keys of its metadata; `tensors` are others than usual, or further ones, without
    sizes for none.
    """
    heads = [2, 1] * (layers // 2)
    metadata: dict[str, Any] = {
        "general.architecture": "llama", "llama.block_count": layers, "llama.embedding_length": 32,
        "llama.attention.head_count": heads, "llama.attention.head_count_kv": 1, "llama.attention.key_length": head,
        "llama.attention.value_length": head, "llama.context_length": 64, "llama.attention.sliding_window": 8,
        "llama.attention.sliding_window_pattern": [True, False], "llama.expert_used_count": 1,
        "tokenizer.ggml.tokens": ["a", "b"], **changed,
    }  # fmt: skip
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (8, 32), "output_norm.weight": (32,)}
    for layer, count in enumerate(heads):
        own = {"attn_norm": (32,), "attn_q": (head * count, 32), "attn_k": (head, 32), "attn_v": (head, 32),
               "attn_output": (32, head * count), "ffn_norm": (32,)}  # fmt: skip
        dense = {"ffn_gate": (32, 32), "ffn_up": (32, 32), "ffn_down": (32, 32)}
        mixed = {"ffn_gate_inp": (2, 32), **{f"{name}_exps": (2, 32, 32) for name in dense}}
        parts = own | (mixed if experts and layer == layers - 1 else dense)
        found |= {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return pack(metadata, {name: shape for name, shape in (found | dict(tensors)).items() if shape})


def write_mixture(path: Path, *, layers: int, experts: int, inner: int, width: int = 4096) -> Path:
    """A mixture of real size in Q8_0, like Qwen3-MoE; the weights are a hole in the file, and take no disk."""
    return write_real_size(path, layers=layers, width=width, inner=inner, heads=width // 128, kv=4, experts=experts)


def write_real_size(
    path: Path, *, layers: int, width: int, inner: int, heads: int, kv: int, experts: int = 0,
    vocabulary: int = 151936, kind: str = "Q8_0",
) -> Path:  # fmt: skip
    """A Llama, or a mixture like Qwen3-MoE, of real size whose weights are a hole in the file, and take no disk."""
    arch = "qwen3moe" if experts else "llama"
    metadata: dict[str, Any] = {
        "general.architecture": arch, f"{arch}.block_count": layers, f"{arch}.embedding_length": width,
        f"{arch}.attention.head_count": heads, f"{arch}.attention.head_count_kv": kv,
        f"{arch}.attention.key_length": 128, f"{arch}.attention.value_length": 128,
        f"{arch}.context_length": 131072,
    }  # fmt: skip
    if experts:
        metadata[f"{arch}.expert_used_count"] = 8
    tensors: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocabulary, width), "output_norm.weight": (width,), "output.weight": (vocabulary, width),
    }  # fmt: skip
    parts: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,), "attn_q": (128 * heads, width), "attn_k": (128 * kv, width),
        "attn_v": (128 * kv, width), "attn_output": (width, 128 * heads), "ffn_norm": (width,),
    }  # fmt: skip
    if experts:
        parts |= {
            "attn_q_norm": (128,), "attn_k_norm": (128,), "ffn_gate_inp": (experts, width),
            "ffn_gate_exps": (experts, inner, width), "ffn_up_exps": (experts, inner, width),
            "ffn_down_exps": (experts, width, inner),
        }  # fmt: skip
    else:
        parts |= {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
    for layer in range(layers):
        tensors |= {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}
    head, size = _head(metadata, tensors, 3, kind)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + size)
    return path


def pack(metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], *, version: int = 3) -> bytes:
    """A file of that header whose weights are zeros of the type Q8_0, or F32 where rows are no whole blocks."""
    head, size = _head(metadata, tensors, version)
    return head + bytes(size)


def _head(
    metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], version: int, kind: str = "Q8_0"
) -> tuple[bytes, int]:
    """The bytes before the weights, and how many they are."""
    head, table, offset = b"", b"", 0
    number, block = next((number, known) for number, known in TYPES.items() if known.name == kind)
    for key, value in metadata.items():
        head += _text(key) + _value(value)
    for name, shape in tensors.items():
        quantized = len(shape) > 1 and shape[-1] % block.block == 0
        size = int(np.prod(shape)) // block.block * block.block_bytes if quantized else 4 * int(np.prod(shape))
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        table += _text(name) + sizes + struct.pack("<IQ", number if quantized else 0, offset)
        offset += -(-size // 32) * 32
    start = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)) + head + table
    return start + bytes(-len(start) % 32), offset


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, list):
        first = _value(value[0])[:4]
        return struct.pack("<I", 9) + first + struct.pack("<Q", len(value)) + b"".join(_value(one)[4:] for one in value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    kind, form = {bool: (7, "<?"), int: (4, "<I"), float: (6, "<f")}[type(value)]
    return struct.pack("<I", kind) + struct.pack(form, value)
