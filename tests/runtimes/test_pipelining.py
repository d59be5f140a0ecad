"""The runtime `pipelining`: what stages hand on, who is named when a rank fails, and what a stream should take."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import placewise as pw
from placewise.errors import RunError
from placewise.runtimes import registry
from placewise.runtimes.inputs import fresh_inputs

torch = pytest.importorskip("torch")
from pipeline_models import MODELS, HandedOn, even_cut, export_model, export_named, job_here  # noqa: E402


def require_outputs(model: Any, problem: Any, device: Any) -> None:
    """Two samples as single runs and a stream of both: in all of them the outputs of the module in one process."""
    with registry.create("pipelining").prepare(job_here(problem, device)) as prepared:
        samples = [fresh_inputs(problem.graph, seed) for seed in range(2)]
        streamed = prepared._run_samples("stream", samples)[-1][2]
        for sample, seen in zip(samples, streamed, strict=True):
            alone = prepared.run(sample)
            wanted = model.outputs(sample)
            assert len(alone) == len(seen) == len(wanted)
            for one, other, value in zip(alone.values(), seen.values(), wanted, strict=True):
                for array in (one, other):
                    assert array.shape == tuple(value.shape)
                    found = torch.from_numpy(array.astype("float32")) if value.dtype == torch.bfloat16 else array
                    torch.testing.assert_close(
                        torch.as_tensor(found), value.float() if value.dtype == torch.bfloat16 else value,
                        rtol=1e-4, atol=1e-5,
                    )  # fmt: skip


def test_stages_hand_on_values_of_every_kind(tmp_path: Path) -> None:
    """Transposed, sliced, expanded, empty, scalar, bool, int, complex values and one that skips a stage."""
    model = export_model(HandedOn(), {"x": torch.randn(4, 6)}, tmp_path / "handed.pt2")
    problem = pw.build(model.path, "3xcore")
    last = max(number for number, name in enumerate(problem.graph.ops.name) if "add" in name)
    device = [0 if n < problem.n_ops // 2 else 1 if n < last else 2 for n in range(problem.n_ops)]
    require_outputs(model, problem, device)
