"""parallel_dp against every pipeline: optimal where devices are equal, never above the optimum elsewhere."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_fuzz import random_split
from piper_files import problem_of, random_instance
from soak import enough, seeds
from split_problems import split_problem
from tiny_problems import Draw
from twins import piper
from twins.stages import PlainStages, best_of_all, best_pipeline

from placewise.core.place import place
from placewise.errors import CostError
from placewise.model.problem import Problem
from placewise.model.result import Outcome, Reason, Result
from placewise.placers.base import Budget
from placewise.placers.parallel_dp import placer
from placewise.placers.parallel_dp.merge_leaves import merge_leaves
from placewise.placers.shared.device_classes import list_able
from placewise.simulate import lower_bound

EVEN: tuple[dict[str, Any], ...] = (
    {},
    {"kind": "latency"},
    {"classes": 2},
    {"classes": 2, "kind": "latency"},
    {"classes": 3, "most_ways": 3},
    {"units": 6, "devices": 8, "most_ways": 1},
    {"devices": 1, "units": 5, "most_ways": 4},
)
NODES: dict[str, Any] = {"transfers": "direct", "devices": 4, "units": 4, "node_size": 2}
UNEVEN: tuple[dict[str, Any], ...] = (
    {"classes": 2, "rules": True},
    {"classes": 2, "even": False, "rules": True, "hosts": True},
    {"transfers": "direct", "devices": 4},
    {"transfers": "direct", "devices": 4, "units": 4, "classes": 2, "even": False},
    {"transfers": "direct", "devices": 4, "units": 4, "classes": 2, "even": False, "hosts": True},
    {"transfers": "direct", "devices": 3, "units": 4, "classes": 2, "even": False, "hosts": True, "kind": "latency"},
    NODES,
    {**NODES, "classes": 2, "units": 3},
)


def value_of(result: Result) -> float:
    """Seconds, inf without a placement."""
    return math.inf if result.placement is None else result.value


@pytest.mark.parametrize("shape", EVEN, ids=str)
def test_the_optimum_is_found_and_proved(shape: dict[str, Any]) -> None:
    """Staged transfers and equal links per class: the value and the bound are the optimum, or nothing fits."""
    fits = 0
    for seed in seeds(50):
        problem = split_problem(seed, **shape)
        best, result = best_pipeline(problem), place(problem, "parallel_dp")
        assert lower_bound(problem).value <= best
        if math.isinf(best):
            assert result.status.outcome is Outcome.INFEASIBLE and result.placement is None, seed
            continue
        fits += 1
        assert result.status.outcome is Outcome.OPTIMAL, seed
        assert result.value == pytest.approx(best, rel=1e-9), seed
        assert result.lower_bound <= best <= result.lower_bound * (1 + 1e-8) + 1e-300, seed
    assert fits > enough(8)


def test_a_search_that_begins_with_one_order_is_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """As graphs with thousands of ideals have it: the optimum, and the proof."""
    monkeypatch.setattr(placer, "QUICK_IDEALS", 0)
    found = 0
    for seed in seeds(40):
        problem = split_problem(seed, **EVEN[0])
        best, result = best_pipeline(problem), place(problem, "parallel_dp")
        assert (result.status.outcome is Outcome.INFEASIBLE) == math.isinf(best), seed
        if math.isfinite(best):
            found += 1
            assert result.status.outcome is Outcome.OPTIMAL and result.value == pytest.approx(best, rel=1e-9), seed
    assert found > enough(16)


@pytest.mark.parametrize("shape", UNEVEN, ids=str)
def test_bounds_hold_whatever_differs(shape: dict[str, Any]) -> None:
    """Unequal links, nodes, hosts, forbidden devices: bound ≤ optimum ≤ value, and proofs are right."""
    found = 0
    for seed in seeds(40):
        problem = split_problem(seed, **shape)
        best, result = best_pipeline(problem), place(problem, "parallel_dp")
        assert max(result.lower_bound, lower_bound(problem).value) <= best * (1 + 1e-12), seed
        assert value_of(result) >= best * (1 - 1e-12), seed
        if result.status.outcome is Outcome.INFEASIBLE:
            assert math.isinf(best), seed
        found += result.placement is not None
    assert found > enough(10)


@pytest.mark.parametrize("shape", [NODES, {**NODES, "devices": 6, "units": 3}, {**NODES, "classes": 2}], ids=str)
def test_stages_that_fill_a_node_raise_the_bound(shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases by how many devices are in such stages: some bounds rise, none above the optimum."""
    raised = 0
    for seed in seeds(80):
        problem = split_problem(seed, **shape)
        with monkeypatch.context() as patch:
            patch.setattr(placer, "split_by_node", lambda *_: [])
            without = place(problem, "parallel_dp")
        result = place(problem, "parallel_dp")
        assert result.lower_bound >= without.lower_bound
        if result.lower_bound > without.lower_bound * (1 + 1e-6):
            assert result.lower_bound <= best_pipeline(problem) * (1 + 1e-12), seed
            raised += 1
    assert raised


@pytest.mark.parametrize("exact", [True, False])
def test_instances_of_piper(tmp_path: Path, exact: bool) -> None:
    """From the file to the proof, against all plans of the definition."""
    fits = 0
    for seed in seeds(24):
        instance = random_instance(Draw(seed), units=3, devices=1 + seed % 4, exact=exact)
        best, result = piper.best_value(instance), place(problem_of(instance, tmp_path))
        assert value_of(result) == pytest.approx(best, rel=1e-9)
        assert result.status.outcome is (Outcome.INFEASIBLE if math.isinf(best) else Outcome.OPTIMAL)
        fits += math.isfinite(best)
    assert fits > enough(8)


def test_the_twins_agree(tmp_path: Path) -> None:
    """Stage by stage, pipeline by pipeline and by Piper's definition: three enumerations, one optimum."""
    for seed in seeds(16):
        instance = random_instance(Draw(seed), units=3, devices=1 + seed % 3)
        problem = problem_of(instance, tmp_path)
        best = best_pipeline(problem)
        assert best == pytest.approx(best_of_all(PlainStages(problem)), rel=1e-12)
        assert best == pytest.approx(piper.best_value(instance), rel=1e-12)


@pytest.mark.parametrize("kind", ["throughput", "latency"])
def test_one_order_where_ideals_are_too_many(kind: str) -> None:
    """With one ideal allowed: what is found keeps the rules, and the bound holds; it proves only what is so."""
    for seed in seeds(30):
        problem = split_problem(seed, kind=kind)
        best, result = best_pipeline(problem), place(problem, "parallel_dp", options={"max_ideals": 1})
        assert result.lower_bound <= best * (1 + 1e-12)
        assert value_of(result) >= best * (1 - 1e-12)
        if result.status.outcome is Outcome.INFEASIBLE:
            assert math.isinf(best) and "runs on" in result.unmet
        else:
            assert any("more than 1 ideals" in note for note in result.notes)


def more(problem: Problem, change: str) -> Problem:
    """The problem with more of something that cannot hurt."""
    ways = problem.require_ways()
    if change == "memory":
        devices = tuple(replace(device, memory=device.memory * 1.5) for device in problem.cluster.devices)
        return problem.with_(cluster=replace(problem.cluster, devices=devices))
    if change == "replicas":
        return problem.with_(constraints=replace(problem.constraints, replicas=problem.constraints.replicas + 1))
    if change == "ways":
        twice = np.repeat(np.arange(ways.n_ways), 2)
        faster = np.where(np.arange(2 * ways.n_ways) % 2, 0.5, 1.0)[:, None] * ways.seconds[twice]
        rows = ("way_unit", "degree", "recompute", "gradient_bytes", "bytes_in_flight", "held_bytes", "sync_bytes")
        names = tuple(ways.name[way] for way in twice.tolist())
        columns = {name: getattr(ways, name)[twice] for name in rows}
        return problem.with_(
            ways=replace(ways, seconds=faster, name=names, collective_seconds=np.zeros((0, 0)), **columns)
        )
    return problem


@pytest.mark.parametrize("change", ["memory", "replicas", "ways"])
def test_more_never_hurts(change: str) -> None:
    """More memory, replicas or ways: the optimum is no worse, and sometimes better."""
    better = 0
    for seed in seeds(50):
        problem = split_problem(seed, devices=6, classes=1 + seed % 2)
        problem = problem.with_(constraints=replace(problem.constraints, replicas=1))
        before, after = (value_of(place(one, "parallel_dp")) for one in (problem, more(problem, change)))
        assert after <= before * (1 + 1e-9), seed
        better += after < before * (1 - 1e-9)
    assert better > 2


def test_more_devices_never_hurt(tmp_path: Path) -> None:
    """One device more, up to eight: the optimum is no worse."""
    for seed in seeds(12):
        instance = random_instance(Draw(seed), units=4)
        values = [value_of(place(problem_of({**instance, "maxDevices": k}, tmp_path))) for k in range(1, 9)]
        assert all(b <= a * (1 + 1e-9) for a, b in pairwise(values))


def test_nothing_but_a_proof_is_called_optimal() -> None:
    """Without time there is no proof; the bound that there is holds."""
    problem = split_problem(4, units=5, devices=8)
    result = place(problem, "parallel_dp", Budget(0.0))
    assert result.status.outcome in (Outcome.UNKNOWN, Outcome.FEASIBLE)
    assert result.status.reason is Reason.TIME_LIMIT and result.lower_bound <= best_pipeline(problem)


def test_nothing_is_proved_of_what_takes_no_time() -> None:
    """Bytes between devices without a link of their own, over infinite bandwidths: value and bound are 0."""
    problem = random_split(4535, 1129 * 1_000_003 + 4535)
    result = place(problem, "parallel_dp")
    assert result.judgement is not None and result.judgement.value == result.lower_bound == 0
    assert result.status.outcome is Outcome.OPTIMAL


@pytest.mark.parametrize(("number", "seed"), [(191, 2038), (125, 2040)])
def test_a_free_leaf_that_may_not_follow_stays(number: int, seed: int) -> None:
    """Its neighbour may run on a device that is forbidden for it: the best pipeline parts them there."""
    problem = random_split(number, seed * 1_000_003 + number)
    best = place(problem, "parallel_dp")
    assert best.value <= min(judged.value for _, judged in best.baselines.values() if judged.valid)


def test_merged_units_run_wherever_their_head_may() -> None:
    """Rules about devices never forbid a merged unit what they allow the unit that costs something."""
    merged_any = 0
    for seed in seeds(200):
        problem = split_problem(seed, devices=4, classes=2, rules=True)
        able, merged = list_able(problem), merge_leaves(problem.require_ways(), list_able(problem))
        kept = merged.whole.way_unit[merged.kept]
        head = {int(merged.label[unit]): int(unit) for unit in kept}
        for device in range(problem.n_devices):
            joined = merged.merge_able(able[:, device])
            assert all(joined[unit] == able[head[unit], device] for unit in head)
        merged_any += merged.ways.n_units < merged.whole.n_units
    assert merged_any > enough(20)


def test_free_leaves_follow_their_neighbour() -> None:
    """Units that cost nothing at the rim are merged, all others stay, and every old unit gets back stage and way."""
    merged_any = 0
    for seed in seeds(80):
        problem = split_problem(seed)
        ways = problem.require_ways()
        merged = merge_leaves(ways, list_able(problem))
        n = merged.ways.n_units
        assert sorted(set(merged.label.tolist())) == list(range(n))
        costly = {int(u) for u in ways.way_unit[(ways.seconds.max(axis=1) > 0) | (ways.bytes_fixed > 0)]}
        assert len({int(merged.label[u]) for u in costly}) == len(costly)
        stage = np.arange(n, dtype=np.int32)
        way = np.array([merged.ways.ways_of(unit)[0] for unit in range(n)], np.int32)
        stages, chosen = merged.restore(stage, way)
        assert ways.way_unit[chosen].tolist() == list(range(ways.n_units))
        assert ways.degree[chosen].tolist() == merged.ways.degree[way][merged.label].tolist()
        readers = np.repeat(ways.tensor_unit, np.diff(ways.reader_offsets))
        assert (stages[readers] <= stages[ways.reader]).all()
        merged_any += n < ways.n_units
    assert merged_any > enough(10)


@pytest.mark.parametrize("seconds", [0.0, 1e-320, 1e299])
@pytest.mark.parametrize("bandwidth", [1e-300, 1.0, 1e300])
def test_extreme_figures_end(tmp_path: Path, seconds: float, bandwidth: float) -> None:
    """Times and links of next to nothing, and of more than there is: an answer without a warning, or one sentence."""
    for seed in seeds(8):
        instance = random_instance(Draw(seed), units=3, devices=3) | {"bandwidth": bandwidth}
        for node in instance["nodes"]:
            for way in (way for ways in node["TMPCs"].values() for way in ways):
                way["timePerSample"] = seconds
        if bandwidth < 1 and any(edge["communicationCost"] > 1 for edge in instance["edges"]):
            with pytest.raises(
                CostError, match=r"the transfer time of tensor '.*' is .*; give seconds from 0 to 1e\+300"
            ):
                problem_of(instance, tmp_path)
            continue
        result = place(problem_of(instance, tmp_path))
        best = piper.best_value(instance)
        assert result.lower_bound <= best and value_of(result) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("kind", ["throughput", "latency"])
def test_a_search_without_time_ends_as_others_do(kind: str) -> None:
    """The ideals, or not even one order of the units, are listed in time: an answer or none, and no proof."""
    problem = split_problem(3, kind=kind, even=False)
    for seconds in (1e-6, 1e-4, 1e-3, 1e-2):
        for name in ("parallel_dp", "auto"):
            result = place(problem, name, Budget(seconds=seconds))
            assert result.status.outcome is not Outcome.INFEASIBLE and result.bound.value <= result.value


def test_an_interrupted_kernel_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its flag is set before it begins."""
    monkeypatch.setattr(placer, "LINE_SECONDS", 0.0)
    problem = split_problem(3, kind="throughput", even=False)
    result = place(problem, "parallel_dp", Budget(seconds=1e-6))
    assert result.placement is None and "the time was too short for a search" in result.notes
