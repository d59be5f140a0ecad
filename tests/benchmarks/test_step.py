"""benchmarks/step.py: the published scheduler's costs give the published bubbles."""

from __future__ import annotations

import runpy

import pytest
from locations import ROOT

STEP = runpy.run_path(str(ROOT / "benchmarks" / "step.py"))


@pytest.mark.parametrize("row", [row for row in STEP["PUBLISHED"] if row[0] * row[1] < 2000], ids=str)
def test_bubbles_are_the_published_ones(row: tuple[float, ...]) -> None:
    """Of 1F1B and ZB-H1 (Qi et al., ICLR 2024), by our simulation of a step; ZB-V waits less at the same memory."""
    bubble = STEP["simulate_bubble"]
    assert bubble("1f1b", row[:6]) == pytest.approx(row[6], abs=6e-5)
    assert bubble("zb-h1", row[:6]) == pytest.approx(row[7], abs=6e-5) and bubble("zb-v", row[:6]) < row[8]
