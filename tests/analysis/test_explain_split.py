"""Why a unit is split or recomputed: its ways, what its stage would hold otherwise, the best plan with others."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from parallel_plans import problem_of, staged

from placewise.analysis.explain_split import explain_split
from placewise.core.place import place
from placewise.errors import InputError
from placewise.model.ways import StageGroup, keep_ways
from placewise.placers.base import Budget
from placewise.reporting.plain import plain
from placewise.reporting.split_explanation import (
    PlanChoices,
    SplitExplanation,
    describe_choice,
    describe_reasons,
    describe_unit,
    split_explanation_view,
)
from placewise.simulate import judge_placement

pytest.importorskip("torch", reason="torch is not installed")

GROUPS = [StageGroup((0, 1), 1, 2), StageGroup((2, 3), 1, 2)]


def test_the_stage_is_judged_with_whole_layers_and_without_recomputation() -> None:
    """What the stage would hold is what the judge says of it with these ways; the sentence says whether that fits."""
    problem = problem_of("llama")
    placement = staged(problem, GROUPS, [2], again=True)
    found = explain_split(problem, placement, "layers.1", ["tp=1"], Budget(2.0)).explanation
    kept = staged(problem, GROUPS, [2])
    whole = staged(problem, [StageGroup((0,)), StageGroup((2,))], [2], again=True)
    assert found.bytes_kept == pytest.approx(judge_placement(problem, kept).stages[0].peak)
    assert found.bytes_whole == pytest.approx(judge_placement(problem, whole).stages[0].peak)
    assert describe_unit(found) == "layers.1 is split over 2 devices and recomputes its activations; it is in stage 0"
    assert [re.sub(r"[\d.]+ .s|[\d.]+ .iB", "N", line) for line in describe_reasons(found)] == [
        "On one device it takes N, split N.",
        "With one device per replica, the stage fits, too: it would hold N of N on each device.",
        "Without recomputation, the stage fits, too: it would hold N of N on each device.",
    ]
    small = replace(found, capacity=found.stage_bytes)
    assert "Without recomputation, the stage does not fit" in describe_reasons(small)[-1]


def test_replicas_are_the_reason_not_to_split() -> None:
    """Two replicas take half of the whole time each; a latency has no replicas to compare with."""
    problem = problem_of("bert", microbatches=8)
    placement = staged(problem, [StageGroup((0, 1), 2, 1), StageGroup((2, 3), 2, 1)], [2])
    found = explain_split(problem, placement, "layer.0", ["tp=2"], Budget(2.0)).explanation
    assert describe_unit(found) == "layer.0 is not split; it is in stage 0, which has 2 replicas"
    (reason,) = describe_reasons(found)
    assert reason.startswith("Split over 2 devices") and "2 replicas take" in reason
    (other,) = describe_reasons(replace(found, pays_per_stage=False))
    assert "replicas" not in other


def test_other_choices_are_placed_with_all_else_free() -> None:
    """The best plan with tp=2 is the best where the unit has no other degree; no bound exceeds its value."""
    problem = problem_of("llama")
    result = place(problem, "auto", Budget(5.0))
    assert result.placement is not None
    explained = explain_split(problem, result.placement, "layers.1", (), Budget(5.0))
    ways = problem.require_ways()
    unit = ways.unit_names.index("layers.1")
    for choice, made in zip(explained.explanation.forced, explained.results, strict=True):
        assert choice.value >= result.lower_bound * (1 - 1e-9) and choice.lower_bound <= choice.value * (1 + 1e-9)
        assert made.placement is not None
        way = int(np.asarray(made.placement.way)[unit])
        wanted = {"recompute": ways.recompute, "no-recompute": ~ways.recompute}
        keep = wanted[choice.choice] if choice.choice in wanted else ways.degree == int(choice.choice[3:])
        limited = keep_ways(ways, (ways.way_unit != unit) | keep)
        again = place(problem.with_(ways=limited), "auto", Budget(5.0))
        assert again.value == pytest.approx(choice.value, rel=1e-6)
        assert made.problem.require_ways().degree[way] == limited.degree[way]
    half = replace(explained.explanation.forced[0], value=2 * result.value, lower_bound=result.value)
    assert "none with it is below" in describe_choice(explained.explanation, half)


def test_several_units_are_told_as_such() -> None:
    """The ways are those of the first one, by name."""
    problem = problem_of("llama")
    placement = staged(problem, [StageGroup((0, 1), 1, 2)], [])
    explained = explain_split(problem, placement, "layers", ["tp=1"], Budget(2.0))
    assert "The ways are those of layers.0, the first of 4 units." in plain(
        split_explanation_view(explained.explanation)
    )


def test_what_cannot_be_asked_is_refused_in_one_sentence() -> None:
    """Unknown choices, degrees that the unit lacks, recomputation of inference, ops in several stages."""
    problem = problem_of("llama")
    placement = staged(problem, GROUPS, [2])
    for asked, choice, said in (
        ("layers.1", "tp=16", "no way for tp=16; its degrees are 1, 2"),
        ("layers.1", "cuda:1", "no choice for ops that may be split; give tp=DEGREE"),
        ("layers", "tp=1", "is in several stages"),
        (None, "tp=1", "'tp=1' is a choice for an op, and none is named"),
    ):
        with pytest.raises(InputError, match=said):
            explain_split(problem, placement, asked, [choice], Budget(1.0))
    inference = problem_of("llama", graph="inference", objective="latency", microbatches=None)
    whole = staged(inference, [StageGroup((0, 1), 1, 2)], [])
    with pytest.raises(InputError, match="only training recomputes"):
        explain_split(inference, whole, "layers.1", ["recompute"], Budget(1.0))


def test_sequence_parallelism_is_a_choice_for_the_whole_plan() -> None:
    """Without it, and with it where it was not asked for: the best plan of the problem that has it, or has it not."""
    with_tokens, plain = (problem_of("llama", replicas=1, sequence_parallel=tokens) for tokens in (True, False))
    for one, other, choice in ((with_tokens, plain, "no-sequence-parallel"), (plain, with_tokens, "sequence-parallel")):
        placement = staged(one, GROUPS, [2])
        explained = explain_split(one, placement, "layers.1", [choice], Budget(5.0))
        (forced,), best = explained.explanation.forced, place(other, "auto", Budget(5.0))
        assert forced.value == pytest.approx(best.value, rel=1e-6) and forced.choice == choice
        assert explained.results[0].problem.constraints.sequence_parallel == (choice == "sequence-parallel")
        said = describe_unit(explained.explanation)
        assert ("over 2 devices with sequence parallelism" in said) == one.constraints.sequence_parallel
        whole = explain_split(one, placement, None, [choice], Budget(5.0))
        assert [row.value for row in whole.explanation.forced] == [pytest.approx(best.value, rel=1e-6)]
        assert choice in plain_text(whole.explanation) and not isinstance(whole.explanation, SplitExplanation)
        already = choice.removeprefix("no-") if one is with_tokens else f"no-{choice}"
        with pytest.raises(InputError, match=f"the plan is one with {already} already"):
            explain_split(one, placement, "layers.1", [already], Budget(5.0))
    named = explain_split(with_tokens, staged(with_tokens, GROUPS, [2]), "layers.1", (), Budget(2.0)).explanation
    assert [choice.choice for choice in named.forced][-1] == "no-sequence-parallel"
    assert "t=2, sequence parallel" in plain_text(named)
    assert "sequence-parallel" not in [
        choice.choice for choice in explain_split(plain, staged(plain, GROUPS, [2]), "layers.1").explanation.forced
    ]


def plain_text(explanation: PlanChoices) -> str:
    return plain(split_explanation_view(explanation))
