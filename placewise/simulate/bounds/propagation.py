"""A quick lower bound on the time between the ends of an interval, by propagation.

Suppose that the second end starts at most L after the first one ends. A group is on the device of an end or elsewhere.
In each of these places, its ops have heads and tails: longest paths from and to the ends, with a transfer wherever no
place that is left for a predecessor or a successor is the same. Where head, time and tail of an op exceed L, its group
cannot be. What must be on the device of an end runs there one after the other, at best by Jackson's preemptive rule
(Carlier 1982, "The one-machine sequencing problem"), which must end by L, also with any one group added that may be
there; and what must be on either end's device fits into the time of both. If no place is left for a group, the second
end starts later than L. That ops which cannot wait for a transfer must share a device is the bound of Papadimitriou and
Yannakakis (1990).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from placewise.simulate.bounds.intervals import IntervalProgram

Amount = TypeVar("Amount", int, float)

_PARTS = 32
"""Bisection ends at this share of what ops one after the other would add to the longest path."""


def propagated_bound(program: IntervalProgram) -> int:
    """A lower bound in units on the time between the ends of an interval, and at most the sum of its ops."""
    high = sum(program.seconds)
    if _is_refuted(program, high - 1):
        return high
    low = _longest(program)
    step = max((high - low) // _PARTS, 1)
    while high - low > step:
        middle = (low + high) // 2
        low, high = (middle, high) if _is_refuted(program, middle) else (low, middle)
    return low


def _longest(program: IntervalProgram) -> int:
    reach = [0] * len(program.seconds)
    for u, v, _ in program.delays:
        reach[v] = max(reach[v], reach[u] + program.seconds[u])
    return reach[-1]


def _is_refuted(program: IntervalProgram, latest: int) -> bool:
    """Whether the ends are more than `latest` apart, on one device and on two."""
    apart = program.block[0] != program.block[-1]
    return not _may_end(program, latest, 2) and not (apart and _may_end(program, latest, 3))


def _may_end(program: IntervalProgram, latest: int, places: int) -> bool:
    """False if the ends are proved to be more than `latest` apart.

    Of `places`, the last is elsewhere; there are 2 if both ends are on one device, 3 if they are on two. `may` holds a
    bit for each place that is left to a group.
    """
    seconds, block = program.seconds, program.block
    may = [(1 << places) - 1] * (max(block) + 1)
    may[block[0]] = 1
    may[block[-1]] &= 1 << (places - 2)
    forward = list(program.delays)
    backward = sorted(((v, u, delay) for u, v, delay in program.delays), reverse=True)
    members: list[list[int]] = [[] for _ in may]
    for op, group in enumerate(block):
        members[group].append(op)
    while all(may):
        head = _list_heads(program, may, forward, places)
        tail = _list_heads(program, may, backward, places)
        changed = False
        for op, group in enumerate(block):
            for place in range(places):
                over = head[place][op] + seconds[op] + tail[place][op] > latest
                if over and may[group] >> place & 1:
                    may[group] &= ~(1 << place)
                    changed = True
        if changed or not all(may):
            continue
        if program.streams > 1 or not _exclude_by_load(program, may, members, head, tail, latest, places):
            return True
    return False


def _list_heads(
    program: IntervalProgram, may: list[int], edges: list[tuple[int, int, int]], places: int
) -> list[list[int]]:
    """The least start [places][n] of each op in each place that is left, by edges in the order of their first op."""
    seconds, block = program.seconds, program.block
    head = [[0] * len(seconds) for _ in range(places)]
    every = range(places)
    for u, v, delay in edges:
        left, own = may[block[u]], seconds[u]
        if block[u] == block[v]:
            for place in every:
                head[place][v] = max(head[place][v], head[place][u] + own)
            continue
        here = [head[place][u] + own for place in every]
        away = min(here[place] for place in every if left >> place & 1) + delay
        for place in every:
            start = min(here[place], away) if left >> place & 1 else away
            if start > head[place][v]:
                head[place][v] = start
    return head


def _exclude_by_load(
    program: IntervalProgram,
    may: list[int],
    members: list[list[int]],
    head: list[list[int]],
    tail: list[list[int]],
    latest: int,
    places: int,
) -> bool:
    """Take places from groups that do not fit there beside what must be there; whether any was taken."""
    seconds, changed = program.seconds, False
    if places == 3 and _is_overfull(program, may, head, tail, latest):
        may[0] = 0
        return True
    for place in range(places):
        tasks = [[(head[place][op], seconds[op], tail[place][op]) for op in ops if seconds[op]] for ops in members]
        bit, elsewhere = 1 << place, place == places - 1
        fixed = [] if elsewhere else [task for group, own in enumerate(tasks) if may[group] == bit for task in own]
        if fixed and one_machine_end(fixed) > latest:
            may[0] = 0
            return True
        for group, own in enumerate(tasks):
            tested = own and may[group] & bit and (len(own) > 1 if elsewhere else may[group] != bit)
            if tested and one_machine_end(fixed + own) > latest:
                may[group] &= ~bit
                changed = True
    return changed


def _is_overfull(
    program: IntervalProgram, may: list[int], head: list[list[int]], tail: list[list[int]], latest: int
) -> bool:
    """Whether the ops that must be on the device of one end or the other take longer than both have for them."""
    here = [op for op, own in enumerate(program.seconds) if own and may[program.block[op]] < 4]
    room = 0
    for place in (0, 1):
        able = [op for op in here if may[program.block[op]] >> place & 1]
        if able:
            room += latest - min(head[place][op] for op in able) - min(tail[place][op] for op in able)
    return sum(program.seconds[op] for op in here) > room


def one_machine_end(tasks: list[tuple[Amount, Amount, Amount]]) -> Amount:
    """When tasks (head, time, tail) end on one machine, each interrupted by any with a longer tail."""
    todo = sorted(tasks)
    ready: list[tuple[Amount, Amount]] = []
    now, at = todo[0][0], 0
    end = now
    while at < len(todo) or ready:
        if not ready:
            now = max(now, todo[at][0])
        while at < len(todo) and todo[at][0] <= now:
            heappush(ready, (-todo[at][2], todo[at][1]))
            at += 1
        tail, left = heappop(ready)
        until = min(now + left, todo[at][0]) if at < len(todo) else now + left
        if until < now + left:
            heappush(ready, (tail, now + left - until))
        else:
            end = max(end, until - tail)
        now = until
    return end
