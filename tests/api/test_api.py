"""The Python interface, the public names, and place() itself."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from locations import EXAMPLES, TESTS
from toy_problems import toy

import placewise as pw
from placewise.core.baselines import Baselines
from placewise.core.place import place
from placewise.errors import InternalError, PlacerError
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Rule
from placewise.model.result import Bound, Outcome, Proposal, Reason
from placewise.placers import registry
from placewise.placers.base import Budget, SearchContext


def test_the_lines_of_the_readme(tmp_path: Path) -> None:
    """A model file and a line of devices give a plan with a summary, which saves itself."""
    plan = pw.place(
        EXAMPLES / "resnet50.onnx", devices="2xA100-80GB,cpu", objective="latency", dims={"batch": 1}, budget="1s"
    )
    assert plan.status in ("optimal", "feasible") and 0 < plan.lower_bound <= plan.value
    assert "latency" in plan.summary() and "cuda:0" in plan.summary()
    plan.save(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["placement_hash"] == plan.placement_hash
    assert set(plan.assignment) == set(plan.problem.graph.ops.name)


def test_public_names_are_sorted_and_all_there() -> None:
    """`__all__` is sorted, and every name loads."""
    assert list(pw.__all__) == sorted(pw.__all__)
    for name in pw.__all__:
        assert getattr(pw, name).__module__.startswith("placewise")
    assert callable(pw.place) and callable(pw.build) and callable(pw.judge)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = pw.nonsense  # type: ignore[attr-defined]


def test_importing_costs_nothing() -> None:
    """`import placewise` loads no library; the command's help loads no numpy and no onnx."""
    libraries = "'numpy', 'placewise._native', 'onnx', 'torch', 'ortools'"
    code = f"import sys, {{}}; print([m for m in ({libraries}) if m in sys.modules])"
    for module in ("placewise", "placewise.cli"):
        done = subprocess.run([sys.executable, "-c", code.format(module)], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"


def test_every_test_says_what_must_hold() -> None:
    """Each test function of this suite has a docstring."""
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert ast.get_docstring(node), f"{path.name}: {node.name}"


class Liar:
    """A placer that proposes what it is told, valid or not."""

    info = registry.create("single").info

    def __init__(self, proposal: Proposal) -> None:
        self.proposal = proposal

    def supports(self, problem: pw.Problem) -> str | None:
        return None

    def propose(self, search: SearchContext) -> Proposal:
        return self.proposal


def test_no_placer_gets_around_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid proposal is refused with the rule that it breaks."""
    monkeypatch.setattr(registry, "create", lambda name, options=None: Liar(Proposal(Placement(np.array([0, 0])))))
    result = place(toy(memory=15.0), "single")
    assert result.placement is None and result.status.outcome is Outcome.UNKNOWN
    assert "5 B" in result.notes[-1]


def test_a_bound_above_the_value_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof that contradicts a value is never clamped."""
    proposal = Proposal(Placement(np.array([0, 1])), Bound(99.0, "a wrong proof"))
    monkeypatch.setattr(registry, "create", lambda name, options=None: Liar(proposal))
    with pytest.raises(InternalError, match="a wrong proof proves 99"):
        place(toy(), "single")


def test_an_interrupted_placer_is_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C inside a placer that has nothing ends as unknown, interrupted."""

    class Interrupted(Liar):
        def propose(self, search: SearchContext) -> Proposal:
            raise KeyboardInterrupt

    placers = iter([Interrupted(Proposal(None)), Liar(Proposal(None)), Liar(Proposal(None))])
    monkeypatch.setattr(registry, "create", lambda name, options=None: next(placers))
    result = place(toy(), "single")
    assert (result.status.outcome, result.status.reason) == (Outcome.UNKNOWN, Reason.INTERRUPTED)


def test_a_placer_that_cannot_take_the_problem_says_so() -> None:
    """An unsupported problem is an error with the reason, not an empty answer."""
    with pytest.raises(PlacerError, match="cannot take this problem"):
        place(toy().with_(objective=Objective("latency")), "dp")


def test_toy_optimum() -> None:
    """One op per accelerator: 1 s of compute and 0.25 s of transfer; one alone would take 2 s."""
    result = place(toy())
    assert result.value == 1.25 and result.status.outcome is Outcome.OPTIMAL
    assert result.baselines["best single device"][1].value == 2.0


def test_auto_is_never_worse_than_what_people_do() -> None:
    """Without any time, the best naive answer that keeps the rules is the answer, and the reason is the time."""
    result = place(toy(), budget=Budget(0.0))
    assert result.value <= min(judged.value for _, judged in result.baselines.values() if judged.valid)
    assert result.status.reason in (Reason.TIME_LIMIT, Reason.PROVED)


def test_an_interrupted_auto_keeps_the_naive_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C before any placer has answered leaves the best baseline, feasible and interrupted."""
    problem = toy().with_(objective=Objective("throughput"))
    naive = Baselines(dict(place(problem).baselines))

    def interrupt(*_: object, **__: object) -> Proposal:
        raise KeyboardInterrupt

    monkeypatch.setattr("placewise.core.place.collect_baselines", lambda *_: naive)
    monkeypatch.setattr("placewise.placers.auto.placer.AutoPlacer.propose", interrupt)
    result = place(problem)
    assert result.placement is not None and result.status.reason in (Reason.INTERRUPTED, Reason.PROVED)


def test_activations_that_fit_nowhere_are_proved() -> None:
    """An op whose input and output exceed every device is infeasible, with the bytes that are missing."""
    builder = pw.GraphBuilder()
    builder.add_op("big", "Relu")
    builder.add_edge(builder.add_tensor(-1, nbytes=60), 0)
    builder.add_tensor(0, nbytes=60, output=True)
    graph = builder.build()
    links = [pw.Link(*ends, 1.0) for d in ("x", "y") for ends in ((d, "host"), ("host", d))]
    cluster = pw.Cluster((pw.Device("x", memory=100), pw.Device("y", memory=90)), tuple(links))
    costs = pw.CostTable.given(np.ones((1, 2)), np.tile([0.0, 60.0], (2, 1)))
    result = place(pw.Problem(graph, cluster, costs, Objective("latency")))
    assert result.status.outcome is Outcome.INFEASIBLE
    assert "120 B of it live tensors" in result.unmet and "on x" in result.unmet and "(20 bytes)" in result.unmet


def test_the_only_placement_is_optimal() -> None:
    """Where rules leave one placement, its max-load is the bound."""
    rules = (Rule("a", "x"), Rule("b", "x"))
    result = place(toy().with_(constraints=Constraints(pins=rules)))
    assert result.status.outcome is Outcome.OPTIMAL and result.value == 2.0


def test_what_devices_hold_as_plain_data(tmp_path: Path) -> None:
    """A part per range of layers, with sums that are those of the judge; a plan that was read back says the same."""
    model = EXAMPLES / "bert_base.onnx"
    plan = pw.place(model, "2xL4,cpu", dims={"batch": 1, "seq": 64}, objective="throughput", placer="dp", budget="5s")
    parts = plan.by_module()
    assert plan.result.judgement is not None and plan.tokens_per_second is None
    assert parts == plan.result.by_module() and list(parts) == ["cuda:0", "cuda:1", "cpu"]
    for use in plan.result.judgement.devices:
        assert sum(part["ops"] for part in parts[use.device]) == use.ops
        assert sum(part["seconds"] for part in parts[use.device]) == pytest.approx(use.compute)
    assert any(part["name"].startswith("layers ") for some in parts.values() for part in some)
    assert "layers " in plan.summary().split("load")[0]
    plan.save(tmp_path / "plan.json")
    assert pw.Plan.load(tmp_path / "plan.json").by_module() == parts
    nothing = pw.place(model, "L4", dims={"batch": 1, "seq": 64}, max_memory={"cuda:0": "1MiB"}, budget="1s")
    assert nothing.by_module() == {"cuda:0": []}
