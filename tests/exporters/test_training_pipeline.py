"""The target `pipelining` for training plans: processes that train with the files that were written."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import placewise as pw
from placewise.errors import ExportError
from placewise.exporters.writing import export_placement
from placewise.model.placement import Placement

torch = pytest.importorskip("torch")
from trained_models import TiedBlocks, build_forward, cut_evenly, save_program, train  # noqa: E402

QUIET = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def _training_placement(path: Path, pattern: tuple[int, ...]) -> tuple[pw.Problem, Placement]:
    """The training graph of a program over two cores: forward ops cut evenly, all others where they belong."""
    forward = build_forward(path, "2xcore")
    where = dict(zip(forward.graph.ops.name, cut_evenly(forward, pattern).device.tolist(), strict=True))
    problem = pw.build(path, "2xcore", pw.ProblemOptions(graph="training", objective="throughput"))
    names = problem.graph.ops.name
    group: dict[int, int] = {}
    for name, number in zip(names, problem.graph.ops.group.tolist(), strict=True):
        if name in where and number >= 0:
            group.setdefault(number, where[name])
    rest = zip(names, problem.graph.ops.group.tolist(), strict=True)
    device = [where.get(name, where.get(name.rpartition("/grad:")[0], group.get(number, 1))) for name, number in rest]
    return problem, Placement(np.array(device, np.int32))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A program, and the folder of the files of its training plan."""
    folder = tmp_path_factory.mktemp("training")
    path = save_program(TiedBlocks, (torch.arange(12).reshape(2, 6),), folder / "model.pt2")
    made = export_placement(*_training_placement(path, (0, 1)), "pipelining")
    for name, text in made.exported.files.items():
        (folder / name).write_text(str(text))
    return path, folder


def _torchrun(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]
    return subprocess.run(
        [sys.executable, *command], env=os.environ | QUIET | environment, cwd=folder,
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


def _losses(text: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss ([\d.e+-]+),", text)}


def test_torchrun_trains_as_placewise_does(written: tuple[Path, Path]) -> None:
    """The losses of the written files are those of `placewise run --train`, of one process, and they fall."""
    path, folder = written
    done = _torchrun(folder, "train_pipeline.py", str(path), "--steps", "4", "--learning-rate", "0.01")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "2 stages, losses of 2 steps as those of one process" in done.stdout
    forward = build_forward(path, "2xcore")
    own = train(forward, cut_evenly(forward, (0, 1)), steps=4, learning_rate=0.01, compared=0).record.losses
    assert list(_losses(done.stdout).values()) == pytest.approx(own, rel=1e-5)
    assert own[-1] < own[0]


def test_the_files_start_again_from_a_checkpoint(written: tuple[Path, Path], tmp_path: Path) -> None:
    """A second run goes on after the last step of the first one, with the same losses."""
    path, folder = written
    common = ["train_pipeline.py", str(path), "--compare", "0", "--checkpoint-every", "2"]
    whole = _losses(_torchrun(folder, *common, "--steps", "4").stdout)
    kept = ["--checkpoint", str(tmp_path / "kept")]
    first = _losses(_torchrun(folder, *common, *kept, "--steps", "2").stdout)
    second = _losses(_torchrun(folder, *common, *kept, "--steps", "4").stdout)
    assert list(first) == [1, 2] and list(second) == [3, 4] and first | second == whole


@pytest.mark.parametrize("taken", [True, False])
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
            cwd=folder, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
    wanted = f"the port of 127.0.0.1:{port} is taken" if taken else f"found not all of 2 processes at 127.0.0.1:{port}"
    assert done.returncode == 1 and wanted in done.stderr.splitlines()[-1]


def test_devices_in_turns_are_refused(tmp_path: Path) -> None:
    """The files train a line of stages only, and the error names an edge that goes back."""
    path = save_program(TiedBlocks, (torch.arange(12).reshape(2, 6),), tmp_path / "model.pt2")
    with pytest.raises(ExportError, match=r"which comes before it.*--schedule interleaved"):
        export_placement(*_training_placement(path, (0, 1, 0, 1)), "pipelining")
