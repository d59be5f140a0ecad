"""Predictions of training runs are those of the objective `step`, from the costs of forward ops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placewise.analysis.predict_training import predict_training
from placewise.model.costs import CostTable
from placewise.simulate.step.judge import judge_step
from placewise.simulate.step.orders import BACKWARD, FORWARD, SCHEDULES, SPLITS_BACKWARD, WEIGHT, device_orders

torch = pytest.importorskip("torch")
from trained_models import TiedBlocks, build_forward, place_step, save_program  # noqa: E402

from placewise.analysis.train_plan import forward_part  # noqa: E402
from placewise.core.options import ProblemOptions  # noqa: E402
from placewise.readers.torch.pipeline_trainer import list_actions  # noqa: E402
from placewise.runtimes.torch.training import find_training_stages, schedule_name  # noqa: E402

Actions = list[list[tuple[int, str, int]]]


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_program(TiedBlocks, (torch.arange(12).reshape(2, 6),), tmp_path_factory.mktemp("blocks") / "model.pt2")


def name_actions(schedule: str, devices: int, microbatches: int) -> Actions:
    """The tasks of every device as a training run names them."""
    words = {FORWARD: "F", BACKWARD: "I" if schedule in SPLITS_BACKWARD else "B", WEIGHT: "W"}
    orders = device_orders(schedule, devices, microbatches)
    return [[(task.stage, words[task.kind], task.microbatch) for task in order] for order in orders]


@pytest.mark.parametrize(("schedule", "copies"), [*((schedule, 1) for schedule in SCHEDULES), ("gpipe", 2)])
def test_a_run_is_predicted_as_its_plan_is_judged(blocks: Path, schedule: str, copies: int) -> None:
    """Seconds and the memory of every process, under each schedule, with one pipeline and with two copies."""
    problem, placement = place_step(blocks, schedule, 4, copies)
    judged = judge_step(problem, placement)
    forward, whole = forward_part(problem, placement, blocks, ProblemOptions())
    stages = find_training_stages(forward, whole, schedule_name(schedule))
    lines = tuple(zip(*(group.devices for group in placement.stages), strict=True))[: 2 // len(stages.devices)]
    copied = tuple(tuple(line[stages.ranks.index(r)] for r in range(len(stages.devices))) for line in lines)
    order = name_actions(schedule, len(stages.devices), 4 // copies)
    found = predict_training(forward, stages, order, optimizer="adam", replicas=copied)
    assert found.seconds == pytest.approx(judged.value, rel=1e-9)
    assert list(found.memory) == pytest.approx([judged.devices[d].peak for d in stages.devices], abs=1)


@pytest.mark.parametrize(("schedule", "spare"), [("1f1b", (3, 3)), ("gpipe", (3, 0))])
def test_messages_have_buffers(blocks: Path, schedule: str, spare: tuple[int, int]) -> None:
    """Two values of 2 × 6 × 16 floats cross, and their gradients: a stage has room for those of all four micro-batches,
    of which the simulation counts the activations in flight, one under 1F1B and all under GPipe, and one gradient.
    """
    problem, placement = place_step(blocks, schedule, 4)
    forward, whole = forward_part(problem, placement, blocks, ProblemOptions())
    stages = find_training_stages(forward, whole, schedule)
    found = predict_training(forward, stages, name_actions(schedule, 2, 4), optimizer="adam")
    assert found.buffers == tuple(2 * 2 * 6 * 16 * 4 * count for count in spare)


def test_measured_times_scale_backward_ops(blocks: Path) -> None:
    """Forward ops that take three times their estimate have backward ops that do; updates do not."""
    problem, placement = place_step(blocks, "gpipe", 4)
    forward, whole = forward_part(problem, placement, blocks, ProblemOptions())
    stages = find_training_stages(forward, whole, "gpipe")
    slow = CostTable.given(3 * forward.costs.op_seconds, forward.costs.transfer_seconds)
    order = name_actions("gpipe", 2, 4)
    one = predict_training(forward, stages, order, optimizer="sgd")
    other = predict_training(replace(forward, costs=slow), stages, order, optimizer="sgd")
    assert 2.5 * one.alone < other.alone < 3 * one.alone


@pytest.mark.parametrize(("devices", "microbatches"), [(1, 1), (2, 2), (2, 6), (3, 9), (4, 4), (4, 16)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_list_of_exports_is_that_of_the_simulation(schedule: str, devices: int, microbatches: int) -> None:
    """What exported scripts say that processes do, without Placewise; other schedules are asked of torch."""
    listed = [[tuple(action) for action in actions] for actions in list_actions(schedule, devices, microbatches)]
    assert listed == name_actions(schedule, devices, microbatches)


def test_stages_without_a_step_are_not_predicted(blocks: Path) -> None:
    """Neither seconds nor bytes, but why."""
    forward = build_forward(blocks, "2xcore")
    problem, placement = place_step(blocks, "gpipe", 4)
    _, whole = forward_part(problem, placement, blocks, ProblemOptions())
    stages = find_training_stages(forward, whole, "gpipe")
    found = predict_training(forward, stages, name_actions("gpipe", 2, 4), optimizer="adam", frozen=(".*",))
    assert np.isnan(found.seconds) and not found.memory and found.note.startswith("no prediction: ")
