"""The example notebooks run from the first cell to the last, and leave nothing behind."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from locations import ROOT

nbformat = pytest.importorskip("nbformat", reason="notebooks are read with nbformat")
nbclient = pytest.importorskip("nbclient", reason="notebooks are run with nbclient")

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
NEEDS = {"4_measured_costs.ipynb": ("onnxruntime",), "3_pipeline_over_two_nodes.ipynb": ("networkx",)}
"""Optional libraries of single notebooks, besides those of all."""
LIMITS = re.compile(r'time_limit="\d+s"')
"""Searches get a second in tests: what runs is the same."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell ends without an error or a warning, what is shown has no script, and no file stays."""
    for library in ("ipykernel", "pandas", "matplotlib", *NEEDS.get(path.name, ())):
        pytest.importorskip(library)
    folder, outside = tmp_path / "examples" / "notebooks", tmp_path / "outside"
    for each in (folder, outside):
        each.mkdir(parents=True)
    (tmp_path / "examples" / "models").symlink_to(ROOT / "examples" / "models")
    models = sorted(os.listdir(ROOT / "examples" / "models"))
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(variable, str(outside))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(outside))
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = LIMITS.sub('time_limit="1s"', cell.source)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any(output.output_type == "execute_result" and "text/html" in output.data for output in shown)
    assert not [output.text for output in shown if output.output_type == "stream"]
    assert "<script" not in nbformat.writes(notebook)
    assert not os.listdir(folder) and sorted(os.listdir(ROOT / "examples" / "models")) == models


def test_notebooks_are_kept_without_outputs() -> None:
    """What a run shows depends on the machine; differences between commits show what was written."""
    assert len(NOTEBOOKS) == 5
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            assert cell.cell_type != "code" or (not cell.outputs and cell.execution_count is None), path.name
