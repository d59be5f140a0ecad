"""From parts to placements: made to fit, made a row of stages where that is asked, and the best of them kept.

A partitioner knows neither memory nor that stages must follow each other. Where they must, parts are put in the order
of their mean place among the ops, and components move along until no tensor goes back: later, after their
predecessors, or earlier, before their successors. The line of ops that comes of it is also split anew, for
throughput by the dynamic program along lines, else wherever memory says.
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
from placewise.placers.shared.partitions.component_lines import fill_stages, shift_early, shift_late
from placewise.placers.shared.repair import PackingInstance, build_packing_instance, repair
from placewise.placers.shared.rules import find_broken_rule
from placewise.placers.shared.stages.line_split import MOST_SEGMENTS, find_best_split
from placewise.simulate.contiguity import Contraction, contract

LONG, SEGMENTS = 20_000, 1_000
"""Lines of more components are only split between so many segments: the whole program takes longer than cuts do."""
MOST_EXCHANGED = 20_000
"""Ops of graphs whose parts change devices pairwise where devices differ."""


@dataclass(slots=True)
class CandidateSelector:
    """The best placement [n_ops] so far, its seconds, and why others were turned down."""

    problem: Problem
    price: Evaluate
    watch: Stopwatch
    graph: Contraction = field(init=False)
    best: Ints | None = None
    value: float = float("inf")
    rejections: list[str] = field(default_factory=list)
    _cargo: PackingInstance | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.graph = contract(self.problem)

    @property
    def instance(self) -> PackingInstance:
        """The blocks of the problem, counted when first asked for."""
        self._cargo = self._cargo or build_packing_instance(self.problem)
        return self._cargo

    def add_parts(self, home: Ints, *, seed: int = 0) -> None:
        """Take parts [n_blocks] → device, as they are and in a row, whatever the problem allows."""
        problem = self.problem
        if not problem.constraints.shaped:
            device = repair(problem, home[problem.block], instance=self.instance, seed=seed, watch=self.watch)
            if device is None:
                self.rejections.append("its parts do not fit in memory, whatever blocks move")
            else:
                self.consider(device, checked=True)
        calls = problem.objective.kind == "latency" and problem.objective.execution == "subgraph"
        if problem.constraints.shaped or (calls and not np.isfinite(self.value)):
            self._in_a_row(home)

    def consider(self, device: Ints, *, checked: bool = False) -> bool:
        """Keep a placement if it keeps the rules (`checked`: it does) and is the best so far; whether it keeps them."""
        why_not = "" if checked else find_broken_rule(self.problem, device)
        if why_not:
            self.rejections.append(why_not)
            return False
        seconds = float(self.price(device[None])[0])
        seconds = seconds if np.isfinite(seconds) else float("inf")
        if self.best is None or seconds < self.value:
            self.best, self.value = device, seconds
        return True

    def _in_a_row(self, home: Ints) -> None:
        problem, graph = self.problem, self.graph
        where = np.empty(graph.n, np.int32)
        where[graph.component] = home[problem.block]
        used, part = np.unique(where, return_inverse=True)
        middle = np.bincount(part, weights=np.arange(graph.n)) / np.maximum(np.bincount(part), 1)
        order = np.argsort(middle, kind="stable")
        rank = np.empty(len(used), np.int32)
        rank[order] = np.arange(len(used), dtype=np.int32)
        devices = used[order]
        lines = []
        for shift in (shift_late, shift_early):
            stage = shift(graph, rank[part])
            fits = self.consider(devices[stage][graph.component])
            position = np.empty(graph.n, np.int32)
            position[np.lexsort((np.arange(graph.n), stage))] = np.arange(graph.n, dtype=np.int32)
            lines.append((fits, position))
        for fits, position in lines:
            if self.watch.out and self.best is not None:
                return
            if problem.objective.kind == "throughput":
                found, _ = fit_memory(problem, partial(self._split, position))
            elif not fits:
                found, _ = fit_memory(problem, partial(fill_stages, problem, graph, position))
            else:
                continue
            if found is not None:
                self.consider(found)

    def _split(self, position: Ints, capacity: Floats) -> Ints | None:
        plain = self.problem.with_(constraints=replace(self.problem.constraints, replicas=1))
        segments = SEGMENTS if self.graph.n > LONG else MOST_SEGMENTS
        split = find_best_split(
            plain, self.graph.component, (position,), capacity, lambda *_: not self.watch.out, segments=segments
        )
        return split.device

    def swap_devices(self) -> None:
        """Let unlike devices change places, pair by pair, as long as that helps."""
        problem, kind = self.problem, interchangeable(self.problem)
        if self.best is None or problem.n_ops > MOST_EXCHANGED:
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
