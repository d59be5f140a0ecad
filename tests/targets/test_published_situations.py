"""Situations of people who run language models at home, from public threads, rebuilt: sizes, devices and context.

Each is a run of the command line on a GGUF file of the real shape. Types of weights are of one kind, the nearest to the
mix of the thread.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run
from gguf_models import write_real_size

from placewise.readers.gguf.header import read_header
from placewise.readers.gguf.llama_flags import LlamaFlags, parse_flags
from placewise.readers.gguf.llama_memory import count_bytes

MIB = 1 << 20
LLAMA_70B = {"layers": 80, "width": 8192, "inner": 28672, "heads": 64, "kv": 8, "vocabulary": 128256, "kind": "Q4_K"}
LLAMA_405B = LLAMA_70B | {"layers": 126, "width": 16384, "inner": 53248, "heads": 128}
QWEN_14B = {"layers": 48, "width": 5120, "inner": 13824, "heads": 40, "kv": 8, "vocabulary": 152064, "kind": "Q5_K"}
QWEN_235B = {"layers": 94, "width": 4096, "inner": 1536, "heads": 64, "kv": 4, "experts": 128, "kind": "IQ4_XS"}
APERTUS_70B = LLAMA_70B | {"vocabulary": 131072, "kind": "IQ4_XS"}
"""Its two wide matrices per layer have the bytes of Llama's three."""
COMMAND_104B = {"layers": 64, "width": 12288, "inner": 33792, "heads": 96, "kv": 8, "vocabulary": 256000,
                "kind": "Q5_K"}  # fmt: skip
MISTRAL_123B = {"layers": 88, "width": 12288, "inner": 28672, "heads": 96, "kv": 8, "vocabulary": 32768, "kind": "Q8_0"}
GLM_355B = {"layers": 92, "width": 5120, "inner": 1536, "heads": 96, "kv": 8, "experts": 160, "vocabulary": 151552,
            "kind": "IQ2_XXS"}  # fmt: skip
"""All of its layers as mixtures, without the shared expert: three of 92 are dense."""
SPARSE_80B = {"layers": 48, "width": 2048, "inner": 512, "heads": 16, "kv": 2, "experts": 553, "kind": "Q4_K"}
"""So many experts that those of a layer take 933 MiB."""
GPT_OSS_120B = {"layers": 36, "width": 2880, "inner": 2880, "heads": 32, "kv": 4, "experts": 128, "vocabulary": 201088,
                "kind": "MXFP4"}  # fmt: skip


def place(
    tmp_path: Path, shape: dict[str, Any], devices: str, *more: object, prompt: int = 512
) -> tuple[str, dict[str, float]]:
    """The exported command of a plan for llama.cpp, and the free bytes of every device that it uses."""
    model, plan = write_real_size(tmp_path / "model.gguf", **shape), tmp_path / "plan.json"
    said = run(
        "place", model, "-d", devices, "--for", "llama.cpp", "--dim", f"prompt={prompt}", "--dim", "tokens=64",
        "--time-limit", "10s", "-o", plan, "--json", *more,
    )  # fmt: skip
    document = json.loads(said.stdout)
    free = {device["device"]: device["capacity"] - device["peak"] for device in document["devices"]}
    assert all(left >= 0 for left in free.values())
    told = run("export", plan, "--to", "llama.cpp", "-o", tmp_path / "llama.sh").stderr
    speed = re.search(r"^expect: .* then (.*) tokens per second$", told, re.MULTILINE)
    assert speed is not None and float(speed[1]) == pytest.approx(document["tokens_per_second"], rel=0.01)
    assert re.findall(r"^memory left free: (\S+) ", told, re.MULTILINE)[0] in free
    return (tmp_path / "llama.sh").read_text().splitlines()[-1], free


def test_prompts_of_experts_in_host_memory_are_computed_on_the_card(tmp_path: Path) -> None:
    """r/LocalLLaMA, May 2026, "Drastically improve prompt processing speed for --n-cpu-moe partially offloaded models":
    gpt-oss-120b on an RTX 3090 with -ncmoe 26 reads 380 tokens per second of a prompt of 4096, at the default -ub.

    The plan leaves about as many experts on the host, and expects that speed by half; the processor alone would read a
    tenth of it. The model here is one of the same sizes.
    """
    command, _ = place(tmp_path, GPT_OSS_120B, "RTX3090,cpu@128GiB", prompt=4096)
    left = re.search(r"-ncmoe (\d+)", command)
    assert left is not None and abs(int(left[1]) - 26) <= 4
    told = run("export", tmp_path / "plan.json", "--to", "llama.cpp").stderr
    speed = re.search(r"\((\d+) tokens per second\)", told)
    assert speed is not None and 380 / 1.5 < float(speed[1]) < 380 * 1.5


def test_a_larger_micro_batch_makes_such_prompts_fast(tmp_path: Path) -> None:
    """The same report: with -b 4096 -ub 4096 it reads 1,682 tokens per second."""
    command, _ = place(tmp_path, GPT_OSS_120B, "RTX3090,cpu@128GiB", "--dim", "ubatch=4096", prompt=4096)
    assert "-b 4096 -ub 4096" in command
    told = run("export", tmp_path / "plan.json", "--to", "llama.cpp").stderr
    speed = re.search(r"\(([\d,]+) tokens per second\)", told)
    assert speed is not None and 1682 / 1.5 < float(speed[1].replace(",", "")) < 1682 * 1.5


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
    assert "-ncmoe " in command or layers_on_gpus(command) < 95
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


def test_the_first_layers_experts_are_all_of_one_card(tmp_path: Path) -> None:
    """ggml-org/llama.cpp#15975: 94 layers in Q2_K on two RTX 3090, experts of 44 on the host: the second card runs out.

    An even split asks it for far more than 24 GB, and -ts 5,2 for less, as the thread says. The plan has such a split.
    """
    path = write_real_size(tmp_path / "model.gguf", **QWEN_235B | {"kind": "Q2_K"})
    header, cards = read_header(path), ["CUDA0", "CUDA1"]
    asked = {}
    for split in ((1.0, 1.0), (5.0, 2.0)):
        flags = LlamaFlags(ngl=99, split=split, n_cpu_moe=44, context=4096)
        asked[split] = [size.weights + size.cache for size in list(count_bytes(header, flags, cards).values())[1:]]
    assert asked[1.0, 1.0][0] < 8e9 and asked[1.0, 1.0][1] > 35e9
    assert max(asked[5.0, 2.0]) < 24e9 < sum(asked[5.0, 2.0])
    command, free = place(tmp_path, QWEN_235B | {"kind": "Q2_K"}, "2xRTX3090,cpu@96GiB", "--dim", "context=4096")
    assert layers_on_gpus(command) == 95 and "-ncmoe " in command
    assert max(free["cuda:0"], free["cuda:1"]) < 2e9, "another layer's experts would not fit"


def test_equal_layers_give_the_last_card_all_experts(tmp_path: Path) -> None:
    """rammsguns/llm-rig#85: 48 layers with 933 MiB of experts each on cards with 16 and 15 GB, split by free memory.

    With the experts of 27 layers on the host, those of the other 21 are all of the second card: 20,347 MiB. The plan
    has as many of them on both cards as these hold.
    """
    path = write_real_size(tmp_path / "model.gguf", **SPARSE_80B)
    flags = LlamaFlags(ngl=99, split=(16.0, 15.0), n_cpu_moe=27, context=4096)
    asked = count_bytes(read_header(path), flags, ["CUDA0", "CUDA1"])
    assert asked["CUDA1"].weights == pytest.approx(20347 * MIB, rel=0.03) and asked["CUDA0"].weights < 2e9
    command, free = place(
        tmp_path, SPARSE_80B, "2xRTX-4060-Ti,cpu@64GiB", "--dim", "context=4096",
        "--max-memory", "cuda:0=16GB", "--max-memory", "cuda:1=15GB",
    )  # fmt: skip
    left = re.search(r"-ncmoe (\d+)", command)
    assert left is not None and 15 <= int(left[1]) <= 21 and layers_on_gpus(command) == 49
    assert max(free["cuda:0"], free["cuda:1"]) < 1.2 * 933 * MIB, "another layer's experts would not fit"


def test_two_cards_hold_what_a_log_says_that_they_hold(tmp_path: Path) -> None:
    """ggml-org/llama.cpp#16725: Apertus 70B with 20480 positions on two RX 7900 XTX of 24524 MiB, -ts 1,1.

    The log has 17827.35 MiB of weights and 3280 MiB of cache on the first card, whose sum fits, and so it does here.
    """
    path = write_real_size(tmp_path / "model.gguf", **APERTUS_70B)
    flags = LlamaFlags(ngl=99, split=(1.0, 1.0), context=20480)
    first = count_bytes(read_header(path), flags, ["ROCm0", "ROCm1"])["ROCm0"]
    assert first.weights == pytest.approx(17827.35 * MIB, rel=0.01) and first.cache == 3280 * MIB
    command, free = place(
        tmp_path, APERTUS_70B, "2xRX-7900-XTX,cpu@64GiB", "--dim", "context=20480",
        "--max-memory", "cuda:0=24524MiB", "--max-memory", "cuda:1=24524MiB",
    )  # fmt: skip
    assert layers_on_gpus(command) == 81 and free["cuda:0"] + free["cuda:1"] > 5e9


def test_a_model_that_is_just_too_large_for_three_cards(tmp_path: Path) -> None:
    """ggml-org/llama.cpp#6668: Command R+ in Q5_K_S, 66.86 GiB, on three RTX 4090 of which the first draws the desktop.

    Its log cannot allocate 23721 MiB. All layers on the cards are impossible, which is proved; a few on the host are
    enough; and in IQ4_XS, which the thread runs, all are on the cards.
    """
    cards = [word for size in ("0=21720", "1=23720", "2=23720") for word in ("--max-memory", f"cuda:{size}MiB")]
    devices, context = "3xRTX4090,cpu@64GiB", ("--dim", "context=768")
    command, _ = place(tmp_path, COMMAND_104B | {"kind": "IQ4_XS"}, devices, *cards, *context)
    assert layers_on_gpus(command) == 65
    command, _ = place(tmp_path, COMMAND_104B, devices, *cards, *context)
    header = read_header(tmp_path / "model.gguf")
    on_cards = sum(tensor.nbytes for tensor in header.tensors if tensor.name != "token_embd.weight")
    assert on_cards / 2**30 == pytest.approx(66.86, rel=0.01)
    assert 58 <= layers_on_gpus(command) < 65
    none = run(
        "place", tmp_path / "model.gguf", "-d", devices, "--for", "llama.cpp", *cards, *context,
        "--dim", "prompt=512", "--dim", "tokens=64", "--forbid", r"blk\.\d+=cpu", "--time-limit", "10s", code=3,
    )  # fmt: skip
    assert re.match(
        r"infeasible: none of the [\d,]+ splits of whole layers in llama\.cpp fits and keeps the rules\n", none.stdout
    )


def test_a_cache_is_where_its_layers_are(tmp_path: Path) -> None:
    """ggml-org/llama.cpp#10560: Mistral Large in Q8_0 with -ngl 1 on an RTX 4090; all of the cache is in host memory.

    That one layer is the output, which has no cache. The plan has layers on the card, and their caches with them.
    """
    path = write_real_size(tmp_path / "model.gguf", **MISTRAL_123B)
    header, kinds = read_header(path), ("q8_0", "q8_0")
    theirs = count_bytes(header, LlamaFlags(ngl=1, split=(1.0,), context=4096, cache=kinds), ["CUDA0"])
    assert theirs["CUDA0"].cache == 0 < theirs["CUDA0"].weights and theirs["CPU"].cache > 0
    command, free = place(tmp_path, MISTRAL_123B, "RTX4090,cpu@192GiB", "--dim", "context=4096", "--cache-type", "q8_0")
    layers = layers_on_gpus(command) - 1
    ours = count_bytes(header, parse_flags(command.split()), ["CUDA0"])
    assert layers > 10 and ours["CUDA0"].cache * 88 == theirs["CPU"].cache * layers
    assert free["cuda:0"] < 1.6e9, "another layer would not fit"


def test_five_unlike_cards_and_little_memory(tmp_path: Path) -> None:
    """ggml-org/llama.cpp#18337: GLM 4.7 in IQ2_XXS with 65536 positions on four RTX 3090, a card of 16 GB and 64 GB.

    llama.cpp's own fitting does not end. The plan uses all five cards, and none beyond its memory.
    """
    command, free = place(tmp_path, GLM_355B, "4xRTX3090,RTX-5060-Ti,cpu@64GiB", "--dim", "context=65536")
    assert {f"cuda:{number}" for number in range(5)} <= free.keys() and layers_on_gpus(command) > 80
