"""What the program published with Piper reaches, and more: its instance under several devices and memories.

The instance is looked for under PLACEWISE_WORKLOADS, `piper/` as in github.com/msr-fiddle/piper with what the program
reaches in `reference.json`. `benchmarks/split.py` goes through all rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from piper_files import problem_of
from published import PIPER, needs_piper
from twins import piper

from placewise.core.place import place
from placewise.files.stage_records import list_stages
from placewise.model.result import Outcome

pytestmark = needs_piper
ROWS = [(8, 1), (128, 1), (8, 2), (32, 2), (512, 2), (8, 8), (64, 8), (2048, 8), (8, 80), (128, 80)]
"""Devices, and GiB of memory on each."""


@pytest.fixture(scope="module")
def published() -> dict[tuple[int, int], dict[str, Any]]:
    """Rows of the reference by devices and memory."""
    rows = json.loads((PIPER / "reference.json").read_text())["rows"]
    return {(row["devices"], row["memory_GiB"]): row for row in rows}


@pytest.mark.parametrize(("devices", "memory"), ROWS)
def test_published_rows(
    tmp_path: Path, published: dict[tuple[int, int], dict[str, Any]], devices: int, memory: int
) -> None:
    """Never worse than published, proved optimal, worth what the definition says; or a proof that nothing fits."""
    row = published[devices, memory]
    document = json.loads((PIPER / "bert32a100.json").read_text())
    document |= {"maxDevices": devices, "maxMemoryPerDevice": memory * 2**30, "mbsInBatch": row["microbatches"]}
    document["bandwidth"] = row["bandwidth_GiB_per_s"] * 2**30
    problem = problem_of(document, tmp_path)
    result = place(problem)
    if row["value_s"] is None:
        assert result.status.outcome is Outcome.INFEASIBLE
        return
    assert result.status.outcome is Outcome.OPTIMAL and result.placement is not None
    assert result.value <= row["value_s"] * (1 + 1e-9)
    plan = [stage.model_dump() for stage in list_stages(problem, result.placement, result.judgement)]
    assert result.value == pytest.approx(piper.value_of(document, plan), rel=1e-9)
    assert not piper.broken_rules(document, plan)
