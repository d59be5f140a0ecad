"""Stages in the order of the devices: the rule, who keeps it, and the placer that knows it."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run, workload
from hypothesis import given
from hypothesis import strategies as st
from simulate_problems import random_problem, seeded
from soak import examples, seeds

import placewise as pw
from placewise.core.build import build_for_plan
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.errors import InputError
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.placers.base import Budget
from placewise.simulate import judge_placement, why_infeasible

ORDERED = Constraints(contiguous=True, ordered=True)


def goes_back(problem: Problem, device: tuple[int, ...]) -> bool:
    """Whether an op reads, in its own phase, what a later device makes; groups are one op."""
    graph, home = problem.graph, dict[int, int]()
    for op, d in enumerate(device):
        home.setdefault(int(problem.block[op]), d)
    for tensor, reader in zip(graph.edges.value.tolist(), graph.edges.consumer.tolist(), strict=True):
        maker = int(graph.tensors.producer[tensor])
        if maker >= 0 and graph.ops.phase[maker] == graph.ops.phase[reader] and device[maker] > device[reader]:
            return True
    return False


@pytest.mark.parametrize("kind", ["throughput", "latency"])
def test_the_rule_and_the_best_of_all_placements(kind: Any) -> None:
    """Kept exactly where no tensor goes back; `in_order` finds what there is, the optimum mostly; `auto` no worse."""
    best_found = solved = 0
    for seed in seeds(8):
        problem = random_problem(
            seeded(seed), max_ops=4, max_devices=3, training=False, objective=Objective(kind), constraints=ORDERED
        )
        free = problem.with_(constraints=replace(problem.constraints, ordered=False))
        best = math.inf
        for device in itertools.product(range(problem.n_devices), repeat=problem.n_ops):
            placement = Placement(np.array(device, np.int32))
            said, loosely = judge_placement(problem, placement), judge_placement(free, placement)
            assert said.valid == (loosely.valid and not goes_back(problem, device)), (seed, device)
            best = min(best, said.value if said.valid else math.inf)
        found = place(problem, "in_order", Budget(iterations=50))
        assert (found.placement is not None) == (best < math.inf)
        if found.placement is not None:
            assert found.judgement is not None and found.judgement.valid and found.value >= best - 1e-9
            if seed == 6:
                assert place(problem, "auto", Budget(60.0)).value <= found.value + 1e-9
            best_found, solved = best_found + 1, solved + (found.value <= best + 1e-9)
    assert best_found >= len(seeds(8)) / 2 and solved >= 0.75 * best_found


def chain(n_ops: int, speeds: tuple[float, ...], memory: float) -> Problem:
    """Equal ops in a row, each of 10 bytes, on devices that need so many seconds for one."""
    builder = pw.GraphBuilder()
    for number in range(n_ops):
        builder.add_op(f"op{number}", "Op", state_bytes=10)
        if number:
            builder.add_edge(builder.add_tensor(number - 1, nbytes=1), number)
    names = [f"d{number}" for number in range(len(speeds))]
    links = [pw.Link(*ends, 1.0) for d in names for ends in ((d, "host"), ("host", d))]
    cluster = pw.Cluster(tuple(pw.Device(name, memory=memory) for name in names), tuple(links))
    costs = pw.CostTable.given(np.tile(speeds, (n_ops, 1)), np.zeros((n_ops - 1, 2)))
    return pw.Problem(builder.build(), cluster, costs, Objective("throughput", memory="sum"), ORDERED)


def test_chains_worked_by_hand() -> None:
    """Twelve ops on devices that need 1, 2 and 3 s for one; room for five moves an end; for three, nothing fits."""
    whole = place(chain(12, (1.0, 2.0, 3.0), math.inf), "in_order")
    assert whole.placement is not None and whole.value == 7.0
    assert np.bincount(whole.placement.device).tolist() == [7, 3, 2]
    tight = place(chain(12, (1.0, 2.0, 3.0), 50.0), "in_order")
    assert tight.placement is not None and np.bincount(tight.placement.device).tolist() == [5, 4, 3]
    assert tight.value == 9.0
    none = place(chain(12, (1.0, 2.0, 3.0), 30.0), "in_order")
    assert none.placement is None and "must fit" in none.unmet


@pytest.mark.parametrize("placer", ["exhaustive", "dp", "in_order"])
def test_equal_devices_keep_their_places(placer: str) -> None:
    """The first op is best with the last one: equal devices are not named by their first ops where that turns back."""
    builder = pw.GraphBuilder()
    for number in range(3):
        builder.add_op(f"op{number}", "Op")
    for maker in range(2):
        builder.add_edge(builder.add_tensor(maker, nbytes=1), 2)
    links = [pw.Link(*ends, 1.0) for d in ("d0", "d1") for ends in ((d, "host"), ("host", d))]
    cluster = pw.Cluster((pw.Device("d0"), pw.Device("d1")), tuple(links))
    costs = pw.CostTable.given(np.array([[1.0, 1.0], [3.0, 3.0], [1.0, 1.0]]), np.array([[0.0, 9.0], [0.0, 0.0]]))
    problem = pw.Problem(builder.build(), cluster, costs, Objective("throughput", memory="sum"), ORDERED)
    found = place(problem, placer)
    assert found.placement is not None and found.value == 3.0
    assert found.placement.device.tolist() == [1, 0, 1]


def test_rules_against_the_order_are_proved_at_once() -> None:
    """An op pinned behind one that reads of it takes no search, and both are named; pins along the order are kept."""
    problem = chain(5, (1.0, 1.0, 1.0), math.inf)
    against = replace(ORDERED, pins=(Rule("op1", "d2"), Rule("op3", "d1")))
    assert place(problem.with_(constraints=against), "single").unmet == (
        "op 'op3' comes after op 'op1', which may run on d2 at the earliest, and may itself run on d1 at the latest: "
        "no stages keep the order of the devices"
    )
    along = replace(ORDERED, pins=(Rule("op1", "d1"), Rule("op3", "d2")))
    assert place(problem.with_(constraints=along), "in_order").placement is not None


@given(st.integers(0, 10**6))
@examples(30)
def test_the_proof_is_right_and_misses_nothing(seed: int) -> None:
    """Random rules, memory without a limit: told to be against the order exactly where no placement keeps it."""
    rng = np.random.default_rng(seed)
    rules = tuple(Rule(f"op{rng.integers(4)}$", f"d{rng.integers(3)}") for _ in range(rng.integers(1, 8)))
    problem = chain(4, (1.0, 1.0, 1.0), math.inf).with_(constraints=replace(ORDERED, forbidden=rules))
    kept = (
        judge_placement(problem, Placement(np.array(d, np.int32))).valid for d in itertools.product(range(3), repeat=4)
    )
    assert bool(why_infeasible(problem)) != any(kept)


def test_the_order_from_the_command_line(tmp_path: Path) -> None:
    """`--in-order` is kept by the plan and its checks; a placement the other way round breaks it, in words."""
    path, plan = workload(tmp_path / "w.json"), tmp_path / "plan.json"
    run("place", path, "--in-order", "--placer", "in_order", "-o", plan)
    problem, placement = build_for_plan(path, plan)
    assert problem.constraints.ordered and judge_placement(problem, placement).valid
    document = json.loads(plan.read_text())
    document["assignment"] = {"0": "acc1", "1": "acc0", "2": "acc0"}
    document["devices"] = []
    plan.write_text(json.dumps(document))
    assert "the stage of acc0 follows that of acc1, and acc0 comes first" in run("check", path, plan, code=3).stdout
    assert "keeps every rule" in run("check", path, plan, "--contiguous").stdout
    for other in ("--free", "--convex"):
        assert "the order of devices needs a chain of stages" in run("place", path, "--in-order", other, code=2).stderr
    with pytest.raises(InputError, match="the order of devices needs one device per stage"):
        pw.build(path, options=ProblemOptions(in_order=True, replicas=2))
    assert pw.build(path, options=ProblemOptions(in_order=True, objective="latency")).constraints.contiguous
