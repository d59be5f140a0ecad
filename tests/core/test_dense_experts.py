"""Transformers computes all experts of Llama 4, and only a plan for transformers counts that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from huggingface_configs import LLAMA_4, write_config

from placewise.core.build import build
from placewise.core.dense_experts import price_all_experts
from placewise.core.options import ProblemOptions
from placewise.core.target_rules import run_on_target
from placewise.model.cost_error import DENSE

pytest.importorskip("transformers")
WIDE = {"hidden_size": 256, "intermediate_size": 4096, "intermediate_size_mlp": 4096, "head_dim": 64}


def test_a_device_map_computes_all_experts(tmp_path: Path) -> None:
    """A prompt takes up to four times the time of one of four experts per token; other targets do not."""
    path = write_config(tmp_path, "llama", **LLAMA_4 | WIDE)
    problem = build(path, "L4,cpu", ProblemOptions(dims={"prompt": 4096, "tokens": 4}))
    dense = price_all_experts(problem)
    experts = problem.graph.ops.kind.equals("Experts")
    prompt = experts & (problem.graph.ops.phase == 0)
    ratio = dense.costs.op_seconds[prompt, 0] / problem.costs.op_seconds[prompt, 0]
    assert (ratio > 2.5).all() and (ratio < 4.1).all()
    assert np.array_equal(dense.costs.op_seconds[~experts], problem.costs.op_seconds[~experts])
    assert price_all_experts(dense) is dense
    assert DENSE in run_on_target(problem, "device-map").costs.sources
    assert DENSE not in run_on_target(problem, "vllm").costs.sources


def test_experts_apart_are_all_computed_too(tmp_path: Path) -> None:
    """As one op and as one each, the same work."""
    path, seconds = write_config(tmp_path, "llama", **LLAMA_4 | WIDE), list[float]()
    for apart in (0, 1):
        problem = build(path, "L4,cpu", ProblemOptions(dims={"prompt": 4096, "tokens": 4, "experts_split": apart}))
        dense, kinds = price_all_experts(problem), problem.graph.ops.kind
        assert (dense.costs.op_seconds >= problem.costs.op_seconds).all()
        seconds.append(float(dense.costs.op_seconds[kinds.equals("Expert") | kinds.equals("Experts"), 0].sum()))
    assert seconds[1] == pytest.approx(seconds[0], rel=0.1)


def test_other_mixtures_are_routed_there(tmp_path: Path) -> None:
    """Transformers computes the experts that tokens choose of all others."""
    problem = build(write_config(tmp_path, "mixtral"), "L4,cpu", ProblemOptions(dims={"prompt": 16, "tokens": 4}))
    assert price_all_experts(problem) is problem
