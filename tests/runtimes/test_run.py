"""`pw.run`: a plan of a small model, run on the cores of this machine, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx.helper import make_node
from onnx_branches import branching, modelled, of_newest_ir, written

import placewise as pw
from placewise._util.cores import pinnable_cores
from placewise.analysis.measure_placements import Setting, measure_placements
from placewise.errors import InputError, RunError
from placewise.model.placement import Placement
from placewise.runtimes.measure import Protocol
from placewise.runtimes.torch.pipelining import Pipelining

pytest.importorskip("onnxruntime")
CORE = pinnable_cores()[0]
HERE = {"core:0": f"cores:{CORE}", "core:1": f"cores:{CORE}"}


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = written(tmp_path_factory.mktemp("run"), branching())
    return pw.place(path, "2xcore", placer="round_robin")


def run(plan, **said):
    return pw.run(plan, bind=HERE, **{"rounds": 2, **said})


def test_a_plan_runs_beside_the_best_single_device(plan):
    """Both have times, and the split has pieces."""
    found = run(plan, inputs={"x": np.ones((2, 16), np.float32)}, options={"spin": 0})
    assert 0 < found.seconds < 10 and 0 < found.single < 10 and not found.failure
    assert "best single device" in found.summary() and repr(found).startswith("RunResult(")
    assert sum(found.placements.of("plan").realised.pieces) > 1


def test_a_model_of_the_newest_ir_version_runs(tmp_path):
    """In pieces and on a single device, though ONNX Runtime knows older versions only: its opset needs no more."""
    found = run(pw.place(written(tmp_path, of_newest_ir()), "2xcore", placer="round_robin"))
    assert 0 < found.seconds < 10 and 0 < found.single < 10 and not found.failure


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"rounds": 0}, "nothing would be measured"),
        ({"in_flight": 0}, "nothing would be measured"),
        ({"seed": -1}, "the seed -1 is negative"),
        ({"measure_time": "soon"}, "'soon' is not a time"),
        ({"options": {"speed": 9}}, "no option 'speed'"),
        ({"runtime": "torch"}, "runs no model of the format 'onnx'"),
        ({"inputs": {"x": np.ones(3, np.float32)}}, "'x' has shape"),
    ],
)
def test_what_means_nothing_is_refused(plan, said, message):
    """In one sentence, before anything runs."""
    with pytest.raises(InputError, match=message):
        run(plan, **said)


def test_a_plan_of_another_model_is_refused(plan, tmp_path):
    """Also where the file was overwritten by another model."""
    path = written(tmp_path, branching())
    own = pw.place(path, "2xcore", placer="round_robin")
    own.save(tmp_path / "plan.json")
    onnx.save(modelled([make_node("Relu", ["x"], ["y"])], {"x": [8]}, {"y": [8]}), path)
    with pytest.raises(InputError, match="made for another model"):
        run(str(tmp_path / "plan.json"))


def test_random_outputs_are_an_error(tmp_path):
    """No placement of such a model can be checked."""
    nodes = [make_node("RandomNormalLike", ["x"], ["n"]), make_node("Add", ["x", "n"], ["y"])]
    plan = pw.place(written(tmp_path, modelled(nodes, {"x": [8]}, {"y": [8]})), "2xcore", placer="round_robin")
    with pytest.raises(RunError, match="outputs of this model are random"):
        run(plan)


def test_a_plan_that_is_no_line_of_stages_is_refused_before_anything_runs(monkeypatch):
    """Beside a placement that is one, it has a failure, once, and the other its times."""
    torch = pytest.importorskip("torch")
    module, inputs = (
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)),
        torch.ones(2, 8),
    )
    there_and_back = pw.place(module.eval(), "2xcore", placer="round_robin", example_inputs=(inputs,))
    with monkeypatch.context() as patch, pytest.raises(RunError, match=r"no line of stages.*--runtime torch"):
        patch.setattr(Pipelining, "prepare", lambda *_: pytest.fail("something was started"))
        pw.run(there_and_back, module, example_inputs=(inputs,), bind=HERE, runtime="pipelining")
    problem = there_and_back.result.problem
    setting = Setting(
        "pipelining", HERE, protocol=Protocol(rounds=1, samples=2, warm_up=1), model=module, example=(inputs,)
    )
    placements = {"plan": there_and_back.result.placement, "one": Placement.on(0, problem.n_ops)}
    found = pw.RunResult(measure_placements(problem, placements, setting))
    assert math.isinf(found.seconds) and "no line of stages" in found.failure and "failed: " in repr(found)
    assert found.verdict == "It does not run." and found.summary().count("no line of stages") == 1
    assert 0 < found.placements.of("one").seconds < 10
