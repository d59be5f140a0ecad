"""Ways to split parallel chains of ops between two bottlenecks that are not in one call (`parallel_chains.py`).

In each chain the call of the first bottleneck ends at a cut, and that of the last one begins at a later cut. In between
are calls and ops on the host. Where a group is parted at the end of the first call, what follows is on the same
accelerator, up to a cut between two groups; likewise before the last call. Calls of several chains on such an
accelerator take turns, which bounds the seconds in between by those of one machine with heads or tails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.simulate.bounds.cheapest_call import CallCosts

SURE = 1 + 1e-12
"""Covers the rounding of sums of bytes."""
MOST_WAYS, MOST_COMPARED = 400, 2000
"""The most ways that are kept, and the most that are compared before they are rounded."""
WAY_WORK = 10
"""The work of a way to split a single chain, in rows of joint tables."""
_COARSEST = 64
_NEVER = 1e30

Hosted = tuple[bool, bool]
"""Whether the first and the last bottleneck are on the host; else they are in two calls."""
Cuts = tuple[int, int, int, int]
"""Where in a chain the first call ends, the first accelerator ends, the last one begins, and the last call begins.

If the first accelerator ends after the last one begins, they are one device, with all in between.
"""

(
    _IN_CALLS, _BETWEEN, _BEFORE, _AFTER, _SENT, _RECEIVED, _JOINED,
    _FIRST_BUSY, _LAST_BUSY, _FIRST_READS, _LAST_READS, _FIRST_REST, _LAST_REST, _WIDTH,
) = range(14)  # fmt: skip
"""Columns of a table of ways: seconds in the calls of both bottlenecks, seconds in between, bytes beside each of them;
whether the results of the first one are sent and received, and whether both are on one accelerator. Then for each of
their accelerators the seconds for which ops in between keep it busy, whether these receive the results of the first
bottleneck, and the least seconds after or before them."""
_ADDED, _LEAST = [_IN_CALLS, _BEFORE, _AFTER, _FIRST_BUSY, _LAST_BUSY], [_FIRST_REST, _LAST_REST]
"""The columns that add up over parallel chains, and those of which the least counts; of the others the largest does."""


@dataclass(frozen=True, slots=True, eq=False)
class OpChain:
    """n ops in a row between two bottlenecks, and the n + 1 cuts before, between and after them.

    `seconds` in a call (inf where no accelerator may run the op), `host` seconds, `held` bytes [n]; `send`, `receive`
    seconds of what crosses a cut, `tied` whether both of its sides are in one group [n + 1].
    """

    ops: tuple[int, ...]
    seconds: Floats
    host: Floats
    held: Floats
    send: Floats
    receive: Floats
    tied: Bools

    def key(self) -> bytes:
        """Equal for chains that cost the same."""
        columns = self.seconds, self.host, self.held, self.send, self.receive, self.tied.astype(np.float64)
        return np.concatenate(columns).tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class SectionWays:
    """Ways to split all chains of a section.

    `seconds` from the first bottleneck to the last one, without their own; bytes `before` and `after`, beside the first
    and the last one; `joined` where both are on one accelerator [k]. `cuts` [k, chains, 4] are `Cuts`, −1 in chains
    that were left out.
    """

    seconds: Floats
    before: Floats
    after: Floats
    joined: Bools
    cuts: Ints


class ChainCosts:
    """Parts of one chain: `call[i, j]` runs ops i to j in one call, `between[i, j]` in calls and on the host."""

    def __init__(self, chain: OpChain, costs: CallCosts) -> None:
        self._n, self._tied, self._free = len(chain.ops), chain.tied.tolist(), np.flatnonzero(~chain.tied).tolist()
        self._send, self._receive, self._overhead = chain.send.tolist(), chain.receive.tolist(), costs.overhead
        self._seconds, self._host, self._held = sum_parts(chain.seconds), sum_parts(chain.host), sum_parts(chain.held)
        self._call = costs.overhead + chain.receive[:, None] + self._seconds + chain.send
        self._call[self._held > costs.room * SURE] = np.inf
        np.fill_diagonal(self._call, 0.0)
        self._step = np.minimum(self._call, self._host)
        self._between = np.full_like(self._step, np.inf)
        for at, j in enumerate(self._free):
            self._between[j, j], before = 0.0, self._free[:at]
            if before:
                self._between[:, j] = np.minimum(
                    self._between[:, j], (self._between[:, before] + self._step[before, j]).min(axis=1)
                )

    def trace_between(self, i: int, j: int) -> list[tuple[int, int]]:
        """The cuts of the calls that count between two cuts, the first one first; other ops are on the host."""
        calls = list[tuple[int, int]]()
        while j > i:
            before = [x for x in self._free if i <= x < j]
            x = before[int((self._between[i, before] + self._step[before, j]).argmin())]
            if self._call[x, j] < self._host[x, j]:
                calls.append((x, j))
            j = x
        return calls[::-1]

    def list_ways(self, hosted: Hosted) -> tuple[Floats, Ints]:
        """All ways to split the chain: rows [k, columns] and cuts [k, 4]."""
        first, last = hosted
        rows, cuts = list[tuple[float, ...]](), list[Cuts]()
        for i in range(1 if first else self._n + 1):
            for j in range(self._n if last else i, self._n + 1):
                for stop, start in self._list_devices(i, j, hosted):
                    row = self._price(i, stop, start, j, hosted)
                    if row[_IN_CALLS] + row[_BETWEEN] < np.inf:
                        rows.append(row)
                        cuts.append((i, stop, start, j))
        return np.array(rows, np.float64).reshape(-1, _WIDTH), np.array(cuts, np.int32).reshape(-1, 4)

    def _list_devices(self, i: int, j: int, hosted: Hosted) -> Iterator[tuple[int, int]]:
        """Where the device of the first bottleneck ends and that of the last one begins, if the calls do at i and j."""
        first, last = hosted
        begins, ends = self._tied[i], self._tied[j]
        if i == j:
            if not begins or first == last:
                yield i, i
            return
        if begins and ends and first == last:
            yield j, i
        stops = [i] if not begins else [x for x in self._free if i < x <= j][: 1 if first else None]
        starts = [j] if not ends else [x for x in self._free if i <= x < j][-1 if last else 0 :]
        yield from ((stop, start) for stop in stops for start in starts if stop <= start)

    def _price(self, i: int, stop: int, start: int, j: int, hosted: Hosted) -> tuple[float, ...]:
        """The row of one way."""
        first, last = hosted
        joined = not first and not last and (stop > start or (i == j and self._tied[i]))
        stop, start = (j, j) if stop > start else (stop, start)
        in_calls = 0.0 if first else float(self._seconds[0, i]) + (self._send[i] if i else 0.0)
        in_calls += 0.0 if last else float(self._seconds[j, self._n]) + (self._receive[j] if j else 0.0)
        to_stop = float((self._host if first else self._call)[i, stop])
        to_last = float((self._host if last else self._call)[start, j])
        inner = float(self._between[stop, start]) if stop < start else 0.0
        early, late = 0.0 if first else self._busy(i, stop), 0.0 if last else self._busy(start, j)
        return (
            in_calls, to_stop + inner + to_last,
            0.0 if first else float(self._held[0, stop]), 0.0 if last else float(self._held[start, self._n]),
            not first and i == 0, not last and j == 0, joined,
            early, late, early > 0 and i == 0, late > 0 and start == 0,
            inner + to_last if early > 0 else _NEVER, to_stop + inner if late > 0 else _NEVER,
        )  # fmt: skip

    def _busy(self, i: int, j: int) -> float:
        """Seconds for which ops i to j keep an accelerator, beside those of other chains.

        They may be in one call with these, which pays its overhead once and receives what all of them read.
        """
        if i == j:
            return 0.0
        return float(self._call[i, j]) - self._overhead - (self._receive[0] if i == 0 else 0.0)


class Splitter:
    """The ways to split sections, remembered for chains that cost the same.

    Once `work` rows are used up, or `go_on` is False, all chains with ops but the first one of a section are left out.
    """

    def __init__(self, costs: CallCosts, work: float = np.inf, go_on: Callable[[], bool] = lambda: True) -> None:
        self.costs, self.work, self._go_on = costs, work, go_on
        self._costs = dict[bytes, ChainCosts]()
        self._chains = dict[tuple[bytes, Hosted], tuple[Floats, Ints]]()
        self._ways = dict[tuple[tuple[bytes, ...], Hosted], SectionWays]()

    def costs_of(self, chain: OpChain) -> ChainCosts:
        """What parts of a chain cost."""
        key = chain.key()
        if key not in self._costs:
            self._costs[key] = ChainCosts(chain, self.costs)
        return self._costs[key]

    def list_ways(self, chains: tuple[OpChain, ...], hosted: Hosted) -> SectionWays:
        """The ways to split parallel chains that no other one equals or beats in seconds and bytes."""
        key = tuple(chain.key() for chain in chains), hosted
        if key not in self._ways:
            self._ways[key] = self._combine(chains, hosted)
        return self._ways[key]

    def _combine(self, chains: tuple[OpChain, ...], hosted: Hosted) -> SectionWays:
        values, cuts = np.zeros((1, _WIDTH)), np.zeros((1, len(chains), 4), np.int32)
        values[:, _LEAST] = _NEVER
        for k, chain in enumerate(chains):
            if k and chain.ops and (self.work < 0 or not self._go_on()):
                cuts[:, k] = -1
                continue
            more, where = self._list_chain(chain, hosted)
            self.work -= len(values) * len(more)
            one, other = (each.ravel() for each in np.indices((len(values), len(more))))
            joint = np.maximum(values[one], more[other])
            joint[:, _ADDED] = values[one][:, _ADDED] + more[other][:, _ADDED]
            joint[:, _LEAST] = np.minimum(values[one][:, _LEAST], more[other][:, _LEAST])
            values, left = keep_best(joint) if k < len(chains) - 1 else (joint, np.arange(len(joint)))
            cuts = cuts[one[left]]
            cuts[:, k] = where[other[left]]
        seconds = self._sum_seconds(values, chains) + (0.0 if hosted[1] else self.costs.overhead)
        best, left = keep_best(np.column_stack((seconds, values[:, [_BEFORE, _AFTER, _JOINED]])))
        return SectionWays(best[:, 0], best[:, 1], best[:, 2], best[:, 3] > 0, cuts[left])

    def _sum_seconds(self, values: Floats, chains: tuple[OpChain, ...]) -> Floats:
        """The seconds of rows from one bottleneck to the other.

        What the first one makes is sent if some chain begins outside its call, and received if some chain begins in the
        call of the last one: where ops of both are neighbours, that is certain, and what they exchange counts.
        """
        direct = [chain for chain in chains if not chain.ops] or list(chains)
        sent, received = min(float(chain.send[0]) for chain in direct), min(float(chain.receive[0]) for chain in direct)
        read = min((float(chain.receive[0]) for chain in chains if chain.ops), default=0.0)
        columns = values.T
        between, both = columns[_BETWEEN], columns[_FIRST_BUSY] + columns[_LAST_BUSY]
        for busy, reads, rest in (
            (columns[_FIRST_BUSY], columns[_FIRST_READS], columns[_FIRST_REST]),
            (columns[_LAST_BUSY], columns[_LAST_READS], columns[_LAST_REST]),
        ):
            between = np.maximum(between, np.where(busy > 0, self.costs.overhead + busy + reads * read + rest, 0.0))
        between = np.maximum(between, np.where(columns[_JOINED] > 0, both, 0.0))
        total: Floats = columns[_IN_CALLS] + between + columns[_SENT] * sent + columns[_RECEIVED] * received
        return total

    def _list_chain(self, chain: OpChain, hosted: Hosted) -> tuple[Floats, Ints]:
        key = chain.key(), hosted
        if key not in self._chains:
            rows, cuts = self.costs_of(chain).list_ways(hosted)
            self.work -= WAY_WORK * len(rows)
            values, left = keep_best(rows)
            self._chains[key] = values, cuts[left]
        return self._chains[key]


def sum_parts(values: Floats) -> Floats:
    """Σ values[i:j] at [i, j] for i ≤ j, without differences, so that inf stays where it is."""
    n = len(values)
    table = np.zeros((n + 1, n + 1))
    for i in range(n):
        table[i, i + 1 :] = np.cumsum(values[i:])
    return table


def keep_best(values: Floats) -> tuple[Floats, Longs]:
    """Rows [k, columns] that no other one equals or beats in all columns, and their numbers.

    Of too many, all columns but the first and flags are rounded down, which can only lower a bound, and equal rows
    become the one that is least in the first.
    """
    if len(values) <= MOST_COMPARED:
        left = find_front(values)
        if len(left) <= MOST_WAYS:
            return values[left], left
    left, parts, values = np.arange(len(values)), _COARSEST, values.copy()
    values[:, _FIRST_BUSY:] = 0.0
    exact: Bools = ((values == 0) | (values == 1)).min(axis=0)
    exact[0] = True
    unit = np.where(exact, 1.0, values.max(axis=0))
    while len(left) > MOST_WAYS and parts:
        rounded = np.where(exact, values, np.floor(values / unit * parts) / parts * unit * (1 - 1e-15))
        order = left[np.lexsort(rounded[left].T)]
        new = np.ones(len(order), np.bool_)
        new[1:] = (rounded[order[1:], 1:] != rounded[order[:-1], 1:]).any(axis=1)
        left, values, parts = order[new], rounded, parts // 2
    left = left[find_front(values[left])]
    return values[left], left


def find_front(values: Floats) -> Longs:
    """The rows [k, columns] that no other one equals or beats in all columns."""
    if not len(values):
        return np.zeros(0, np.int64)
    largest = np.abs(values).max(axis=0)
    sums = (values / np.where(largest > 0, largest, 1.0)).sum(axis=1)  # rows of a small sum beat many others
    left, kept = np.lexsort((*values.T, sums)), list[int]()
    rows = values[left][:, (values != values[0]).any(axis=0)]
    while len(left):
        kept.append(int(left[0]))
        stay = (rows < rows[0]).any(axis=1)
        left, rows = left[stay], rows[stay]
    return np.array(kept, np.int64)
