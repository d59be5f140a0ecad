"""Sequence parallelism as an option: from the command to the plan and back, and what it cannot be asked of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run
from fuzzing.texts import PIPER
from huggingface_configs import write_config
from locations import EXAMPLES
from soak import seeds
from split_graphs import Draft, llama_layer, resnet_block
from twins.stages import best_pipeline

import placewise as pw
from placewise.core.build import build, build_for_plan
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.core.split_ways import move_to_ways, remake_ways
from placewise.errors import InputError, PlanError
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.model.ways import Ways, keep_ways
from placewise.placers.base import Budget
from placewise.simulate import judge_placement
from placewise.transform.training import to_training

BERT = str(EXAMPLES / "bert_base.onnx")
TRAINING = {"objective": "throughput", "graph": "training", "microbatches": 8, "replicas": 1, "tensor_parallel": "any"}


def small_llama(length: int = 8, *, layers: int = 2, width: int = 64, trains: bool = True) -> Graph:
    """Layers with four heads between a vocabulary and its scores."""
    draft = Draft()
    ids = draft.input(2, length, dtype="int64")
    table = draft.weight(256, width, name="embed.weight")
    x = draft.op("Gather", table, ids, shape=(2, length, width), scope="embed", axis=0)
    for number in range(layers):
        x = llama_layer(draft, x, scope=f"layers.{number}", heads=8)
    graph = draft.build(draft.linear(draft.norm(x, scope="norm"), 256, scope="head"))
    return to_training(graph) if trains else graph


def problem_of(graph: Graph, devices: str = "4xA100-80GB", **options: Any) -> Problem:
    """The problem of a graph whose ops may be split, with replicas or without."""
    trains = bool(graph.ops.backward.any())
    given = {"objective": "throughput", "tensor_parallel": "any"} | ({"microbatches": 4} if trains else {}) | options
    return build(graph, devices, ProblemOptions(**given))


def test_from_the_command_to_the_plan_and_back(tmp_path: Path) -> None:
    """`--sequence-parallel` is in the plan, its stages name their ways, and the plan reopens with the same value."""
    plan = tmp_path / "plan.json"
    flags = ("--objective", "latency", "--dim", "batch=4", "--dim", "seq=128", "--tensor-parallel", "any")
    said = run("place", BERT, "-d", "4xA100-40GB", *flags, "--sequence-parallel", "--time-limit", "20s", "-o", plan)
    assert "over 4, tokens" in said.stdout
    document = json.loads(plan.read_text())
    assert document["constraints"]["sequence_parallel"] is True
    assert set(document["stages"][0]["ways"].values()) == {"t=4, sequence parallel"}
    assert json.loads(run("judge", BERT, plan, "--json").stdout)["value"] == document["value"]
    problem, placement = build_for_plan(BERT, plan)
    assert problem.constraints.sequence_parallel and judge_placement(problem, placement).value == document["value"]
    assert pw.Plan.load(plan).value == document["value"]
    other = run("judge", BERT, plan, "--no-sequence-parallel", code=2)
    assert "has no way 't=4, sequence parallel' for degree 4" in other.stderr


def test_python_and_problem_files(tmp_path: Path) -> None:
    """`sequence_parallel=True` holds for the problem, in its file and for plans that are made from it."""
    graph = small_llama()
    problem = problem_of(graph, sequence_parallel=True)
    problem.save(tmp_path / "problem.npz")
    again = pw.Problem.load(tmp_path / "problem.npz")
    assert again.constraints == problem.constraints and again.constraints.sequence_parallel
    plan = pw.place(again, time_limit="60s")
    assert plan.value == place(problem, budget=Budget(60.0)).value
    plan.save(tmp_path / "plan.json")
    assert pw.judge(again, tmp_path / "plan.json").value == plan.value
    direct = pw.place(graph, "4xA100-80GB", sequence_parallel=True, time_limit="60s", tensor_parallel="any",
                      objective="throughput", microbatches=4)  # fmt: skip
    assert direct.value == plan.value
    with pytest.raises(
        InputError, match="split, with sequence parallelism, and the options or the plan differ; leave out"
    ):
        pw.place(again, sequence_parallel=False)
    kept = pw.place(again, sequence_parallel=True, time_limit="60s").problem
    assert kept.constraints.sequence_parallel


def test_a_plan_is_not_judged_by_other_ways(tmp_path: Path) -> None:
    """A plan with sequence parallelism says so where the problem has none, and the other way round."""
    graph = small_llama()
    with_tokens, plain = (problem_of(graph, replicas=1, sequence_parallel=tokens) for tokens in (True, False))
    for one, other in ((with_tokens, plain), (plain, with_tokens)):
        made = place(one.with_(ways=_only(one, one.require_ways().degree == 4)), budget=Budget(60.0))
        pw.Plan(made).save(tmp_path / "plan.json")
        with pytest.raises((InputError, PlanError), match=r"has no way 't=4|the options or the plan differ"):
            pw.judge(other, tmp_path / "plan.json")


def _only(problem: Problem, keep: np.ndarray) -> Ways:
    return keep_ways(problem.require_ways(), keep)


@pytest.mark.parametrize(
    ("graph", "devices", "options", "words"),
    [
        (small_llama(), "4xL4", {"tensor_parallel": None}, "splits what lies between ops that are split, and none is"),
        (small_llama(), "4xL4", {"tensor_parallel": 1}, "splits what lies between ops that are split, and none is"),
        (small_llama(6), "4xL4", {"tensor_parallel": 4}, "degree of 4 does not divide the 6 tokens"),
        (small_llama(9), "4xL4", {}, "over 2 devices does not divide the 9 tokens"),
        (small_llama(), "L4,A100-80GB", {}, "no node has two equal devices"),
        (small_llama(), "4xL4", {"sequence_parallel": "yes"}, "sequence_parallel is 'yes'; give True or False"),
        (small_llama(), "4xL4", {"objective": "step"}, "split or recomputed is not simulated"),
    ],
)
def test_what_cannot_be_asked(graph: Graph, devices: str, options: dict[str, Any], words: str) -> None:
    """One sentence each, with a remedy: without splits, tokens that degrees do not divide, one device of a kind."""
    with pytest.raises(InputError, match=words) as error:
        problem_of(graph, devices, **({"sequence_parallel": True} | options))
    assert error.value.remedy


def test_models_without_tokens_and_files_with_ways(tmp_path: Path) -> None:
    """Convolutions have no tokens; Piper's files list their ways themselves."""
    draft = Draft()
    x = draft.op("Conv", draft.input(2, 16, 6, 6), draft.weight(16, 16, 1, 1), shape=(2, 16, 6, 6), kernel_shape=(1, 1))
    for number in range(2):
        x = resnet_block(draft, x, scope=f"blocks.{number}")
    with pytest.raises(InputError, match="no sum of split products has a dimension of tokens"):
        problem_of(draft.build(x), sequence_parallel=True)
    instance = tmp_path / "piper.json"
    instance.write_text(json.dumps(PIPER))
    said = run("place", instance, "--sequence-parallel", code=2).stderr
    assert "without sequence parallelism, and the options or the plan differ; leave out --sequence-parallel" in said
    assert pw.build(instance, options=ProblemOptions(sequence_parallel=False)).ways is not None


def test_degrees_that_do_not_divide_the_tokens_are_left_out() -> None:
    """Where any degree may be taken, a note names those that have no ways."""
    problem = problem_of(small_llama(6), "4xL4", sequence_parallel=True)
    assert problem.require_ways().degrees.tolist() == [1, 2]
    assert "4 devices do not divide 6 tokens evenly, so no op is split over 4" in problem.warnings


def test_a_plan_that_splits_nothing_says_so() -> None:
    """Sequence parallelism that changes nothing is a note; without the option there is none."""
    problem = problem_of(small_llama(), "2xL4", sequence_parallel=True)
    ways = problem.require_ways()
    whole = problem.with_(ways=_only(problem, ways.degree == 1))
    assert any("changes nothing in it" in note for note in place(whole, budget=Budget(60.0)).notes)
    plain = whole.with_(constraints=replace(whole.constraints, sequence_parallel=False))
    assert not any("changes nothing in it" in note for note in place(plain, budget=Budget(60.0)).notes)


def test_a_token_at_a_time_stays_whole(tmp_path: Path) -> None:
    """Decoding has one token per step: its sums are all-reduces, those of the prompt are scattered."""
    options = {"dims": {"prompt": 64, "tokens": 16}, "tensor_parallel": "any"}
    model = write_config(tmp_path, "qwen2", num_key_value_heads=4)
    problem = build(model, "4xA100-80GB", ProblemOptions(sequence_parallel=True, **options))
    plain = build(model, "4xA100-80GB", ProblemOptions(**options))
    for degree in (2, 4):
        rows = [p.require_ways().degree == degree for p in (problem, plain)]
        tokens, whole = (p.require_ways().seconds[own] for p, own in zip((problem, plain), rows, strict=True))
        assert tokens.shape == whole.shape and (tokens != whole).any()
    assert not any("tokens evenly" in note for note in problem.warnings)


@pytest.mark.parametrize("seed", seeds(6))
def test_the_best_pipeline_is_found(seed: int) -> None:
    """The plan is as good as the best of all pipelines, one by one, with scarce memory and with plenty."""
    trains, memory = seed % 2 == 0, ("80GB", "6MiB", "3MiB")[seed // 2]
    limits = {} if memory == "80GB" else {f"cuda:{d}": memory for d in range(4)}
    problem = problem_of(
        small_llama(layers=1, trains=trains), "4xA100-80GB", sequence_parallel=True, replicas="any", max_memory=limits
    )
    result, best = place(problem, budget=Budget(60.0)), best_pipeline(problem)
    assert result.value == pytest.approx(best, rel=1e-9)
    assert result.lower_bound <= best * (1 + 1e-9)


def test_ways_are_made_again() -> None:
    """Without sequence parallelism and back: the ways of the build, and the placement in the ways of each."""
    graph = small_llama()
    with_tokens, plain = (problem_of(graph, sequence_parallel=tokens, replicas=1) for tokens in (True, False))
    for one, other, tokens in ((with_tokens, plain, False), (plain, with_tokens, True)):
        made = remake_ways(one, sequence_parallel=tokens)
        assert made.constraints == other.constraints
        for name in ("degree", "recompute", "seconds", "bytes_in_flight", "held_bytes", "workspace"):
            np.testing.assert_array_equal(
                getattr(made.require_ways(), name), getattr(other.require_ways(), name), err_msg=name
            )
        assert made.require_ways().name == other.require_ways().name
        placement = place(one, budget=Budget(60.0)).placement
        assert placement is not None
        moved = move_to_ways(one, placement, made)
        assert moved.stages == placement.stages and move_to_ways(made, moved, one) == placement
