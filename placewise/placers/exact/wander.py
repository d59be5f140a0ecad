"""Where ideals are too many: many lines through the graph instead of all ideals, and a bound from one path.

Every topological order is a line whose best split is quickly found. Orders are drawn at random, the branches of a
graph followed in one order or another; then such that the best pipeline so far is one of the line's own splits,
which can only get better. Components are moved over cuts from each under the judge's prices.
"""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.model.result import Reason
from placewise.placers.base import Stopwatch
from placewise.placers.chains import stages
from placewise.placers.chains.backbone import backbone_bound
from placewise.placers.chains.linear import best_split
from placewise.placers.chains.nodes import in_order
from placewise.placers.chains.program import GoOn
from placewise.placers.common.rules import broken
from placewise.placers.exact.improve import improve
from placewise.simulate import Evaluator
from placewise.simulate.contract import Contraction

ROUNDS, WORK = 60, 60_000
"""Lines to try, and lines times components."""
LONGEST_PROOF = 15.0
"""Seconds for the bound, or a share of the budget if that is more; the placement does not depend on them."""
_SHARE = 0.4


def wander(
    problem: Problem, graph: Contraction, known: list[Ints], watch: Stopwatch, go_on: GoOn
) -> tuple[list[Ints], Reason]:
    """The best split [n_ops] of many lines, climbed from, and why the search ended; Ctrl-C ends it with the best.

    The first half of the lines is drawn without a guide.
    """
    rounds = min(ROUNDS, WORK // max(graph.n, 1))
    if problem.most_replicas > 1 or not rounds:
        return [], Reason.FINISHED
    rng, price, reason = np.random.default_rng(watch.budget.seed), Evaluator(problem), Reason.FINISHED
    best, value = None, np.inf
    try:
        for start in known:
            best, value = _better(problem, graph, start, price, watch, best, value)
        for round_ in range(rounds):
            if watch.elapsed > watch.budget.seconds * _SHARE:
                break
            line = _random_line(graph, _ranks(graph, best if round_ >= rounds // 2 else None), rng)
            split = best_split(problem, graph.component, (line,), problem.capacity, go_on)
            if split.device is not None and not broken(problem, split.device):
                best, value = _better(problem, graph, split.device, price, watch, best, value)
            if split.reason is not Reason.FINISHED:
                reason = split.reason
                break
    except KeyboardInterrupt:
        reason = Reason.INTERRUPTED
    return [] if best is None else [best], reason


def _better(
    problem: Problem,
    graph: Contraction,
    start: Ints,
    price: Evaluator,
    watch: Stopwatch,
    best: Ints | None,
    value: float,
) -> tuple[Ints | None, float]:
    """What climbing from `start` leads to and its value, if that is better than the best."""
    device = improve(problem, graph, start, price, watch)
    reached = float(price(device[None])[0])
    return (device, reached) if reached < value else (best, value)


def _ranks(graph: Contraction, device: Ints | None) -> list[int]:
    """The place of the stage of each component [n] in a pipeline, all 0 without one."""
    if device is None:
        return [0] * graph.n
    home = np.empty(graph.n, np.int32)
    home[graph.component] = device
    place = {stage: rank for rank, stage in enumerate(in_order(graph, home))}
    return [place[stage] for stage in home.tolist()]


def _random_line(graph: Contraction, rank: list[int], rng: np.random.Generator) -> Ints:
    """The position [n] of each component in an order that follows branches to their end, stage after stage."""
    head, offsets = graph.successors.tolist(), graph.successor_offsets.tolist()
    missing, luck = np.diff(graph.predecessor_offsets).tolist(), rng.random(graph.n).tolist()
    ready: list[list[int]] = [[] for _ in range(max(rank, default=0) + 1)]
    for c in sorted((c for c in range(graph.n) if not missing[c]), key=luck.__getitem__):
        ready[rank[c]].append(c)
    position, placed, stage = np.empty(graph.n, np.int32), 0, 0
    while placed < graph.n:
        if not ready[stage]:
            stage += 1
            continue
        component = ready[stage].pop()
        position[component] = placed
        placed += 1
        for after in sorted(head[offsets[component] : offsets[component + 1]], key=luck.__getitem__):
            missing[after] -= 1
            if not missing[after]:
                ready[rank[after]].append(after)
    return position


def path_bound(problem: Problem, graph: Contraction, reached: float, watch: Stopwatch) -> float:
    """Seconds that no contiguous placement is below, from one path; 0 if nothing is proved."""
    if problem.most_replicas > 1:
        return 0.0
    priced = stages.price(problem, graph.component, graph.n, problem.capacity)
    seconds = LONGEST_PROOF if np.isinf(watch.budget.seconds) else max(LONGEST_PROOF, _SHARE * watch.budget.seconds)
    until = min(watch.elapsed + seconds, watch.budget.seconds)
    enough = reached * priced.scale * (1 - max(watch.budget.gap, 1e-9))
    return backbone_bound(graph, priced.costs, lambda: watch.elapsed < until, enough) / priced.scale
