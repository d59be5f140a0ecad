"""temper and paths: valid on random problems, optimal on small ones, below the published baselines."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from published import ROOT, needs_workloads
from simulate_problems import random_problem, seeded
from soak import enough, examples, seeds
from strategies import problems

from placewise import _native
from placewise.catalog import read_cluster
from placewise.costing.roofline import cost_table
from placewise.errors import PlacerError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.columns import Ints
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Reason
from placewise.placers.auto.placer import AutoPlacer
from placewise.placers.base import Budget, Hints, run_placer
from placewise.placers.local_search.local import LocalOptions, LocalPlacer, TemperPlacer
from placewise.placers.min_cut.placer import MinCutPlacer
from placewise.placers.shared.move_space import build_move_space
from placewise.placers.shared.rules import find_broken_rule
from placewise.readers.workload import read_workload
from placewise.simulate import evaluate, judge_placement
from placewise.zoo.random import random_graph

EXECUTIONS = ("operator", "subgraph", "sequential")


def best_of_all(problem: Problem) -> float:
    """The least value of any placement without violations, by looking at all; inf if there is none."""
    homes = [
        np.flatnonzero(problem.allowed[problem.block == block].all(axis=0)).tolist()
        for block in range(problem.n_blocks)
    ]
    rows = [np.array(choice, np.int32)[problem.block] for choice in itertools.product(*homes)]
    if not rows:
        return np.inf
    values = evaluate(problem, np.stack(rows))
    for k in np.argsort(values, kind="stable").tolist():
        if judge_placement(problem, Placement(rows[k])).valid:
            return float(values[k])
    return np.inf


@pytest.mark.parametrize("memory", ["live", "sum"])
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_optimal_on_small_problems(execution, memory):
    """On problems of up to five ops the best of all placements is found wherever there is one to start from."""
    optimal = tried = 0
    for seed in seeds(12):
        problem = random_problem(
            seeded(seed), max_ops=5, max_devices=3, rules=seed % 3 == 0, scarce=seed % 2 == 0,
            objective=Objective("latency", execution=execution),
        )  # fmt: skip
        problem = problem.with_(objective=replace(problem.objective, memory=memory))
        best, proposal = best_of_all(problem), run_placer(LocalPlacer(), problem, Budget(iterations=60, seed=seed))
        if proposal.infeasible:
            assert best == np.inf
        elif proposal.placement is not None:
            judgement = judge_placement(problem, proposal.placement)
            assert judgement.valid
            assert judgement.value >= best
            tried, optimal = tried + 1, optimal + (judgement.value <= best * (1 + 1e-9))
    assert tried > enough(6)
    assert optimal >= tried - 1


@examples(12)
@given(problems(kind="latency", max_ops=6))
def test_proposals_keep_the_rules(problem: Problem) -> None:
    """Whatever is proposed is valid and can run, and comes twice the same."""
    placer = LocalPlacer(LocalOptions(searches=8))
    budget = Budget(iterations=10, seed=3)
    proposal = run_placer(placer, problem, budget)
    assert proposal.placement == run_placer(placer, problem, budget).placement
    if proposal.placement is not None:
        assert judge_placement(problem, proposal.placement).valid
        assert np.isfinite(evaluate(problem, proposal.placement.device[None])).all()
    else:
        assert proposal.notes or proposal.infeasible


@examples(20)
@given(problems(max_ops=7))
def test_moves_keep_support_and_resident_bytes(problem: Problem) -> None:
    """Every move from a placement that keeps the rules keeps support, groups and the bytes of every device."""
    problem = problem.with_(
        objective=replace(problem.objective, memory="sum"),
        constraints=replace(problem.constraints, contiguous=False, convex=False),
    )
    start = run_placer(LocalPlacer(), problem.with_(objective=Objective(memory="sum")), Budget(iterations=0)).placement
    if start is None:
        return
    first = np.unique(problem.block, return_index=True)[1]
    homes = np.repeat(start.device[first][None], 16, axis=0)
    proposer = _native.MoveProposer(build_move_space(problem), np.arange(16, dtype=np.uint64))
    for _ in range(4):
        candidates = proposer.propose(homes)
        assert [find_broken_rule(problem, home[problem.block]) for home in candidates] == [""] * 16
        homes = candidates


def test_a_seed_gives_the_same_moves() -> None:
    """On every platform."""
    graph, cluster = random_graph("branchy", 20, 905, size=64), read_cluster("3xP100")
    problem = Problem(graph, cluster, cost_table(graph, cluster), Objective(execution="operator"))
    home = (np.arange(problem.n_blocks) % 3).astype(np.int32)[None]
    proposer = _native.MoveProposer(build_move_space(problem), np.array([7], np.uint64))
    for _ in range(300):
        home = proposer.propose(home)
    assert "".join(map(str, home[0].tolist())) == "11111111110211011112"


def published(name: str) -> Problem:
    """A published latency workload."""
    problem = read_workload(ROOT / "dnn-partitioning" / "latency" / f"{name}.json", objective="latency").problem
    assert problem is not None
    return problem


@needs_workloads
@pytest.mark.parametrize(
    ("name", "baseline"),
    # The least of the greedy and the max-load split that Tarnawski et al. 2020's programs reach, in ms.
    [("LayerGraphs/resnet50_inference", 1443.793), ("OperatorGraphs/bert_l-3_inference", 414.441)],
)
def test_better_than_the_published_baselines(name, baseline):
    """A fixed amount of work is enough to be below both, within memory."""
    problem = published(name)
    proposal = run_placer(LocalPlacer(), problem, Budget(evaluations=6000))
    assert proposal.placement is not None and proposal.reason is Reason.FINISHED
    judgement = judge_placement(problem, proposal.placement)
    assert judgement.valid
    assert judgement.value < baseline * 1e-3


def chained(n: int) -> Problem:
    """A random problem on which there is something to search."""
    problem = random_problem(seeded(n), max_ops=9, max_devices=4, objective=Objective(execution="subgraph"))
    return problem.with_(objective=Objective(execution="subgraph", memory="sum"))


def test_hints_are_where_it_starts():
    """Without any work the answer is the best of the hints that keep the rules."""
    problem = chained(5)
    rows = [np.full(problem.n_ops, d, np.int32) for d in range(problem.n_devices)]
    values = evaluate(problem, np.stack(rows))
    hints = Hints(tuple(Placement(row) for row in rows))
    placement = run_placer(LocalPlacer(), problem, Budget(iterations=0), hints=hints).placement
    assert placement is not None
    assert evaluate(problem, placement.device[None])[0] == values.min()


def test_time_and_interruption_end_the_search():
    """No time and Ctrl-C both leave what was there before; the reason says which it was."""
    problem = chained(7)
    hint = Hints((Placement.on(0, problem.n_ops),))
    assert run_placer(LocalPlacer(), problem, Budget(seconds=0), hints=hint).reason is Reason.TIME_LIMIT
    calls = []

    def impatient(rows: Ints) -> np.ndarray:
        calls.append(len(rows))
        if len(calls) > 3:
            raise KeyboardInterrupt
        return evaluate(problem, rows)

    proposal = run_placer(LocalPlacer(), problem, Budget(), hints=hint, evaluate=impatient)
    assert proposal.reason is Reason.INTERRUPTED
    assert proposal.placement is not None


def test_a_measurement_may_stand_in_for_the_judge():
    """Where `evaluate` likes one device only, everything ends there."""
    problem = chained(3)
    proposal = run_placer(
        LocalPlacer(),
        problem,
        Budget(iterations=80),
        evaluate=lambda rows: 1e9 + (rows != problem.n_devices - 1).sum(axis=1),
    )
    assert proposal.placement is not None
    if problem.allowed.all():
        assert len(set(proposal.placement.device.tolist())) == 1


def test_what_it_cannot_do_is_said():
    """Throughput is refused, as is a search by nobody."""
    assert "throughput" in str(TemperPlacer().supports(chained(1).with_(objective=Objective("throughput"))))
    with pytest.raises(PlacerError, match="1 or more"):
        LocalOptions(searches=0)


def test_contiguous_stages_stay_contiguous():
    """Where a chain of stages is asked for, the search keeps it, and auto does as well as what it tries."""
    for seed in seeds(12):
        problem = chained(seed).with_(constraints=Constraints(contiguous=True))
        for placer in (LocalPlacer(), AutoPlacer()):
            placement = run_placer(placer, problem, Budget(iterations=20)).placement
            assert placement is not None
            assert judge_placement(problem, placement).valid


@needs_workloads
def test_bert24_is_solved_and_the_search_stops():
    """The bound proves the published greedy's 100.2185 ms optimal, so that the time limit is not used up."""
    problem = published("LayerGraphs/bert24_inference")
    proposal = run_placer(LocalPlacer(), problem, Budget(seconds=60))
    assert proposal.placement is not None and proposal.bound is not None
    assert proposal.reason is Reason.FINISHED
    value = float(evaluate(problem, proposal.placement.device[None])[0])
    assert value == pytest.approx(0.1002185, rel=1e-9)
    assert proposal.bound.value <= value <= proposal.bound.value * (1 + 1e-6)


@examples(20)
@given(problems(kind="latency", max_ops=6))
def test_paths_keeps_the_rules(problem: Problem) -> None:
    """What the cutting leads to is valid but for its calls, comes twice the same, and its bound is below it."""
    problem = problem.with_(objective=replace(problem.objective, execution="subgraph"))
    proposal = run_placer(MinCutPlacer(), problem, Budget())
    assert proposal.placement == run_placer(MinCutPlacer(), problem, Budget()).placement
    if proposal.placement is None:
        assert proposal.notes or proposal.infeasible
        return
    judgement = judge_placement(problem, proposal.placement)
    assert {violation.kind for violation in judgement.violations} <= {"calls"}
    if problem.n_ops and judgement.valid:
        assert proposal.bound is not None
        assert proposal.bound.value <= judgement.value


def test_paths_solves_chains():
    """On chains of six ops it finds the optimum, and proves it, nearly always."""
    solved = 0
    for seed in seeds(12):
        rng = np.random.default_rng(seed)
        problem = chain(rng.integers(1, 9, 6).tolist(), rng.integers(1, 9, 6).tolist(), int(rng.integers(3, 6)))
        best, proposal = best_of_all(problem), run_placer(MinCutPlacer(), problem, Budget())
        assert proposal.placement is not None and proposal.bound is not None
        value = float(evaluate(problem, proposal.placement.device[None])[0])
        assert proposal.bound.value <= best <= value
        solved += value == pytest.approx(best) and proposal.bound.value == pytest.approx(best)
    assert solved > enough(10)


def chain(seconds: list[int], links: list[int], memory: int) -> Problem:
    """Ops of one byte in a row on three accelerators and a CPU four times as slow; tensors take `links` / 4."""
    builder = GraphBuilder()
    for op in range(len(seconds)):
        builder.add_op(f"op{op}", "Op", state_bytes=1)
        if op:
            builder.add_edge(op - 1, op)
        builder.add_tensor(op, nbytes=1)
    devices = (*(Device(d, memory=memory) for d in "abc"), Device("cpu", kind="cpu"))
    cluster = Cluster(devices, tuple(Link(*ends, 1.0) for d in "abc" for ends in ((d, HOST), (HOST, d))))
    transfer = np.zeros((len(seconds), len(cluster.class_bandwidth)))
    transfer[:, 1:] = np.array(links)[:, None] / 4
    table = np.array([[time] * 3 + [4 * time] for time in seconds], np.float64)
    objective = Objective("latency", execution="subgraph", memory="sum")
    return Problem(builder.build(), cluster, CostTable.given(table, transfer), objective)


@pytest.mark.skipif(not ROOT.is_dir(), reason="PLACEWISE_WORKLOADS does not name the published workloads")
@pytest.mark.parametrize(
    "name", ["LayerGraphs/resnet50_inference", "OperatorGraphs/resnet50_inference", "OperatorGraphs/bert_l-3_inference"]
)
def test_workloads_that_are_solved(name):
    """ResNet-50 by layers and by operators, and the operators of three layers of BERT: placed and proved."""
    problem = published(name)
    proposal = run_placer(MinCutPlacer(), problem, Budget(seconds=60))
    assert proposal.placement is not None and proposal.bound is not None
    judgement = judge_placement(problem, proposal.placement)
    assert judgement.valid
    assert proposal.bound.value <= judgement.value <= proposal.bound.value * (1 + 1e-6)


def test_paths_without_work_or_calls():
    """Too little time gives a weaker answer with its reason; other executions are refused."""
    problem = chain([1, 2, 3], [1, 1, 1], 2)
    assert run_placer(MinCutPlacer(), problem, Budget(seconds=0)).reason is Reason.TIME_LIMIT
    assert "subgraph" in str(MinCutPlacer().supports(problem.with_(objective=Objective(execution="operator"))))


def test_an_interrupted_bound_leaves_the_quick_answers(monkeypatch):
    """Ctrl-C while the path is split: paths has nothing, temper what it started from."""

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("placewise.placers.min_cut.paths.best_split", interrupted)
    problem = chain([1, 2, 3], [1, 1, 1], 2)
    assert run_placer(MinCutPlacer(), problem, Budget()).reason is Reason.INTERRUPTED
    proposal = run_placer(LocalPlacer(), problem, Budget())
    assert proposal.reason is Reason.INTERRUPTED
    assert proposal.placement is not None and judge_placement(problem, proposal.placement).valid
