"""The page of ONNX ops is what its script writes, and leaves out nothing that ONNX Runtime has."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import onnx
import pytest
from locations import ROOT

from placewise.costing.flops import CONTROL
from placewise.readers.onnx.contrib import RULES, STANDARD

PAGE = (ROOT / "docs" / "operators.md").read_text("utf-8")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_operators", ROOT / "scripts" / "write_operators.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(f"for onnx {onnx.__version__}," not in PAGE, reason="written for another onnx")
def test_the_page_of_ops_is_up_to_date(script: ModuleType) -> None:
    """docs/operators.md is what the script would write now."""
    assert script.page() == PAGE, "run scripts/write_operators.py"


def test_every_op_of_onnxruntime_is_named(script: ModuleType) -> None:
    """With shapes, as a search that runs a model, or in the list of those without shapes."""
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    there = {schema.name for schema in state.get_all_operator_schema() if schema.domain == "com.microsoft"}
    ours = {kind.removeprefix("com.microsoft::") for kind in {*RULES, *STANDARD, *CONTROL} if "microsoft::" in kind}
    assert there - ours == set(script.UNKNOWN.split()) & there
