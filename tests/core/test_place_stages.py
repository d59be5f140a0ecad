"""place, compare, judge and check where ops may be split: who is asked, what is said, and contradictions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run
from fuzzing.texts import PIPER
from simulate_problems import random_problem, seeded
from split_problems import split_problem

import placewise as pw
from placewise.core.place import place
from placewise.errors import InternalError, PlacerError
from placewise.model.problem import Problem
from placewise.model.result import Bound, Outcome, Proposal, Reason
from placewise.placers import registry
from placewise.placers.base import Hints, PlacerInfo, SearchContext
from placewise.placers.parallel_dp import placer as parallel_dp
from placewise.placers.parallel_dp.placer import ParallelDpPlacer
from placewise.reporting.console import judgement_view, result_view
from placewise.reporting.plain import plain
from placewise.simulate import memory_peaks

SPLITTERS = {"parallel_dp", "uniform"}


@pytest.fixture
def instance(tmp_path: Path) -> Path:
    """Four layers that may be split over two of four devices and recompute."""
    path = tmp_path / "piper.json"
    path.write_text(json.dumps(PIPER))
    return path


def test_compare_lists_refusals(instance: Path) -> None:
    """Every placer is there: those that split with a result, all others with one remark in common."""
    board = pw.compare(instance, placers="all")
    ran = {entry.placer for entry in board.entries if entry.result is not None}
    assert ran == {*SPLITTERS, "auto"} and {entry.placer for entry in board.entries} == set(registry.known_names())
    refusals = {entry.refusal for entry in board.entries if entry.result is None}
    assert refusals == {"it places whole ops, and ops of this problem may be split"}
    said = run("compare", instance, "--placers", "all")
    assert said.returncode == 0
    (line,) = (line for line in said.stdout.splitlines() if "places whole ops" in line)
    assert "balanced, " in line and "windows: it places whole ops" in line
    best = {entry.placer: entry.value for entry in board.entries if entry.result is not None}
    assert best["auto"] == best["parallel_dp"] <= best["uniform"]


def test_placers_of_split_ops_refuse_whole_ones() -> None:
    """Without ways they say how to get some; `compare` lists them as not run."""
    problem = random_problem(seeded(1))
    for name in SPLITTERS:
        assert "allow it with --tensor-parallel" in str(registry.create(name).supports(problem))
        with pytest.raises(PlacerError, match="cannot take this problem: its ops may not be split"):
            place(problem, name)


@pytest.mark.parametrize("name", sorted(set(registry.known_names()) - SPLITTERS - {"auto"}))
def test_placers_of_whole_ops_are_refused(name: str) -> None:
    """In one sentence, with what to do."""
    try:
        registry.placer_class(name)
    except pw.errors.MissingExtraError:
        pytest.skip("needs an extra")
    with pytest.raises(PlacerError) as caught:
        place(split_problem(0), name)
    assert str(caught.value) == (
        f"the placer {name!r} cannot take this problem: it places whole ops, and ops of this problem may be split; "
        "try --placer auto, or leave out --tensor-parallel"
    )


def ordered(problem: Problem) -> Problem:
    """Stages in the order of the devices."""
    return problem.with_(constraints=replace(problem.constraints, replicas=1, ordered=True))


def joined(problem: Problem) -> Problem:
    """The first and the last op in one stage."""
    names = problem.graph.ops.name
    return problem.with_(constraints=replace(problem.constraints, together=((names[0], names[-1]),)))


@pytest.mark.parametrize(("change", "why"), [(ordered, "order of the devices"), (joined, "units that share a stage")])
def test_auto_falls_back_to_uniform_plans(change: Any, why: str) -> None:
    """What parallel_dp does not search is answered by the best uniform plan that keeps the rules, without a proof."""
    placed = 0
    for seed in range(20):
        problem = change(split_problem(seed, devices=6))
        with pytest.raises(PlacerError, match=f"cannot take this problem: it does not search for .*{why}"):
            place(problem, "parallel_dp")
        result = place(problem)
        assert "parallel_dp was not asked: it does not search for" in result.notes[0] and result.placer == "auto"
        assert result.lower_bound == 0 and result.status.outcome is not Outcome.INFEASIBLE
        assert result.status.outcome is not Outcome.OPTIMAL or result.value == 0
        placed += result.placement is not None
        if result.placement is not None:
            assert result.judgement is not None and result.judgement.valid
            assert result.value == min(baseline.value for baseline in result.compared.values())
    assert placed > 3


def test_too_many_classes_or_units_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the numbers; auto goes on."""
    problem = split_problem(2, devices=8, classes=3)
    monkeypatch.setattr(parallel_dp, "MAX_CLASSES", 1)
    refusal = str(registry.create("parallel_dp").supports(problem))
    assert "kinds, and it tells 1 apart" in refusal and refusal in place(problem).notes[0]
    monkeypatch.setattr(parallel_dp, "MAX_UNITS", 1)
    assert "units, and it takes 1" in str(registry.create("parallel_dp").supports(problem))


class Liar:
    """Proves what is not so."""

    info = PlacerInfo("liar", "lies", "nobody", splits=True)

    def __init__(self, proposal: Proposal) -> None:
        self._proposal = proposal

    def supports(self, problem: Problem) -> str | None:
        """Everything."""
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The lie."""
        return self._proposal


def test_contradictions_are_internal_errors() -> None:
    """A bound above a baseline, and a proof that nothing fits beside a plan that does."""
    problem = next(one for one in map(split_problem, range(50)) if place(one).baselines)
    placement = place(problem).placement
    with pytest.raises(InternalError, match="magic proves"):
        place(problem, Liar(Proposal(placement, Bound(1e9, "magic"))))
    with pytest.raises(InternalError, match="liar proves that nothing fits"):
        place(problem, Liar(Proposal(None, reason=Reason.PROVED, infeasible="no")))


def test_starts_are_kept_where_they_are_best() -> None:
    """parallel_dp from its own optimum, and from a plan that breaks a rule, which it ignores."""
    for seed in range(20):
        problem = split_problem(seed, devices=6)
        best = place(problem)
        if best.placement is None or len(best.placement.stages) < 2:
            continue
        again = place(problem, "parallel_dp", hints=Hints((best.placement,)))
        assert again.value == best.value and again.status.outcome is Outcome.OPTIMAL
        late = problem.with_(constraints=replace(problem.constraints, replicas=1))
        told = place(late, "parallel_dp", hints=Hints((best.placement,)))
        assert told.judgement is None or told.judgement.valid


def test_headlines_name_micro_batches(instance: Path, tmp_path: Path) -> None:
    """Training counts micro-batches, inference samples; latency is latency. Peaks of single ops are not printed."""
    result = place(pw.build(instance))
    assert plain(result_view(result)).startswith("time per micro-batch ")
    assert result.placement is not None and result.judgement is not None
    assert memory_peaks(result.problem, result.placement) == ()
    assert plain(judgement_view(result.problem, result.judgement)).startswith("time per micro-batch ")
    names = set()
    for seed in range(20):
        for kind in ("throughput", "latency"):
            problem = split_problem(seed, kind=kind, devices=6)
            text = plain(result_view(place(problem)))
            if not text.startswith("infeasible"):
                names.add((problem.require_ways().trains, kind, text.split(" ")[2 if kind == "throughput" else 0]))
    assert names == {
        (True, "throughput", "micro-batch"),
        (False, "throughput", "sample"),
        (False, "latency", "latency"),
    }
    path = tmp_path / "plan.json"
    assert run("place", instance, "-o", path).returncode == 0
    for command in ("judge", "check"):
        said = run(command, instance, path)
        assert said.returncode == 0 and "holds most" not in said.stdout and "keeps every rule" in said.stdout
        assert "devices" in said.stdout.splitlines()[command == "judge"]
    document = json.loads(run("judge", instance, path, "--json").stdout)
    assert document["peaks"] == [] and document["value"] == result.value
    assert [stage["seconds"] for stage in document["stages"]] == [use.seconds for use in result.judgement.stages]


def test_more_replicas_take_devices_of_any_node() -> None:
    """Splits stay in a node, replicas may be anywhere: three nodes of two devices run three replicas over two each."""
    problem = split_problem(0, units=2, devices=6, exact=True)
    ways = problem.require_ways()
    nodes = problem.with_(ways=replace(ways, node=np.array([0, 1, 2, 0, 1, 2])))
    for view in (ParallelDpPlacer(), "uniform"):
        result = place(nodes, view)
        for group in result.placement.stages if result.placement is not None else ():
            t = group.tensor_parallel
            for r in range(group.data_parallel):
                assert len({d % 3 for d in group.devices[r * t : (r + 1) * t]}) == 1
