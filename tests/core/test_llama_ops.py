"""What llama.cpp computes of a configuration's model takes the time of the same model in a GGUF file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from llama_configurations import MODELS, read_both

from placewise.core.llama_ops import find_priced_work, price_llama_ops
from placewise.core.target_rules import run_on_target
from placewise.costing.work import work_of
from placewise.model.cost_error import REWRITTEN
from placewise.model.problem import Problem

pytest.importorskip("gguf")
pytest.importorskip("transformers")


def sum_seconds(problem: Problem) -> tuple[float, float]:
    """Of a prompt and of all tokens, on the card."""
    seconds, phase = problem.costs.op_seconds[:, 0], problem.graph.ops.phase
    return float(seconds[phase == 0].sum()), float(seconds[phase == 1].sum())


@pytest.mark.parametrize("family", MODELS)
def test_times_are_those_of_the_file(family: str, tmp_path: Path) -> None:
    """Nearly: norms in 16 bits are faster than those of llama.cpp, and some models have an op more. Llama 4 has three
    in most layers: files do not name its norms of queries and keys.
    """
    asked, file = read_both(family, tmp_path)
    ours, theirs = (sum_seconds(run_on_target(problem, "llama.cpp")) for problem in (asked, file))
    assert ours == pytest.approx(theirs, rel=0.2 if family == "llama4" else 0.12)
    assert sum_seconds(asked)[1] > 1.3 * theirs[1]


def test_a_long_cache_of_latents_is_read_and_not_expanded(tmp_path: Path) -> None:
    """A token of a wide model takes hardly longer after 60,000 positions, as in the file; transformers expands them."""
    asked, file = read_both("deepseek2", tmp_path, prompt=16, tokens=120_000)
    priced = [run_on_target(problem, "llama.cpp") for problem in (asked, file)]
    ours, theirs = (sum_seconds(problem)[1] for problem in priced)
    assert ours == pytest.approx(theirs, rel=0.1)
    here, there = (find_priced_work(problem).bytes[problem.graph.ops.phase == 1].sum() for problem in priced)
    assert here == pytest.approx(there, rel=0.1) and work_of(asked.graph).bytes.sum() > 3 * there
    assert sum_seconds(asked)[1] > 3 * theirs


def test_only_estimates_of_configurations_change(tmp_path: Path) -> None:
    """Measured times stay, as do all costs for other targets, of files, and when it is done twice."""
    asked, file = read_both("llama", tmp_path)
    assert price_llama_ops(file) is file
    done = price_llama_ops(asked)
    assert price_llama_ops(done) is done and done.graph is asked.graph
    assert (done.costs.op_seconds <= asked.costs.op_seconds).all()
    assert REWRITTEN not in run_on_target(asked, "vllm").costs.sources
    measured = replace(asked.costs, sources=tuple(f"measured {name}" for name in asked.costs.sources))
    same = price_llama_ops(asked.with_(costs=measured))
    assert (same.costs.op_seconds == asked.costs.op_seconds).all()
