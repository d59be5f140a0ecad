"""From parts to placements: repair parts until they fit, arrange them as stages if rules ask for it, keep the best.

A partitioner knows neither memory nor the order of stages. If stages must follow each other, parts are sorted by their
mean position among the ops, and components move until no tensor goes back: later, after their predecessors, or earlier,
before their successors. The resulting order of the ops is also split anew, for throughput by the dynamic program along
an order, else by memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.placers.base import Evaluate, Stopwatch
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.interchangeable import interchangeable
from placewise.placers.shared.partitions.component_lines import fill_stages, shift_early, shift_late, sort_by_rank
from placewise.placers.shared.repair import PackingInstance, build_packing_instance, repair
from placewise.placers.shared.rules import find_broken_rule
from placewise.placers.shared.stages.line_split import MAX_SEGMENTS, find_best_split
from placewise.simulate.contiguity import Contraction, contract

LONG, SEGMENTS = 20_000, 1_000
"""Orders of more than `LONG` components are split between `SEGMENTS` segments only, to take no longer than cuts do."""
MAX_EXCHANGED = 20_000
"""Ops up to which parts on unlike devices are swapped pairwise."""


@dataclass(slots=True)
class CandidateSelector:
    """The best placement [n_ops] so far, its seconds, and why others were rejected."""

    problem: Problem
    price: Evaluate
    watch: Stopwatch
    graph: Contraction = field(init=False)
    best: Ints | None = None
    value: float = float("inf")
    rejections: list[str] = field(default_factory=list)
    _instance: PackingInstance | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.graph = contract(self.problem)

    @property
    def instance(self) -> PackingInstance:
        """The packing instance of the problem, built on first use."""
        self._instance = self._instance or build_packing_instance(self.problem)
        return self._instance

    def add_parts(self, assignment: Ints, *, seed: int = 0) -> None:
        """Consider parts [n_blocks] → device: repaired, and as stages in a row if the problem asks for it."""
        problem = self.problem
        if not problem.constraints.shaped:
            device = repair(problem, assignment[problem.block], instance=self.instance, seed=seed, watch=self.watch)
            if device is None:
                self.rejections.append("its parts do not fit in memory, whatever blocks move")
            else:
                self.consider(device, checked=True)
        calls = problem.objective.kind == "latency" and problem.objective.execution == "subgraph"
        if problem.constraints.shaped or (calls and not np.isfinite(self.value)):
            self._arrange_in_row(assignment)

    def consider(self, device: Ints, *, checked: bool = False) -> bool:
        """Keep a placement if it is valid (`checked`: known to be) and the best so far. Returns whether it is valid."""
        fault = "" if checked else find_broken_rule(self.problem, device)
        if fault:
            self.rejections.append(fault)
            return False
        seconds = float(self.price(device[None])[0])
        seconds = seconds if np.isfinite(seconds) else float("inf")
        if self.best is None or seconds < self.value:
            self.best, self.value = device, seconds
        return True

    def _arrange_in_row(self, assignment: Ints) -> None:
        problem, graph = self.problem, self.graph
        where = np.empty(graph.n, np.int32)
        where[graph.component] = assignment[problem.block]
        used, part = np.unique(where, return_inverse=True)
        middle = np.bincount(part, weights=np.arange(graph.n)) / np.maximum(np.bincount(part), 1)
        order = np.argsort(middle, kind="stable")
        rank = np.empty(len(used), np.int32)
        rank[order] = np.arange(len(used), dtype=np.int32)
        devices = used[order]
        orders = []
        for shift in (shift_late, shift_early):
            stage = shift(graph, rank[part])
            orders.append((self.consider(devices[stage][graph.component]), sort_by_rank(stage)))
        for fits, position in orders:
            if self.watch.out and self.best is not None:
                return
            if problem.objective.kind == "throughput":
                device, _ = fit_memory(problem, partial(self._split_order, position))
            elif not fits:
                device, _ = fit_memory(problem, partial(fill_stages, problem, graph, position))
            else:
                continue
            if device is not None:
                self.consider(device)

    def _split_order(self, position: Ints, capacity: Floats) -> Ints | None:
        plain = self.problem.with_(constraints=replace(self.problem.constraints, replicas=1))
        segments = SEGMENTS if self.graph.n > LONG else MAX_SEGMENTS
        split = find_best_split(
            plain, self.graph.component, (position,), capacity, lambda *_: not self.watch.out, segments=segments
        )
        return split.heard().device

    def swap_devices(self) -> None:
        """Swap the parts of unlike devices, pair by pair, as long as that helps."""
        problem, kind = self.problem, interchangeable(self.problem)
        if self.best is None or problem.n_ops > MAX_EXCHANGED:
            return
        improved = True
        while improved and not self.watch.out:
            improved = False
            used = np.unique(self.best).tolist()
            pairs = [
                (d, e)
                for d in used
                for e in range(problem.n_devices)
                if kind[d] != kind[e] and (d < e or e not in used)
            ]
            for d, e in pairs:
                if self.watch.out:
                    break
                name = np.arange(problem.n_devices, dtype=np.int32)
                name[d], name[e] = e, d
                device, before = name[self.best], self.value
                allowed = problem.allowed[np.arange(problem.n_ops), device].all()
                if allowed and self.price(device[None])[0] < before and self.consider(device):
                    improved = True
                    break
