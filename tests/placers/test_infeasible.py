"""Where nothing fits: who proves it, in which words, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import run
from quick import QUICK
from toy_problems import boxes

from placewise.core.place import place
from placewise.model.problem import Constraints, Problem, Rule
from placewise.model.result import Outcome, Reason
from placewise.placers import registry
from placewise.simulate import why_infeasible

EXACT_THROUGHPUT = ("auto", "cpsat", "dp", "pack")


def placers(problem: Problem) -> list[str]:
    """Every placer that takes a problem."""
    return [name for name in registry.known_names() if registry.create(name).supports(problem) is None]


@pytest.mark.parametrize("kind", ["throughput", "latency"])
@pytest.mark.parametrize("shape", [Constraints(), Constraints(convex=True), Constraints(contiguous=True)])
def test_a_group_that_fits_nowhere_is_named_by_every_placer(kind: str, shape: Constraints) -> None:
    """The group of x1 and x2 needs 130 of 100 bytes: infeasible whoever is asked, with the group and 30 bytes."""
    problem = boxes([10, 70, 60, 10], [100, 90], group=[-1, 0, 0, -1], kind=kind, constraints=shape)
    for name in placers(problem):
        result = place(problem, name, options=QUICK.get(name))
        assert (result.status.outcome, result.status.reason) == (Outcome.INFEASIBLE, Reason.PROVED), name
        assert "2 ops around 'x1' needs 130 B and fits nowhere: on d0" in result.unmet, name
        assert "(30 bytes) are missing" in result.unmet and not result.baselines, name


def test_too_much_altogether_is_told_by_every_placer() -> None:
    """250 bytes in ops of 50 do not fit on 100 and 90: 60 bytes, and the largest group."""
    problem = boxes([50] * 5, [100, 90])
    for name in placers(problem):
        result = place(problem, name, options=QUICK.get(name))
        assert result.status.outcome is Outcome.INFEASIBLE, name
        assert "(60 bytes) more than they hold; the largest group is op 'x0' with 50 B" in result.unmet, name


def test_room_that_no_op_may_use_does_not_count() -> None:
    """A third device of 1,000 bytes changes nothing where every op is forbidden there: 60 bytes are missing at once."""
    problem = boxes([50] * 5, [100, 90, 1000], constraints=Constraints(forbidden=(Rule("", "d2"),)))
    assert "must fit on d0, d1, which is 60 B (60 bytes) more" in why_infeasible(problem)


@pytest.mark.parametrize("shape", [Constraints(), Constraints(convex=True), Constraints(contiguous=True)])
def test_what_only_packing_proves(shape: Constraints) -> None:
    """Three boxes of 60 and two of 100: exact placers prove it in bytes, the others say what they found not to work."""
    problem = boxes([60, 60, 60], [100, 100], constraints=shape)
    for name in placers(problem):
        result = place(problem, name, options=QUICK.get(name))
        assert result.placement is None, name
        if name in EXACT_THROUGHPUT and (name != "dp" or shape.contiguous):
            assert result.status.outcome is Outcome.INFEASIBLE, name
            assert "20 bytes" in result.unmet and "largest group is op 'x0' with 60 B" in result.unmet, name
        else:
            assert result.status.outcome in (Outcome.INFEASIBLE, Outcome.UNKNOWN), name
            assert result.unmet or result.notes, name


def test_components_that_no_chain_can_part() -> None:
    """A group around another op: the chain must hold all three together, 120 bytes, and 20 are missing."""
    problem = boxes([40, 40, 40], [100, 100], group=[0, -1, 0], constraints=Constraints(contiguous=True))
    for name in ("dp", "dpl", "cpsat"):
        result = place(problem, name, options=QUICK.get(name))
        assert result.status.outcome is Outcome.INFEASIBLE, name
        assert "must stay together" in result.unmet and "(20 bytes) are missing" in result.unmet
    assert place(problem.with_(constraints=Constraints()), "cpsat").placement is not None


def test_rules_that_leave_no_device() -> None:
    """A pin to a device that is too small, and rules that forbid everything, are proofs that name the op."""
    pinned = boxes([10, 95], [100, 90], constraints=Constraints(pins=(Rule("x1", "d1"),)))
    nowhere = boxes([10, 95], [100, 90], constraints=Constraints(forbidden=(Rule("x0", "d0"), Rule("x0", "d1"))))
    for name in placers(pinned):
        assert "op 'x1' needs 95 B and fits nowhere: on d1" in place(pinned, name).unmet, name
        assert "op 'x0' may run on no device" in place(nowhere, name).unmet, name


@pytest.mark.parametrize("name", ["auto", "dp", "single"])
def test_the_exit_code_is_three(tmp_path: Path, name: str) -> None:
    """The command says "infeasible:" with the bytes, writes no plan, and ends with 3."""
    nodes = [
        {"id": i, "cpuLatency": 1.0, "fpgaLatency": 1.0, "size": 70.0, "supportedOnFpga": 1, "isBackwardNode": 0}
        for i in range(3)
    ]
    limits = {"maxSizePerFPGA": 60.0, "maxFPGAs": 2, "maxCPUs": 0}
    path, plan = tmp_path / "w.json", tmp_path / "plan.json"
    path.write_text(json.dumps({**limits, "nodes": nodes, "edges": []}))
    done = run("place", path, "--placer", name, "-o", plan, code=3)
    assert "infeasible: op '0' needs 70 B" in done.stdout and "(10 bytes)" in done.stdout
    assert not plan.exists()
