"""The ids on the Hugging Face hub whose configurations have the shapes of a preset.

Fine-tuned and longer-context releases are listed with their base model where every shape is equal.
"""

from __future__ import annotations

from collections.abc import Mapping

HUB_IDS: Mapping[str, tuple[str, ...]] = {
    "bert-base": ("google-bert/bert-base-uncased", "bert-base-uncased"),
    "bert-large": (
        "google-bert/bert-large-uncased", "bert-large-uncased",
        "google-bert/bert-large-uncased-whole-word-masking", "bert-large-uncased-whole-word-masking",
    ),
    "deepseek-v3": (
        "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3-Base", "deepseek-ai/DeepSeek-V3-0324",
        "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-R1-Zero", "deepseek-ai/DeepSeek-R1-0528",
    ),
    "gemma-2-9b": ("google/gemma-2-9b", "google/gemma-2-9b-it"),
    "gpt-oss-120b": ("openai/gpt-oss-120b",),
    "gpt2": ("openai-community/gpt2",),
    "gpt2-xl": ("openai-community/gpt2-xl",),
    "llama-3-405b": (
        "meta-llama/Llama-3.1-405B", "meta-llama/Llama-3.1-405B-Instruct", "meta-llama/Meta-Llama-3.1-405B",
        "meta-llama/Meta-Llama-3.1-405B-Instruct", "NousResearch/Hermes-3-Llama-3.1-405B",
    ),
    "llama-3-70b": (
        "meta-llama/Meta-Llama-3-70B", "meta-llama/Meta-Llama-3-70B-Instruct", "meta-llama/Llama-3.1-70B",
        "meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Meta-Llama-3.1-70B", "meta-llama/Meta-Llama-3.1-70B-Instruct",
        "meta-llama/Llama-3.3-70B-Instruct", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
    ),
    "llama-3-8b": (
        "meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-8B-Instruct", "meta-llama/Llama-3.1-8B",
        "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B-Instruct",
        "NousResearch/Meta-Llama-3-8B", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    ),
    "mixtral-8x22b": ("mistralai/Mixtral-8x22B-v0.1",),
    "mixtral-8x7b": ("mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
    "qwen2.5-72b": ("Qwen/Qwen2.5-72B", "Qwen/Qwen2.5-72B-Instruct"),
    "qwen2.5-7b": ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"),
    "qwen3-30b-a3b": (
        "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B-Base", "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "Qwen/Qwen3-30B-A3B-Thinking-2507",
    ),
    "qwen3-32b": ("Qwen/Qwen3-32B",),
    "t5-base": ("google-t5/t5-base",),
    "t5-large": ("google-t5/t5-large",),
    "t5-v1.1-xxl": ("google/t5-v1_1-xxl",),
    "vit-base": ("google/vit-base-patch16-224",),
    "vit-large": ("google/vit-large-patch16-224",),
    "whisper-large-v3": ("openai/whisper-large-v3",),
}  # fmt: skip
"""Preset → hub ids. Their case does not matter; a whole name of a preset is found as well."""
