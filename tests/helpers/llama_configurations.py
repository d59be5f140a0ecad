"""Small models as a configuration of Hugging Face, and as the GGUF file that llama.cpp's converter makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gguf_models import write_model

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.model.problem import Problem

SIZES = {
    "vocab_size": 320, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 8192, "dtype": "float16",
    "tie_word_embeddings": False,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "num_key_value_heads": 4, "head_dim": 16,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "qwen3moe": {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 512},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma2": {"model_type": "gemma2", "sliding_window": 32, "tie_word_embeddings": True},
    "deepseek2": {"model_type": "deepseek_v3", **LATENT},
    "llama4": {
        "model_type": "llama4_text", "num_local_experts": 4, "num_experts_per_tok": 1, "num_hidden_layers": 4,
    },
}  # fmt: skip


def read_both(family: str, folder: Path, **dims: int) -> tuple[Problem, Problem]:
    """The same model from a configuration and from a file."""
    (folder / "config.json").write_text(json.dumps(SIZES | MODELS[family]))
    file = write_model(folder / "model.gguf", family, kind="F16")
    options = ProblemOptions(dims={"prompt": 4096, "tokens": 16} | dims)
    return tuple(build(path, "RTX4090,cpu", options) for path in (folder / "config.json", file))
