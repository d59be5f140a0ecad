"""topo: ops in topological order, one device after the other up to an even share of the memory.

m-TOPO of Jeon et al., "Baechi: fast device placement of machine learning graphs", SoCC 2020, section 3: a device takes
ops until the next would exceed the memory of all ops divided by the devices, plus that of the largest op. What an
op needs is its state, its weights (if no op before it has them) and, where live activations count, its
outputs. Accelerators are filled first; host devices take what the accelerators may not run or cannot hold.
Where devices hold less than a share, shares grow until everything has a place.

The order is one of components (groups that no chain can part), so that stages are contiguous wherever devices may run
what comes next. Where stages must be contiguous, what a device may not run ends its only stage; else that goes
elsewhere alone. If no fill comes to the end, any split of the line that fits is taken, or, where stages have no shape,
a fill without limits is repaired.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import (
    PlacerInfo,
    SearchContext,
    Stopwatch,
)
from placewise.placers.list_scheduling.fewer_devices import fewer
from placewise.placers.list_scheduling.list_common import ListOptions, group_needs
from placewise.placers.shared.fit import fit
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.memory_footprint import unmet
from placewise.placers.shared.partitions.component_lines import fill_line
from placewise.placers.shared.repair import repair
from placewise.placers.shared.rules import broken
from placewise.simulate.blocks import storage_bytes
from placewise.simulate.contiguity import Contraction, contract

GROWTH = 1.25
"""How much larger than the last the next share is that is tried."""


class TopoPlacer:
    """The simplest placement by memory, in no time; nothing runs in parallel but what the order leaves."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="topo",
        summary="devices filled in topological order up to an even share of memory",
        source="Jeon et al., Baechi, SoCC 2020 (m-TOPO)",
    )
    Options: ClassVar[type[ListOptions]] = ListOptions

    def __init__(self, options: ListOptions | None = None) -> None:
        self.options = options or ListOptions()

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The fill, or words that say what was tried."""
        problem = search.problem
        smaller, watch = fewer(problem, self.options.devices), search.watch
        try:
            device, notes = _filled(smaller, watch)
        except KeyboardInterrupt:
            return Proposal(None, reason=Reason.INTERRUPTED)
        return Proposal(None if device is None else Placement(relabel(problem, device)), notes=notes)


class _Line(NamedTuple):
    """Groups of ops in the order in which they are placed, and the bytes of each for its share."""

    group: Ints  # [n_ops]
    n: int
    amount: Floats  # [n]
    stages: bool  # whether a device has one stage, and no group may be apart


def _filled(problem: Problem, watch: Stopwatch) -> tuple[Ints | None, tuple[str, ...]]:
    """The placement [n_ops], and what was tried if filling up to an even share is not all."""
    graph, shaped = contract(problem), problem.constraints.shaped
    line = _line(problem, graph.component, graph.n, shaped)
    if not shaped and unmet(problem, graph.component, graph.n):
        line = _line(problem, problem.block, problem.n_blocks, shaped)
    shares: list[float] = [1.0]
    device, _ = fit(problem, partial(_within, problem, line, shares))
    if device is not None and not broken(problem, device):
        grown = f"filled up to {shares[-1]:.2f} of an even share, since less did not hold everything"
        return device, (grown,) if shares[-1] > 1 else ()
    said = "no fill along the order of the ops fits in memory"
    if shaped:
        device, why_not = _any_split(problem, graph)
        return device, (said, why_not or "any split of that order that fits was taken")
    unlimited = _within(problem, line, [], np.full(problem.n_devices, np.inf))
    device = None if unlimited is None else repair(problem, unlimited, watch=watch)
    return device, (said, "repairing one did not help either" if device is None else "one without limits was repaired")


def _any_split(problem: Problem, graph: Contraction) -> tuple[Ints | None, str]:
    device, _ = fit(problem, partial(fill_line, problem, graph, np.arange(graph.n, dtype=np.int32)))
    why_not = "nor does any split of it" if device is None else broken(problem, device)
    return (None if why_not else device), why_not


def _line(problem: Problem, group: Ints, n: int, stages: bool) -> _Line:
    return _Line(group, n, np.bincount(group, weights=_amounts(problem), minlength=n).astype(np.float64), stages)


def _amounts(problem: Problem) -> Floats:
    """Bytes [n_ops] that each op is the first to need, and one more, so that ops without bytes spread as well."""
    graph = problem.graph
    amount: Floats = graph.ops.state_bytes.astype(np.float64) + 1.0
    storage, first = np.unique(graph.weights.storage[graph.weight_edges.value], return_index=True)
    np.add.at(amount, graph.weight_edges.consumer[first], storage_bytes(graph)[storage])
    if problem.objective.memory == "live":
        made = graph.tensors.producer >= 0
        np.add.at(amount, graph.tensors.producer[made], np.maximum(graph.tensors.bytes[made], 0))
    return amount


def _within(problem: Problem, line: _Line, shares: list[float], capacity: Floats) -> Ints | None:
    """The fill [n_ops] up to the least share that gives everything a place; `shares` notes how many even ones it is."""
    needs = group_needs(problem, line.group, line.n, capacity)
    first, hosts = _devices(problem)
    even = line.amount.sum() / max(len(first), 1) + line.amount.max(initial=0.0)
    if line.stages or problem.allowed[:, first].all():
        for devices in (first, np.concatenate((first, hosts))) if len(hosts) else (first,):
            share = 1.0
            while share < GROWTH * max(len(first), 1):
                device = _fill(needs, line._replace(stages=True), share * even, devices, len(first))
                if device is not None:
                    shares.append(share)
                    return device
                share *= GROWTH
    if line.stages:
        return None
    shares.append(1.0)
    return _fill(needs, line, even, np.concatenate((first, hosts)), len(first))


def _devices(problem: Problem) -> tuple[Ints, Ints]:
    """Those that share the ops, accelerators if any may run something, and the others that may, hosts."""
    host, useful = problem.cluster.is_host, np.asarray(problem.allowed.any(axis=0))
    accelerators, hosts = (np.flatnonzero(useful & kind).astype(np.int32) for kind in (~host, host))
    return (accelerators, hosts) if len(accelerators) else (hosts, accelerators)


def _fill(needs: _native.GroupNeeds, line: _Line, share: float, devices: Ints, n_first: int) -> Ints | None:
    home, placed = _native.fill_in_order(needs, line.amount, devices, n_first, share, line.stages)
    return None if placed < line.n else home[line.group]
