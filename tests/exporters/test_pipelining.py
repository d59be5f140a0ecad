"""The target `pipelining`: stages of an exported program, which torchrun runs with the files that were written."""

from __future__ import annotations

import json
import os
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
from placewise.transform.stages import stage_order

torch = pytest.importorskip("torch")


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


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("blocks") / "model.pt2"
    torch.export.save(torch.export.export(Blocks(), (torch.arange(12).reshape(2, 6),)), made)
    return made


def test_torchrun_runs_the_stages(path: Path, tmp_path: Path) -> None:
    """Three processes, cut by hand; the last stage compares with the whole program and says so."""
    problem = pw.build(path, "3xcore")
    scopes = list(problem.graph.ops.scope)
    cuts = [scopes.index("blocks.1"), scopes.index("blocks.3")]
    placement = Placement(np.searchsorted(cuts, np.arange(problem.n_ops), side="right").astype(np.int32))
    made = export_placement(problem, placement, "pipelining")
    assert not made.projected
    for name, text in made.exported.files.items():
        (tmp_path / name).write_text(str(text))
    said = json.loads((tmp_path / "stages.json").read_text())
    assert said["split_points"] == ["blocks.1", "blocks.3"] and said["devices"] == ["cpu"] * 3
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "3", str(tmp_path / "run_pipeline.py")]
    done = subprocess.run(
        [sys.executable, "-m", *command, str(path), "2"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "3 stages, outputs as those of the whole program" in done.stdout


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
