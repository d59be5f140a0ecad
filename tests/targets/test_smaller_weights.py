"""The precision in which a model that fits nowhere would fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_configs import SMALL

import placewise as pw

pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("traced_once")
DIMS = {"prompt": 64, "tokens": 4}


@pytest.mark.parametrize(("target", "room"), [(None, 0.7), ("llama.cpp", 0.75), ("device-map", 0.9)])
def test_the_widest_precision_that_fits_is_named(target: str | None, room: float, tmp_path: Path) -> None:
    """In int8 the weights take half; the advice is there however the target prices what is in host memory."""
    config = SMALL["llama"] | {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6,
        "vocab_size": 512, "dtype": "bfloat16",
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    whole = int(pw.read_model(path, dims=DIMS).weights.bytes.sum())
    devices = {"cuda:0": int(room * whole / 2), "cpu": int(room * whole / 2)}
    plan = pw.place(path, devices, target=target, dims=DIMS, headroom=0)
    assert plan.placement is None and plan.result.unmet.endswith("; with --precision int8 it fits")
    assert pw.place(path, devices, target=target, dims=DIMS, headroom=0, precision="int8").placement is not None
