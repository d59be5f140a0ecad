"""Small configurations of the families that transformers knows, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_DECODER = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "dtype": "float32"}

SMALL: dict[str, dict[str, Any]] = {
    "llama": {**_DECODER, "num_hidden_layers": 3, "num_key_value_heads": 2},
    "mistral": {**_DECODER, "num_hidden_layers": 3, "num_key_value_heads": 2, "sliding_window": 6},
    "mixtral": {**_DECODER, "num_hidden_layers": 3, "num_key_value_heads": 2, "num_local_experts": 4},
    "qwen2": {**_DECODER, "num_hidden_layers": 3, "num_key_value_heads": 2},
    "qwen3": {**_DECODER, "num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 8},
    "qwen3_moe": {
        **_DECODER, "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 2, "mlp_only_layers": [],
    },
    "deepseek_v3": {
        **_DECODER, "num_hidden_layers": 4, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 8, "n_group": 2,
        "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
    },
    "gemma2": {**_DECODER, "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6},
    "gpt_oss": {
        **_DECODER, "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6,
        "num_local_experts": 4, "num_experts_per_tok": 2,
    },
    "gpt2": {"vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "dtype": "float32"},
    "opt": {
        "vocab_size": 96, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "word_embed_proj_dim": 32, "dtype": "float32",
    },
    "falcon": {
        "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "alibi": False,
        "dtype": "float32",
    },
    "t5": {
        "vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_decoder_layers": 4,
        "num_heads": 4, "dtype": "float32",
    },
    "whisper": {
        "vocab_size": 96, "num_mel_bins": 8, "d_model": 32, "encoder_layers": 3, "decoder_layers": 3,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
        "max_source_positions": 16, "max_target_positions": 200, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 1, "dtype": "float32",
    },
    "bert": {**_DECODER, "num_hidden_layers": 3, "max_position_embeddings": 64},
    "resnet": {
        "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [3, 2], "layer_type": "basic", "dtype": "float32",
    },
    "vit": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "image_size": 16, "patch_size": 4, "dtype": "float32",
    },
}  # fmt: skip
"""model_type → the other values. Layers that differ (dense and mixed, sliding and full) come in every pattern."""


LLAMA_4: dict[str, Any] = {
    "model_type": "llama4_text", "num_hidden_layers": 4, "head_dim": 8, "num_local_experts": 4,
    "num_experts_per_tok": 1, "intermediate_size_mlp": 96, "interleave_moe_layer_step": 2,
}  # fmt: skip
"""Changes that make Llama 4 of Llama, with experts in every second layer."""
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("bert", {"architectures": ["BertForMaskedLM"]}),
    ("gpt2", {"tie_word_embeddings": False, "vocab_size": 97}),
    ("llama", {"head_dim": 32, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
]
"""Other models of the same families: tied and untied heads, odd vocabularies, biases, layers that differ."""


def write_config(folder: Path, kind: str, **changes: Any) -> Path:
    """The small configuration of a family as `config.json` in `folder`."""
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind, **SMALL[kind], **changes}))
    return path
