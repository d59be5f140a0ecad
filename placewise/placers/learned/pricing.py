"""Pricing: a cache of the seconds of placements, the best placement so far, and the budget of evaluations."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise.model.columns import Bools, Floats, Ints
from placewise.model.problem import Problem
from placewise.placers.base import Evaluate
from placewise.placers.shared.rules import find_broken_rule
from placewise.simulate import Evaluator
from placewise.simulate.blocks import block_firsts, storage_bytes
from placewise.simulate.judge.memory import resident_bytes

CACHE_SIZE = 200_000
"""Number of placements whose seconds are kept; then the oldest are evicted."""
DIGEST = 16
LOST = -np.inf
"""The seconds of a placement that was not priced because its worker died. It is neither a failure nor cached."""


class BudgetExhausted(Exception):
    """A budget ended in the middle of an update."""


class Pricing:
    """Seconds [K] of placements [K, n_ops]: NaN where one breaks a rule or fails. Results are cached.

    `evaluate` may be slow (a measurement), so it receives only placements that keep the rules. `asked` counts the
    placements passed in, `evaluations` those that were not cached. `best` [n_ops] is the best valid placement and
    `value` its seconds; `base` [n_ops] and `base_value` are the best since `reset_base`, cached ones included, from
    which moves start. `failure` is the reason of the last failure. `LOST` from `evaluate` is passed on.
    """

    def __init__(self, problem: Problem, evaluate: Evaluate | None = None, threads: int | None = None) -> None:
        self.problem = problem
        self.asked = self.evaluations = 0
        self.best: Ints | None = None
        self.base: Ints | None = None
        self.value = self.base_value = np.inf
        self.failure = ""
        self._price = evaluate or Evaluator(problem, threads=threads)
        self._seen: dict[bytes, float] = {}
        self._roomy, self._first = always_fits(problem), block_firsts(problem)
        self._most, self._end = math.inf, math.inf

    @contextmanager
    def limit_to(self, evaluations: int | None, seconds: float) -> Iterator[None]:
        """Raise BudgetExhausted beyond this total number of evaluations, or after this many seconds.

        Placements within the limit are priced first.
        """
        before = self._most, self._end
        most = math.inf if evaluations is None else evaluations
        self._most, self._end = min(before[0], most), min(before[1], time.monotonic() + seconds)
        try:
            yield
        finally:
            self._most, self._end = before

    def __call__(self, placements: Ints) -> Floats:
        rows = np.ascontiguousarray(placements, np.int32)
        keys = digests(rows)
        unseen = {key: k for k, key in reversed(list(enumerate(keys))) if key not in self._seen}
        wanted = sorted(unseen.values())
        if wanted:
            room = min(self._most - self.evaluations, len(wanted)) if time.monotonic() <= self._end else 0
            if room > 0:
                self._price_rows(rows[wanted[: int(room)]])
            if room < len(wanted):
                raise BudgetExhausted
        seconds = np.array([self._seen.get(key, LOST) for key in keys])
        self.asked += len(rows)
        self._update_base(rows, seconds)
        self.evict()
        return seconds

    def reset_base(self) -> None:
        """Let moves start elsewhere. The best placement and the cache are kept."""
        self.base, self.base_value = None, np.inf

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The complete state, as arrays for `restore`."""
        seen = np.frombuffer(b"".join(self._seen), np.uint8).reshape(-1, DIGEST)
        none = np.full(self.problem.n_ops, -1, np.int32)
        counts = np.array([self.asked, self.evaluations], np.int64)
        values = np.array(list(self._seen.values()), np.float64)
        reference = np.array([getattr(self._price, "reference", np.nan)], np.float64)
        return {
            "seen": seen, "values": values, "counts": counts, "reference": reference,
            "best": none if self.best is None else self.best, "value": np.array([self.value]),
            "base": none if self.base is None else self.base, "base_value": np.array([self.base_value]),
        }  # fmt: skip

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from `state`. Measured seconds keep the reference of the earlier run."""
        keys = [row.tobytes() for row in np.asarray(state["seen"], np.uint8)]
        self._seen = dict(zip(keys, state["values"].tolist(), strict=True))
        self.asked, self.evaluations = state["counts"].tolist()
        self.value = float(state["value"][0])
        self.best = np.array(state["best"], np.int32) if np.isfinite(self.value) else None
        self.base_value = float(state.get("base_value", state["value"])[0])
        self.base = np.array(state.get("base", state["best"]), np.int32) if np.isfinite(self.base_value) else None
        if np.isfinite(reference := float(state.get("reference", [np.nan])[0])) and hasattr(self._price, "reference"):
            self._price.reference = reference

    @property
    def failures(self) -> int:
        """Number of cached placements that broke a rule or failed."""
        return sum(math.isnan(value) for value in self._seen.values())

    def record(self, rows: Ints, seconds: Floats) -> None:
        """Count and cache placements [K, n_ops] that this or another process priced, with their seconds [K] or NaN."""
        self.evaluations += len(rows)
        self.remember(digests(rows), seconds)
        self._update_base(rows, seconds)
        if not np.isnan(seconds).all() and np.nanmin(seconds) < self.value:
            self.best = rows[int(np.nanargmin(seconds))].copy()
            self.value = float(np.nanmin(seconds))

    def remember(self, keys: Sequence[bytes], seconds: Floats) -> None:
        """Cache the seconds [K] of placements by their digests, without counting them as priced."""
        self._seen.update(zip(keys, seconds.tolist(), strict=True))

    def evict(self) -> None:
        """Evict the oldest entries beyond the size of the cache."""
        while len(self._seen) > CACHE_SIZE:
            del self._seen[next(iter(self._seen))]

    def _update_base(self, rows: Ints, seconds: Floats) -> None:
        valid = np.where(seconds > LOST, seconds, np.inf)
        if len(rows) and valid.min() < self.base_value:
            self.base, self.base_value = rows[int(valid.argmin())].copy(), float(valid.min())

    def _price_rows(self, rows: Ints) -> None:
        seconds = np.full(len(rows), np.nan)
        kept = self._keeps_rules(rows)
        if kept.any():
            seconds[kept] = self._price(rows[kept])
            if not np.isfinite(seconds[kept]).all():
                self.failure = getattr(self._price, "failure", "") or "the placement cannot run"
        priced = seconds != LOST
        seconds[~np.isfinite(seconds)] = np.nan
        self.record(rows[priced], seconds[priced])

    def _keeps_rules(self, rows: Ints) -> Bools:
        """Whether each placement [K, n_ops] keeps the rules [K]. Only tight memory needs a check one by one."""
        problem = self.problem
        good: Bools = np.asarray(problem.allowed[np.arange(problem.n_ops), rows].all(axis=1))
        good &= (rows == rows[:, self._first][:, problem.block]).all(axis=1)
        for k in np.flatnonzero(good & ~np.bool_(self._roomy)).tolist():
            fits = (resident_bytes(problem, rows[k]) <= problem.capacity).all()
            good[k] = fits and not find_broken_rule(problem, rows[k])
        if not good.all():
            self.failure = find_broken_rule(problem, rows[int(np.argmin(good))])
        return good


def digests(rows: Ints) -> list[bytes]:
    """Cache keys of placements [K, n_ops]."""
    return [hashlib.blake2b(row.tobytes(), digest_size=DIGEST).digest() for row in rows]


def always_fits(problem: Problem) -> bool:
    """Whether every device can hold the whole graph, so that no placement can break a limit of memory."""
    if problem.constraints.shaped:
        return False
    graph = problem.graph
    most = float(graph.ops.state_bytes.sum()) + float(storage_bytes(graph).sum())
    if problem.objective.memory == "live":
        most += 2.0 * float(graph.tensors.bytes.sum())
    return bool((problem.capacity >= most).all())


def single_device_rows(problem: Problem) -> Ints:
    """One placement [D, n_ops] for each device that may run the whole graph and can hold it."""
    able = np.flatnonzero(problem.allowed.all(axis=0))
    rows = [np.full(problem.n_ops, d, np.int32) for d in able.tolist()]
    fitting = [row for row in rows if not find_broken_rule(problem, row)]
    return np.array(fitting, np.int32).reshape(-1, problem.n_ops)
