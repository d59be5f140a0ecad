"""random: every block anywhere it may run, each device as likely as another. The floor under every placer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import (
    PlacerInfo,
    SearchContext,
)
from placewise.placers.shared.calls import circles
from placewise.placers.shared.fit import fit
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.memory_footprint import may_run
from placewise.placers.shared.memory_repair import PackingInstance
from placewise.placers.shared.partitions.component_lines import fill_line, random_order
from placewise.placers.shared.repair import packing_instance, repair
from placewise.placers.shared.rules import broken
from placewise.simulate import Evaluator
from placewise.simulate.contiguity import Contraction, contract

CUTS = 64
"""So often are stages drawn before the first split that fits is taken."""


@dataclass(frozen=True, slots=True)
class RandomOptions:
    """`samples`: the best of so many draws, fewer if time runs out."""

    samples: int = 1


class RandomPlacer:
    """What chance reaches: uniform over allowed devices; where stages must be in a row, random cuts of a random row."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="random",
        summary="every block on a device drawn at random, within memory",
        source="a floor: what no method should be below",
    )
    Options = RandomOptions

    def __init__(self, options: RandomOptions | None = None) -> None:
        self.options = options or RandomOptions()

    def supports(self, problem: Problem) -> str | None:
        return None if self.options.samples > 0 else "samples must be one or more"

    def propose(self, search: SearchContext) -> Proposal:
        """The best of the draws that keep the rules, or words that say why there is none."""
        problem = search.problem
        watch, price = search.watch, search.evaluate
        best, value, reason = None, np.inf, Reason.FINISHED
        shape = contract(problem)
        cargo = None if problem.constraints.shaped else packing_instance(problem)
        try:
            for sample in range(self.options.samples):
                if sample and watch.out:
                    reason = Reason.TIME_LIMIT
                    break
                seed = (search.budget.seed + 7919 * sample) % (1 << 31)
                device = _drawn(problem, shape, cargo, seed)
                if device is None or broken(problem, device):
                    continue
                if self.options.samples == 1:
                    best = device
                    break
                price = price or Evaluator(problem, threads=1)
                seconds = float(price(device[None])[0])
                if best is None or seconds < value:
                    best, value = device, seconds
        except KeyboardInterrupt:
            reason = Reason.INTERRUPTED
        if best is None:
            tried = f"none of {self.options.samples} random placements could be made to fit in memory"
            return Proposal(None, reason=reason, notes=(tried,))
        return Proposal(Placement(relabel(problem, best)), reason=reason)


def _drawn(problem: Problem, graph: Contraction, cargo: PackingInstance | None, seed: int) -> Ints | None:
    """Scattered, unless stages have a shape to keep or calls would wait for each other in a circle."""
    device = None if cargo is None else _scattered(problem, cargo, seed)
    if cargo is None or (device is not None and circles(problem, device)):
        return _staged(problem, graph, seed)
    return device


def _scattered(problem: Problem, cargo: PackingInstance, seed: int) -> Ints | None:
    """Uniform over what each block may run on, then made to fit."""
    draws = np.random.default_rng(seed).random(cargo.runs.shape)
    home = np.where(cargo.runs, draws, -1.0).argmax(axis=1).astype(np.int32)
    return repair(problem, home[problem.block], cargo=cargo, seed=seed)


def _staged(problem: Problem, graph: Contraction, seed: int) -> Ints | None:
    """Random cuts of a random topological order, the devices in random order; else any split of it that fits."""
    rng = np.random.default_rng(seed)
    order = random_order(graph, seed)
    devices = np.flatnonzero(problem.allowed.any(axis=0))
    runs = may_run(problem, graph.component, graph.n)
    for _ in range(CUTS):
        cuts = np.sort(rng.integers(0, graph.n + 1, len(devices) - 1))
        home = rng.permutation(devices)[np.searchsorted(cuts, order, side="right")].astype(np.int32)
        if runs[np.arange(graph.n), home].all() and not broken(problem, home[graph.component]):
            return home[graph.component]
    device, _ = fit(problem, partial(fill_line, problem, graph, order))
    return device
