"""Plans whose ops are split over devices, in the forms of vLLM and Megatron-LM; other targets refuse them."""

import re
from dataclasses import replace

import numpy as np
import pytest
from locations import EXAMPLES
from parallel_plans import place_units

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.errors import ExportError
from placewise.exporters.stack import find_stack
from placewise.exporters.writing import describe_projection, export_placement, result_of
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.ways import StageGroup
from placewise.simulate import judge_placement

BERT = str(EXAMPLES / "bert_base.onnx")


@pytest.fixture(scope="module")
def training() -> Problem:
    """BERT-base in training on four cards with direct links."""
    options = ProblemOptions(
        objective="throughput", graph="training", dims={"batch": 4, "seq": 128}, tensor_parallel=0, microbatches=8
    )
    return build(BERT, "4xA100-40GB", options)


def staged(problem: Problem, layers: list[int], groups: list[StageGroup], again: tuple[int, ...] = ()) -> Placement:
    """A pipeline of so many layers per stage; the layers `again` recompute."""
    ways, stack = problem.require_ways(), find_stack(problem)
    assert stack is not None
    layer = np.clip(stack.of, 0, stack.count - 1)
    stage = np.searchsorted(np.cumsum(layers), layer, side="right")
    unit_stage, unit_layer = np.zeros(ways.n_units, np.int32), np.full(ways.n_units, -1)
    unit_stage[ways.unit] = stage
    unit_layer[ways.unit] = stack.of
    return place_units(problem, groups, unit_stage, np.flatnonzero(np.isin(unit_layer, again)))


def test_equal_stages_are_exported_as_they_are(training: Problem) -> None:
    """Two stages of two devices each, split or repeated: sizes, layers and devices are those of the plan."""
    for degree, replicas in ((2, 1), (1, 2)):
        groups = [StageGroup((0, 1), replicas, degree), StageGroup((2, 3), replicas, degree)]
        plan = staged(training, [5, 7], groups)
        assert judge_placement(training, plan).valid
        vllm = export_placement(training, plan, "vllm")
        text = str(vllm.exported.files["vllm.sh"])
        assert not vllm.projected and vllm.loss == 0
        assert f"--tensor-parallel-size {degree} --pipeline-parallel-size 2" in text
        assert ("--data-parallel-size 2" in text) == (replicas == 2) and "VLLM_PP_LAYER_PARTITION=5,7" in text
        megatron = export_placement(training, plan, "megatron")
        line = str(megatron.exported.files["megatron.sh"])
        assert not megatron.projected and "'Et*5|t*7L'" in line
        assert f"--tensor-model-parallel-size {degree} --pipeline-model-parallel-size 2" in line
        assert "--micro-batch-size 4 --global-batch-size 32" in line


def test_unequal_stages_become_the_best_equal_ones_and_the_loss_is_reported(training: Problem) -> None:
    """Three replicas and one device are no equal stages: the files hold a plan that keeps the rules, judged again."""
    groups = [StageGroup((0, 1), 2, 1), StageGroup((2,), 1, 1), StageGroup((3,), 1, 1)]
    plan = staged(training, [6, 3, 3], groups)
    made = export_placement(training, plan, "vllm")
    assert made.projected and made.said.valid
    sizes = {(group.data_parallel, group.tensor_parallel) for group in made.exported.placement.stages}
    assert len(sizes) == 1
    assert made.said.value == judge_placement(training, made.exported.placement).value


def test_recomputed_layers_are_arguments_of_megatron(training: Problem) -> None:
    """Equally many first layers of every stage are said as they are; other layers become the fastest such choice."""
    groups = [StageGroup((0, 1), 1, 2), StageGroup((2, 3), 1, 2)]
    made = export_placement(training, staged(training, [6, 6], groups, again=(0, 1, 6, 7)), "megatron")
    text = str(made.exported.files["megatron.sh"])
    assert "--recompute-granularity full --recompute-method block --recompute-num-layers 2" in text
    assert not made.projected
    made = export_placement(training, staged(training, [6, 6], groups, again=(0, 1, 11)), "megatron")
    ways, layer = training.require_ways(), find_stack(training)
    assert made.projected and made.said.valid and layer is not None
    again = ways.recompute[np.asarray(made.exported.placement.way)][ways.unit]
    counts = {np.unique(layer.of[again & (np.asarray(made.exported.placement.stage) == s)]).size for s in (0, 1)}
    count = max(counts)
    assert len(counts) == 1 and (f"--recompute-num-layers {count}" in str(made.exported.files["megatron.sh"])) == (
        count > 0
    )


@pytest.fixture(scope="module")
def by_tokens() -> Problem:
    """The same with sequence parallelism."""
    options = ProblemOptions(
        objective="throughput", graph="training", dims={"batch": 4, "seq": 128}, tensor_parallel=0, microbatches=8,
        sequence_parallel=True,
    )  # fmt: skip
    return build(BERT, "4xA100-40GB", options)


def test_megatron_is_asked_for_sequence_parallelism(training: Problem, by_tokens: Problem) -> None:
    """The argument is there where stages split their ops, and nowhere else; the plan is written as it is."""
    for problem, degree, wanted in ((by_tokens, 2, True), (by_tokens, 1, False), (training, 2, False)):
        groups = [StageGroup((0, 1), 2 // degree, degree), StageGroup((2, 3), 2 // degree, degree)]
        made = export_placement(problem, staged(problem, [5, 7], groups), "megatron")
        assert ("--sequence-parallel" in str(made.exported.files["megatron.sh"]).split()) == wanted
        assert not made.projected and made.problem is problem


@pytest.mark.parametrize("target", ["vllm", "deepspeed"])
def test_sequence_parallelism_is_left_out_and_the_loss_reported(
    training: Problem, by_tokens: Problem, target: str
) -> None:
    """Other tools get the same stages without it, judged so; unequal stages are projected besides."""
    groups = [StageGroup((0, 1), 1, 2), StageGroup((2, 3), 1, 2)]
    plan, whole = (staged(problem, [5, 7], groups) for problem in (by_tokens, training))
    made = export_placement(by_tokens, plan, target)
    assert made.projected and made.left_out and made.exported.placement == whole
    assert made.said.value == judge_placement(training, whole).value
    assert made.asked.value == judge_placement(by_tokens, plan).value
    said = describe_projection(made, by_tokens.n_ops)
    assert said.startswith(f"the files for {target} leave out sequence parallelism; judged without it, the plan is ")
    saved = result_of(made, made.problem)
    assert not saved.problem.constraints.sequence_parallel and saved.value == made.said.value
    uneven = staged(by_tokens, [5, 7], [StageGroup((0, 1), 1, 2), StageGroup((2,), 1, 1)])
    made = export_placement(by_tokens, uneven, target)
    assert (
        made.left_out
        and made.said.valid
        and made.said.value == judge_placement(training, made.exported.placement).value
    )
    assert "leave out sequence parallelism, and" in describe_projection(made, by_tokens.n_ops)
    alone = staged(by_tokens, [5, 7], [StageGroup((0, 1), 2, 1), StageGroup((2, 3), 2, 1)])
    made = export_placement(by_tokens, alone, target)
    assert not made.projected and not made.left_out and made.loss == 0


def test_plans_that_fit_only_with_sequence_parallelism_become_ones_that_fit(by_tokens: Problem) -> None:
    """Where the memory is too small without it, the fastest stages that fit are written; the trace keeps the plan."""
    groups = [StageGroup((0, 1), 1, 2), StageGroup((2, 3), 1, 2)]
    plan = staged(by_tokens, [5, 7], groups)
    need = max(use.peak for use in judge_placement(by_tokens, plan).stages)
    devices = tuple(replace(one, memory=need * 1.001 + one.reserved) for one in by_tokens.cluster.devices)
    tight = by_tokens.with_(cluster=replace(by_tokens.cluster, devices=devices))
    assert judge_placement(tight, plan).valid
    made = export_placement(tight, plan, "vllm")
    assert made.left_out and made.reshaped and made.said.valid
    assert made.said.value == judge_placement(made.problem, made.exported.placement).value
    assert "reduce-scatter" in str(export_placement(tight, plan, "trace").exported.files["trace.json"])


def test_targets_that_cannot_split_refuse_in_one_sentence(training: Problem) -> None:
    """No target falls back to whole ops without a word."""
    plan = staged(training, [12], [StageGroup((0, 1), 1, 2)])
    for target in ("device-map", "llama.cpp", "onnx", "openvino", "pipelining", "tensorflow"):
        with pytest.raises(ExportError, match="cannot express ops that are split"):
            export_placement(training, plan, target)


def test_what_auto_finds_is_exported_with_the_value_that_the_files_have(training: Problem) -> None:
    """The plan of a search, projected or not: the command names as many devices as the plan in the files."""
    result = place(training)
    assert result.placement is not None
    made = export_placement(training, result.placement, "vllm")
    text = str(made.exported.files["vllm.sh"])
    used = sum(len(group.devices) for group in made.exported.placement.stages)
    sizes = [int(size) for size in re.findall(r"--\w+-parallel-size (\d+)", text)]
    assert int(np.prod(sizes)) == used
    assert made.said.value >= result.lower_bound * (1 - 1e-9)


def test_deepspeed_has_the_stages_replicas_splits_and_layers_that_recompute(training: Problem) -> None:
    """The module says all that the plan says: any layers may recompute, and what comes before them stands apart."""
    groups = [StageGroup((0, 1), 2, 1), StageGroup((2, 3), 2, 1)]
    plan = staged(training, [5, 7], groups, again=(0, 4, 7))
    made = export_placement(training, plan, "deepspeed")
    text = str(made.exported.files["planned_pipeline.py"])
    assert not made.projected
    assert "PARTS = [0, 6, 14]" in text and "DATA, MODEL = 2, 1" in text and "RECOMPUTED = [1, 5, 8]" in text
    assert '"gradient_accumulation_steps": 4' in text and '"train_micro_batch_size_per_gpu": 4' in text
    uneven = staged(training, [5, 7], [StageGroup((0, 1), 1, 2), StageGroup((2,), 1, 1)])
    made = export_placement(training, uneven, "deepspeed")
    assert made.projected and made.said.valid
