"""Stages that are split, repeated and recomputed: the judge and the checker against Piper's definition."""

from __future__ import annotations

from pathlib import Path

import pytest
from piper_files import problem_of, random_instance, random_plan
from soak import seeds
from tiny_problems import Draw
from twins import piper

from placewise.files.stage_records import StageRecord, parse_stages
from placewise.model.result import Judgement
from placewise.simulate import judge_placement

RULES = {"contiguity": "order", "devices": "devices", "replicas": "replicas", "memory": "memory"}
"""What the checker calls the rules of the definition."""


def judged(instance: dict[str, object], plan: list[dict[str, object]], folder: Path) -> Judgement:
    """The judge's word on a plan as a file has it."""
    problem = problem_of(instance, folder)
    records = [StageRecord.model_validate(stage) for stage in plan]
    return judge_placement(problem, parse_stages(records, problem.graph, problem.cluster, problem.require_ways()))


@pytest.mark.parametrize("exact", [True, False])
def test_random_plans_cost_what_the_definition_says(tmp_path: Path, exact: bool) -> None:
    """Seconds and bytes of every stage, the value and the broken rules, on hundreds of plans, sound and not."""
    sound = 0
    for seed in seeds(150):
        draw = Draw(seed)
        instance = random_instance(draw, exact=exact)
        plan = random_plan(draw, instance)
        found, broken = judged(instance, plan, tmp_path), piper.broken_rules(instance, plan)
        assert {RULES[violation.kind] for violation in found.violations} == broken
        assert found.value == pytest.approx(piper.value_of(instance, plan), rel=1e-9)
        for number, (use, stage) in enumerate(zip(found.stages, plan, strict=True)):
            assert use.seconds == pytest.approx(piper.stage_seconds(instance, stage), rel=1e-9)
            assert use.peak == pytest.approx(piper.stage_bytes(instance, plan, number), rel=1e-9)
        sound += not broken
    assert sound > 20
