"""The example notebooks run from the first cell to the last, and leave nothing behind."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from locations import ROOT
from soak import later

nbformat = pytest.importorskip("nbformat", reason="notebooks are read with nbformat")
nbclient = pytest.importorskip("nbclient", reason="notebooks are run with nbclient")

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
NEEDS = {"4_measured_costs.ipynb": ("onnxruntime",), "3_pipeline_over_two_nodes.ipynb": ("networkx",)}
"""Optional libraries of single notebooks, besides those of all."""
LIMITS = re.compile(r'time_limit="\d+s"')
"""Searches get less in tests: what runs is the same."""
ANEW = "get_ipython().reset(new_session=False)"
"""Forgets the names of a notebook before the next one."""


@pytest.mark.parametrize("paths", [NOTEBOOKS, *(later([path]) for path in NOTEBOOKS)])
def test_notebooks_run(paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell ends without an error or a warning, what is shown has no script, and no file stays. One kernel runs
    all of them, and forgets all names in between; in `make soak` each also has a kernel of its own.
    """
    for library in (
        "ipykernel",
        "pandas",
        "matplotlib",
        *(name for path in paths for name in NEEDS.get(path.name, ())),
    ):
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
    parts = [nbformat.read(path, as_version=4).cells for path in paths]
    notebook = nbformat.v4.new_notebook(cells=[])
    for cells in parts:
        for cell in cells:
            cell.source, cell.id = LIMITS.sub('time_limit="0.1s"', cell.source), nbformat.v4.new_code_cell().id
        notebook.cells += [*cells, nbformat.v4.new_code_cell(ANEW)]
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    for cells in parts:
        shown = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
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
