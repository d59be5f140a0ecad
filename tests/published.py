"""Where the published workloads are, if they are anywhere, and what the published programs reach on them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(os.environ.get("PLACEWISE_WORKLOADS") or "nowhere")
WORKLOADS = ROOT / "dnn-partitioning"
PROFILES = ROOT / "pipedream"
RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "benchmarks" / "published.json").read_text()
)
"""By objective and workload, the value of each published method in ms."""

needs_workloads = pytest.mark.skipif(
    not WORKLOADS.is_dir(), reason="PLACEWISE_WORKLOADS does not name the folder of the published workloads"
)
needs_profiles = pytest.mark.skipif(
    not PROFILES.is_dir(), reason="PLACEWISE_WORKLOADS does not name the folder of the PipeDream profiles"
)
