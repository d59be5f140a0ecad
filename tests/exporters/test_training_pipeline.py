"""The target `pipelining` for training plans: processes that train with the files that were written."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from soak import SOAKS, later

import placewise as pw
from placewise.errors import ExportError
from placewise.exporters.writing import export_placement
from placewise.model.placement import Placement

torch = pytest.importorskip("torch")
from torchrun_kills import QUIET, check_attempts, living, losses_of, run_and_kill, torchrun  # noqa: E402
from trained_models import (  # noqa: E402
    TiedBlocks,
    build_forward,
    cut_evenly,
    place_step,
    place_training_graph,
    save_program,
    train,
    write_training_files,
)

from placewise.analysis.train_plan import TrainingRunSetting, forward_part, run_training  # noqa: E402
from placewise.runtimes.torch.training import find_training_stages  # noqa: E402


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A program, and the folder of the files of its training plan."""
    folder = tmp_path_factory.mktemp("training")
    path = save_program(TiedBlocks, (torch.arange(12).reshape(2, 6),), folder / "model.pt2")
    write_training_files(path, (0, 1), folder)
    return path, folder


def test_torchrun_trains_as_placewise_does_though_a_process_is_killed(
    written: tuple[Path, Path], tmp_path: Path
) -> None:
    """The losses of the written files fall, and are those of one process and so of `placewise run --train`, which
    `make soak` runs, too. After a kill, all processes start again from the last checkpoint, and steps that run twice
    have the same losses.
    """
    path, folder = written
    options = ["--steps", "60", "--compare", "60", "--learning-rate", "0.01", "--checkpoint-every", "5"]
    arguments = ["train_pipeline.py", str(path), *options, "--checkpoint", str(tmp_path / "kept")]
    run = run_and_kill(folder, [(1, 0.0, 12)], arguments)
    losses = {number: loss for attempt in run.attempts for number, loss in attempt}
    check_attempts(run, losses, 5)
    assert len(run.attempts) == 2 and not living(run)
    assert "2 stages, losses of 60 steps as those of one process" in run.output
    assert losses[60] < losses[1]
    if not SOAKS:
        return
    forward = build_forward(path, "2xcore")
    own = train(forward, cut_evenly(forward, (0, 1)), steps=4, learning_rate=0.01, compared=0).record.losses
    assert [losses[number] for number in range(1, 5)] == pytest.approx(own, rel=1e-5)


@pytest.mark.soak
def test_the_files_start_again_from_a_checkpoint(written: tuple[Path, Path], tmp_path: Path) -> None:
    """A second run goes on after the last step of the first one, with the same losses."""
    path, folder = written
    common = ["train_pipeline.py", str(path), "--compare", "0", "--checkpoint-every", "2"]
    whole = losses_of(torchrun(folder, *common, "--steps", "4").stdout)
    kept = ["--checkpoint", str(tmp_path / "kept")]
    first = losses_of(torchrun(folder, *common, *kept, "--steps", "2").stdout)
    second = losses_of(torchrun(folder, *common, *kept, "--steps", "4").stdout)
    assert list(first) == [1, 2] and list(second) == [3, 4] and first | second == whole


SLOWLY = ["train_pipeline.py", "model.pt2", "--compare", "0", "--checkpoint-every", "5", "--steps"]


@pytest.mark.soak
def test_a_killed_process_costs_no_step(written: tuple[Path, Path], tmp_path: Path) -> None:
    """torchrun starts all processes again, which go on after the last checkpoint, as if nobody had died; the comparison
    with one process covers steps of the attempt that ended. Nothing outlives the run, and the dead one is named.
    """
    _, folder = written
    losses = losses_of(torchrun(folder, *SLOWLY, "60").stdout)
    moments = [(1, 0.0, 12), (0, 0.0, 33)]
    arguments = [*SLOWLY, "60", "--compare", "3", "--checkpoint", str(tmp_path / "kept")]
    run = run_and_kill(folder, moments, arguments)
    check_attempts(run, losses, 5)
    assert len(run.attempts) == 3 and not living(run)
    assert "2 stages, losses of 3 steps as those of one process" in run.output
    assert "process 1 on core:1 (process" in run.errors and "process 0 on core:0 (process" in run.errors
    assert len(list((tmp_path / "kept").glob("step-*"))) == 2


@pytest.mark.soak
def test_twenty_kills_at_random_moments_cost_no_step(written: tuple[Path, Path], tmp_path: Path) -> None:
    """While processes start, train, exchange gradients or write checkpoints."""
    _, folder = written
    losses = losses_of(torchrun(folder, *SLOWLY, "2000").stdout)
    draw = random.Random(0)
    moments = [(draw.randint(0, 1), draw.uniform(0.0, 15.0), 0) for _ in range(20)]
    run = run_and_kill(folder, moments, [*SLOWLY, "2000", "--checkpoint", str(tmp_path / "kept")], seconds=900)
    check_attempts(run, losses, 5)


SCHEDULES = {
    "gpipe": ("gpipe", [0, 1]), "1f1b": ("1f1b", [0, 1]), "interleaved": ("interleaved", [0, 1, 0, 1]),
    "zb-h1": ("zero-bubble", [0, 1]), "zb-v": ("zero-bubble", [0, 1, 1, 0]),
}  # fmt: skip


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", later("interleaved"), later("zb-h1"), "zb-v"])
def test_a_step_plan_is_written_with_its_schedule(written: tuple[Path, Path], tmp_path: Path, schedule: str) -> None:
    """Its stages, and its micro-batches, in the files; nothing is projected. In `make soak`, plans with several stages
    per process are run by torchrun, and one plan by `placewise run --train`. Losses are those of one process.
    """
    path, _ = written
    problem, placement = place_step(path, schedule, 6)
    made = export_placement(problem, placement, "pipelining")
    said = json.loads(str(made.exported.files["stages.json"]))
    assert not made.projected
    assert (said["schedule"], said["stage_ranks"], said["microbatches"]) == (*SCHEDULES[schedule], 6)
    if SOAKS and len(said["stage_ranks"]) > 2:
        for name, text in made.exported.files.items():
            (tmp_path / name).write_text(str(text))
        done = torchrun(tmp_path, "train_pipeline.py", str(path), "--steps", "2")
        assert "4 stages, losses of 2 steps as those of one process" in done.stdout, done.stderr[-2000:]
        return
    if schedule != "zb-h1":
        return  # tests/runtimes/test_training.py trains under the others
    trained = run_training(problem, placement, path, pw.ProblemOptions(), TrainingRunSetting(), steps=2)
    assert trained.training.options.schedule == SCHEDULES[schedule][0]
    assert trained.training.options.microbatches == 6 and list(trained.training.stages.ranks) == said["stage_ranks"]
    assert len(trained.record.compared) == 2 and trained.record.loss_difference <= 1e-5


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", later("interleaved"), later("zb-h1"), "zb-v"])
def test_a_step_plan_is_run_with_its_stages(written: tuple[Path, Path], schedule: str) -> None:
    """By `placewise run --train`: every forward op in the stage that the plan says, on the device of the stage."""
    path, _ = written
    problem, placement = place_step(path, schedule, 4)
    forward, whole = forward_part(problem, placement, path, pw.ProblemOptions())
    stages = find_training_stages(forward, whole, SCHEDULES[schedule][0])
    assert placement.stage is not None
    where = dict(zip(problem.graph.ops.name, placement.stage.tolist(), strict=True))
    assert stages.stage.tolist() == [where[name] for name in forward.graph.ops.name]
    assert stages.ranks == tuple(SCHEDULES[schedule][1]) and stages.devices == (0, 1)


def test_what_a_target_cannot_read_needs_no_other_schedule(written: tuple[Path, Path]) -> None:
    """A target names the format that it takes, and another schedule only where that is all that is wrong."""
    problem, placement = place_step(written[0], "zb-v", 4)
    with pytest.raises(ExportError, match="'openvino' takes ONNX files and OpenVINO IR"):
        export_placement(problem, placement, "openvino")
    with pytest.raises(ExportError, match="one stage per device") as refused:
        export_placement(problem, placement, "dot")
    assert "--schedule 1f1b" in refused.value.remedy


def test_copies_of_a_step_plan_are_processes(written: tuple[Path, Path], tmp_path: Path) -> None:
    """Each with its device; together they train as one process does."""
    path, _ = written
    made = export_placement(*place_step(path, "gpipe", 4, copies=2), "pipelining")
    said = json.loads(str(made.exported.files["stages.json"]))
    assert (said["replicas"], said["names"], said["stage_ranks"]) == (2, ["core:0", "core:1"], [0])
    assert not made.projected
    if not SOAKS:
        return  # tests/runtimes/test_training.py trains two copies
    for name, text in made.exported.files.items():
        (tmp_path / name).write_text(str(text))
    done = torchrun(tmp_path, "train_pipeline.py", str(path), "--steps", "2")
    assert "1 stages, losses of 2 steps as those of one process" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize("taken", [True, later(False)])
def test_a_port_that_is_taken_and_a_missing_process_are_one_sentence(written: tuple[Path, Path], taken: bool) -> None:
    """Where processes are started by hand."""
    path, folder = written
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        server.listen() if taken else server.close()
        places: dict[str, Any] = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        done = subprocess.run(
            [sys.executable, "train_pipeline.py", str(path), "--wait", "3"], env=os.environ | QUIET | places,
            cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    wanted = (
        f"the port of 127.0.0.1:{port} is taken" if taken else f"process 1 on core:1 did not come to 127.0.0.1:{port}"
    )
    assert done.returncode == 1 and wanted in done.stderr.splitlines()[-1]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("model", "folder", "message"),
    [
        ("other.pt2", "kept", r"other\.pt2 is not the program that stages\.json is for"),
        ("model.pt2", "taken/kept", r"the checkpoint .*taken/kept cannot be written \(Not a directory\)"),
    ],
)
def test_another_program_and_a_folder_that_is_none_are_one_sentence(
    written: tuple[Path, Path], tmp_path: Path, model: str, folder: str, message: str
) -> None:
    """No process is left to wait for the others, and no line is a traceback of the script."""
    path, files = written
    save_program(torch.nn.ReLU, (torch.randn(2, 3),), tmp_path / "other.pt2")
    (tmp_path / "taken").write_text("a file")
    program = path if model == "model.pt2" else tmp_path / model
    done = torchrun(files, "train_pipeline.py", str(program), "--steps", "2", "--checkpoint", str(tmp_path / folder))
    assert done.returncode != 0 and re.search(rf"^{'.*' + message}$", done.stderr, re.MULTILINE), done.stderr[-2000:]


@pytest.mark.parametrize(
    ("devices", "backend", "tolerance"), [("2xcore", "gloo", 1e-5), ("2xL4", "nccl", 1e-2), ("L4,cpu", "gloo", 1e-2)]
)
def test_files_hold_how_close_losses_are(
    written: tuple[Path, Path], devices: str, backend: str, tolerance: float
) -> None:
    """As close as those of `placewise run --train`: GPUs may round products to TF32."""
    problem = pw.build(written[0], devices, pw.ProblemOptions(graph="training", objective="throughput"))
    forward = np.cumsum(~problem.graph.ops.backward)
    placement = Placement((2 * forward > forward[-1]).astype(np.int32))
    said = json.loads(str(export_placement(problem, placement, "pipelining").exported.files["stages.json"]))
    assert (said["backend"], said["tf32"], said["tolerance"]) == (backend, "convolutions", tolerance)


@pytest.mark.soak
def test_a_long_comparison_is_waited_for(written: tuple[Path, Path], tmp_path: Path) -> None:
    """The others wait for the process that repeats the steps, for longer than for anything else."""
    path, folder = written
    for file in folder.glob("*.*"):
        shutil.copy(file, tmp_path)
    with (tmp_path / "pipeline_trainer.py").open("a") as trainer:
        trainer.write(SLOW_COMPARISON)
    done = torchrun(tmp_path, "train_pipeline.py", str(path), "--steps", "1", "--compare", "1", "--wait", "5")
    assert "losses of 1 steps as those of one process" in done.stdout and not done.returncode, done.stderr[-2000:]


SLOW_COMPARISON = """
def _step_slowly(self, number, step=WholeTrainer.step):
    time.sleep(7)
    return step(self, number)


WholeTrainer.step = _step_slowly
"""


def test_devices_in_turns_are_refused(tmp_path: Path) -> None:
    """The files train a line of stages only, and the error names an edge that goes back."""
    path = save_program(TiedBlocks, (torch.arange(12).reshape(2, 6),), tmp_path / "model.pt2")
    with pytest.raises(ExportError, match=r"which comes before it.*--schedule interleaved"):
        export_placement(*place_training_graph(path, (0, 1, 0, 1)), "pipelining")
