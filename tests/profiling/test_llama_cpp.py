"""Profiles of llama.cpp: the fit finds the rates that made the times, and --costs applies them at any size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_runs import run
from gguf_models import write_model

import placewise as pw
from placewise.costing.llama_rates import LlamaRates, count_prompt_work, count_token_work, list_op_seconds
from placewise.errors import CostError, InputError
from placewise.files.profile_file import load_profile
from placewise.profiling.llama_cpp import Observation, fit_rates, read_size
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.runtimes.llama_cpp.runtime import time_llama

pytest.importorskip("gguf")
RATES = LlamaRates((2e-11, 1e-10, 1.5e-10), (2.5e-10, 2e-9))
SIZES = {"prompt": 24, "tokens": 8}


def test_rates_that_made_the_times_are_found(tmp_path: Path) -> None:
    """Times of the model itself give its rates back, and a term that takes no time is 0."""
    path = write_model(tmp_path / "model.gguf", "mixtral")
    graphs = [read_size(path, length, 8) for length in (16, 64, 256, 600, 1024)]
    works = [(count_prompt_work(graph).sum(axis=0), count_token_work(graph).sum(axis=0)) for graph in graphs]
    for rates in (RATES, LlamaRates((2e-11, 0.0, 1.5e-10), (2.5e-10, 0.0))):
        observed = [
            [Observation(work[part], float(work[part] @ each)) for work in works]
            for part, each in enumerate((rates.prompt, rates.token))
        ]
        found = fit_rates(*observed)
        assert found.prompt == pytest.approx(rates.prompt, rel=1e-6, abs=1e-16)
        assert found.token == pytest.approx(rates.token, rel=1e-6, abs=1e-16)


def test_no_rate_is_negative(tmp_path: Path) -> None:
    """Times that fall with the size have no rate for it."""
    path = write_model(tmp_path / "model.gguf")
    works = [count_token_work(read_size(path, length, 8)).sum(axis=0) for length in (16, 1024)]
    falling = [Observation(work, seconds) for work, seconds in zip(works, (2e-3, 1e-3), strict=True)]
    assert min(fit_rates(falling, falling).token) >= 0


def test_seconds_of_ops_add_up(tmp_path: Path) -> None:
    """The prompt once, and each token: what the terms of the whole model say."""
    graph = read_size(write_model(tmp_path / "model.gguf"), 600, 8)
    prompt, token = count_prompt_work(graph), count_token_work(graph)
    assert not (prompt[graph.ops.phase == 1].any() or token[graph.ops.phase == 0].any())
    whole = prompt.sum(axis=0) @ RATES.prompt + 8 * (token.sum(axis=0) @ RATES.token)
    assert list_op_seconds(graph, RATES).sum() == pytest.approx(whole)
    shorter = count_prompt_work(read_size(tmp_path / "model.gguf", 300, 8)).sum(axis=0)
    assert prompt.sum(axis=0)[2] == 2 * shorter[2], "600 tokens are two micro-batches"


def test_a_profile_serves_other_sizes_of_its_file(tmp_path: Path) -> None:
    """The command measures the real llama.cpp; plans at its sizes and at others take the rates, other files do not."""
    pytest.importorskip("xllamacpp")
    path, other = write_model(tmp_path / "model.gguf"), write_model(tmp_path / "other.gguf", layers=2)
    file = tmp_path / "profile.json"
    dims = ("--dim", "prompt=24", "--dim", "tokens=8")
    run("profile", str(path), "-d", "core", "--runtime", "llama.cpp", "--repeats", "3", *dims, "-o", str(file), "-q")
    record = load_profile(file).llama
    assert record is not None and max(record.prompt) > 0 and max(record.token) > 0
    rates = LlamaRates(record.prompt, record.token)
    for sizes in (SIZES, {"prompt": 700, "tokens": 3}):
        plan = pw.place(path, "core", dims=sizes, costs=file, placer="single", execution="sequential")
        assert plan.value == pytest.approx(list_op_seconds(plan.problem.graph, rates).sum(), rel=1e-6)
    with pytest.raises(CostError, match="of another model"):
        pw.place(other, "core", dims=SIZES, costs=file)
    saved = json.loads(file.read_text())
    assert saved["devices"][0]["idle"]["whole"] > 0
    assert np.isfinite(saved["devices"][0]["idle"]["ops"]).all()


def test_what_cannot_be_profiled(tmp_path: Path) -> None:
    """Other models, several devices and several sequences, each in one sentence."""
    path = write_model(tmp_path / "model.gguf")
    for model, devices, dims, words in (
        ("examples/models/resnet50.onnx", "core", {"batch": 1}, "give a GGUF file"),
        (path, "2xcore", SIZES, "profiled on one processor"),
        (path, "core", {**SIZES, "batch": 2}, "with one sequence"),
    ):
        with pytest.raises(InputError, match=words):
            pw.profile(model, devices, runtime="llama.cpp", dims=dims)
    with pytest.raises(InputError, match="do not fit the context"):
        time_llama(path, LlamaFlags(context=8), [(8, 2)])
