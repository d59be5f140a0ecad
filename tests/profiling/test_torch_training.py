"""Profiles of training steps: forward, backward and update of every op, from real runs of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import placewise as pw
from placewise.errors import InputError
from placewise.profiling.servers.registry import list_trained_ops
from placewise.profiling.servers.window import TimeWindow
from placewise.runtimes.binding import Place

torch = pytest.importorskip("torch")
from trained_models import TiedBlocks, save_program  # noqa: E402

from placewise.analysis.train_plan import price_training  # noqa: E402
from placewise.profiling.servers.torch_training import TorchTrainingServer  # noqa: E402

ONNX = Path(__file__).parents[2] / "examples" / "models" / "resnet50.onnx"
OPTIONS = pw.ProblemOptions(graph="training", optimizer="momentum", objective="step", microbatches=2)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_program(TiedBlocks, (torch.arange(12).reshape(2, 6),), tmp_path_factory.mktemp("blocks") / "model.pt2")


@pytest.fixture
def threads() -> Iterator[None]:
    """Servers set the number of threads of their process, which is this one here."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_op_of_a_step_is_in_one_row(blocks: Path, threads: None) -> None:
    """Forward and backward ops by their calls, the loss, and an update for each weight, also for a tied one."""
    problem = pw.build(blocks, "1xcore", OPTIONS)
    ops = list_trained_ops(problem.graph)
    place = Place(device="core:0", kind="cores", name="", cores=(0,), options={})
    measured = TorchTrainingServer(str(blocks), ops, place).measure({}, TimeWindow(3))
    named = [name for row in measured.rows for name in row.ops]
    assert len(named) == len(set(named)) and set(named) <= set(problem.graph.ops.name)
    known = dict(zip(problem.graph.ops.name, problem.costs.op_seconds[:, 0].tolist(), strict=True))
    missing = {name for name, seconds in known.items() if seconds > 0 and name not in named}
    assert all("/renew" in name or name.startswith("add_") for name in missing), missing
    assert {row.name for row in measured.rows} >= {"linear", "linear/grad", "loss/grad"}
    assert {name for name in problem.graph.ops.name if name.endswith("/update")} <= set(named)
    assert all(row.seconds > 0 for row in measured.rows) and min(measured.whole) > 0


def test_a_profile_of_a_step_prices_its_plans(blocks: Path, tmp_path: Path) -> None:
    """Times add up to the whole step, and a plan of the same graph takes them; other costs are left for forward ops."""
    options = {"graph": "training", "optimizer": "momentum", "cache": False}
    made = pw.profile(blocks, "1xcore", tmp_path / "step.json", runtime="torch", repeats=3, **options)
    figures = made.devices[0].idle
    assert sum(seconds or 0.0 for seconds in figures.ops) == pytest.approx(figures.whole, rel=0.01)
    problem = pw.build(blocks, "1xcore", OPTIONS)
    priced, others = price_training(problem, (str(tmp_path / "step.json"),))
    assert priced is not None and others == ()
    given = np.array([np.nan if seconds is None else seconds for seconds in figures.ops])
    known = ~np.isnan(given)
    assert priced.costs.op_seconds[known, 0] == pytest.approx(given[known])
    backward = np.flatnonzero(problem.graph.ops.backward & known)
    assert len(backward) > 20
    pw.profile(blocks, "1xcore", tmp_path / "forward.json", runtime="torch", repeats=3, pilots=0, cache=False)
    assert price_training(problem, (str(tmp_path / "forward.json"),)) == (None, (str(tmp_path / "forward.json"),))


def test_other_runtimes_do_not_train() -> None:
    """They are refused with the one that does."""
    with pytest.raises(InputError, match="onnxruntime does not train"):
        pw.profile(ONNX, "1xcore", runtime="onnxruntime", graph="training", dims={"batch": 1}, cache=False)
