"""Published configurations by name: files in the form of `config.json`, reduced to what determines shapes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

from placewise.errors import ModelFileError

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
    "mistral-7b": ("mistralai/Mistral-7B-Instruct-v0.2",),
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


PREFIX = "hf:"
_HERE = Path(__file__).parent


def preset_names() -> tuple[str, ...]:
    """All presets, in alphabetical order."""
    return tuple(sorted(path.stem for path in _HERE.glob("*.json")))


def find_preset(name: str) -> str:
    """The preset with this name, or this id on the Hugging Face hub with or without its owner, whatever their case.

    Raises ModelFileError for an unknown name, with the nearest preset, and how to read another model's configuration.
    """
    presets = preset_names()
    ids = {hub_id.lower(): preset for preset, ids in HUB_IDS.items() for hub_id in ids}
    short = {hub_id.rpartition("/")[2]: preset for hub_id, preset in ids.items()}
    short |= {preset.lower(): preset for preset in presets}
    wanted = name.strip().lower()
    known = short | ids
    if wanted in known:
        return known[wanted]
    close = difflib.get_close_matches(wanted.rpartition("/")[2][:100], short, n=12, cutoff=0.5)
    near = list(dict.fromkeys(short[match] for match in close))[:3]
    where = f"{PREFIX}{name[:100]}"
    if wanted.count("/") != 1 or not all(wanted.split("/")) or "." in wanted.split("/"):
        raise ModelFileError(
            f"there is no preset {name[:100]!r}",
            where=where,
            remedy=f"choose {', '.join(near or presets)}; for another model, save its config.json "
            "(`hf download OWNER/NAME config.json --local-dir model`) and give that file",
        )
    family = _family_of(wanted.rpartition("/")[2])
    kin = [preset for preset in short.values() if _family_of(preset) == family and preset in map(short.get, close)]
    kin += [preset for preset in near if difflib.get_close_matches(family, [_family_of(preset)])]
    raise ModelFileError(
        "no preset has the shapes of this model, and nothing is downloaded",
        where=where,
        remedy=f"save its config.json (`hf download {name[:100]} config.json --local-dir model`) and give that file, "
        + (f"or take the nearest preset, hf:{kin[0]}" if kin else "or take a preset, such as hf:llama-3-8b"),
    )


def _family_of(name: str) -> str:
    """How the names of a family of models begin: "llama" for "llama-3-8b"."""
    return re.split(r"[^a-z]", name, maxsplit=1)[0]


def preset_path(name: str) -> Path:
    """The configuration of a preset, by its name or an id of the hub; raises ModelFileError for an unknown name."""
    return _HERE / f"{find_preset(name)}.json"
