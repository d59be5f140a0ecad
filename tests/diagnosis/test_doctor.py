"""`placewise doctor`: every path of this machine once, and what it says of paths that fail or are not here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run

from placewise.diagnosis import diagnose as module
from placewise.diagnosis import machine, paths
from placewise.diagnosis.checks import Check, Checked, NotHere, run_checks
from placewise.diagnosis.machine import Machine
from placewise.diagnosis.paths import GPU_AND_CORES, TWO_GPUS, find_group
from placewise.errors import MissingExtraError, RunError
from placewise.exporters import registry as targets
from placewise.runtimes.gpus import Gpu


def raising(error: Exception) -> Callable[[], tuple[str, dict[str, Any]]]:
    def check() -> tuple[str, dict[str, Any]]:
        raise error

    return check


def test_what_is_not_here_has_not_failed() -> None:
    """Errors of ours and of libraries are failures in one sentence; what is missing is none; the rest still runs."""
    checks = [
        Check("a", "works", lambda: ("it does", {"seconds": 1.0})),
        Check("a", "fails", raising(RunError("the worker died"))),
        Check("a", "breaks", raising(ImportError("libcudart.so.12: not found\n  more"))),
        Check("a", "lacks", raising(NotHere("no GPU"))),
        Check("a", "needs", raising(MissingExtraError("PyTorch", "torch"))),
        Check("a", "also works", lambda: ("it does", {})),
    ]
    found = list(run_checks(iter(checks)))
    assert [one.status for one in found] == ["works", "failed", "failed", "not here", "not here", "works"]
    assert found[1].text == "the worker died" and found[2].text == "ImportError: libcudart.so.12: not found"
    assert found[0].figures == {"seconds": 1.0}
    late = list(run_checks(iter(checks), until=0.0))
    assert {one.status for one in late} == {"not run"} and "time" in late[0].text


def test_pairs_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU has a pair of it and its cores, and no pair of GPUs; one without any says why."""
    one = Gpu(0, "L4", "GPU-a", 24 << 30, "570.1", "12.8")
    here = Machine()
    monkeypatch.setattr(machine, "list_gpus", lambda: (one,))
    assert find_group(here, GPU_AND_CORES).cluster.names == ("cuda:0", "cpu")
    with pytest.raises(NotHere, match="one GPU"):
        find_group(here, TWO_GPUS)
    two = Machine()
    monkeypatch.setattr(machine, "list_gpus", lambda: (one, Gpu(1, "L4", "GPU-b", 24 << 30, "570.1", "12.8")))
    assert find_group(two, TWO_GPUS).cluster.names == ("cuda:0", "cuda:1")
    monkeypatch.setattr(machine, "list_gpus", raising(RunError("no driver")))
    with pytest.raises(NotHere, match="no driver"):
        find_group(Machine(), TWO_GPUS)


def test_every_path_of_cores_works_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime, exports and links run for real; with --json, all of it as data."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("torch")
    wanted = ("native kernels", "cores", "onnxruntime, two cores", "two cores", "between cores", *targets.names())
    listed = paths.list_path_checks, machine.list_machine_checks

    def only(checks: Any) -> Any:
        return lambda *args: (check for check in checks(*args) if check.name in wanted)

    monkeypatch.setattr(module, "LIMIT", float("inf"))
    monkeypatch.setattr(module, "list_path_checks", only(listed[0]))
    monkeypatch.setattr(module, "list_machine_checks", only(listed[1]))
    found = {(one["area"], one["name"]): one for one in json.loads(run("doctor", "--json").stdout)["checks"]}
    assert {name for _, name in found} == set(wanted)
    assert not [one for one in found.values() if one["status"] == "failed"]
    ran = found["runtimes", "onnxruntime, two cores"]
    assert ran["status"] == "works" and ran["figures"]["seconds"] > 0 and ran["figures"]["difference"] <= 1
    trained = found["training", "two cores"]
    assert trained["status"] == "works" and trained["figures"]["seconds"] > 0 and "losses" in trained["text"]
    assert found["exports", "onnx"]["status"] == "works" and found["exports", "tensorflow"]["status"] == "not here"


def test_a_failure_is_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing failed: 0. Something did: 2, with a line that says so."""
    lines = [Checked("versions", "torch", "works", "2.13"), Checked("links", "GPUs", "not here", "no GPU")]
    monkeypatch.setattr(module, "diagnose", lambda: iter(lines))
    text = run("doctor").stdout
    assert "works     torch: 2.13" in text and "not here  GPUs: no GPU" in text
    lines.append(Checked("exports", "onnx", "failed", "two ops differ"))
    assert "failed    onnx: two ops differ" in run("doctor", code=2).stdout


def test_a_library_that_cannot_be_imported_ends_its_own_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken installation is a failure with the reason of the import, and this process goes on."""
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").write_text("raise ImportError('libcublas.so.12 is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    checks = (check for check in machine.list_machine_checks(Machine()) if check.name == "onnxruntime")
    (found,) = run_checks(checks)
    assert found.status == "failed" and "libcublas.so.12 is missing" in found.text
    assert "onnxruntime" not in sys.modules or not str(sys.modules["onnxruntime"].__file__).startswith(str(tmp_path))
