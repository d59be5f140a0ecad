"""Quantized configurations: bytes of published checkpoints, of transformers' own layers, and what is left as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_configs import write_config
from soak import later, sample

import placewise as pw
from placewise.errors import InputError, ModelFileError
from placewise.exporters.registry import create_exporter
from placewise.model.graph import Graph

pytest.importorskip("transformers")
from placewise.readers.huggingface import read_huggingface
from placewise.readers.huggingface.instance import DTYPES, build_instance
from placewise.readers.huggingface.packed_weights import pack_weights
from placewise.readers.huggingface.quantization import Packing, match_name, read_quantization
from placewise.readers.huggingface.settings import read_settings

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000, "dtype": "float16",
    "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088, "num_experts_per_tok": 4, "dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "llama-2-7b": LLAMA,
    "llama-2-13b": LLAMA | {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40,
                            "num_attention_heads": 40, "num_key_value_heads": 40},
    "llama-30b": LLAMA | {"hidden_size": 6656, "intermediate_size": 17920, "num_hidden_layers": 60,
                          "num_attention_heads": 52, "num_key_value_heads": 52},
    "codellama-34b": LLAMA | {"hidden_size": 8192, "intermediate_size": 22016, "num_hidden_layers": 48,
                              "num_attention_heads": 64, "num_key_value_heads": 8},
    "llama-2-70b": LLAMA | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
                            "num_attention_heads": 64, "num_key_value_heads": 8},
    "mistral-7b": LLAMA | {"intermediate_size": 14336, "num_key_value_heads": 8},
    "mixtral-8x7b": LLAMA | {"model_type": "mixtral", "intermediate_size": 14336, "num_key_value_heads": 8,
                             "vocab_size": 32002, "num_local_experts": 8, "num_experts_per_tok": 2},
    "llama-3.2-1b": LLAMA | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
                             "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "dtype": "bfloat16",
                             "tie_word_embeddings": True},
    "qwen2.5-7b": LLAMA | {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
                           "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
                           "vocab_size": 152064},
    "gpt-oss-20b": GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32},
    "gpt-oss-120b": GPT_OSS | {"num_hidden_layers": 36, "num_local_experts": 128},
}  # fmt: skip
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
NESTED = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


def gptq(bits: int, group: int) -> dict[str, Any]:
    """The configuration of AutoGPTQ."""
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": True}


CHECKPOINTS = [
    ("TheBloke/Llama-2-7b-Chat-GPTQ", "llama-2-7b", gptq(4, 128), 3.90e9),
    ("TheBloke/Llama-2-7b-Chat-GPTQ", "llama-2-7b", gptq(4, 64), 4.02e9),
    ("TheBloke/Llama-2-7b-Chat-GPTQ", "llama-2-7b", gptq(4, 32), 4.28e9),
    ("TheBloke/Llama-2-7B-32K-Instruct-GPTQ", "llama-2-7b", gptq(8, -1), 7.01e9),
    ("TheBloke/Llama-2-7B-32K-Instruct-GPTQ", "llama-2-7b", gptq(8, 128), 7.16e9),
    ("TheBloke/LlamaGuard-7B-AWQ", "llama-2-7b", AWQ, 3.89e9),
    ("TheBloke/MythoMax-L2-13B-GPTQ", "llama-2-13b", gptq(4, 128), 7.26e9),
    ("TheBloke/MythoMax-L2-13B-GPTQ", "llama-2-13b", gptq(4, 64), 7.51e9),
    ("TheBloke/MythoMax-L2-13B-GPTQ", "llama-2-13b", gptq(4, 32), 8.00e9),
    ("TheBloke/MythoMax-L2-13B-GPTQ", "llama-2-13b", gptq(8, -1), 13.36e9),
    ("TheBloke/MythoMax-L2-13B-GPTQ", "llama-2-13b", gptq(8, 128), 13.65e9),
    ("TheBloke/LLaMA2-13B-Tiefighter-AWQ", "llama-2-13b", AWQ, 7.25e9),
    ("TheBloke/Wizard-Vicuna-30B-Uncensored-GPTQ", "llama-30b", gptq(4, -1), 16.94e9),
    ("TheBloke/Wizard-Vicuna-30B-Uncensored-GPTQ", "llama-30b", gptq(4, 32), 19.44e9),
    ("TheBloke/Phind-CodeLlama-34B-v2-GPTQ", "codellama-34b", gptq(4, -1), 17.69e9),
    ("TheBloke/CodeLlama-34B-Instruct-GPTQ", "codellama-34b", gptq(4, 128), 18.33e9),
    ("TheBloke/CodeLlama-34B-Instruct-GPTQ", "codellama-34b", gptq(4, 64), 18.98e9),
    ("TheBloke/CodeLlama-34B-Instruct-GPTQ", "codellama-34b", gptq(4, 32), 20.28e9),
    ("TheBloke/Xwin-LM-70B-V0.1-GPTQ", "llama-2-70b", gptq(4, 128), 36.65e9),
    ("TheBloke/Xwin-LM-70B-V0.1-GPTQ", "llama-2-70b", gptq(4, 32), 40.66e9),
    ("TheBloke/Upstage-Llama-2-70B-instruct-v2-AWQ", "llama-2-70b", AWQ, 36.61e9),
    ("TheBloke/zephyr-7B-beta-GPTQ", "mistral-7b", gptq(4, 128), 4.16e9),
    ("TheBloke/zephyr-7B-beta-GPTQ", "mistral-7b", gptq(4, 32), 4.57e9),
    ("TheBloke/zephyr-7B-beta-GPTQ", "mistral-7b", gptq(8, -1), 7.52e9),
    ("TheBloke/Mistral-7B-v0.1-AWQ", "mistral-7b", AWQ, 4.15e9),
    ("TheBloke/dolphin-2.5-mixtral-8x7b-GPTQ", "mixtral-8x7b", gptq(8, -1), 47.04e9),
    ("TheBloke/dolphin-2.5-mixtral-8x7b-GPTQ", "mixtral-8x7b", gptq(8, 128), 48.10e9),
    ("Qwen/Qwen2.5-7B-Instruct-AWQ", "qwen2.5-7b", AWQ, 4 * 822_033_408 + 2 * 1_141_306_880),
    ("unsloth/Llama-3.2-1B-Instruct-bnb-4bit", "llama-3.2-1b", NESTED,
     4 * 89_856 + 2 * 262_735_872 + 501_762_865),
    ("openai/gpt-oss-20b", "gpt-oss-20b", MXFP4, 12.8 * 2**30),
    ("openai/gpt-oss-120b", "gpt-oss-120b", MXFP4, 60.8 * 2**30),
]  # fmt: skip
"""Published bytes. Those of TheBloke are in the tables of files of the model cards, with two digits of 10⁹ bytes; of
Qwen and unsloth, counts of stored entries in the headers of the files; of gpt-oss, table 1 of its card, arXiv
2508.10925. Shapes are those of the publishers' config.json."""
FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
PRESETS: dict[str, tuple[str, dict[str, Any], float]] = {
    "bert-base": ("google-bert/bert-base-uncased", {}, 440_449_768),
    "bert-large": ("google-bert/bert-large-uncased", {}, 1.34e9),
    "deepseek-v3": ("deepseek-ai/DeepSeek-V3", FP8, 688_586_727_753),
    "gemma-2-9b": ("google/gemma-2-9b-it", {}, 18_483_411_968),
    "gpt-oss-120b": ("openai/gpt-oss-120b", {}, 65_248_815_744),
    "gpt2": ("openai-community/gpt2", {}, 548_105_171),
    "gpt2-xl": ("openai-community/gpt2-xl", {}, 6.43e9),
    "llama-3-405b": ("llama3.1:405b-instruct-fp16", {}, 812e9),
    "llama-3-70b": ("meta-llama/Llama-3.1-70B-Instruct", {}, 141_107_412_992),
    "llama-3-8b": ("meta-llama/Meta-Llama-3-8B-Instruct", {}, 16_060_522_496),
    "mistral-7b": ("mistralai/Mistral-7B-Instruct-v0.2", {}, 14_483_464_192),
    "mixtral-8x22b": ("mistralai/Mixtral-8x22B-v0.1", {}, 281_241_268_224),
    "mixtral-8x7b": ("mistralai/Mixtral-8x7B-v0.1", {}, 93_405_713_504),
    "qwen2.5-72b": ("Qwen/Qwen2.5-72B-Instruct", {}, 145_412_407_296),
    "qwen2.5-7b": ("Qwen/Qwen2.5-7B-Instruct", {}, 15_231_233_024),
    "qwen3-30b-a3b": ("Qwen/Qwen3-30B-A3B-Instruct-2507", {}, 61_064_245_248),
    "qwen3-32b": ("Qwen/Qwen3-32B", {}, 65_524_246_528),
    "t5-base": ("google-t5/t5-base", {}, 891_646_390),
    "t5-large": ("google-t5/t5-large", {}, 2.95e9),
    "t5-v1.1-xxl": ("google/t5-xxl-lm-adapt", {"dtype": "float32"}, 44.5e9),
    "vit-base": ("google/vit-base-patch16-224", {}, 346_293_852),
    "vit-large": ("google/vit-large-patch16-224", {}, 1.22e9),
    "whisper-large-v3": ("openai/whisper-large-v3", {}, 3_087_130_976),
}  # fmt: skip
"""Checkpoints on the Hugging Face hub, what their configuration has beside the preset's, and their bytes:
metadata.total_size of model.safetensors.index.json, else the sum of the weight files; those with three digits are the
sizes that the hub shows. t5-xxl-lm-adapt is tuned from the preset's model. That of llama-3-405b is the size
of the GGUF file of 16 bits in a list of llama3.1's files that a README on GitHub repeats, beside 229 GB of q4_0 and 431
GB of q8_0; it includes the vocabulary."""
NEAR = 0.005
TINY = {"prompt": 4, "tokens": 2}


@cache
def traced(name: str) -> tuple[Graph, Any]:
    """The graph of a shape without quantization, and its module."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(SHAPES[name]))
        return read_huggingface(path, dims={"prompt": 8, "tokens": 0}).graph, build_instance(SHAPES[name]).module


def stored_bytes(graph: Graph) -> int:
    """Bytes of weights, once for each storage."""
    _, first = np.unique(graph.weights.storage, return_index=True)
    return int(graph.weights.bytes[first].sum())


LARGER = {"llama-2-13b", "llama-30b", "llama-2-70b", "codellama-34b", "mistral-7b", "gpt-oss-120b"}
"""Shapes that differ from another one in their sizes alone, and have no quantization of their own."""


@pytest.mark.parametrize(
    ("checkpoint", "shape", "quantization", "published"),
    [later(*row) if row[1] in LARGER else row for row in CHECKPOINTS],
    ids=[f"{row[0]}-{row[2].get('bits', '')}-{row[2].get('group_size', '')}" for row in CHECKPOINTS],
)
def test_bytes_of_published_checkpoints(
    checkpoint: str, shape: str, quantization: dict[str, Any], published: float
) -> None:
    """Weights with scales, zero points and what is not quantized take what is published, within half a percent."""
    graph, module = traced(shape)
    values = SHAPES[shape] | {"quantization_config": quantization}
    found, method = read_quantization(values, DTYPES[SHAPES[shape]["dtype"]].itemsize)
    assert found is not None and method == quantization["quant_method"], checkpoint
    packed, count = pack_weights(graph, module, found)
    assert count >= SHAPES[shape]["num_hidden_layers"] * 2
    assert abs(stored_bytes(packed) / published - 1) <= NEAR


def beside_weights(name: str, values: Mapping[str, Any], graph: Graph) -> int:
    """Bytes that a checkpoint has beside the weights of the preset's model."""
    if name.startswith("gpt2"):
        return int(values["n_layer"] * 4 * values["n_positions"] ** 2)  # a causal mask per layer
    width, vocabulary = values.get("hidden_size", 0), values.get("vocab_size", 0)
    if name.startswith("bert"):  # the head of pretraining: a transform with its norm, a bias per token, next sentence
        return int(4 * (width * width + 3 * width + vocabulary + 2 * width + 2))
    if name == "deepseek-v3":  # a layer that predicts the token after the next, with tables of its own
        last = f"model.layers.{values['num_hidden_layers'] - 1}."
        rows = [row for row, weight in enumerate(graph.weights.name) if weight.startswith(last)]
        _, first = np.unique(graph.weights.storage[rows], return_index=True)
        return int(graph.weights.bytes[rows][first].sum()) + 2 * (2 * vocabulary * width + 2 * width * width)
    return 0


@pytest.mark.parametrize("name", sample(sorted(PRESETS), 9))
def test_bytes_of_the_presets_checkpoints(name: str, tmp_path: Path) -> None:
    """The weights of a preset, and what else its checkpoint has, take what is published, within half a percent."""
    checkpoint, changes, published = PRESETS[name]
    values = {**read_settings(f"hf:{name}").values, **changes}
    (tmp_path / "config.json").write_text(json.dumps(values))
    graph = read_huggingface(tmp_path, dims={"prompt": 8, "tokens": 0} if "ForCausalLM" in str(values) else {}).graph
    counted = stored_bytes(graph) + beside_weights(name, values, graph)
    assert counted == pytest.approx(published, rel=NEAR), checkpoint


def test_a_configuration_is_read_with_its_quantization(tmp_path: Path) -> None:
    """Linear layers are packed, tables and the head are not; a note says so, and tokens take less time."""
    plain = read_huggingface(write_config(tmp_path, "llama"), dims=TINY)
    (tmp_path / "packed").mkdir()
    path = write_config(tmp_path / "packed", "llama", quantization_config=gptq(4, 32))
    packed = read_huggingface(path, dims=TINY)
    many = sum("_proj" in name for name in packed.graph.weights.name)
    assert f"{many} weights are quantized as its configuration says (gptq)" in packed.warnings
    assert packed.graph.source is not None and packed.graph.source.options["quantization"] == "gptq"
    before, after = ({name: row for row, name in enumerate(model.graph.weights.name)} for model in (plain, packed))
    assert before.keys() == after.keys()
    for name, row in after.items():
        same = packed.graph.weights.bytes[row] == plain.graph.weights.bytes[before[name]]
        assert same != ("_proj" in name), name
        assert ("_proj" in name) == (packed.graph.weights.dtype_name(row) == "int4")
    dims = {**TINY, "tokens": 4}
    seconds = [pw.place(model, "L4", dims=dims, placer="single").value for model in (tmp_path, path)]
    assert seconds[1] < seconds[0]


def test_experts_and_their_copies_take_the_same_bytes(tmp_path: Path) -> None:
    """Experts as one op or one by one, and the router is left as it is."""
    path = write_config(tmp_path, "mixtral", quantization_config=AWQ | {"group_size": 16})
    whole, split = (read_huggingface(path, dims={**TINY, "experts_split": n}).graph for n in (0, 1))
    assert stored_bytes(whole) == stored_bytes(split)
    kinds = {name: whole.weights.dtype_name(row) for row, name in enumerate(whole.weights.name)}
    assert all((kind == "int4") == ("_proj" in name) for name, kind in kinds.items())


@pytest.mark.parametrize(
    ("quantization", "kept"),
    [
        (gptq(4, 32) | {"dynamic": {"-:.*down_proj": {}}}, "down_proj"),
        (AWQ | {"group_size": 16, "modules_to_not_convert": ["self_attn"]}, "self_attn"),
        (NESTED | {"llm_int8_skip_modules": ["model.layers.0"]}, "layers.0."),
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.*.mlp"]}, "mlp"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head", "re:.*up_proj"],
          "config_groups": {"a": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 16}}}}, "up_proj"),
    ],
)  # fmt: skip
def test_modules_that_are_left_as_they_are(tmp_path: Path, quantization: dict[str, Any], kept: str) -> None:
    """By every method's own list; all other linear layers are packed."""
    graph = read_huggingface(write_config(tmp_path, "llama", quantization_config=quantization), dims=TINY).graph
    for row, name in enumerate(graph.weights.name):
        packed = not graph.weights.dtype_name(row).startswith(("float32", "float16", "bfloat16"))
        assert packed == ("_proj" in name and kept not in name), name


def test_groups_of_compressed_tensors_differ(tmp_path: Path) -> None:
    """Modules that a group names are packed as it says, the others as the group of all linear layers."""
    group = {
        "all": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}},
        "down": {"targets": ["re:.*down_proj"], "weights": {"num_bits": 4, "group_size": 16, "strategy": "group"}},
    }
    config = {"quant_method": "compressed-tensors", "config_groups": group, "ignore": ["lm_head"]}
    graph = read_huggingface(write_config(tmp_path, "llama", quantization_config=config), dims=TINY).graph
    kinds = {name: graph.weights.dtype_name(row) for row, name in enumerate(graph.weights.name) if "_proj" in name}
    assert {kind for name, kind in kinds.items() if "down_proj" in name} == {"int4"}
    assert {kind for name, kind in kinds.items() if "down_proj" not in name} == {"int8"}


def test_blocks_of_fp8_are_those_of_transformers() -> None:
    """The FP8 layer that transformers puts in place of a linear one has the bytes that are counted."""
    fp8 = pytest.importorskip("transformers.integrations.finegrained_fp8")
    import torch

    for outputs, inputs in ((256, 384), (300, 130)):
        with torch.device("meta"):
            layer = fp8.FP8Linear(inputs, outputs, block_size=(128, 128))
        theirs = sum(weight.numel() * weight.element_size() for weight in layer.parameters())
        found, _ = read_quantization(
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, 2
        )
        assert found is not None
        packing = found.find_packing("model.layers.0.mlp.up_proj")
        assert packing is not None and packing.count_bytes(outputs, inputs) == theirs


def test_names_and_packings_by_hand() -> None:
    """A name is some parts of a path; a packing counts entries, scales, zero points and indices."""
    assert match_name("model.language_model.layers.0.mlp", "model.layers.0.mlp.up_proj")
    assert not match_name("layers.1", "model.layers.11") and not match_name("", "model")
    assert Packing(4, "int4", (1, 128), 2, zero_bits=4, index_bytes=4).count_bytes(8, 256) == (
        8 * 256 // 2 + 8 * 2 * 2 + 8 * 2 // 2 + 4 * 256
    )
    assert Packing(8, "int8", (1, 0), 4).count_bytes(8, 100) == 800 + 32


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ([1], "is no object"),
        ({"quant_method": "gptq", "bits": "4"}, "has the bits '4'"),
        ({"quant_method": "gptq", "bits": 40}, "has the bits 40"),
        ({"quant_method": "awq", "group_size": 0}, "has the group_size 0"),
        ({"quant_method": "fp8", "weight_block_size": [0, 1]}, "has the weight_block_size"),
        ({"quant_method": "awq", "modules_to_not_convert": "lm_head"}, "has the modules_to_not_convert"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": 3}}}, "has the weights 3"),
    ],
)
def test_quantization_that_makes_no_sense(tmp_path: Path, quantization: Any, words: str) -> None:
    """One sentence with the file's name."""
    path = write_config(tmp_path, "llama", quantization_config=quantization)
    with pytest.raises(ModelFileError, match=words) as error:
        read_huggingface(path, dims=TINY)
    assert str(tmp_path) in str(error.value)


def test_a_quantized_model_is_not_quantized_again(tmp_path: Path) -> None:
    """Neither by --precision, nor in training, where weights stay floats and a note says so."""
    path = write_config(tmp_path, "llama", quantization_config=gptq(4, 32))
    with pytest.raises(InputError, match=r"quantized already \(gptq\)"):
        pw.place(path, "L4", dims=TINY, precision="int8")
    trained = read_huggingface(path, dims={"length": 8}, training=True)
    assert any("not trained" in note for note in trained.warnings)
    assert "int4" not in {trained.graph.weights.dtype_name(row) for row in range(len(trained.graph.weights))}


MIXTURE = {
    "model_type": "qwen3_moe", "hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 128,
    "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000, "dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
MATRIX = 128 * 256
"""Entries of one of the three matrices of an expert."""
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}


def compressed(targets: list[str], ignored: list[str]) -> dict[str, Any]:
    group = {"targets": targets, "weights": INT4}
    form = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    return {**form, "ignore": ignored, "config_groups": {"group_0": group}}


def write_own(folder: Path, config: Mapping[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(MIXTURE | {"quantization_config": config}))
    return folder


PACKED_INT4, PACKED_FP8 = MATRIX // 2 + MATRIX // 128 * 2 + 16, MATRIX + 2 * 4
DOWN = [f"model.layers.0.mlp.experts.{expert}.down_proj" for expert in range(8)]


@pytest.mark.parametrize(
    ("config", "plain"),
    [
        (compressed(["Linear"], []), 0),
        (compressed([r"re:.*mlp\.experts\.[0-9]+\.(gate|up|down)_proj$"], []), 0),
        (compressed([r"re:.*mlp\.experts.*"], []), 0),
        (compressed(["re:.*down_proj$"], []), 2 * 8 * 2),
        (compressed(["Linear"], [r"re:.*experts.*down_proj$"]), 2 * 8),
        (compressed(["Linear"], DOWN), 8),
        (compressed(["Linear"], DOWN[3:5]), 2),
        (compressed(["Linear"], [r"re:model\.layers\.1\.mlp\.experts\.[0-2]\..*up_proj"]), 3),
        (compressed(["Linear"], ["model.layers.1."]), 3 * 8),
        (compressed(["Linear"], ["language_model"]), 2 * 3 * 8),
        (compressed(["Linear"], [r"re:.*\.[0-3]\.(gate|up|down)_proj"]), 2 * 3 * 4),
        (compressed(["Linear"], [r"re:.*experts\.(?!\d\d).*down_proj"]), 2 * 8),
        (compressed(["Linear"], [r"re:.*layers\.(0|1)\.self_attn.*"]), 0),
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": DOWN}, 8),
    ],
)
def test_rules_for_single_experts(config: dict[str, Any], plain: int, tmp_path: Path) -> None:
    """Of the 48 matrices of experts, those without packing have two bytes per entry, whether experts are ops or not."""
    packed = PACKED_FP8 if config["quant_method"] == "fp8" else PACKED_INT4
    for apart in (0, 1):
        dims = {"prompt": 8, "tokens": 2, "experts_split": apart}
        graph = read_huggingface(write_own(tmp_path, config), dims=dims).graph
        found = sum(int(graph.weights.bytes[row]) for row, name in enumerate(graph.weights.name) if ".experts." in name)
        assert found == plain * 2 * MATRIX + (2 * 8 * 3 - plain) * packed


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "bitsandbytes", "load_in_8bit": False, "load_in_4bit": False}, "no weights are quantized"),
        (compressed(["NoSuchLayer"], []), "no weights are quantized"),
        (compressed(["Linear"], []) | {"format": "marlin-24"}, r"sparsity \(marlin-24\) is not counted"),
        ({"quant_method": "compressed-tensors", "config_groups": {}, "sparsity_config":
          {"format": "sparse-24-bitmask", "sparsity_structure": "2:4"}}, r"sparsity \(sparse-24-bitmask\)"),
    ],
)  # fmt: skip
def test_what_a_configuration_does_not_pack_is_said(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    """That no weight is packed, and that the file is smaller for another reason."""
    model = read_huggingface(write_own(tmp_path, config), dims={"prompt": 8})
    assert any(re.search(words, note) for note in model.warnings)


def test_small_scales_and_eight_bits() -> None:
    """MXFP8 has scales of a byte; a method's name alone says its bits."""
    weights = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
    group = {"targets": ["Linear"], "weights": weights, "format": "mxfp8-quantized"}
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    for given, size in ((config, 1024 * 33 // 32), ({"quant_method": "bitsandbytes_8bit"}, 1024 + 4 * 32)):
        quantization, _ = read_quantization({"quantization_config": given}, 2)
        packing = quantization.find_packing("model.layers.0.mlp.up_proj") if quantization else None
        assert packing is not None and packing.count_bytes(32, 32) == size


@pytest.mark.parametrize(("config", "asked", "said"), [
    (gptq(4, 32), "a GGUF file", True),
    ({"quant_method": "mxfp4"}, "a GGUF file of type MXFP4_MOE", False),
])  # fmt: skip
def test_commands_ask_for_the_weights_of_a_plan(config: dict[str, Any], asked: str, said: bool, tmp_path: Path) -> None:
    """Those of MXFP4 are kept in GGUF files; of others, the command names no type, and a note says what to do."""
    kind = "gpt_oss" if config["quant_method"] == "mxfp4" else "llama"
    path = write_config(tmp_path, kind, quantization_config=config)
    plan = pw.place(path, "RTX4090,cpu", dims=TINY, target="llama.cpp", time_limit="5s")
    made = create_exporter("llama.cpp").export(plan.problem, plan.placement, {})
    assert f'"${{MODEL:?{asked}}}"' in str(made.files["llama.sh"])
    assert any("no GGUF file has weights of gptq" in note for note in made.notes) == said
