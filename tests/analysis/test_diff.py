"""The difference of two plans whose ops are split: which devices run each op, and how."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fuzzing.texts import PIPER
from parallel_plans import place_units

import placewise as pw
from placewise.analysis.diff import diff
from placewise.core.place import place
from placewise.files.plan_file import save_plan
from placewise.model.problem import Problem
from placewise.model.result import Result
from placewise.model.ways import StageGroup
from placewise.reporting.moves import Move
from placewise.simulate import judge_placement


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    """Four layers that may be split over two of four devices and recompute."""
    path = tmp_path / "piper.json"
    path.write_text(json.dumps(PIPER))
    return pw.build(path)


def staged(problem: Problem, stages: list[StageGroup], unit_stage: list[int], recomputed: list[int]) -> Result:
    """The result with stages whose units split as far as their stage, and recompute where they are listed."""
    placement = place_units(problem, stages, unit_stage, recomputed)
    judgement = judge_placement(problem, placement)
    return replace(place(problem), placement=placement, judgement=judgement)


def test_a_difference_names_devices_and_ways(problem: Problem) -> None:
    """An op that stays on its devices has moved if it is split or recomputed otherwise."""
    replicated, split = StageGroup((0, 1), 2, 1), StageGroup((0, 1), 1, 2)
    last = StageGroup((2, 3), 2, 1)
    before = staged(problem, [replicated, last], [0, 0, 1, 1], [])
    found = diff(before, staged(problem, [split, last], [0, 0, 1, 1], [3]))
    assert set(found.moves) == {
        Move("acc0–acc1 (2 replicas)", "acc0–acc1 (over 2)", "layer.0 – layer.1", 2, 2),
        Move("acc2–acc3 (2 replicas)", "acc2–acc3 (2 replicas, recomputed)", "layer.3", 1, 1),
    }
    assert found.moved == 3


def test_files_alone_name_devices_and_ways(problem: Problem, tmp_path: Path) -> None:
    """Where the model is gone, the stages of the files say where and how ops run."""
    files = tmp_path / "a.json", tmp_path / "b.json"
    pair, last = StageGroup((0, 1), 2, 1), StageGroup((2, 3), 1, 2)
    for path, recomputed in zip(files, ([], [3]), strict=True):
        save_plan(staged(problem, [pair, last], [0, 0, 1, 1], recomputed), path)
    (tmp_path / "piper.json").unlink()
    (move,) = diff(*files).moves
    assert (move.source, move.target) == ("acc2–acc3 (over 2, vanilla)", "acc2–acc3 (over 2, activation recomp)")
    assert move.ops == 1
    beside = diff(staged(problem, [pair, last], [0, 0, 1, 1], []), files[1])
    assert [(m.source, m.target, m.ops) for m in beside.moves] == [(move.source, move.target, 1)], (
        "a plan in memory is compared in the words of the file"
    )


def test_all_devices_of_a_stage_hold_it(problem: Problem) -> None:
    """A stage of four devices is held by four."""
    whole = staged(problem, [StageGroup((0, 1, 2, 3), 2, 2)], [0, 0, 0, 0], [])
    assert set(diff(whole, whole).before.holds.values()) == {"the whole model"}
    assert diff(whole, whole).moved == 0
