"""Prompts in micro-batches: what reads weights again, and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf_models import write_model, write_real_size

import placewise as pw
from placewise.core.build import build
from placewise.core.micro_batches import read_weights_again
from placewise.core.options import ProblemOptions
from placewise.core.target_rules import run_on_target
from placewise.costing.work import count_weight_bytes, work_of
from placewise.model.problem import Problem

pytest.importorskip("gguf")


def problem_of(path: Path, **dims: int) -> Problem:
    return build(path, "RTX4090,cpu", ProblemOptions(dims={"prompt": 2048, "tokens": 8} | dims))


def test_small_micro_batches_are_bound_by_the_weights_that_they_read(tmp_path: Path) -> None:
    """128 of 16 tokens: a product takes the time to read its matrix so often, and starts so often."""
    path = write_real_size(
        tmp_path / "model.gguf", layers=2, width=4096, inner=14336, heads=32, kv=8, vocabulary=4096, kind="Q4_K"
    )
    before = problem_of(path, ubatch=16)
    after, graph, card = read_weights_again(before), before.graph, before.cluster.devices[0]
    products = np.flatnonzero(graph.ops.kind.equals("Gemm") & (graph.ops.phase == 0))
    inner = [op for op in products if graph.ops.scope[op] == "blk.0.ffn_up"]
    bandwidth = card.memory_bandwidth * card.efficiency["memory"]
    nbytes = work_of(graph).bytes[inner] + 127 * count_weight_bytes(graph)[inner]
    assert after.costs.op_seconds[inner, 0] == pytest.approx(nbytes / bandwidth + 128 * card.op_overhead)
    tokens = graph.ops.phase == 1
    assert (after.costs.op_seconds[tokens] == before.costs.op_seconds[tokens]).all()
    last = [op for op in products if graph.ops.scope[op].startswith(("blk.1.ffn", "output"))]
    assert last and (after.costs.op_seconds[last] == before.costs.op_seconds[last]).all()


def test_experts_are_read_as_often_as_micro_batches_choose_them(tmp_path: Path) -> None:
    """Of four experts, of which a token has two: all in a micro-batch of 64, three quarters in one of two tokens."""
    path = write_model(tmp_path / "model.gguf", "mixtral")
    for ubatch, share in ((64, 1 - 0.5**64), (2, 0.75)):
        before = problem_of(path, prompt=128, ubatch=ubatch)
        after, graph, card = read_weights_again(before), before.graph, before.cluster.devices[0]
        op = int(np.flatnonzero(graph.ops.kind.equals("Experts") & (graph.ops.phase == 0))[0])
        times, weights = 128 / ubatch, count_weight_bytes(graph)[op]
        nbytes = work_of(graph).bytes[op] + weights * (times * share - (1 - 0.5**128))
        seconds = nbytes / (card.memory_bandwidth * card.efficiency["memory"]) + times * card.op_overhead
        computed = before.costs.op_seconds[op, 0] + (times - 1) * card.op_overhead
        assert after.costs.op_seconds[op, 0] == pytest.approx(max(computed, seconds), rel=1e-3)


def test_larger_micro_batches_are_no_slower(tmp_path: Path) -> None:
    """On a card that holds all of a mixture, they read less."""
    path = write_real_size(
        tmp_path / "model.gguf", layers=4, width=2048, inner=768, heads=32, kv=4, experts=128, kind="Q4_K"
    )
    seconds = [
        pw.place(
            path, "A100-80GB,cpu", target="llama.cpp", dims={"prompt": 4096, "ubatch": size}, time_limit="5s"
        ).value
        for size in (32, 128, 512, 2048)
    ]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > 1.5 * seconds[2]


def test_what_is_left_alone(tmp_path: Path) -> None:
    """Prompts of one micro-batch, models that generate nothing, measured costs, and what was done before."""
    path = write_model(tmp_path / "model.gguf", "llama")
    for problem in (problem_of(path, prompt=512), problem_of(path, ubatch=4096), build("zoo:bert-base", "L4,cpu")):
        assert read_weights_again(problem) is problem
    once = run_on_target(problem_of(path), "llama.cpp")
    assert run_on_target(once, "llama.cpp").costs is once.costs
    graph, costs = once.graph, tmp_path / "costs.csv"
    lines = ["op,device,seconds"] + [f"{name},cuda:0,0.001" for name in graph.ops.name]
    costs.write_text("\n".join(lines))
    measured = build(path, "RTX4090,cpu", ProblemOptions(dims={"prompt": 2048, "tokens": 8}, costs=(str(costs),)))
    again = read_weights_again(measured)
    assert (again.costs.op_seconds[:, 0] == measured.costs.op_seconds[:, 0]).all()
    assert (again.costs.op_seconds[:, 1] > measured.costs.op_seconds[:, 1]).any()


def test_measured_prompts_are_left_alone(tmp_path: Path) -> None:
    """Where all times were measured, none is an estimate to change."""
    before = problem_of(write_model(tmp_path / "model.gguf", "llama"), ubatch=16)
    sources = tuple(f"measured {name}" for name in before.costs.sources)
    before = before.with_(costs=replace(before.costs, sources=sources))
    assert (read_weights_again(before).costs.op_seconds == before.costs.op_seconds).all()
