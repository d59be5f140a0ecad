"""A lower bound for latency in `operator` execution: intervals of a path, each solved as a small program.

Take ops x₁ → … → x_k along a path. What lies between two of them, behind xᵢ and before xᵢ₊₁, runs after xᵢ has ended
and before xᵢ₊₁ starts. The value is therefore at least the seconds of all xᵢ plus, for each interval, the least time
between the end of xᵢ and the start of xᵢ₊₁. In an interval ops compete: those on one device run one after the other,
and those elsewhere wait for transfers, there and back. That the ops which cannot wait for a transfer must share a
device is the bound of Papadimitriou and Yannakakis (1990, "Towards an architecture-independent analysis of parallel
algorithms"); here it holds for each interval, with its colocation groups.

The program of an interval knows three places: the device of xᵢ, that of xᵢ₊₁, and elsewhere, where only ops of one
colocation group wait for each other. Every op takes its best time, and a tensor between different places at least its
quickest transfer between two devices. Costs are rounded down to whole units, so that what CP-SAT proves for the program
holds for the interval. Equal intervals, as of repeated layers, are solved once.

All ops of an interval on one device take at most the sum of their times. This bounds what an interval can bring. The
intervals of the chain that promises most are solved, with few ops in an interval, then with more, and again until no
chain promises more than what is proved. Every chain is itself a bound, so that the work may end at any moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.model.result import Bound
from placewise.simulate.blocks import best_seconds
from placewise.simulate.bounds.paths import PathPositions, longest_path, path_positions
from placewise.simulate.problem_arrays import arrays_of

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

METHOD = "intervals of a path"
SIZES = (12, 24, 40)
"""The most ops between the ends of an interval: small ones first."""
WORK = 2.0
"""The work of all programs: about as many seconds."""
_EACH, _PACE, _OVERHEAD = 0.05, 10.0, 0.02
"""CP-SAT's deterministic time for one program at most, the work of a unit of it, and the work of any program."""
_CLOSE = 0.002
"""A chain that promises no more than this share above what is proved is not solved."""
_UNITS = 1_000_000
"""Whole units of the sum of an interval's times."""
LONGEST = 20_000


class Program(NamedTuple):
    """An interval in whole units: its first and last op are the ends, which take no time.

    `seconds` [n]; `delays` (u, v, units) of ops that pass tensors; `block` [n] numbers colocation groups.
    """

    seconds: tuple[int, ...]
    delays: tuple[tuple[int, int, int], ...]
    block: tuple[int, ...]
    streams: int


def interval_bound(problem: Problem, *, work: float = WORK, go_on: Callable[[], bool] = lambda: True) -> Bound:
    """The best chain of intervals along the longest path, in seconds; it ends after `work` or when `go_on` is False."""
    seconds = best_seconds(problem, np.arange(problem.n_devices))
    if not np.isfinite(seconds).all():
        return Bound(0.0, METHOD)
    path = longest_path(arrays_of(problem), seconds)
    if not 2 < len(path) <= LONGEST:
        return Bound(0.0, METHOD)
    chain, open_ = _Chain(problem, path, seconds, work), True
    while open_:
        open_ = False
        for size in SIZES:
            promised, steps = chain.find_best(size)
            if promised <= chain.find_proved() * (1 + _CLOSE):
                continue
            for i, j in steps:
                if chain.work <= 0 or not go_on():
                    return Bound(chain.find_proved(), METHOD)
                chain.solve(i, j)
            open_ = open_ or bool(steps)
    return Bound(chain.find_proved(), METHOD)


def least_delays(problem: Problem) -> Floats:
    """The least seconds of each tensor [n_tensors] between two different devices, 0 on a single one."""
    cluster, host, seconds = problem.cluster, problem.n_devices, problem.costs.transfer_seconds
    routes = set[tuple[int, ...]]()
    for source in range(host):
        for target in (device for device in range(host) if device != source):
            here, there = int(cluster.location[source]), int(cluster.location[target])
            hops = ((here, host), (host, there)) if cluster.transfers == "staged" else ((here, there),)
            routes.add(tuple(sorted(int(cluster.link_class[hop]) for hop in hops)))
    if not routes:
        return np.zeros(problem.graph.n_tensors)
    least: Floats = np.min([seconds[:, list(route)].sum(axis=1) for route in sorted(routes)], axis=0)
    return least


class _Chain:
    """The intervals of one path, with the most that each can bring, or what it is proved to bring.

    Entry [i, w] of a table is the interval from path[i] to path[i + w], both ends left out.
    """

    def __init__(self, problem: Problem, path: Ints, seconds: Floats, work: float) -> None:
        a = arrays_of(problem)
        self._problem, self._path, self._seconds, self.work = problem, path, seconds, work
        self._delay, self._tensors = least_delays(problem), a
        self._streams = max(device.streams for device in problem.cluster)
        places = path_positions(a, path)
        self._before = places.before
        self._order = np.argsort(places.after, kind="stable")
        self._first = np.searchsorted(places.after[self._order], np.arange(len(path) + 1))
        band = min(max(SIZES), len(path) - 2) + 1
        self._count = _sum_between(np.ones(problem.n_ops), places, band)
        most = _sum_between(seconds, places, band)
        ends = seconds[path]
        self._along = np.zeros_like(most)
        self._most = most
        for w in range(1, band + 1):
            self._count[:-w, w] -= 2
            self._most[:-w, w] -= ends[:-w] + ends[w:]
            self._along[:-w, w] = self._along[:-w, w - 1] + (ends[w - 1 : -1] if w > 1 else 0.0)
        alone = self._count == np.maximum(np.arange(band + 1) - 1, 0)
        self._solved = alone | (self._most <= self._along)
        self._value = self._along.copy()
        self._programs: dict[Program, float] = {}

    def find_best(self, size: int) -> tuple[float, list[tuple[int, int]]]:
        """The seconds of the most promising chain with intervals of `size` ops, and its intervals not solved yet."""
        return self._longest(np.where(self._solved, self._value, np.where(self._count <= size, self._most, -np.inf)))

    def find_proved(self) -> float:
        """The seconds of the best chain of intervals by what is proved of each."""
        return self._longest(self._value.copy())[0]

    def _longest(self, table: Floats) -> tuple[float, list[tuple[int, int]]]:
        m, band = len(self._path), table.shape[1] - 1
        table[:, 1] = np.where(np.isneginf(table[:, 1]), 0.0, table[:, 1])
        ends = self._seconds[self._path]
        reach, came = np.zeros(m), np.zeros(m, np.intp)
        reach[0] = ends[0]
        for j in range(1, m):
            w = np.arange(1, min(j, band) + 1)
            options = reach[j - w] + table[j - w, w]
            k = int(options.argmax())
            reach[j], came[j] = options[k] + ends[j], j - 1 - k
        open_, j = list[tuple[int, int]](), m - 1
        while j > 0:
            i = int(came[j])
            if not self._solved[i, j - i] and table[i, j - i] > self._value[i, j - i]:
                open_.append((i, j))
            j = i
        return float(reach[-1]) * (1 - 1e-14 * (m + 1000)), open_[::-1]

    def solve(self, i: int, j: int) -> None:
        """Bound the interval from path[i] to path[j]."""
        program, scale = self._state_program(i, j)
        if program not in self._programs:
            self._programs[program], spent = bound_interval(program, _EACH)
            self.work -= spent
        value = self._programs[program] / scale * (1 - 1e-12)
        self._value[i, j - i] = max(self._along[i, j - i], value)
        self._solved[i, j - i] = True

    def _state_program(self, i: int, j: int) -> tuple[Program, float]:
        """The interval in units, and units per second."""
        a, problem = self._tensors, self._problem
        ops = self._order[self._first[i] : self._first[j + 1]]
        ops = np.sort(ops[self._before[ops] <= j])
        ops = ops[(ops != self._path[i]) & (ops != self._path[j])]
        ops = np.concatenate((self._path[i : i + 1], ops, self._path[j : j + 1]))
        place = {op: k for k, op in enumerate(ops.tolist())}
        scale = _UNITS / float(self._seconds[ops[1:-1]].sum())
        delays: dict[tuple[int, int], float] = {}
        for op, u in list(place.items())[:-1]:
            for tensor in range(a.out_offsets[op], a.out_offsets[op + 1]):
                for reader in a.consumers[a.consumer_offsets[tensor] : a.consumer_offsets[tensor + 1]].tolist():
                    if (v := place.get(reader)) is not None:
                        delays[u, v] = max(delays.get((u, v), 0.0), float(self._delay[tensor]))
        numbers: dict[int, int] = {}
        program = Program(
            (0, *np.floor(self._seconds[ops[1:-1]] * scale).astype(np.int64).tolist(), 0),
            # A delay of all ops together is never worth it, so that larger ones are as good as that.
            tuple((u, v, int(min(delay * scale, 2 * _UNITS))) for (u, v), delay in sorted(delays.items())),
            tuple(numbers.setdefault(block, len(numbers)) for block in problem.block[ops].tolist()),
            self._streams,
        )
        return program, scale


def _sum_between(values: Floats, places: PathPositions, band: int) -> Floats:
    """Σ values [n_ops] of the ops from path[i] to path[i + w], both included [m, band + 1]; undefined past the end."""
    m, after, width = places.length, places.after, places.before - places.after
    own = np.zeros((m, band + 1))
    near = np.flatnonzero((after >= 0) & (places.before < m) & (width <= band))
    np.add.at(own, (after[near], width[near]), values[near])
    for w in range(1, band + 1):
        own[:-w, w] += own[:-w, w - 1] + own[1 : m - w + 1, w - 1]
        if w > 1:
            own[:-w, w] -= own[1 : m - w + 1, w - 2]
    return own


def bound_interval(program: Program, work: float) -> tuple[float, float]:
    """A lower bound in units on the time between the ends of an interval, and the work spent."""
    from ortools.sat.python import cp_model  # imported where it is used: most commands need none

    together = program.block[0] == program.block[-1]
    bounds, spent = [], 0.0
    for places in (1,) if together else (1, 2):
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers, parameters.max_deterministic_time = 1, work
        parameters.catch_sigint_signal, parameters.symmetry_level = False, 0
        status = solver.solve(_build_model(program, places))
        known = status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN)
        bounds.append(np.floor(solver.best_objective_bound) if known else 0.0)
        spent += _PACE * solver.response_proto.deterministic_time + _OVERHEAD
    return max(float(min(bounds)), 0.0), spent


def _build_model(program: Program, places: int) -> cp_model.CpModel:
    """The program of an interval whose ends are on one device (1 place) or on two; ops may also be elsewhere."""
    from ortools.sat.python import cp_model

    model, n, groups = cp_model.CpModel(), len(program.seconds), max(program.block) + 1
    latest = sum(program.seconds) + sum(delay for *_, delay in program.delays) + 1
    at = [[model.new_bool_var("") for _ in range(groups)] for _ in range(places)]
    model.add(at[0][program.block[0]] == 1)
    model.add(at[-1][program.block[-1]] == 1)
    if places == 2:
        for first, second in zip(*at, strict=True):
            model.add_at_most_one([first, second])
    start = [model.new_int_var(0, latest, "") for _ in range(n)]
    model.add(start[0] == 0)
    for u, v, delay in program.delays:
        done, one, other = start[u] + program.seconds[u], program.block[u], program.block[v]
        if one == other or not delay:
            model.add(start[v] >= done)
            continue
        apart = model.new_bool_var("")
        model.add(start[v] >= done + delay * apart)
        for here in at:
            model.add_bool_or([here[one].negated(), here[other], apart])
            model.add_bool_or([here[one], here[other].negated(), apart])
    inner = [op for op in range(1, n - 1) if program.seconds[op]]
    for op in inner:
        model.add(start[-1] >= start[op] + program.seconds[op])
    if program.streams == 1:
        for group in set(program.block):
            members = [op for op in inner if program.block[op] == group]
            if len(members) > 1:  # on one device, wherever that is
                model.add_no_overlap(
                    [model.new_fixed_size_interval_var(start[op], program.seconds[op], "") for op in members]
                )
    for here in at:
        tasks = [
            model.new_optional_fixed_size_interval_var(start[op], program.seconds[op], here[program.block[op]], "")
            for op in inner
        ]
        if program.streams == 1:
            model.add_no_overlap(tasks)
        else:
            model.add_cumulative(tasks, [1] * len(tasks), program.streams)
        busy = sum(program.seconds[op] * here[program.block[op]] for op in inner)
        model.add(busy <= program.streams * start[-1])
    model.minimize(start[-1])
    return model
