"""Minimum cuts to the host: by hand, against every assignment, and as a bound for `sequential` execution."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from bounded_problems import best_valid, tangled_problem
from simulate_problems import random_problem, seeded
from soak import enough, seeds

from placewise.model.columns import Bools
from placewise.model.problem import Objective, Problem
from placewise.simulate.blocks import block_seconds, device_classes
from placewise.simulate.bounds import host_cut
from placewise.simulate.bounds.bounds import possible_seconds
from placewise.simulate.bounds.host_cut import Sides, cut_bound, list_traffic
from placewise.simulate.bounds.paths import hop_bound
from placewise.simulate.problem_arrays import arrays_of


def cut_of(problem: Problem) -> float:
    """The bound of a problem, or 0 where some block fits nowhere."""
    classes = device_classes(problem)
    times = possible_seconds(problem, classes)
    return cut_bound(problem, classes, times).value if np.isfinite(times).any(axis=1).all() else 0.0


def test_no_placement_in_turn_is_below_the_bound():
    """Tangled problems with a host: largest of all bounds, and above the best times, in a fifth of them; 95 % of the
    best values on average.
    """
    bounded, largest, tight, shares = 0, 0, 0, []
    for seed in seeds(240):
        problem = tangled_problem(seeded(seed), "sequential", wide=seed % 4 == 0)
        best = best_valid(problem)
        if best == np.inf:
            continue
        bound = cut_of(problem)
        assert bound <= best
        usable = np.where(problem.allowed, problem.costs.op_seconds, np.inf)
        others = max(float(usable.min(axis=1).sum()), hop_bound(problem).value)
        bounded, largest = bounded + 1, largest + (bound > others * (1 + 1e-6))
        tight += bound >= best * (1 - 1e-6)
        shares += [bound / best] if seed < 60 else []
    assert np.mean(shares) >= 0.953
    assert bounded > enough(160)
    assert largest >= bounded / 5
    assert tight > bounded / 10


def test_bounds_hold_for_problems_of_all_kinds():
    """Several hosts, unequal devices, rules, wires, phases, ties and zero times."""
    bounded = 0
    objective = Objective("latency", execution="sequential", memory="sum")
    for seed in seeds(160):
        problem = random_problem(
            seeded(seed), max_ops=6, max_devices=3, objective=objective, rules=seed % 3 == 0, scarce=seed % 2 == 1
        )
        best = best_valid(problem)
        if best < np.inf:
            assert cut_of(problem) <= best
            bounded += 1
    assert bounded > enough(60)


def test_what_is_too_large_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more uses of tensors than are cut, the bound says nothing."""
    problem = tangled_problem(seeded(0), "sequential", wide=True)
    uses = len(arrays_of(problem).consumers)
    for most, cut in ((uses, True), (uses - 1, False)):
        monkeypatch.setattr(host_cut, "LARGEST", most)
        assert (cut_of(problem) > 0) == cut


def price_by_hand(problem: Problem, on_host: Bools, pace: tuple[float, float], crossing: tuple[float, float]) -> float:
    """What an assignment of blocks to sides costs, tensor by tensor."""
    classes, a, host = device_classes(problem), arrays_of(problem), problem.n_devices
    times = block_seconds(problem, classes.example)
    is_host = problem.cluster.is_host[classes.example]
    price = sum(
        float((times[b] * np.where(is_host, pace[1], pace[0]))[is_host == on_host[b]].min())
        for b in range(problem.n_blocks)
    )
    devices = np.flatnonzero(~problem.cluster.is_host)
    for tensor in range(problem.graph.n_tensors):
        made = int(a.producer[tensor])
        there = True if made < 0 else bool(on_host[problem.block[made]])
        sides = {bool(on_host[problem.block[op]]) for op in problem.graph.consumers_of(tensor).tolist()}
        sides |= {True} if a.output[tensor] else set()
        for way, (begin, end) in enumerate(((False, True), (True, False))):
            if there == begin and end in sides:
                ways = a.link_class[devices, host] if begin is False else a.link_class[host, devices]
                price += crossing[way] * float(a.transfer[tensor, ways].min())
    return price


def test_the_cut_is_the_cheapest_assignment():
    """At random prices, against every assignment of blocks to the two sides."""
    compared = moved = 0
    for seed in seeds(120):
        choose = seeded(70 + seed)
        problem = tangled_problem(choose, "operator")
        if not problem.cluster.is_host.any():
            continue
        classes = device_classes(problem)
        a, times = arrays_of(problem), block_seconds(problem, classes.example)
        sides = Sides(problem, classes, times, list_traffic(problem, np.ones(len(a.consumers), np.bool_), a.output))
        pace, crossing = (choose(1, 6) / 4, choose(1, 6) / 4), (choose(0, 4) / 4, choose(0, 4) / 4)
        paces = np.where(problem.cluster.is_host[classes.example], pace[1], pace[0])
        least, seconds, transfers, _ = sides.assign(paces, np.array(crossing), np.zeros(len(sides.room)))
        every = itertools.product((False, True), repeat=problem.n_blocks)
        best = min(price_by_hand(problem, np.array(row), pace, crossing) for row in every)
        assert least == pytest.approx(best, rel=1e-6) and least <= best * (1 + 1e-12)
        assert float(seconds @ paces + transfers @ np.array(crossing)) == pytest.approx(best, rel=1e-6)
        compared, moved = compared + 1, moved + bool(transfers.sum() > 0)
    assert compared > enough(20)
    assert moved > enough(6)
