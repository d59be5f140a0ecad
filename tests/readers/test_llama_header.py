"""The header of a configuration counts as that of the GGUF file of the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf_models import write_model
from soak import SOAKS

from placewise.readers.gguf.header import read_header
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.readers.gguf.llama_memory import count_compute
from placewise.readers.huggingface.llama_header import build_header, find_defaults

pytest.importorskip("gguf")
COMMON = {
    "vocab_size": 320, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
LATENT = {
    "q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32,
}  # fmt: skip
SHARED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "n_shared_experts": 1,
          "first_k_dense_replace": 1}  # fmt: skip
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}), "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3": ("qwen3", {}), "qwen3moe": ("qwen3_moe", EXPERTS), "gemma2": ("gemma2", {"sliding_window": 32}),
    "gemma3": ("gemma3_text", {"sliding_window": 32}), "phi2": ("phi", {}), "phi3": ("phi3", {}),
    "gpt-oss": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32}),
    "command-r": ("cohere", {}), "cohere2": ("cohere2", {"sliding_window": 32}),
    "falcon": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "gpt2": ("gpt2", {"n_positions": 2048, "num_key_value_heads": 4, "tie_word_embeddings": False}),
    "olmo2": ("olmo2", {}), "starcoder2": ("starcoder2", {}), "deepseek2": ("deepseek_v3", LATENT | SHARED),
    "bloom": ("bloom", {"num_key_value_heads": 4}), "olmoe": ("olmoe", EXPERTS | {"num_key_value_heads": 4}),
    "llama4": ("llama4_text", {"num_local_experts": 4, "num_experts_per_tok": 1, "num_hidden_layers": 4}),
    "glm4moe-ahead": ("glm4_moe", SHARED | {"num_nextn_predict_layers": 1, "use_qk_norm": True}),
}  # fmt: skip


@pytest.mark.parametrize("family", CONFIGURATIONS)
def test_buffers_are_those_of_the_file(family: str, tmp_path: Path) -> None:
    """On the host alone, on one device and on two, with the bytes of every matrix near those in the file."""
    file = read_header(write_model(tmp_path / "model.gguf", family, kind="F16"))
    kind, more = CONFIGURATIONS[family]
    loaded = sum(tensor.nbytes for tensor in file.tensors if tensor.layer < COMMON["num_hidden_layers"])
    ours = build_header({**COMMON, "model_type": kind, **more}, loaded)
    assert ours is not None and ours.number("block_count") == file.number("block_count")
    cases = [
        (0, [], 512),
        (4, ["GPU0"], 512),
        (4, ["RPC0", "RPC1"], 512),
        (2, ["RPC0"], 512),
        (2, ["CUDA0", "CUDA1"], 2048),
    ]
    for ngl, gpus, ubatch in cases:
        flags = LlamaFlags(context=2048, ngl=ngl, split=(1.0,) * len(gpus), ubatch=ubatch)
        assert count_compute(ours, flags, gpus) == pytest.approx(count_compute(file, flags, gpus), rel=0.003)


@pytest.mark.parametrize("values", [{}, {"model_type": "vit", "hidden_size": 64}, {**COMMON, "vocab_size": "many"}])
def test_what_is_no_language_model_has_none(values: dict[str, Any]) -> None:
    """Without layers, heads and a vocabulary there is nothing to count."""
    assert build_header(values, 1000) is None


def test_every_kind_of_model_in_transformers_has_buffers_or_none() -> None:
    """All that generate text, with the values of their classes: no header ends in an internal error."""
    transformers = pytest.importorskip("transformers")
    kinds = list(transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    counted = 0
    for kind in kinds if SOAKS else kinds[::4]:
        try:
            config = transformers.AutoConfig.for_model(kind)
        except Exception:
            continue
        header = build_header({"model_type": kind}, 1 << 30, find_defaults({"model_type": kind}, config))
        for gpus in ([], ["CUDA0"], ["CUDA0", "MTL0"]) if header is not None else ():
            flags = LlamaFlags(ngl=99 if gpus else 0, split=(1.0,) * len(gpus), context=2048)
            assert sum(count_compute(header, flags, gpus).values()) > 0
            counted += 1
    assert counted > 30
