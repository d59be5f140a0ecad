"""Prompts in llama.cpp's pipeline: which of many splits that are about as fast is taken, by trying all of them."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from gguf_models import write_real_size

import placewise as pw
from placewise.exporters.llama_cpp import find_buffers, time_prompt
from placewise.exporters.registry import create_exporter
from placewise.model.placement import Placement
from placewise.simulate import judge_placement
from placewise.targets.balanced_prompts import CLOSE

pytest.importorskip("gguf")
LAYERS = 9


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return write_real_size(
        folder / "model.gguf", layers=LAYERS, width=2048, inner=8192, heads=16, kv=4, vocabulary=32000, kind="Q4_K"
    )


def place(path: Path, devices: str, limit: str, prompt: int) -> pw.Plan:
    names = [device.name for device in pw.read_cluster(devices) if not device.is_host]
    memory: dict[str, str | float] = dict.fromkeys(names, limit)
    dims = {"prompt": prompt, "tokens": 64}
    return pw.place(path, devices, target="llama.cpp", dims=dims, max_memory=memory, time_limit="20s")


@pytest.mark.parametrize(
    ("devices", "limit"), [("2xRTX4090,cpu", "400MiB"), ("RTX3090,RTX4090,cpu", "400MiB"), ("3xRTX4090", "400MiB")]
)
def test_no_split_over_the_same_cards_has_a_faster_pipeline(devices: str, limit: str, path: Path) -> None:
    """Of all with room for its buffers, and about the value of the best: by what a prompt in a pipeline saves."""
    plan = place(path, devices, limit, 4096)
    problem, placement = plan.problem, plan.placement
    assert placement is not None
    unit = create_exporter("llama.cpp").space(problem).lines[0].unit  # type: ignore[attr-defined]
    line = np.full(int(unit.max()) + 1, -1, np.int32)
    line[unit] = placement.device
    host = problem.cluster.names.index("cpu") if "cpu" in problem.cluster.names else -1
    cards = list(dict.fromkeys(device for device in line.tolist() if device != host))
    begin = int(host >= 0)
    assert len(cards) > 1 and (host < 0 or (line == host).sum() == 1)
    found = dict[bytes, tuple[float, float]]()
    for cuts in combinations(range(begin + 1, len(line)), len(cards) - 1):
        bounds = np.diff([begin, *cuts, len(line)])
        one = Placement(np.r_[[host] * begin, np.repeat(cards, bounds)].astype(np.int32)[unit])
        judged, buffers = judge_placement(problem, one), find_buffers(problem, one)
        if judged.valid and not buffers.missing:
            added, seconds = time_prompt(problem, one, buffers.under_way)
            found[one.device.tobytes()] = judged.value, judged.value - added + seconds
    best = min(value for value, _ in found.values())
    near = min(expected for value, expected in found.values() if value <= best * (1 + CLOSE))
    assert found[placement.device.tobytes()][1] == pytest.approx(near, rel=2e-3)
    if len(set(devices.split(","))) < 3:
        made = create_exporter("llama.cpp").export(problem, placement, {})
        assert any("as a pipeline" in note for note in made.notes)
        assert "without-pipeline" not in str(made.files["llama.sh"])


def test_a_prompt_of_one_micro_batch_has_no_pipeline(path: Path) -> None:
    """Then the plan is the one of the search, and says nothing of it."""
    plan = place(path, "2xRTX4090,cpu", "400MiB", 512)
    assert plan.placement is not None
    made = create_exporter("llama.cpp").export(plan.problem, plan.placement, {})
    assert plan.status == "optimal" and not any("pipeline" in note for note in (*made.notes, *plan.result.notes))


def test_a_prompt_in_a_pipeline_by_hand(path: Path) -> None:
    """Eight micro-batches through two stages: each stage once, and the longer one seven times more."""
    plan = place(path, "2xRTX4090,cpu", "400MiB", 4096)
    problem, placement = plan.problem, plan.placement
    assert placement is not None
    seconds = np.where(problem.graph.ops.phase == 0, problem.costs.seconds_on(placement.device), 0.0)
    stages = [float(seconds[placement.device == device].sum()) / 8 for device in range(problem.n_devices)]
    assert time_prompt(problem, placement, 4) == pytest.approx((8 * sum(stages), sum(stages) + 7 * max(stages)))
    assert time_prompt(problem, placement, 1)[1] == pytest.approx(8 * sum(stages))
