"""What `mincut` and `metis` share: how often they cut, for whom, and what becomes of the parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import Budget, Progress, SearchContext
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.partitions.hypergraph import Net, net_of
from placewise.placers.shared.partitions.repair_and_select import Finish

IMBALANCES = (0.1, 0.03, 0.3)
"""How much heavier than its share a part may be, one after the other."""
TRIES, MOST_TRIES = 3, 48
"""Cuts without a time limit, on graphs of up to `FEW` blocks, one on larger ones; and with one."""
FEW = 3_000

Cut = Callable[[Net, float, int], Ints]
"""A net, an imbalance and a seed → the part [n_nodes], an index into the net's devices, of each node."""


def takers(problem: Problem) -> Ints:
    """The devices that share out the work: accelerators that may run anything, host devices if there are none."""
    useful = np.asarray(problem.allowed.any(axis=0))
    accelerators = np.flatnonzero(useful & ~problem.cluster.is_host)
    return (accelerators if len(accelerators) else np.flatnonzero(useful)).astype(np.int32)


def propose_cuts(search: SearchContext, name: str, cut: Cut, imbalance: float) -> Proposal:
    """The best placement of a few cuts; `imbalance` 0 tries several."""
    problem, watch = search.problem, search.watch
    finish = Finish(problem, search.price, watch)
    reason = Reason.FINISHED
    try:
        net = net_of(problem, finish.cargo, takers(problem))
        longest = 0.0
        for tries, (share, seed) in enumerate(_tries(problem, search.budget, imbalance)):
            begun = watch.elapsed
            if tries and watch.left < 1.2 * longest:
                reason = Reason.TIME_LIMIT
                break
            finish.offer(_homes(finish, net, cut, share, seed), seed=seed)
            value = finish.value if finish.best is not None else None
            search.on_progress(Progress(name, watch.elapsed, f"{tries + 1} cuts", value))
            longest = max(longest, watch.elapsed - begun)
        finish.exchange()
    except KeyboardInterrupt:
        reason = Reason.INTERRUPTED
    if finish.best is None:
        tried = finish.faults[0] if finish.faults else "no cut came about in time"
        return Proposal(None, reason=reason, notes=(f"the parts will not do: {tried}",))
    return Proposal(Placement(relabel(problem, finish.best)), reason=reason)


def _tries(problem: Problem, budget: Budget, imbalance: float) -> Iterator[tuple[float, int]]:
    """Imbalances and seeds."""
    count = TRIES if problem.n_blocks <= FEW else 1
    if np.isfinite(budget.seconds):
        count = MOST_TRIES
    if budget.iterations is not None:
        count = max(budget.iterations, 1)
    shares = (imbalance,) if imbalance > 0 else IMBALANCES
    for number in range(count):
        yield shares[number % len(shares)], (budget.seed + number // len(shares)) % (1 << 31)


def _homes(finish: Finish, net: Net, cut: Cut, share: float, seed: int) -> Ints:
    """The device [n_blocks] of every block; those that none of the net's devices may run go where they run best."""
    home: Ints = finish.cargo.damage.argmin(axis=1).astype(np.int32)
    parted = len(net.devices) > 1 and len(net.node) > 1
    home[net.node] = net.devices[cut(net, share, seed)] if parted else net.devices[0]
    return home
