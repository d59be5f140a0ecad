"""random: every block on a device drawn at random, or dealt in turn. Two trivial baselines.

"random" draws uniformly over the allowed devices; if stages must be in a row, it cuts a random order at random places.
"round_robin" deals the blocks, in the order of their first ops, to the accelerators in turn; if stages must be in a
row, it cuts that order into stages of equally many components.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import PlacerInfo, SearchContext
from placewise.placers.shared.calls import has_deadlocked_calls
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.memory_footprint import may_run
from placewise.placers.shared.partitions.component_lines import draw_order, fill_stages
from placewise.placers.shared.partitions.hypergraph import list_working_devices
from placewise.placers.shared.repair import PackingInstance, build_packing_instance, repair
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate import Evaluator
from placewise.simulate.contiguity import Contraction, contract

CUTS = 64
"""Random cuts of an order that are tried before the first split that fits is taken."""

_INFO = {
    "random": PlacerInfo(
        name="random",
        summary="every block on a device drawn at random, within memory",
        source="a trivial baseline: no method should do worse",
    ),
    "round_robin": PlacerInfo(
        name="round_robin",
        summary="blocks dealt to the accelerators in turn, within memory",
        source="a trivial baseline: no method should do worse",
    ),
}


@dataclass(frozen=True, slots=True)
class RandomOptions:
    """`samples`: take the best of this many draws, fewer if time runs out.

    `draw`: "random", or "round_robin", the placer `round_robin`, which has one sample only.
    """

    samples: int = 1
    draw: Literal["random", "round_robin"] = "random"


class RandomPlacer:
    """A placement without any search, repaired until it fits in memory."""

    Options: ClassVar[type[RandomOptions]] = RandomOptions

    def __init__(self, options: RandomOptions | None = None) -> None:
        self.options = options or RandomOptions()
        self.info = _INFO[self.options.draw]

    def supports(self, problem: Problem) -> str | None:
        if self.options.draw == "round_robin" and self.options.samples != 1:
            return "blocks dealt in turn make one placement: samples must be one"
        return None if self.options.samples > 0 else "samples must be one or more"

    def propose(self, search: SearchContext) -> Proposal:
        """The best of the draws that keep the rules, or a note of why there is none."""
        problem, price = search.problem, search.evaluate
        best, value, reason = None, np.inf, Reason.FINISHED
        fault = "memory does not suffice"
        graph = contract(problem)
        instance = None if problem.constraints.shaped else build_packing_instance(problem)
        try:
            for sample in range(self.options.samples):
                if sample and search.watch.out:
                    reason = Reason.TIME_LIMIT
                    break
                seed = (search.budget.seed + 7919 * sample) % (1 << 31)
                device = self._draw(problem, graph, instance, seed)
                fault = fault if device is None else find_broken_rule(problem, device)
                if device is None or fault:
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
        if best is not None:
            return Proposal(Placement(relabel(problem, best)), reason=reason)
        if self.options.draw == "round_robin":
            return Proposal(None, reason=reason, notes=(f"dealing blocks in turn makes no placement: {fault}",))
        note = f"none of {self.options.samples} random placements could be made to fit in memory"
        return Proposal(None, reason=reason, notes=(note,))

    def _draw(self, problem: Problem, graph: Contraction, instance: PackingInstance | None, seed: int) -> Ints | None:
        """Blocks anywhere, or stages in a row if stages have a shape to keep or calls would deadlock."""
        random = self.options.draw == "random"
        if instance is not None:
            device = _scatter_blocks(problem, instance, seed) if random else _deal_blocks(problem, instance)
            if device is None or not has_deadlocked_calls(problem, device):
                return device
        return _draw_stages(problem, graph, seed) if random else _deal_stages(problem, graph)


def _scatter_blocks(problem: Problem, instance: PackingInstance, seed: int) -> Ints | None:
    """A uniform draw over the devices that may run each block, repaired until it fits."""
    draws = np.random.default_rng(seed).random(instance.runs.shape)
    assignment = np.where(instance.runs, draws, -1.0).argmax(axis=1).astype(np.int32)
    return repair(problem, assignment[problem.block], instance=instance, seed=seed)


def _draw_stages(problem: Problem, graph: Contraction, seed: int) -> Ints | None:
    """Random cuts of a random topological order, devices in random order; else any split of that order that fits."""
    rng = np.random.default_rng(seed)
    order = draw_order(graph, seed)
    devices = np.flatnonzero(problem.allowed.any(axis=0))
    runs = may_run(problem, graph.component, graph.n)
    for _ in range(CUTS):
        cuts = np.sort(rng.integers(0, graph.n + 1, len(devices) - 1))
        assignment = rng.permutation(devices)[np.searchsorted(cuts, order, side="right")].astype(np.int32)
        if runs[np.arange(graph.n), assignment].all() and not find_broken_rule(problem, assignment[graph.component]):
            return assignment[graph.component]
    device, _ = fit_memory(problem, partial(fill_stages, problem, graph, order))
    return device


def _deal_blocks(problem: Problem, instance: PackingInstance) -> Ints | None:
    """Each block on the next accelerator that may run it, repaired where memory or rules forbid that."""
    turns = list_working_devices(problem)
    turn = np.arange(problem.n_blocks) % len(turns)
    later = (turn[:, None] + np.arange(len(turns))) % len(turns)
    can = np.take_along_axis(instance.runs[:, turns], later, axis=1)
    assignment = turns[later[np.arange(len(turn)), can.argmax(axis=1)]]
    assignment = np.where(can.any(axis=1), assignment, instance.runs.argmax(axis=1)).astype(np.int32)
    return repair(problem, assignment[problem.block], instance=instance)


def _deal_stages(problem: Problem, graph: Contraction) -> Ints | None:
    """Stages of equally many components along the order of the ops; else any split of that order that fits."""
    turns = list_working_devices(problem)
    even: Ints = turns[np.arange(graph.n) * len(turns) // graph.n][graph.component]
    if not find_broken_rule(problem, even):
        return even
    device, _ = fit_memory(problem, partial(fill_stages, problem, graph, np.arange(graph.n, dtype=np.int32)))
    return device
