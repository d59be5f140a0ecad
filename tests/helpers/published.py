"""Where the published workloads are, if they are anywhere, and what the published programs reach on them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from locations import ROOT as REPOSITORY

ROOT = Path(os.environ.get("PLACEWISE_WORKLOADS") or "nowhere")
WORKLOADS = ROOT / "dnn-partitioning"
PROFILES = ROOT / "pipedream"
PIPER = ROOT / "piper"
RECORDED: dict[str, dict[str, Any]] = json.loads((REPOSITORY / "benchmarks" / "published.json").read_text())
"""By objective and workload, the value of each published method in ms."""

needs_workloads = pytest.mark.skipif(
    not WORKLOADS.is_dir(), reason="PLACEWISE_WORKLOADS does not name the folder of the published workloads"
)
needs_profiles = pytest.mark.skipif(
    not PROFILES.is_dir(), reason="PLACEWISE_WORKLOADS does not name the folder of the PipeDream profiles"
)
needs_piper = pytest.mark.skipif(
    not PIPER.is_dir(), reason="PLACEWISE_WORKLOADS does not name the folder of the instance of Piper"
)


MS = 1e-3


EXPERTS = {
    ("throughput", "LayerGraphs/bert24_inference"): set(),
    ("throughput", "LayerGraphs/bert24_training"): set(),
    ("throughput", "LayerGraphs/gnmt_inference"): set(),
    ("throughput", "LayerGraphs/gnmt_training"): set(),
    ("throughput", "LayerGraphs/inceptionv3_inference"): set(),
    ("throughput", "LayerGraphs/resnet50_inference"): set(),
    ("throughput", "LayerGraphs/resnet50_training"): set(),
    ("latency", "LayerGraphs/bert24_inference"): {"pin"},
    ("latency", "LayerGraphs/inceptionv3_inference"): {"memory"},
    ("latency", "LayerGraphs/resnet50_inference"): {"memory"},
}
