"""Pipelines where links are unequal or shared: what the dynamic program over ideals does not see, looked at again.

Splits are climbed from under the judge's prices, those of a row of devices node after node among them; where
devices form nodes, a program that counts them by their role in a node proposes another and proves a bound.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.model.result import Reason
from placewise.placers.base import Stopwatch
from placewise.placers.pipeline_dp.hill_climb import improve
from placewise.placers.pipeline_dp.node_hierarchy import over_nodes
from placewise.placers.pipeline_dp.ordered_line import rows, split_in_row, too_much
from placewise.placers.pipeline_dp.topological_orders import last_ready_first
from placewise.placers.shared.rules import broken
from placewise.placers.shared.stages.dp_driver import GoOn
from placewise.placers.shared.stages.ideals import Ideals, all_ideals
from placewise.simulate import Evaluator
from placewise.simulate.contiguity import Contraction, depth_first


def climbed(problem: Problem, graph: Contraction, found: list[Ints], watch: Stopwatch) -> list[Ints]:
    """The splits [n_ops] that climbing from those in `found`, and from splits in rows of devices, leads to."""
    if watch.out:
        return found
    price, starts = Evaluator(problem, threads=watch.budget.threads), {device.tobytes(): device for device in found}
    starts |= {device.tobytes(): device for device in _in_rows(problem, graph, watch)}
    return [d if watch.out else improve(problem, graph, d, price, watch) for d in starts.values()]


def by_nodes(
    problem: Problem, graph: Contraction, known: list[Ints], watch: Stopwatch, go_on: GoOn, max_ideals: int
) -> tuple[list[Ints], float, Reason]:
    """More splits, seconds that no contiguous placement is below (0: nothing proved), and why the program stopped."""
    suited = problem.cluster.transfers == "direct" and problem.most_replicas == 1 and not problem.constraints.ordered
    ideals = all_ideals(graph, max_ideals, watch.left / 2) if suited and known and not watch.out else None
    if not isinstance(ideals, Ideals):
        return [], 0.0, Reason.FINISHED
    price_of = Evaluator(problem, threads=watch.budget.threads)
    reached = float(price_of(np.stack(known)).min())
    found, floor, reason = over_nodes(problem, graph, ideals, reached, go_on, watch.budget.gap)
    fitting = [device for device in found if not broken(problem, device)]
    return [improve(problem, graph, device, price_of, watch) for device in fitting], floor, reason


def _in_rows(problem: Problem, graph: Contraction, watch: Stopwatch) -> list[Ints]:
    """The best splits of a few lines of the components over devices node after node, of those that keep the rules."""
    if problem.cluster.transfers != "direct" or too_much(graph.n, problem.n_devices, watch.left):
        return []
    lines = (np.arange(graph.n, dtype=np.int32), depth_first(graph), last_ready_first(problem, graph))
    found = []
    for row, line in product(rows(problem), lines):
        device = None if watch.out else split_in_row(problem, graph.component, line, row, watch.left)
        found += [device] if device is not None and not broken(problem, device) else []
    return found
