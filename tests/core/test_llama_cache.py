"""A configuration's model keeps the cache of the same model in a GGUF file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf_models import write_model
from llama_configurations import MODELS, read_both
from soak import sample

import placewise as pw
from placewise.core.build import build
from placewise.core.llama_cache import count_llama_cache
from placewise.core.options import ProblemOptions
from placewise.core.target_rules import run_on_target

pytest.importorskip("gguf")
pytest.importorskip("transformers")
SIZES = (
    {},
    {"prompt": 16, "tokens": 8, "batch": 3, "length": 1000},
    {"prompt": 100, "tokens": 9000, "sequences": 2, "ubatch": 1024},
)


CASES = [(family, dims) for dims in SIZES for family in MODELS]


@pytest.mark.parametrize(("family", "dims"), sample(CASES, 5))
def test_bytes_are_those_of_the_file(family: str, dims: dict[str, int], tmp_path: Path) -> None:
    """Of every layer: blocks of 256 positions for each sequence, a micro-batch beside a window, values of latents."""
    asked, file = read_both(family, tmp_path, **dims)
    ours, theirs = run_on_target(asked, "llama.cpp"), run_on_target(file, "llama.cpp")
    mine, known, before = (
        problem.graph.ops.state_bytes[problem.graph.ops.state_bytes > 0] for problem in (ours, theirs, asked)
    )
    assert np.array_equal(mine, known) and not np.array_equal(mine, before)
    assert ours.graph.digest() == asked.graph.digest() and count_llama_cache(ours) is ours


@pytest.mark.parametrize(
    ("values", "heads"),
    [
        ({"multi_query": True}, 1),
        ({"multi_query": False}, 4),
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, 2),
    ],
)
def test_falcon_keeps_the_heads_that_it_has(values: dict[str, object], heads: int, tmp_path: Path) -> None:
    """One for all queries, one for each, or some; transformers keeps a copy for every query of the last."""
    config = {
        "model_type": "falcon",
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "alibi": False,
    }
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 320, "dtype": "float16", **values}))
    problem = build(tmp_path, "RTX4090,cpu", ProblemOptions(dims={"prompt": 1000, "tokens": 100}))
    state = run_on_target(problem, "llama.cpp").graph.ops.state_bytes
    assert state[state > 0].tolist() == [2 * 1280 * heads * 64 * 2] * 2


def test_an_architecture_that_was_not_compared_has_whole_blocks_too(tmp_path: Path) -> None:
    """Of the configuration's widths and windows, in two bytes per entry."""
    sizes = {"vocab_size": 320, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 64,
             "num_key_value_heads": 2, "num_hidden_layers": 4, "sliding_window": 300, "dtype": "float32"}  # fmt: skip
    kinds = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    config = {"model_type": "olmo3", "layer_types": kinds, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    problem = build(tmp_path, "RTX4090,cpu", ProblemOptions(dims={"prompt": 2000, "tokens": 100, "ubatch": 256}))
    state = run_on_target(problem, "llama.cpp").graph.ops.state_bytes
    assert state[state > 0].tolist() == [2 * cells * 2 * 64 * 2 for cells in (768, 768, 768, 2304)]
    counted = run_on_target(problem, "llama.cpp")
    again = count_llama_cache(counted.with_(graph=replace(counted.graph)))
    assert np.array_equal(again.graph.ops.state_bytes, state)


def test_files_and_other_targets_keep_theirs(tmp_path: Path) -> None:
    """The bytes of a file are those of llama.cpp already, and other targets have caches of their own."""
    asked, file = read_both("llama", tmp_path)
    assert count_llama_cache(file) is file
    assert run_on_target(asked, "vllm").graph is asked.graph


def test_a_saved_plan_opens_with_the_same_bytes(tmp_path: Path) -> None:
    """Also the digest by which a plan knows its model is the one before."""
    read_both("gemma2", tmp_path)
    dims = {"prompt": 64, "tokens": 8}
    plan = pw.place(tmp_path, "RTX4090,cpu", target="llama.cpp", dims=dims)
    plan.save(tmp_path / "plan.json")
    again = pw.Plan.load(tmp_path / "plan.json")
    assert again.placement == plan.placement
    file = build(write_model(tmp_path / "m.gguf", "gemma2", kind="F16"), "RTX4090,cpu", ProblemOptions(dims=dims))
    plan.problem.save(tmp_path / "problem.npz")
    assert not pw.check(tmp_path / "problem.npz", tmp_path / "plan.json")
    sizes = [int(problem.graph.ops.state_bytes.sum()) for problem in (again.problem, plan.problem, file)]
    assert len(set(sizes)) == 1
