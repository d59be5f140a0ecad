"""The driver of the dynamic program over ideals, which runs in slices: from stage costs to the best chain of stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from placewise import _native
from placewise.model.columns import Floats, Ints, Longs
from placewise.model.result import Reason
from placewise.placers.shared.stages.ideals import Ideals
from placewise.placers.shared.stages.replicated_stages import Groups
from placewise.placers.shared.stages.stage_costs import MODES, NEVER, ComponentCosts, PricedStages, to_native

SLICE = 0.03
"""Seconds of expanding stages between two looks at the clock."""
MAX_CELLS = 30_000_000
"""States of all ideals together: about 500 MB."""
STEPS = (0.1, 0.2, 0.4)
"""The first targets, between a simple lower bound (0) and the value to beat (1): low targets prune far more."""
SHARED_STEPS = (0.1, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""The same for replicated stages, where a target that is too low fails quickly and one slightly too high is slow."""
MULTIPLES = (1.05, 1.3, 2.0, 4.0)
"""The first targets without a value to beat, as multiples of the lower bound."""

GoOn = Callable[[int, int, float], bool]
"""(ideals done, of how many, best seconds so far) → whether to continue."""


@dataclass(frozen=True, slots=True, eq=False)
class StageChain:
    """A chain of stages: the `device` [n] of each component, the max-load in units of the costs, replicated stages."""

    device: Ints
    value: int
    groups: Groups = ()


@dataclass(frozen=True, slots=True, eq=False)
class ChainSearchResult:
    """The best chain below the value to beat, if any; why the search stopped; and a lower bound.

    No chain has a max-load below `floor`, in the costs' units. If the reason is FINISHED, the chain attains `floor`.
    """

    chain: StageChain | None
    reason: Reason
    floor: int = 0


def count_states(costs: ComponentCosts) -> int:
    """The number of states: counts of the devices in use, class by class, or along their order."""
    if costs.ordered:
        return len(costs.n_devices) + 1
    states = 1
    for count in costs.n_devices.tolist():
        states *= count + 1
    return states


def search_chains(
    priced: PricedStages, ideals: Ideals, go_on: GoOn, beat: int = NEVER, gap: float = 0.0
) -> ChainSearchResult:
    """The best chain with a max-load below `beat` (NEVER: any max-load), by way of lower targets.

    The search may stop once no chain can beat `beat` by more than the share `gap`. Needs
    ``n_states · len(ideals) ≤ MAX_CELLS``. Ctrl-C ends the search with its best chain.
    """
    if not len(priced.costs.n_devices):
        return ChainSearchResult(None, Reason.FINISHED, beat)
    costs, floor = priced.costs, 0
    left, room = compute_remaining_work(costs, ideals), compute_remaining_capacity(costs)
    expansion = build_expansion(costs, ideals, left, room)
    for target in list_targets(costs, beat):
        expansion.start(target)
        result = run_expansion(priced, ideals, expansion, go_on)
        if result.reason is not Reason.FINISHED:
            return replace(result, floor=floor)
        if result.chain is not None:
            return replace(result, floor=result.chain.value)
        floor = target
        if beat < NEVER and beat - floor <= gap * beat:
            break
    return ChainSearchResult(None, Reason.FINISHED, floor)


def bound_load(costs: ComponentCosts) -> float:
    """A simple lower bound on the max-load: all work spread over all devices, and the largest component."""
    speed, work = _price_work(costs)
    quickest = (costs.seconds // costs.most).min(axis=1, initial=NEVER).max(initial=0)
    return max(float(work.sum()) / max(float(costs.n_devices @ speed), 1e-9), float(quickest))


def list_targets(costs: ComponentCosts, beat: int) -> list[int]:
    """Max-loads to search below, one after the other; the last is `beat`."""
    least = bound_load(costs)
    if beat < NEVER:
        steps = SHARED_STEPS if costs.most.max(initial=1) > 1 else STEPS
        lower = [int(least + step * (beat - least)) for step in steps]
    else:
        lower = [int(least * multiple) + 1 for multiple in MULTIPLES]
    return [target for target in lower if 0 < target < beat] + [beat]


def build_expansion(costs: ComponentCosts, ideals: Ideals, left: Longs, room: Floats) -> _native.StageExpansion:
    """The dynamic program; for `left` [n_ideals] and `room` [n_states] see `compute_remaining_work` and `_capacity`."""
    return _native.StageExpansion(to_native(costs), ideals, left, room)


def run_expansion(
    priced: PricedStages, ideals: Ideals, expansion: _native.StageExpansion, go_on: GoOn
) -> ChainSearchResult:
    """The best chain below the target that the program was started with; the caller sets `floor`."""
    full, reason = len(ideals) - 1, Reason.FINISHED
    try:
        while expansion.n_done < full:
            best = expansion.best / priced.scale if expansion.found else np.inf
            if not go_on(expansion.n_done, full, best):
                reason = Reason.TIME_LIMIT
                break
            expansion.expand(SLICE)
    except KeyboardInterrupt:
        reason = Reason.INTERRUPTED
    return ChainSearchResult(_trace_chain(priced, ideals, expansion) if expansion.found else None, reason)


def list_states(costs: ComponentCosts) -> tuple[Ints, Longs]:
    """The devices of each class in use in each state [n_states, n_classes], and the stride of one more device.

    If stages follow the order of the devices, skipped devices count as used.
    """
    return _native.device_states(costs.n_devices, costs.ordered)


def compute_remaining_capacity(costs: ComponentCosts) -> Floats:
    """The priced work per second of all devices that a state [n_states] leaves unused."""
    used, _ = list_states(costs)
    return (costs.n_devices - used) @ _price_work(costs)[0]


def compute_remaining_work(costs: ComponentCosts, ideals: Ideals) -> Longs:
    """The priced work that each ideal [n_ideals] leaves to other devices, with transfers if they always add to it."""
    speed, work = _price_work(costs)
    left = _native.work_left(ideals, work)
    if costs.mode != MODES["blocking"] or not len(costs.rate) or costs.rate.min() < 0:
        return left
    priced = speed * (1 - 1e-12)
    enter, leave = ((costly[:, costs.rate] * priced).min(axis=1) for costly in (costs.enter, costs.leave))
    cut = _native.cut_left(to_native(costs), ideals, enter.astype(np.int64), leave.astype(np.int64))
    return left + cut


def _price_work(costs: ComponentCosts) -> tuple[Floats, Longs]:
    """A price per second of each class [n_classes], and the least priced work of each component [n].

    For any prices, the work that a chain with max-load T leaves to some devices is at most T times the sum of their
    prices. The prices used here are proportional to speed.
    """
    seconds, able = costs.seconds.astype(np.float64), costs.seconds < NEVER
    least = np.where(able, seconds, np.inf).min(axis=1, initial=np.inf)
    speed = np.ones(len(costs.rate))
    for k in range(len(speed)):
        own, others = seconds[able[:, k], k].sum(), least[able[:, k]].sum()
        speed[k] = others / own if own > 0 else 1.0
    work = np.where(able, seconds * speed, np.inf).min(axis=1, initial=np.inf)
    return speed, np.where(np.isfinite(work), work * (1 - 1e-12), 0.0).astype(np.int64)


def _trace_chain(priced: PricedStages, ideals: Ideals, expansion: _native.StageExpansion) -> StageChain:
    """The best chain; devices of a class are used in order."""
    device, groups = np.full(len(priced.costs.size), -1, np.int32), []
    for stage in expansion.chain():
        inside = ideals.members(stage.behind) & ~ideals.members(stage.before)
        first = stage.first_member
        members = priced.devices[stage.device_class][first : first + stage.n_members]
        device[inside] = members[0]
        groups += [members] if len(members) > 1 else []
    return StageChain(device, expansion.best, tuple(groups))
