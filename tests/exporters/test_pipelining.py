"""The target `pipelining`: stages of an exported program, which torchrun runs with the files that were written."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from soak import later

import placewise as pw
from placewise._util.units import format_seconds
from placewise.errors import ExportError
from placewise.exporters.writing import export_placement, write_files
from placewise.model.placement import Placement
from placewise.simulate import judge_placement
from placewise.transform.stages import stage_order
from placewise.transform.stream_time import StageTime, steady_seconds, stream_seconds

torch = pytest.importorskip("torch")
from pipeline_models import even_cut  # noqa: E402

HERE = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


class Blocks(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Numbers of words, blocks with residuals, and the words again at the end: they pass through every stage."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(20, 8)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return x.sum(dim=-1) * ids, x.mean()


def torchrun(folder: Path, processes: int) -> list[str]:
    """The command that starts the script in a folder."""
    options = ["--standalone", "--nproc-per-node", str(processes), str(folder / "run_pipeline.py")]
    return [sys.executable, "-m", "torch.distributed.run", *options]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("blocks") / "model.pt2"
    torch.export.save(torch.export.export(Blocks(), (torch.arange(12).reshape(2, 6),)), made)
    return made


def test_torchrun_runs_the_stages(path: Path, tmp_path: Path) -> None:
    """Two processes, cut by hand; the last stage compares with the whole program and says so."""
    problem = pw.build(path, "2xcore")
    cuts = [list(problem.graph.ops.scope).index("blocks.1")]
    placement = Placement(np.searchsorted(cuts, np.arange(problem.n_ops), side="right").astype(np.int32))
    made = export_placement(problem, placement, "pipelining")
    assert not made.projected
    for name, text in made.exported.files.items():
        (tmp_path / name).write_text(str(text))
    said = json.loads((tmp_path / "stages.json").read_text())
    assert said["split_points"] == ["blocks.1"] and said["devices"] == ["cpu"] * 2
    done = subprocess.run(
        [*torchrun(tmp_path, 2), str(path), "2"], env=HERE, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "2 stages, outputs as those of the whole program" in done.stdout
    times = [StageTime(*row) for row in said["stage_seconds"]]
    finite, full = stream_seconds(times, 2) / 2 * 1e3, steady_seconds(times) * 1e3
    assert f"predicted: {finite:.3f} ms in a run of 2, {full:.3f} ms when the pipeline is full" in done.stdout


def written(path: Path, folder: Path, devices: str = "3xcore", **objective: Any) -> Any:
    """The files of a program in three even stages, in `folder`."""
    problem = pw.build(path, devices)
    problem = problem.with_(objective=replace(problem.objective, **objective))
    placement = Placement(np.array(even_cut(problem, len(problem.cluster)), np.int32))
    made = export_placement(problem, placement, "pipelining")
    write_files(made.exported, made.info, folder)
    return made


@pytest.mark.soak
@pytest.mark.parametrize("stages", [2, 3])
def test_a_killed_stage_is_named_and_ends_the_others(path: Path, tmp_path: Path, stages: int) -> None:
    """The second one, in a long run: one sentence about it, an exit code, and no process is left."""
    written(path, tmp_path, f"{stages}xcore")
    command = [*torchrun(tmp_path, stages), str(path), "100000"]
    with subprocess.Popen(command, env=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stderr is not None
        pids = [int(found) for found in re.findall(r"process (\d+)", run.stdout.readline())]
        os.kill(pids[1], signal.SIGKILL)
        lines = [line for line in run.stderr.read().splitlines() if "ended before the pipeline did" in line]
    assert len(lines) == 1 and lines[0].startswith(f"stage 1 on core:1 (process {pids[1]}) ended before")
    assert run.returncode == 1 and len(pids) == stages
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.soak
def test_an_error_in_a_stage_is_named(path: Path, tmp_path: Path) -> None:
    """A stage on a GPU that is not here: its number, its device and the reason."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    written(path, tmp_path)
    said = json.loads((tmp_path / "stages.json").read_text())
    said["devices"][1], said["names"][1] = "cuda:0", "gpu"
    (tmp_path / "stages.json").write_text(json.dumps(said))
    command = [*torchrun(tmp_path, 3), str(path), "2"]
    done = subprocess.run(command, env=HERE, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "stage 1 on gpu failed: it is on cuda:0, and PyTorch sees no GPU here\n" in done.stderr


@pytest.mark.parametrize(
    ("environment", "args", "message"),
    [
        later({}, [], r"3 stages, one process each: start them with torchrun --standalone --nproc-per-node 3"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, [], r"3 stages, and there are 2 processes: start them with torchrun"),
        later(
            {"RANK": "0", "WORLD_SIZE": "3"},
            ["--timeout", "1"],
            r"stage 1 on core:1 and stage 2 on core:2 did not come to 127\.0\.0\.1:\d+ within 1 s, or start",
        ),
        later(
            {"RANK": "0", "WORLD_SIZE": "3", "TAKEN": "1"},
            [],
            r"the port of 127\.0\.0\.1:\d+ is taken: set MASTER_PORT",
        ),
        later({}, ["0"], r"micro_batches: give a whole number from 1"),
        later({}, ["many"], r"micro_batches: .*'many'"),
    ],
)
def test_bad_starts_are_refused(
    path: Path, tmp_path: Path, environment: dict[str, str], args: list[str], message: str
) -> None:
    """In one sentence, with an exit code."""
    written(path, tmp_path)
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        number = port.getsockname()[1]
        if environment.pop("TAKEN", ""):
            port.listen()
        else:
            port.close()
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(number), **environment} if environment else {}
        command = [sys.executable, str(tmp_path / "run_pipeline.py"), str(path), *args]
        done = subprocess.run(command, env={**HERE, **where}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert re.search(f"error: .*{message}", done.stderr) and "Traceback" not in done.stderr


def test_overlapping_transfers_are_noted(path: Path, tmp_path: Path) -> None:
    """A plan with overlap gets a sentence with its blocking value; one with blocking transfers does not."""
    made = written(path, tmp_path, kind="throughput", communication="overlap", execution="sequential")
    problem = pw.build(path, "3xcore")
    problem = problem.with_(objective=replace(problem.objective, kind="throughput", execution="sequential"))
    value = judge_placement(problem, made.exported.placement).value
    assert [note for note in made.exported.notes if f"it takes {format_seconds(value)} per sample" in note]
    assert not written(path, tmp_path, kind="throughput", execution="sequential").exported.notes


def test_a_circle_is_projected_to_a_line(path: Path) -> None:
    """Devices in turns feed each other: the nearest line of stages, read back as it is."""
    problem = pw.build(path, "2xcore")
    made = export_placement(problem, Placement((np.arange(problem.n_ops) // 3 % 2).astype(np.int32)), "pipelining")
    assert made.projected and np.isfinite(made.loss)
    assert stage_order(problem.graph, made.exported.placement.device)[1] is None
    assert len(np.unique(made.exported.placement.device)) == 2


def test_a_cut_within_a_module_is_no_split_point(path: Path) -> None:
    """Split points are said only where they say the same; the second device may come first."""
    problem = pw.build(path, "2xcore")
    relu = next(op for op, name in enumerate(problem.graph.ops.name) if name.startswith("relu"))
    placement = Placement((np.arange(problem.n_ops) < relu).astype(np.int32))
    said = json.loads(str(export_placement(problem, placement, "pipelining").exported.files["stages.json"]))
    assert said["split_points"] == [] and said["names"] == ["core:1", "core:0"]


def test_models_that_are_no_programs() -> None:
    """A zoo model has no calls to put into stages."""
    problem = pw.build("zoo:random-layered", "2xcore")
    with pytest.raises(ExportError, match=r"no program of torch\.export"):
        export_placement(problem, Placement.on(0, problem.n_ops), "pipelining")
