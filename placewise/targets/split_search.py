"""The best split of a line of units into stages: best first, by lower bounds, each whole split priced by the judge.

A* (Hart, Nilsson and Raphael 1968): a part of a split is as good as what it costs, and the least that the rest costs
with the devices that are left (a dynamic program over where the rest begins and how many devices of each kind are
left). The search ends with a proof, or with the bound of the best part that it has not followed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product, zip_longest

import numpy as np

from placewise.exporters.projection import stage_devices
from placewise.exporters.space import Line
from placewise.model.columns import Floats
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import OPTIMAL_GAP, Bound, Improvement, Proposal, Reason
from placewise.placers.base import PlacerInfo, SearchContext
from placewise.placers.shared.interchangeable import interchangeable
from placewise.simulate import judge_placement
from placewise.targets.stage_bounds import bound_stages

MOST_LEFT = 4096
"""Combinations of devices that may be left; with more, the rest of a split may use every device again."""
MOST_SPLITS, MOST_PARTS = 20_000, 2_000_000
"""Splits that are priced, and parts that wait, at most."""
MANY_SPLITS, CLOSE = 2_000, 1e-4
"""After so many priced splits, a best one within this share of the bound will do: equal layers make equal splits."""
CHECKED = 256
"""Parts between two looks at the clock."""
ALWAYS_PUSHED = 20_000
"""Parts that are tried however short the time is, until a split keeps the rules."""

FIRST = -1
"""The kind of the device that the first stage always has."""

_Left = tuple[int, ...]
_Stages = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """The first stages of a split, (kind of device, end), their least seconds, and how many of each kind are left."""

    spent: float
    stages: _Stages
    left: _Left

    @property
    def end(self) -> int:
        return self.stages[-1][1] if self.stages else 0


@dataclass(slots=True)
class _Best:
    """The best split so far."""

    value: float = math.inf
    placement: Placement | None = None
    priced: int = 0
    history: list[Improvement] = field(default_factory=list)


class SplitPlacer:
    """All stages of some lines, for the one target that they belong to.

    After `many` priced splits, one that is close to the bound is enough (None: `MANY_SPLITS`). `splits` says which ones
    the lines have, if not all that the target can express.
    """

    def __init__(self, target: str, lines: tuple[Line, ...], many: int | None = None, splits: str = "") -> None:
        self._lines, self._many = lines, MANY_SPLITS if many is None else many
        self._splits = splits or f"splits that {target} can express"
        self.info = PlacerInfo("splits", f"all {self._splits}", "A* over stages", exact=True)

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The best split of all lines, with a bound for everything that the lines can express."""
        best, bound, reason = _Best(), math.inf, Reason.FINISHED
        for hint in search.hints.placements:
            offer(search, best, hint)
        total = sum(count_splits(search.problem, line) for line in self._lines)
        try:
            for line in self._lines:
                bound = min(bound, _LineSearch(search, line, best, self._many).run())
        except KeyboardInterrupt:
            bound, reason = 0.0, Reason.INTERRUPTED
        if best.placement is None:
            rules = search.problem.constraints
            kept = " and keeps the rules" if rules.pins or rules.forbidden or rules.together else ""
            unmet = "" if math.isfinite(bound) else f"none of the {total:,} {self._splits} fits{kept}"
            return Proposal(None, infeasible=unmet, reason=_reason(search, reason))
        proved = bound >= best.value * (1 - OPTIMAL_GAP)
        method = f"{'all' if proved else 'bounds on the'} {total:,} {self._splits}"
        value = best.value if proved else bound
        return Proposal(
            best.placement, Bound(value, method), _reason(search, reason), (), history=tuple(best.history)
        )  # fmt: skip


def _reason(search: SearchContext, reason: Reason) -> Reason:
    return Reason.TIME_LIMIT if search.watch.out and reason is Reason.FINISHED else reason


def offer(search: SearchContext, best: _Best, placement: Placement) -> None:
    """Keep a placement that is better than the best and keeps the rules."""
    best.priced += 1
    if float(search.price(placement.device[None])[0]) >= best.value:
        return
    judged = judge_placement(search.problem, placement)
    if judged.valid and judged.value < best.value:
        best.value, best.placement = judged.value, placement
        best.history.append(Improvement(search.watch.elapsed, judged.value, "splits"))


class _LineSearch:
    """One line: its kinds of devices, the least seconds of stages, and of what is left."""

    def __init__(self, search: SearchContext, line: Line, best: _Best, many: int) -> None:
        problem = search.problem
        self.search, self.line, self.best, self.many = search, line, best, many
        self.kinds = device_kinds(problem, line)
        examples = [kind[0] for kind in self.kinds]
        costs = bound_stages(problem, line, [*examples, *([line.first] if line.first >= 0 else [])])
        self.cost, self.first = costs[: len(examples)], costs[len(examples) :]
        self.adds, self.ordered = problem.objective.kind == "latency", problem.constraints.ordered
        self.everything = tuple(len(kind) for kind in self.kinds)
        self.lead = find_lead(self.kinds, line)
        self.counted = math.prod(number + 1 for number in self.everything) <= MOST_LEFT
        self.rest = self._least_rests()
        self.parts, self.pushed = list[tuple[float, int, int, _Part]](), 0

    def run(self) -> float:
        """Search until no part can beat the best; what no split of the line is below."""
        if len(self.first):
            for end in np.flatnonzero(np.isfinite(self.first[0, 0])).tolist():
                self._push(_Part(float(self.first[0, 0, end]), ((FIRST, end),), self.everything))
        else:
            self._push(_Part(0.0, (), self.everything))
        while self.parts:
            least, _, number, part = heapq.heappop(self.parts)
            if least >= self.best.value * (1 - OPTIMAL_GAP):
                return least
            if self.best.priced >= self.many and least >= self.best.value * (1 - CLOSE):
                return least
            full = self.best.priced >= MOST_SPLITS or len(self.parts) > MOST_PARTS
            enough = self.best.placement is not None or self.pushed > ALWAYS_PUSHED
            if full or (enough and number % CHECKED == 0 and self.search.watch.out):
                return least
            if part.end == self.line.count:
                offer(self.search, self.best, self._placement(part.stages))
            else:
                self._extend(part)
        return math.inf

    def _extend(self, part: _Part) -> None:
        """Push the part with one stage more, in every way."""
        for kind, number in enumerate(part.left):
            if not number or (self.ordered and part.stages and kind < part.stages[-1][0]):
                continue
            if kind == self.lead and not self._may_lead(part):
                continue
            fewer = (*part.left[:kind], number - 1, *part.left[kind + 1 :])
            costs = self.cost[kind, part.end]
            for end in np.flatnonzero(np.isfinite(costs)).tolist():
                spent = self._join(part.spent, float(costs[end]))
                self._push(_Part(spent, (*part.stages, (kind, end)), fewer))

    def _may_lead(self, part: _Part) -> bool:
        """Whether the device that leads may have the next stage."""
        if part.stages[0][1] < self.line.leads_from:
            return True
        return len(part.stages) == 1 or part.stages[1][0] == self.lead

    def _push(self, part: _Part) -> None:
        least = self._join(part.spent, float(self.rest[part.left if self.counted else ()][part.end]))
        if least < self.best.value * (1 - OPTIMAL_GAP):
            self.pushed += 1
            heapq.heappush(self.parts, (least, -part.end, self.pushed, part))

    def _join(self, one: float, other: float) -> float:
        return one + other if self.adds else max(one, other)

    def _least_rests(self) -> dict[_Left, Floats]:
        """By the devices that are left: the least seconds [units + 1] of the units from i on."""
        done = np.full(self.line.count + 1, np.inf)
        done[-1] = 0.0
        if not self.counted:
            rest = done.copy()
            for start in reversed(range(self.line.count)):
                rest[start] = self._join_arrays(self.cost[:, start], rest).min(initial=np.inf)
            return {(): rest}
        rests: dict[_Left, Floats] = {}
        for left in product(*(range(number + 1) for number in self.everything)):
            rest = done.copy()
            for kind, number in enumerate(left):
                if number:
                    fewer = rests[(*left[:kind], number - 1, *left[kind + 1 :])]
                    rest = np.minimum(rest, self._join_arrays(self.cost[kind], fewer).min(axis=1))
            rests[left] = rest
        return rests

    def _join_arrays(self, cost: Floats, rest: Floats) -> Floats:
        return cost + rest if self.adds else np.maximum(cost, rest)

    def _placement(self, stages: _Stages) -> Placement:
        fresh = [iter(kind) for kind in self.kinds]
        devices = [self.line.first if kind == FIRST else next(fresh[kind]) for kind, _ in stages]
        return Placement(stage_devices((0, *(end for _, end in stages)), devices)[self.line.unit])


def device_kinds(problem: Problem, line: Line) -> list[list[int]]:
    """The devices that may have a stage and may run ops, those that differ in name only together."""
    kind, kinds = interchangeable(problem), dict[int, list[int]]()
    for device in np.flatnonzero(line.devices & problem.allowed.any(axis=0)).tolist():
        kinds.setdefault(int(kind[device]), []).append(device)
    return list(kinds.values())


def find_lead(kinds: Sequence[Sequence[int]], line: Line) -> int:
    """Which of the kinds has the device that leads; −1 if none does."""
    return next((number for number, kind in enumerate(kinds) if line.first >= 0 and line.lead in kind), -1)


def count_splits(problem: Problem, line: Line) -> int:
    """How many splits a line has; devices that differ in name only count once."""
    kinds = device_kinds(problem, line)
    numbers, lead, gaps = [len(kind) for kind in kinds], find_lead(kinds, line), line.count - 1
    every = _count_sequences(numbers)
    if line.first < 0:
        return sum(number * math.comb(gaps, length - 1) for length, number in enumerate(every) if length)
    led, total = every, 0
    if lead >= 0:
        without = _count_sequences([number for kind, number in enumerate(numbers) if kind != lead])
        behind = _count_sequences([number - (kind == lead) for kind, number in enumerate(numbers)])
        led = [a + b for a, b in zip_longest(without, [0, *behind], fillvalue=0)]
    for end in range(1, line.count + 1):
        sequences = every if end < line.leads_from else led
        rest = line.count - end
        total += sum(n * math.comb(rest - 1, length - 1) for length, n in enumerate(sequences) if length) if rest else 1
    return total


def _count_sequences(numbers: Sequence[int]) -> list[int]:
    """How many sequences of kinds there are by length, of so many devices of each kind."""
    scaled = [1.0]  # divided by the factorial of the length
    for number in numbers:
        scaled = np.convolve(scaled, [1 / math.factorial(used) for used in range(number + 1)]).tolist()
    return [round(share * math.factorial(length)) for length, share in enumerate(scaled)]
