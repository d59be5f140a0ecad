"""Pipelines over unequal or shared links, which the dynamic program over ideals does not see.

With direct transfers the cost of a stage depends on where its neighbours are. The program over ideals charges the
quickest link, which gives a bound, and stages that may turn out to communicate over a slow one. Relaxed problems err on
the other side: they charge the slowest link, or leave out the host devices or all nodes but one. Hill climbing under
the judge's prices starts from all these splits, and from splits along rows of devices, node after node. If devices form
nodes, a second program, which counts devices by their role in a node, proposes a pipeline and proves a bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from placewise.model.columns import Bools, Ints
from placewise.model.costs import CostTable
from placewise.model.problem import Problem, Rule
from placewise.model.result import Reason
from placewise.placers.base import Stopwatch
from placewise.placers.pipeline_dp.hill_climb import climb_hill
from placewise.placers.pipeline_dp.node_hierarchy import list_partitions, search_nodes
from placewise.placers.pipeline_dp.ordered_line import exceeds_limits, list_rows, split_along_row
from placewise.placers.pipeline_dp.topological_orders import sort_last_ready_first
from placewise.placers.shared.rules import find_broken_rule
from placewise.placers.shared.stages.dp_driver import GoOn
from placewise.placers.shared.stages.ideals import Ideals, enumerate_ideals
from placewise.simulate import Evaluator
from placewise.simulate.contiguity import Contraction, depth_first


def climb_splits(problem: Problem, graph: Contraction, known: list[Ints], watch: Stopwatch) -> list[Ints]:
    """Hill climbing from the splits [n_ops] in `known` and from splits along rows of devices."""
    if watch.out:
        return known
    price, starts = Evaluator(problem, threads=watch.budget.threads), {device.tobytes(): device for device in known}
    starts |= {device.tobytes(): device for device in _split_over_rows(problem, graph, watch)}
    return [d if watch.out else climb_hill(problem, graph, d, price, watch) for d in starts.values()]


def split_over_nodes(
    problem: Problem, graph: Contraction, known: list[Ints], watch: Stopwatch, go_on: GoOn, max_ideals: int
) -> tuple[list[Ints], float, Reason]:
    """More splits, a lower bound in seconds for contiguous placements (0: none), and why the program stopped."""
    suited = problem.cluster.transfers == "direct" and problem.max_replicas == 1 and not problem.constraints.ordered
    ideals = enumerate_ideals(graph, max_ideals, watch.left / 2) if suited and known and not watch.out else None
    if not isinstance(ideals, Ideals):
        return [], 0.0, Reason.FINISHED
    price_of = Evaluator(problem, threads=watch.budget.threads)
    reached = float(price_of(np.stack(known)).min())
    splits, floor, reason = search_nodes(problem, graph, ideals, reached, go_on, watch.budget.gap)
    fitting = [device for device in splits if not find_broken_rule(problem, device)]
    return [climb_hill(problem, graph, device, price_of, watch) for device in fitting], floor, reason


def _split_over_rows(problem: Problem, graph: Contraction, watch: Stopwatch) -> list[Ints]:
    """The best splits of a few orders of the components along rows of devices, if they keep the rules."""
    if problem.cluster.transfers != "direct" or exceeds_limits(graph.n, problem.n_devices, watch.left):
        return []
    lines = (np.arange(graph.n, dtype=np.int32), depth_first(graph), sort_last_ready_first(problem, graph))
    splits = []
    for row, line in product(list_rows(problem), lines):
        device = None if watch.out else split_along_row(problem, graph.component, line, row, watch.left)
        splits += [device] if device is not None and not find_broken_rule(problem, device) else []
    return splits


def list_relaxations(problem: Problem) -> Iterator[Problem]:
    """The problem at its slowest links; without its host devices, if the others suffice; and on one node.

    The node is the largest one at each level of link speed, together with the host devices.
    """
    if problem.cluster.transfers != "direct" or len(problem.cluster) < 2:
        return
    costs = problem.costs
    if costs.transfer_seconds.shape[1] > 2:
        slowest = np.repeat(costs.transfer_seconds.max(axis=1, keepdims=True), costs.transfer_seconds.shape[1], axis=1)
        slowest[:, 0] = 0.0
        table = CostTable(costs.op_seconds, slowest, costs.op_source, costs.sources, costs.transfer_source)
        yield problem.with_(costs=table)
    hosts = problem.cluster.is_host
    if hosts.any():
        yield from _forbid_devices(problem, hosts)
    for node in list_partitions(problem):
        largest = np.bincount(node[node >= 0]).argmax()
        yield from _forbid_devices(problem, (node != largest) & ~hosts)


def _forbid_devices(problem: Problem, out: Bools) -> list[Problem]:
    """The problem without the devices `out` [n_devices], if the others suffice."""
    if not problem.allowed[:, ~out].any(axis=1).all():
        return []
    rules = tuple(Rule("", problem.cluster.names[d]) for d in np.flatnonzero(out))
    constraints = replace(problem.constraints, forbidden=(*problem.constraints.forbidden, *rules))
    return [problem.with_(constraints=constraints)]
