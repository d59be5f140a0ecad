"""topo: ops in topological order, one device after the other up to an even share of the memory.

m-TOPO of Jeon et al., "Baechi: fast device placement of machine learning graphs", SoCC 2020, section 3. A device takes
ops until the next one would exceed its share: the memory of all ops divided by the number of devices, plus that of the
largest op. An op needs its state, its weights (unless an op before it has them) and, where live activations count, its
outputs. Accelerators are filled first. Host devices take what the accelerators may not run or cannot hold.
If devices hold less than a share, shares grow until everything has a place.

The order is one of components (groups that no chain can separate), so that stages are contiguous wherever devices may
run what comes next. If stages must be contiguous, an op that a device may not run ends its only stage; otherwise that
op alone goes to another device. If no fill succeeds, the answer is any split of the order that fits or, if stages have
no shape to keep, a fill without limits that is then repaired.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.quantized import held_bytes
from placewise.model.result import Proposal, Reason
from placewise.placers.base import PlacerInfo, SearchContext, Stopwatch
from placewise.placers.list_scheduling.fewer_devices import keep_best_devices
from placewise.placers.list_scheduling.list_common import ListOptions, build_group_needs
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.memory_footprint import count_first_uses, find_unplaceable_group
from placewise.placers.shared.partitions.component_lines import fill_stages
from placewise.placers.shared.repair import repair
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate.contiguity import Contraction, contract

GROWTH = 1.25
"""The factor from one share to the next that is tried."""


class TopoPlacer:
    """The simplest placement by memory, in next to no time; it plans no parallel work."""

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
        """The fill, or a note of what was tried."""
        problem = search.problem
        smaller, watch = keep_best_devices(problem, self.options.devices), search.watch
        try:
            device, notes = _fill_devices(smaller, watch)
        except KeyboardInterrupt:
            return Proposal(None, reason=Reason.INTERRUPTED)
        return Proposal(None if device is None else Placement(relabel(problem, device)), notes=notes)


class _FillOrder(NamedTuple):
    """Groups of ops in the order in which they are placed, and the bytes that each takes of a share."""

    group: Ints  # [n_ops]
    n: int
    amount: Floats  # [n]
    stages: bool  # whether each device has one stage, so that no group may be apart


def _fill_devices(problem: Problem, watch: Stopwatch) -> tuple[Ints | None, tuple[str, ...]]:
    """The placement [n_ops], and notes if it is not a fill up to an even share."""
    graph, shaped = contract(problem), problem.constraints.shaped
    order = _build_order(problem, graph.component, graph.n, shaped)
    if not shaped and find_unplaceable_group(problem, graph.component, graph.n):
        order = _build_order(problem, problem.block, problem.n_blocks, shaped)
    shares: list[float] = [1.0]
    device, _ = fit_memory(problem, partial(_fill_shares, problem, order, shares))
    if device is not None and not find_broken_rule(problem, device):
        grown = f"filled up to {shares[-1]:.2f} of an even share, since less did not hold everything"
        return device, (grown,) if shares[-1] > 1 else ()
    failure = "no fill along the order of the ops fits in memory"
    if shaped:
        device, fault = _split_order(problem, graph)
        return device, (failure, fault or "any split of that order that fits was taken")
    unlimited = _fill_shares(problem, order, [], np.full(problem.n_devices, np.inf))
    device = None if unlimited is None else repair(problem, unlimited, watch=watch)
    return device, (
        failure,
        "repairing one did not help either" if device is None else "one without limits was repaired",
    )


def _split_order(problem: Problem, graph: Contraction) -> tuple[Ints | None, str]:
    device, _ = fit_memory(problem, partial(fill_stages, problem, graph, np.arange(graph.n, dtype=np.int32)))
    fault = "nor does any split of it" if device is None else find_broken_rule(problem, device)
    return (None if fault else device), fault


def _build_order(problem: Problem, group: Ints, n: int, stages: bool) -> _FillOrder:
    """The order of the groups. Every op counts one byte more, so that ops without bytes spread as well."""
    graph = problem.graph
    amount = count_first_uses(graph) + 1.0
    if problem.objective.memory == "live":
        produced = graph.tensors.producer >= 0
        np.add.at(amount, graph.tensors.producer[produced], held_bytes(problem)[produced])
    return _FillOrder(group, n, np.bincount(group, weights=amount, minlength=n).astype(np.float64), stages)


def _fill_shares(problem: Problem, order: _FillOrder, shares: list[float], capacity: Floats) -> Ints | None:
    """The fill [n_ops] up to the smallest share that suffices; `shares` gets its multiple of an even one."""
    needs = build_group_needs(problem, order.group, order.n, capacity)
    first, hosts = _split_devices(problem)
    even = order.amount.sum() / max(len(first), 1) + order.amount.max(initial=0.0)
    if order.stages or problem.allowed[:, first].all():
        for devices in (first, np.concatenate((first, hosts))) if len(hosts) else (first,):
            share = 1.0
            while share < GROWTH * max(len(first), 1):
                device = _fill_to_share(needs, order._replace(stages=True), share * even, devices, len(first))
                if device is not None:
                    shares.append(share)
                    return device
                share *= GROWTH
    if order.stages:
        return None
    shares.append(1.0)
    return _fill_to_share(needs, order, even, np.concatenate((first, hosts)), len(first))


def _split_devices(problem: Problem) -> tuple[Ints, Ints]:
    """The devices that share the ops (accelerators, or hosts if no accelerator may run anything), and the others."""
    host, useful = problem.cluster.is_host, np.asarray(problem.allowed.any(axis=0))
    accelerators, hosts = (np.flatnonzero(useful & kind).astype(np.int32) for kind in (~host, host))
    return (accelerators, hosts) if len(accelerators) else (hosts, accelerators)


def _fill_to_share(
    needs: _native.GroupNeeds, order: _FillOrder, share: float, devices: Ints, n_first: int
) -> Ints | None:
    assignment, placed = _native.fill_in_order(needs, order.amount, devices, n_first, share, order.stages)
    return None if placed < order.n else assignment[order.group]
