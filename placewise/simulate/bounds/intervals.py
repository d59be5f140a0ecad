"""A lower bound for latency in `operator` execution: intervals of a path, each bounded by itself (docs/judge.md).

Along a path x₁ → … → x_k, the value is at least the seconds of all xᵢ plus, for each interval, the least time between
the end of xᵢ and the start of xᵢ₊₁ (Papadimitriou and Yannakakis 1990, "Towards an architecture-independent analysis of
parallel algorithms", here for each interval, with its colocation groups).

The program of an interval knows three places: the device of xᵢ, that of xᵢ₊₁, and elsewhere, where only ops of one
colocation group wait for each other. Every op takes its best time, and a tensor between different places at least its
quickest transfer between two devices.

All ops of an interval on one device take at most the sum of their times. This is what an interval promises, less what
one within it is known to lack. The intervals of the chain that promises most are solved, with few ops in an interval,
then with more, until no chain promises more than what is proved. Every chain is itself a bound, so that the work may
end at any moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placewise.model.columns import Floats, Ints, Longs
from placewise.model.problem import Problem
from placewise.simulate.blocks import best_seconds
from placewise.simulate.bounds.paths import PathPositions, longest_path, path_positions
from placewise.simulate.bounds.propagation import propagated_bound
from placewise.simulate.problem_arrays import arrays_of

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

METHOD = "intervals of a path"
SIZES = (12, 24, 40)
"""The most ops between the ends of an interval that CP-SAT solves: small ones first."""
QUICK_SIZES = (12, 24, 40, 80, 160)
"""The same for propagation."""
WORK = 0.8
"""The work of all programs: about as many seconds."""
_EACH, _PACE, _OVERHEAD = 0.05, 5.0, 0.01
"""CP-SAT's deterministic time for one program at most, the work of a unit of it, and the work of any program."""
_CLOSE = 0.002
"""A chain that promises no more than this share above what is proved is not solved."""
_UNITS = 1_000_000
"""Whole units of the sum of an interval's times."""
LONGEST = 20_000
QUICK, SOLVED = 1, 2
"""How well an interval is bounded: by propagation, and by CP-SAT or exactly."""
_TABLE = 300_000
"""The most intervals that are looked at, short ones first."""
_PROPAGATION = 1e-4
"""The work of propagation in an interval for each use of a tensor in it."""
_STATED = 1e-4
"""The work of stating an interval, which may have been solved already."""


class IntervalProgram(NamedTuple):
    """An interval in whole units: its first and last op are the ends, which take no time.

    `seconds` [n]; `delays` (u, v, units) of ops that pass tensors; `block` [n] numbers colocation groups.
    """

    seconds: tuple[int, ...]
    delays: tuple[tuple[int, int, int], ...]
    block: tuple[int, ...]
    streams: int


class PathTimes(NamedTuple):
    """What is proved along a longest path [m]: the least seconds of everything, and before and after each op [m]."""

    value: float
    path: Ints
    start: Floats
    rest: Floats


NOTHING = PathTimes(0.0, np.zeros(0, np.int32), np.zeros(0), np.zeros(0))


def begin_chain(problem: Problem) -> PathIntervals | None:
    """The intervals of the longest path, none bounded yet; None where it is too short or long."""
    seconds = best_seconds(problem, np.arange(problem.n_devices))
    if not np.isfinite(seconds).all():
        return None
    path = longest_path(problem, seconds)
    return PathIntervals(problem, path, seconds) if 2 < len(path) <= LONGEST else None


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


class PathIntervals:
    """The intervals of one path, with the most that each can bring, or what it is proved to bring.

    Entry [i, w] of a table is the interval from path[i] to path[i + w], both ends left out.
    """

    def __init__(self, problem: Problem, path: Ints, seconds: Floats) -> None:
        a = arrays_of(problem)
        self._problem, self._path, self._seconds = problem, path, seconds
        self._streams = max(device.streams for device in problem.cluster)
        places = path_positions(problem, path)
        self._before = places.before
        self._order = np.argsort(places.after, kind="stable")
        self._first = np.searchsorted(places.after[self._order], np.arange(len(path) + 1))
        band = min(max(max(SIZES), min(max(QUICK_SIZES), _TABLE // len(path))), len(path) - 2) + 1
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
        self._level = np.where(alone | (self._most <= self._along), SOLVED, 0)
        self._value = self._along.copy()
        self._promised = {QUICK: most.copy(), SOLVED: most.copy()}
        self._programs: dict[tuple[IntervalProgram, int], float] = {}
        self._proved: float | None = None
        self._makes, self._reads = a.out_offsets.tolist(), a.consumer_offsets.tolist()
        self._readers, self._delays = a.consumers.tolist(), least_delays(problem).tolist()

    def improve(self, level: int, work: float, go_on: Callable[[], bool]) -> float:
        """Bound intervals at a level, those of the most promising chains, and return the work spent."""
        gained, spent = True, 0.0
        while gained:
            gained, before = False, self.find_proved()
            for size in QUICK_SIZES if level == QUICK else SIZES:
                promised, steps = self.find_best(size, level)
                if promised <= self.find_proved() * (1 + _CLOSE):
                    continue
                for i, j in steps:
                    if spent >= work or not go_on():
                        return spent
                    spent += self.solve(i, j, level)
                gained = gained or bool(steps)
            if level == QUICK:
                gained = self.find_proved() > before * (1 + _CLOSE)
        return spent

    def find_best(self, size: int, level: int) -> tuple[float, list[tuple[int, int]]]:
        """The seconds of the most promising chain with intervals of `size` ops, and those bounded below `level`."""
        promised = np.where(self._count <= size, self._promised[level], -np.inf)
        return self._longest(np.where(self._level >= level, self._value, np.maximum(promised, self._value)), level)

    def find_proved(self) -> float:
        """The seconds of the best chain of intervals by what is proved of each."""
        if self._proved is None:
            self._proved = self._longest(self._value, SOLVED)[0]
        return self._proved

    def list_times(self) -> PathTimes:
        """What is proved of each op of the path."""
        table, ends, least = self._value, self._seconds[self._path], 1 - 1e-14 * (len(self._path) + 1000)
        reach = _reach(ends, table)[0]
        mirrored = np.full_like(table, -np.inf)
        for w in range(1, table.shape[1]):
            mirrored[:-w, w] = table[:-w, w][::-1]
        rest = (_reach(ends[::-1], mirrored)[0] - ends[::-1])[::-1]
        return PathTimes(float(reach[-1]) * least, self._path, (reach - ends) * least, rest * least)

    def _longest(self, table: Floats, level: int) -> tuple[float, list[tuple[int, int]]]:
        m = len(self._path)
        reach, came = _reach(self._seconds[self._path], table)
        open_, j = list[tuple[int, int]](), m - 1
        while j > 0:
            i = int(came[j])
            if self._level[i, j - i] < level and table[i, j - i] > self._value[i, j - i]:
                open_.append((i, j))
            j = i
        return float(reach[-1]) * (1 - 1e-14 * (m + 1000)), open_[::-1]

    def solve(self, i: int, j: int, level: int) -> float:
        """Bound the interval from path[i] to path[j], and return the work spent."""
        (program, scale), spent = self._state_program(i, j), _STATED
        if (program, level) not in self._programs:
            if level == QUICK:
                units, took = float(propagated_bound(program)), _PROPAGATION * len(program.delays)
            else:
                units, took = bound_interval(program, _EACH)
            self._programs[program, level] = units
            spent += took
        units = self._programs[program, level]
        value = units / scale * (1 - 1e-12)
        if value > self._value[i, j - i]:
            self._value[i, j - i], self._proved = value, None
        self._level[i, j - i] = SOLVED if units >= sum(program.seconds) else level
        # What an interval lacks is lacking in those around it too, as their other ops can run before and after it.
        lacking, most, promised = self._most[i, j - i] - self._value[i, j - i], self._most, self._promised[level]
        for first in range(max(j - most.shape[1] + 1, 0), i + 1 if lacking > 0 else 0):
            wider = promised[first, j - first :]
            np.minimum(wider, most[first, j - first :] - lacking, out=wider)
        return spent

    def _state_program(self, i: int, j: int) -> tuple[IntervalProgram, float]:
        """The interval in units, and units per second."""
        problem = self._problem
        ops = self._order[self._first[i] : self._first[j + 1]]
        ops = np.sort(ops[self._before[ops] <= j])
        ops = ops[(ops != self._path[i]) & (ops != self._path[j])]
        ops = np.concatenate((self._path[i : i + 1], ops, self._path[j : j + 1]))
        place = {op: k for k, op in enumerate(ops.tolist())}
        scale = _UNITS / float(self._seconds[ops[1:-1]].sum())
        delays: dict[tuple[int, int], float] = {}
        for op, u in list(place.items())[:-1]:
            for tensor in range(self._makes[op], self._makes[op + 1]):
                for reader in self._readers[self._reads[tensor] : self._reads[tensor + 1]]:
                    if (v := place.get(reader)) is not None:
                        delays[u, v] = max(delays.get((u, v), 0.0), self._delays[tensor])
        numbers: dict[int, int] = {}
        program = IntervalProgram(
            (0, *np.floor(self._seconds[ops[1:-1]] * scale).astype(np.int64).tolist(), 0),
            # A delay of all ops together is never worth it, so that larger ones are as good as that.
            tuple((u, v, int(min(delay * scale, 2 * _UNITS))) for (u, v), delay in sorted(delays.items())),
            tuple(numbers.setdefault(block, len(numbers)) for block in problem.block[ops].tolist()),
            self._streams,
        )
        return program, scale


def _reach(ends: Floats, table: Floats) -> tuple[Floats, Longs]:
    """The least seconds until each op of a path [m] ends, by intervals [m, band + 1], and where the last one begins."""
    m, band = len(ends), table.shape[1] - 1
    ending = np.full((m, band), -np.inf)  # [j, k]: the interval from path[j - band + k] to path[j]
    for w in range(1, min(band, m - 1) + 1):
        ending[w:, band - w] = table[:-w, w]
    reach, came = np.full(m + band, -np.inf), np.zeros(m, np.intp)
    reach[band] = ends[0]
    for j, own in enumerate(ends.tolist()[1:], 1):
        options = reach[j : j + band] + ending[j]
        came[j] = k = options.argmax()
        reach[j + band] = options[k] + own
    return reach[band:], came + np.arange(m) - band


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


def bound_interval(program: IntervalProgram, work: float) -> tuple[float, float]:
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


def _build_model(program: IntervalProgram, places: int) -> cp_model.CpModel:
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
