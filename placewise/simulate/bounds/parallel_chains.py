"""A lower bound for latency in `subgraph` execution from a path and the chains beside it (docs/judge.md).

Ops outside of the path and its chains are left out, which makes no placement slower. An op that all chains in question
begin before and end after is a *bottleneck*: every path leads through it. Chains between the same two bottlenecks are
parallel; direct edges are chains without ops.

Between two bottlenecks v and w, either both are in one call with all that lies between, or the call of v has the first
ops of each chain, the call of w the last ones, and what is left of a chain runs in calls and on the host that have
nothing before v or after w (`chain_ways.py`). The seconds depend on what came before only by the bytes of the
accelerator that runs v: a *label* is the seconds and the bytes at a bottleneck, and only labels that no other one beats
in both are kept (Desrochers and Soumis 1988, "A generalized permanent labelling algorithm for the shortest path problem
with time windows").

Neighbours of one colocation group are on one device. Where calls part between them, both count on one accelerator.
Ops, transfers and calls cost what they cost at least, and accelerators hold what the largest one does. Two calls on one
accelerator are only known to share its memory where a group joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from placewise.model.columns import Floats, Ints, Longs
from placewise.model.problem import Problem
from placewise.model.result import Bound
from placewise.simulate.blocks import best_seconds
from placewise.simulate.bounds.chain_ways import SURE, Hosted, OpChain, Splitter
from placewise.simulate.bounds.cheapest_call import CallCosts, call_costs
from placewise.simulate.bounds.paths import WORK, PathPositions, list_long_paths, path_positions
from placewise.simulate.problem_arrays import ProblemArrays, arrays_of

METHOD = "path with parallel chains"
LONGEST_CHAIN = 20
"""Longer chains are left out, and so are the ones beside a longer part of the path."""
MOST_LABELS = 400
"""With more labels at a bottleneck, bytes are rounded down."""
_USE_WORK, _ROW_WORK = 4, 6
"""The work of looking at an op or at a use of a tensor, and of a row of a table of ways."""


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """The chains between two bottlenecks, and the seconds and bytes of all that lies between in the whole graph."""

    chains: tuple[OpChain, ...]
    seconds: float
    held: float


@dataclass(frozen=True, slots=True, eq=False)
class BottleneckPath:
    """Bottlenecks [s + 1] of a path, with columns as in `OpChain`, and the sections between them [s]."""

    ops: Ints
    seconds: Floats
    host: Floats
    held: Floats
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The calls that the bound counts: the ops of each, in order, and the number of its accelerator.

    Kept ops in no call are on the host. `value` bounds every placement, in seconds.
    """

    value: float
    kept: Ints
    calls: tuple[tuple[int, ...], ...]
    run: tuple[int, ...]


def chains_bound(problem: Problem, *, work: float = WORK, go_on: Callable[[], bool] = lambda: True) -> Bound:
    """The best bound of a few paths with the chains beside them, in seconds; see `best_split`."""
    split = best_split(problem, work=work, go_on=go_on)
    return Bound(split.value if split else 0.0, METHOD)


def best_split(problem: Problem, *, work: float = WORK, go_on: Callable[[], bool] = lambda: True) -> Split | None:
    """The split with the largest bound over a few paths; None if they are too long or `work` is too small.

    Once `work` is done, or when `go_on` returns False, chains beside a path are left out, and so are further paths.
    """
    a, costs = arrays_of(problem), call_costs(problem)
    host = best_seconds(problem, np.flatnonzero(problem.cluster.is_host))
    best, each = None, _USE_WORK * (problem.n_ops + len(a.consumers))
    for path in list_long_paths(problem, a, costs, host) if work >= each else []:
        splitter = Splitter(costs, (work - each) / _ROW_WORK, go_on)
        split = split_series(list_series(problem, path, costs, host), splitter)
        if np.isfinite(split.value) and (best is None or split.value > best.value):
            best = split
        work = splitter.work * _ROW_WORK
        if work < each or not go_on():
            break
    return best and replace(best, value=best.value * (1 - 1e-14 * (problem.n_ops + 1000)))


def list_series(problem: Problem, path: Ints, costs: CallCosts, host: Floats) -> BottleneckPath:
    """The bottlenecks of a path with chains beside it, the slowest of those that can be kept together."""
    a = arrays_of(problem)
    kept = _keep_compatible(_list_ears(a, path, costs, host), len(path))
    inner = np.zeros(len(path), np.bool_)
    for i, j in kept:
        inner[i + 1 : j] = True
    marks = np.flatnonzero(~inner)
    beside = [op for chains in kept.values() for ops in chains for op in ops]
    columns = _Columns(problem, costs, host, [*path.tolist(), *beside])
    seconds, held = columns.sum_between(path_positions(problem, path), path[marks], marks)
    sections = tuple(
        Section(
            tuple(columns.chain(ops, path[i], path[j]) for ops in (path[i + 1 : j].tolist(), *kept.get((i, j), ()))),
            seconds[k],
            held[k],
        )
        for k, (i, j) in enumerate(pairwise(marks.tolist()))
    )
    ops = path[marks]
    return BottleneckPath(ops, columns.seconds[ops], host[ops], columns.held[ops], sections)


class _Columns:
    """Seconds and bytes of single ops, and the tensors between two of them."""

    def __init__(self, problem: Problem, costs: CallCosts, host: Floats, kept: list[int]) -> None:
        a, n = arrays_of(problem), problem.n_ops
        made = a.producer >= 0
        alone = np.flatnonzero(~made[a.consumed] & (np.diff(a.consumer_offsets)[a.consumed] == 1))
        leaving = np.flatnonzero(made & a.output)
        self.seconds: Floats = costs.seconds.copy()
        np.add.at(self.seconds, a.consumers[alone], costs.receive[a.consumed[alone]])
        np.add.at(self.seconds, a.producer[leaving], costs.send[leaving])
        self.held = np.zeros(n)
        if np.isfinite(costs.room):
            order = np.concatenate((np.array(kept, np.int64), np.arange(n)))
            blocks, first = np.unique(problem.block[order], return_index=True)
            self.held[order[first]] = costs.held[blocks]
        self._receive, self._send = costs.receive, np.where(a.output, 0.0, costs.send)
        self._host, self._block, self._a = host, problem.block, a

    def chain(self, ops: Sequence[int], first: int, last: int) -> OpChain:
        """The chain of some ops between two bottlenecks."""
        row = [int(first), *ops, int(last)]
        crossing = [self._list_tensors(maker, reader) for maker, reader in pairwise(row)]
        send, receive = (np.array([each[t].sum() for t in crossing]) for each in (self._send, self._receive))
        inner, block = list(ops), self._block[row]
        return OpChain(
            tuple(ops), self.seconds[inner], self._host[inner], self.held[inner], send, receive, block[1:] == block[:-1]
        )

    def _list_tensors(self, maker: int, reader: int) -> list[int]:
        a = self._a
        made = range(int(a.out_offsets[maker]), int(a.out_offsets[maker + 1]))
        return [t for t in made if reader in a.consumers[a.consumer_offsets[t] : a.consumer_offsets[t + 1]]]

    def sum_between(self, beside: PathPositions, ops: Ints, marks: Longs) -> tuple[list[float], list[float]]:
        """Seconds in a call, and bytes, of all ops between two bottlenecks each, at some positions of the path."""
        section = np.searchsorted(marks, beside.after, "right") - 1
        inside = (section >= 0) & (section < len(marks) - 1)
        inside &= beside.before <= marks[np.minimum(section + 1, len(marks) - 1)]
        inside[ops] = False
        sums = (
            np.bincount(section[inside], weights=values[inside], minlength=len(marks) - 1)
            for values in (self.seconds, self.held)
        )
        seconds, held = (each.tolist() for each in sums)
        return seconds, held


Ear = tuple[float, int, int, tuple[int, ...]]
"""A chain beside a path: its seconds at least, the positions on the path where it leaves and returns, and its ops."""


def _list_ears(a: ProblemArrays, path: Ints, costs: CallCosts, host: Floats) -> list[Ear]:
    """Edges that skip ops of the path, and to each op of the path the slowest chains of others from before it."""
    position = np.full(len(a.op_seconds), -1, np.int64)
    position[path] = np.arange(len(path))
    quickest = np.minimum(costs.seconds, host)
    quickest = np.where(np.isfinite(quickest), quickest, 0.0).tolist()
    moved, at = (costs.send + costs.receive).tolist(), position.tolist()
    slowest: dict[int, Ear] = {}
    ears = list[Ear]()
    for use in np.argsort(a.consumers, kind="stable").tolist():
        reader, tensor = int(a.consumers[use]), int(a.consumed[use])
        maker = int(a.producer[tensor])
        begun = slowest.get(maker) if maker < 0 or at[maker] < 0 else (0.0, at[maker], -1, ())
        if begun is None or (at[reader] >= 0 and at[reader] == begun[1] + 1 and not begun[3]):
            continue
        ear = (begun[0] + moved[tensor], begun[1], at[reader], begun[3])
        if at[reader] >= 0:
            ears.append(ear)
        elif len(ear[3]) < LONGEST_CHAIN and (reader not in slowest or slowest[reader][0] < ear[0] + quickest[reader]):
            slowest[reader] = ear[0] + quickest[reader], ear[1], -1, (*ear[3], reader)
    return ears


def _keep_compatible(ears: list[Ear], length: int) -> dict[tuple[int, int], list[tuple[int, ...]]]:
    """Chains by the positions where they leave and return: any two of these are equal or do not overlap.

    The slowest ones are kept first. An op is in one chain only.
    """
    kept = dict[tuple[int, int], list[tuple[int, ...]]]()
    covered, used = np.zeros(length, np.bool_), set[int]()
    for _, i, j, ops in sorted(ears, key=lambda ear: -ear[0]):
        chains = kept.get((i, j))
        if chains is None:
            if j - i - 1 > LONGEST_CHAIN or covered[i:j].any():
                continue
            covered[i:j] = True
            chains = kept[i, j] = []
        if used.isdisjoint(ops) and (ops or () not in chains):
            used.update(ops)
            chains.append(ops)
    return kept


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Seconds until a bottleneck and bytes beside it [k]; label 0 is on the host, the others in a call.

    `parent` numbers the label before, `way` what leads from there; −1 where both bottlenecks are in one call.
    """

    seconds: Floats
    held: Floats
    parent: Longs
    way: Longs


def split_series(series: BottleneckPath, splitter: Splitter) -> Split:
    """The cheapest way to split a series; its value is not rounded down."""
    costs, none = splitter.costs, np.full(2, -1)
    own = np.where(series.held <= costs.room * SURE, series.seconds, np.inf)
    begun = np.array([series.host[0], costs.overhead + own[0]])
    labels = [Labels(begun, np.array([0.0, series.held[0]]), none, none)]
    for k, section in enumerate(series.sections):
        on_host = _advance(labels[-1], section, splitter, True, series.host[k + 1], 0.0)
        in_call = _advance(labels[-1], section, splitter, False, own[k + 1], series.held[k + 1])
        first = on_host[:, on_host[0].argmin()] if on_host.size else np.array([np.inf, 0.0, 0.0, 0.0])
        columns = np.column_stack((first, _keep_labels(in_call, costs.room)))
        labels.append(Labels(columns[0], columns[1], columns[2].astype(np.int64), columns[3].astype(np.int64)))
    return _Trace(series, splitter).follow(labels)


def _advance(last: Labels, section: Section, splitter: Splitter, hosted: bool, own: float, held: float) -> Floats:
    """Columns of labels [4, k] at the next bottleneck, which takes `own` seconds and `held` bytes."""
    room, found = splitter.costs.room * SURE, list[Floats]()
    if not hosted:
        seconds, beside = last.seconds[1:] + section.seconds, last.held[1:] + section.held + held
        parent = np.arange(1, len(last.seconds))
        found.append(np.stack((seconds, beside, parent, np.full(len(parent), -1.0)))[:, beside <= room])
    for first, part in ((True, slice(0, 1)), (False, slice(1, None))):
        if not np.isfinite(last.seconds[part]).any():
            continue
        ways = splitter.list_ways(section.chains, (first, hosted))
        before = last.held[part, None] + ways.before
        beside = np.where(ways.joined, before + ways.after, ways.after) + held
        label, way = np.nonzero((before <= room) & (beside <= room))
        seconds = (last.seconds[part, None] + ways.seconds)[label, way]
        found.append(np.stack((seconds, beside[label, way], label + (not first), way.astype(np.float64))))
    columns = np.concatenate(found, axis=1) if found else np.zeros((4, 0))
    columns[0] += own
    return columns[:, np.isfinite(columns[0])]


def _keep_labels(columns: Floats, room: float) -> Floats:
    """The labels that no other one equals or beats in seconds and bytes; of too many, bytes are rounded down."""
    order = np.lexsort((columns[1], columns[0]))
    held = columns[1, order]
    least = np.minimum.accumulate(np.concatenate(([np.inf], held[:-1])))
    front = columns[:, order[held < least]]
    if front.shape[1] <= MOST_LABELS:
        return front
    unit = room / (MOST_LABELS // 2)
    front[1] = np.floor(front[1] / unit) * unit * (1 - 1e-15)
    return _keep_labels(front, room)


class _Trace:
    """The calls behind the best labels."""

    def __init__(self, series: BottleneckPath, splitter: Splitter) -> None:
        self._series, self._splitter = series, splitter
        self._calls, self._run, self._runs = list[list[int]](), list[int](), 0

    def follow(self, labels: list[Labels]) -> Split:
        """The split of the least label at the last bottleneck; without calls if there is none."""
        series = self._series
        kept = np.array(
            [*series.ops, *(op for s in series.sections for chain in s.chains for op in chain.ops)], np.int32
        )
        at = int(labels[-1].seconds.argmin())
        value = float(labels[-1].seconds[at])
        if value == np.inf:
            return Split(value, kept, (), ())
        steps = list[tuple[int, int, int]]()
        for label in reversed(labels[1:]):
            steps.append((int(label.parent[at]), int(label.way[at]), at))
            at = int(label.parent[at])
        here = self._open(int(series.ops[0]), self._new_run()) if at else -1
        for section, op, (first, way, last) in zip(series.sections, series.ops[1:].tolist(), steps[::-1], strict=True):
            here = self._step(section, op, (first == 0, last == 0), way, here)
        return Split(value, kept, tuple(map(tuple, self._calls)), tuple(self._run))

    def _step(self, section: Section, op: int, hosted: Hosted, way: int, here: int) -> int:
        """Add what lies between two bottlenecks and the second one; the number of its call, −1 on the host."""
        if way < 0:
            self._calls[here] += [*(op for chain in section.chains for op in chain.ops), op]
            return here
        ways = self._splitter.list_ways(section.chains, hosted)
        run = self._run[here] if here >= 0 else -1
        target = -1 if hosted[1] else run if ways.joined[way] else self._new_run()
        tail = list[int]()
        for chain, (i, stop, start, j) in zip(section.chains, ways.cuts[way].tolist(), strict=True):
            ops = chain.ops if i >= 0 else ()
            stop, start = (j, j) if stop > start else (stop, start)
            if here >= 0:
                self._calls[here] += ops[:i]
            self._open_part(ops[i:stop], run)
            for x, y in self._splitter.costs_of(chain).trace_between(stop, start):
                self._open_part(ops[x:y], self._new_run())
            self._open_part(ops[start:j], target)
            tail += ops[j:]
        return -1 if hosted[1] else self._open(op, target, tail)

    def _open_part(self, ops: Sequence[int], run: int) -> None:
        if len(ops) and run >= 0:
            self._open(ops[0], run, ops[1:])

    def _open(self, op: int, run: int, more: Sequence[int] = ()) -> int:
        self._calls.append([op, *more])
        self._run.append(run)
        return len(self._calls) - 1

    def _new_run(self) -> int:
        self._runs += 1
        return self._runs - 1
