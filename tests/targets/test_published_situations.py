"""Situations of people who run language models at home, from public threads, rebuilt: sizes, devices and context.

Each is a run of the command line on a GGUF file of the real shape. Types of weights are of one kind, the nearest to the
mix of the thread.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from cli_runs import run
from gguf_models import write_real_size

LLAMA_70B = {"layers": 80, "width": 8192, "inner": 28672, "heads": 64, "kv": 8, "vocabulary": 128256, "kind": "Q4_K"}
LLAMA_405B = LLAMA_70B | {"layers": 126, "width": 16384, "inner": 53248, "heads": 128}
QWEN_14B = {"layers": 48, "width": 5120, "inner": 13824, "heads": 40, "kv": 8, "vocabulary": 152064, "kind": "Q5_K"}
QWEN_235B = {"layers": 94, "width": 4096, "inner": 1536, "heads": 64, "kv": 4, "experts": 128, "kind": "IQ4_XS"}


def place(tmp_path: Path, shape: dict[str, Any], devices: str, *more: object) -> tuple[str, dict[str, float]]:
    """The exported command of a plan for llama.cpp, and the free bytes of every device that it uses."""
    model, plan = write_real_size(tmp_path / "model.gguf", **shape), tmp_path / "plan.json"
    said = run(
        "place", model, "-d", devices, "--for", "llama.cpp", "--dim", "prompt=512", "--dim", "tokens=64",
        "--time-limit", "10s", "-o", plan, "--json", *more,
    )  # fmt: skip
    document = json.loads(said.stdout)
    free = {device["device"]: device["capacity"] - device["peak"] for device in document["devices"]}
    assert all(left >= 0 for left in free.values())
    run("export", plan, "--to", "llama.cpp", "-o", tmp_path / "llama.sh", "-q")
    return (tmp_path / "llama.sh").read_text().splitlines()[-1], free


def layers_on_gpus(command: str) -> int:
    found = re.search(r"-ngl (\d+)", command)
    assert found is not None
    return int(found[1])


def test_70b_with_128k_of_context_on_four_cards(tmp_path: Path) -> None:
    """ollama/ollama#6741: Llama 3.1 70B with 131072 positions "not fitting 96 GB", 10 of 81 layers on GPUs.

    Weights and a cache of float16 take 80 GB: all layers are on the cards.
    """
    command, _ = place(tmp_path, LLAMA_70B, "4xRTX4090,cpu@64GiB", "--dim", "context=131072")
    assert layers_on_gpus(command) == 81 and "-c 131072" in command


def test_the_cache_is_counted_with_its_layers(tmp_path: Path) -> None:
    """lmstudio-ai/lmstudio-bug-tracker#542: a 14B model in Q5 with 32k in q8_0 on 10 GB; 42 of 48 layers run out.

    Weights of 42 layers fit alone, and not with the cache: the plan has fewer, and says so.
    """
    command, free = place(
        tmp_path, QWEN_14B, "RTX3060,cpu@32GiB", "--dim", "context=32768", "--cache-type", "q8_0",
        "--max-memory", "cuda:0=10GB",
    )  # fmt: skip
    assert 20 < layers_on_gpus(command) < 42 and "-ctk q8_0 -ctv q8_0" in command
    assert free["cuda:0"] < 1e9, "another layer would not fit"


def test_both_of_two_cards_are_filled(tmp_path: Path) -> None:
    """ggml-org/llama.cpp#15136: Qwen3-235B on two cards of 24 GB and 128 GB of memory; one card fills, one stays empty.

    Experts of the first layers are in host memory, so that attention is on the cards; both cards hold layers.
    """
    command, free = place(tmp_path, QWEN_235B, "2xRTX3090,cpu@128GiB", "--dim", "context=8192")
    assert "exps=CPU" in command or layers_on_gpus(command) < 95
    split = re.search(r"--tensor-split (\d+),(\d+)", command)
    assert split is not None and min(int(split[1]), int(split[2])) > 0
    assert {"cuda:0", "cuda:1"} <= free.keys()


def test_what_no_card_of_this_size_can_hold(tmp_path: Path) -> None:
    """LostRuins/koboldcpp#1082: 405B with 128k of context, one card of 24 GB, no layers on it: out of memory.

    With 384 GiB of memory a plan exists; with 128 GiB none does, which is proved and said with the missing bytes.
    """
    place(tmp_path, LLAMA_405B, "RTX4090,cpu@384GiB", "--dim", "context=131072")
    none = run(
        "place", tmp_path / "model.gguf", "-d", "RTX4090,cpu@128GiB", "--for", "llama.cpp", "--dim", "prompt=512",
        "--dim", "tokens=64", "--dim", "context=131072", "--time-limit", "10s", code=3,
    )  # fmt: skip
    assert "more than they hold" in none.stdout + none.stderr
