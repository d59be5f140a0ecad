"""Plans with stages: what is written is read again and priced the same, and what does not fit is one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing.texts import PIPER
from soak import enough, seeds
from split_problems import split_problem

import placewise as pw
from placewise.core.place import place
from placewise.errors import PlanError
from placewise.files.plan_file import load_plan, placement_of, plan_of, save_plan
from placewise.files.stage_records import list_stages, parse_stages
from placewise.model.problem import Problem
from placewise.model.result import Result
from placewise.simulate import judge_placement


@pytest.fixture
def instance(tmp_path: Path) -> Path:
    """Four layers that may be split over two of four devices and recompute."""
    path = tmp_path / "piper.json"
    path.write_text(json.dumps(PIPER))
    return path


@pytest.fixture
def result(instance: Path) -> Result:
    """Its best plan in scarce memory, so that there are several stages."""
    return place(pw.build(instance, options=pw.ProblemOptions(max_memory={"acc0": 2500})))


def test_any_plan_comes_back(tmp_path: Path) -> None:
    """Stages, devices and ways, units of several ops and ways that are called alike included."""
    written = 0
    for seed in seeds(20):
        found = place(split_problem(seed, classes=2, devices=6))
        if found.placement is None:
            continue
        written += 1
        save_plan(found, tmp_path / "plan.json")
        problem = found.problem
        again = placement_of(tmp_path / "plan.json", problem.graph, problem.cluster, problem.ways)
        assert again == found.placement
        plan = load_plan(tmp_path / "plan.json")
        assert plan.value == found.value and plan.stages is not None
        assert plan.stages == list_stages(problem, found.placement, found.judgement)
    assert written > enough(8)


def test_the_form_of_a_plan(result: Result) -> None:
    """`stages` in order, with ops, degrees, ways and devices by name; `assignment` names first devices."""
    plan = json.loads(plan_of(result).model_dump_json())
    stages, problem = plan["stages"], result.problem
    assert [op for stage in stages for op in stage["ops"]] == list(problem.graph.ops.name)
    for stage in stages:
        assert len(stage["devices"]) == stage["data_parallel"] * stage["tensor_parallel"]
        assert set(stage["ways"]) == set(stage["ops"]) and set(stage["ways"].values()) <= {
            "vanilla", "activation recomp",
        }  # fmt: skip
        assert {plan["assignment"][op] for op in stage["ops"]} == {stage["devices"][0]}
    assert max(stage["seconds"] for stage in stages) == plan["value"]
    assert {"value", "lower_bound", "gap", "status"} <= set(plan)


def test_a_plan_by_hand_is_judged(instance: Path, tmp_path: Path) -> None:
    """Names alone are enough; the judge adds what it says of the stages."""
    ways = dict.fromkeys("0123", "vanilla")
    stages = [
        {"ops": ["0", "1"], "data_parallel": 2, "tensor_parallel": 1, "devices": ["acc0", "acc1"],
         "ways": {"0": "vanilla", "1": "vanilla"}},
        {"ops": ["2", "3"], "data_parallel": 1, "tensor_parallel": 2, "devices": ["acc2", "acc3"],
         "ways": {"2": "activation recomp", "3": "vanilla"}},
    ]  # fmt: skip
    plan = {"format": "placewise-plan", "version": 1, "assignment": dict.fromkeys(ways, "acc0"), "stages": stages}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    judged = pw.judge(instance, path)
    first, second = (stage.seconds for stage in judged.stages)
    assert first == 4 / 2 + 2 * 64 / (2 * 25000) + 4 * (1 / 2) * 400 / 8 / 25000
    assert second == 3 / 2 + 2 / 2 + 2 * (64 + 16) / 25000
    assert judged.value == max(first, second) and judged.valid


CHANGES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"devices": []}, "stage 0: has no devices; name them"),
    ({"ops": []}, "stage 0: has no ops; name them"),
    ({"devices": ["acc9"]}, "stage 0: there is no device 'acc9'; the cluster has acc0, acc1, acc2, acc3"),
    ({"ops": ["0", "9"]}, "stage 0: the model has no op '9'; use the plan of this model"),
    ({"ops": ["0", "0"]}, "stage 0: op '0' is in another stage already; list it once"),
    ({"ways": {}, "ops": list("0123")}, "stage 0: op '0' has no way; name the way of every op in 'ways'"),
    ({"ways": {"0": "fast"}, "ops": list("0123")}, "stage 0: op '0' has no way 'fast' for degree "),
    ({"ways": {"0": "vanilla", "3": "vanilla"}}, "stage 0: has a way for op '3', which is not in it; leave it out"),
    (
        {"tensor_parallel": 3, "ops": list("0123")},
        "stage 0: op '0' has no way 'vanilla' for degree 3; it has activation recomp (1), ",
    ),
    ({"ops": ["0"]}, "op '1' has no stage; a plan with stages names every op in one"),
)


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_plans_that_do_not_fit(instance: Path, change: dict[str, Any], message: str) -> None:
    """One sentence with the stage, what is wrong, and what to do."""
    problem = pw.build(instance)
    assert problem.ways is not None
    way = {"ways": {"0": "vanilla"}, "data_parallel": 1, "tensor_parallel": 1, "devices": ("acc0",), "ops": ("0",)}
    plan = {"format": "placewise-plan", "version": 1, "assignment": {"0": "acc0"}, "stages": [way | change]}
    with pytest.raises(PlanError) as caught:
        placement_of(plan_from(plan), problem.graph, problem.cluster, problem.ways)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def plan_from(document: dict[str, Any]) -> Any:
    """A plan record."""
    from placewise.files.plan_file import PlanFile

    return PlanFile.model_validate(document)


@pytest.mark.parametrize(("name", "wrong"), [
    ("data_parallel", 0), ("tensor_parallel", -1), ("tensor_parallel", 2**40), ("ops", "0"), ("ways", ["0"]),
    ("devices", None), ("data_parallel", 1.5),
])  # fmt: skip
def test_wrong_types_are_named(result: Result, tmp_path: Path, name: str, wrong: Any) -> None:
    """The field of the stage is in the sentence."""
    plan = json.loads(plan_of(result).model_dump_json())
    plan["stages"][0][name] = wrong
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    with pytest.raises(PlanError, match=rf"'stages\.0\.{name}") as caught:
        load_plan(path)
    assert "\n" not in str(caught.value)


def test_groups_that_do_not_fit_are_violations(result: Result) -> None:
    """A group of another size, devices shared, replicas that do not divide: a sentence each."""
    problem, placement = result.problem, result.placement
    assert problem.ways is not None and placement is not None
    records = list_stages(problem, placement, result.judgement)

    def said(**change: Any) -> list[str]:
        changed = [records[0].model_copy(update=change), *records[1:]]
        read = parse_stages(changed, problem.graph, problem.cluster, problem.require_ways())
        return [violation.message for violation in judge_placement(problem, read).violations]

    assert said() == []
    size = f"{records[0].data_parallel} × {records[0].tensor_parallel}"
    assert f"stage 0 has 5 devices, not {size}" in said(devices=("acc0",) * 5)
    many = tuple(f"acc{d % 4}" for d in range(3 * records[0].tensor_parallel))
    messages = said(devices=many, data_parallel=3)
    assert "3 replicas of stage 0 cannot share 8 micro-batches evenly" in messages


def unsplit(problem: Problem) -> Problem:
    """The same ops, which may not be split."""
    return problem.with_(ways=None)


def test_plans_of_the_other_kind_are_refused(result: Result) -> None:
    """Stages for a problem whose ops may not be split, and no stages for one whose ops may."""
    problem, plan = result.problem, plan_of(result)
    with pytest.raises(PlanError, match="splits ops, and ops of this problem may not be split"):
        placement_of(plan, problem.graph, problem.cluster)
    with pytest.raises(PlanError, match="has no stages, and ops of this problem may be split; place the model again"):
        placement_of(plan.model_copy(update={"stages": None}), problem.graph, problem.cluster, problem.ways)


def test_ops_of_a_unit_run_in_one_way() -> None:
    """A plan that tells two ops of a unit different things is refused; one that parts them breaks a rule."""
    found = next(
        result
        for result in (place(split_problem(seed, devices=6)) for seed in range(100))
        if result.placement is not None
        and len(result.placement.stages) > 1
        and result.problem.n_ops > result.problem.require_ways().n_units
    )
    problem, ways = found.problem, found.problem.require_ways()
    names, unit = problem.graph.ops.name, ways.unit.tolist()
    op = next(op for op in range(1, problem.n_ops) if unit[op] == unit[op - 1])
    assert found.placement is not None and found.placement.stage is not None
    records = list(list_stages(problem, found.placement, found.judgement))
    stage = int(found.placement.stage[op])
    others = [ways.name[w] for w in ways.ways_of(unit[op], records[stage].tensor_parallel).tolist()]
    other = next((name for name in others if name != records[stage].ways[names[op]]), None)
    if other is not None:
        told = {**records[stage].ways, names[op]: other}
        wrong = [*records[:stage], records[stage].model_copy(update={"ways": told}), *records[stage + 1 :]]
        with pytest.raises(PlanError, match="runs in another way than the rest of its unit"):
            parse_stages(wrong, problem.graph, problem.cluster, ways)
    column = np.array(found.placement.stage)
    column[op] = (column[op] + 1) % len(found.placement.stages)
    parted = pw.Placement(found.placement.device, stages=found.placement.stages, stage=column, way=found.placement.way)
    assert "is in two stages" in judge_placement(problem, parted).violations[0].message
