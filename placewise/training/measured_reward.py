"""The measured reward: seconds of placements that run on this machine, for placers and policies.

The speed of a machine drifts, and a policy requests hundreds of placements over minutes. So small batches of them are
timed in turns with the best single device. The reward is the median, over rounds, of the ratio to the single device in
the same round, times the seconds of the single device at the start.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

import numpy as np

from placewise.analysis.measure_placements import (
    SINGLE,
    MeasurementContext,
    Setting,
    choose_protocol,
    prepare_measurement,
)
from placewise.errors import InputError, RunError
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.shared.interchangeable import interchangeable, relabel
from placewise.processes.resource_locks import lock_resources
from placewise.runtimes import registry
from placewise.runtimes.base import Closing, Movable, PreparedPlacement
from placewise.runtimes.binding import Place
from placewise.runtimes.measure import Measurement, Protocol, measure, reproducible_outputs

SIMULATED = "simulated"
REWARDS = (SIMULATED, *registry.names())
"""The sources of a reward: the judge, or a runtime."""
BRIEF_PROTOCOL = Protocol(rounds=3, samples=1, warm_up=1)
"""How a placement is timed: briefly, since there are many; more rounds follow if that is not enough."""
_MAX_MOVES = 64
"""Placements after which workers are closed, which frees memory that they leak."""


@dataclass(frozen=True, slots=True)
class MeasuringEffort:
    """How much effort goes into each placement.

    `side_by_side` placements are timed together, and `preparing` of them are prepared at once. A placement gets up to
    `most` rounds if its quartiles are further apart than `steady` (a share of the median), or if it would be the best
    so far, so that no placement is best by luck. A placement whose worker does not answer within `seconds` has failed;
    after that time no further rounds start.
    """

    side_by_side: int = 4
    preparing: int = 2
    steady: float = 0.1
    most: int = 9
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if min(self.side_by_side, self.preparing, self.most) < 1 or not (self.steady >= 0 and self.seconds > 0):
            raise InputError(f"no placement can be measured with {self}", remedy="give numbers from 1")


_BRIEF_SETTING, _EFFORT = Setting(protocol=BRIEF_PROTOCOL), MeasuringEffort()


class MeasuredReward(Closing):
    """An `Evaluate` that runs placements: [K, n_ops] → seconds [K], NaN for those that failed.

    A placement has failed if it does not start, run or end in time, or gives other outputs than the single device;
    `failure` is the runtime's reason for the last failure. Every placement is checked by a run that also warms it up.
    No placement is measured twice; `evaluations` counts the measured ones. `single` is the seconds of the best single
    device. Rewards in several processes that share cores measure one after another.

    Raises InputError, or a subclass of it, for a runtime or a device that is not here and for a model that cannot run;
    RunError, later, if the single device does not run any more. Close it, or use it as a context manager.
    """

    def __init__(self, problem: Problem, setting: Setting = _BRIEF_SETTING, effort: MeasuringEffort = _EFFORT) -> None:
        self.evaluations, self.failure = 0, ""
        self._effort, self._context = effort, prepare_measurement(problem, setting)
        limit = min(setting.protocol.seconds, effort.seconds)
        self._protocol = replace(setting.protocol, seconds=limit, least=1)
        self._symmetric = _has_equal_places(self._context)
        self._resources = [resource for place in self._context.places for resource in _resources(place)]
        self._spares: dict[tuple[int, ...], list[_SpareWorkers]] = defaultdict(list)
        self._pool = ThreadPoolExecutor(effort.preparing, "prepare")
        self._seen: dict[bytes, float] = {}
        self._reference: PreparedPlacement | None = None
        try:
            self._reference = self._context.runtime.prepare(self._context.job)
            self._expected = reproducible_outputs(self._reference, self._context.fresh)
            rounds = max(effort.most, setting.protocol.rounds)
            with lock_resources(*self._resources):
                protocol = replace(self._protocol, rounds=rounds)
                single = measure({SINGLE: self._reference}, self._context.fresh, protocol)[0]
            if single.failure:
                raise RunError(single.failure)
        except RunError as error:
            self.close()
            raise InputError(
                f"this model cannot be measured: {error}", remedy="take another runtime, or the simulated reward"
            ) from None
        self.single = self._best = single.seconds
        self._seen[self._key(self._context.job.placement.device)] = self.single

    def __call__(self, placements: Ints) -> Floats:
        rows = np.ascontiguousarray(placements, np.int32)
        keys = [self._key(row) for row in rows]
        unseen = {key: row for key, row in zip(keys, rows, strict=True) if key not in self._seen}
        missing, size = list(unseen), self._effort.side_by_side
        for first in range(0, len(missing), size):
            batch = missing[first : first + size]
            with lock_resources(*self._resources):
                self._seen.update(zip(batch, self._time_batch([unseen[key] for key in batch]), strict=True))
        return np.array([self._seen[key] for key in keys])

    def close(self) -> None:
        """End all workers."""
        self._pool.shutdown(cancel_futures=True)
        self._close_workers()

    def _key(self, device: Ints) -> bytes:
        """A key that is the same for placements that differ only in an exchange of equal devices."""
        row = relabel(self._context.problem, device) if self._symmetric else device
        return hashlib.blake2b(np.ascontiguousarray(row, np.int32).tobytes(), digest_size=16).digest()

    def _time_batch(self, rows: Sequence[Ints]) -> list[float]:
        """The seconds of a few placements, measured side by side."""
        self.evaluations += len(rows)
        seconds = dict.fromkeys(map(str, range(len(rows))), float("nan"))
        ready: dict[str, _SpareWorkers] = {}
        try:
            self._prepare_batch(rows, ready)
            prepared = {name: workers.prepared for name, workers in ready.items()}
            for name, ratios in self._measure_ratios(prepared).items():
                if ratios:
                    seconds[name] = float(np.median(ratios)) * self.single
            self._best = min([self._best, *(value for value in seconds.values() if not np.isnan(value))])
        except BaseException:
            self._close_workers(ready)  # a worker may still be busy
            raise
        for name, workers in ready.items():
            self._keep_or_close(workers, failed=np.isnan(seconds[name]))
        return list(seconds.values())

    def _prepare_batch(self, rows: Sequence[Ints], ready: dict[str, _SpareWorkers]) -> None:
        """Add the placements that start and give the right outputs to `ready`, by their number."""
        futures = [self._pool.submit(self._prepare, Placement(row), self._take_spare(row)) for row in rows]
        for number, future in enumerate(futures):
            try:
                workers = ready[str(number)] = future.result()
                self._context.check_outputs(workers.prepared, self._expected, "the placement")
            except (RunError, InputError) as error:
                self.failure = str(error)
                if str(number) in ready:
                    ready.pop(str(number)).prepared.close()

    def _prepare(self, placement: Placement, spare: _SpareWorkers | None) -> _SpareWorkers:
        if spare is not None and isinstance(spare.prepared, Movable):
            try:
                spare.prepared.move(placement)
                return replace(spare, moves=spare.moves + 1)
            except (RunError, InputError):
                spare.prepared.close()  # maybe the worker is at fault: the placement gets another chance
        job = replace(self._context.job.on(placement), seconds=min(self._context.job.seconds, self._effort.seconds))
        return _SpareWorkers(_used_devices(placement.device), self._context.runtime.prepare(job))

    def _measure_ratios(self, ready: dict[str, PreparedPlacement]) -> dict[str, list[float]]:
        """The ratios of each placement's seconds to those of the single device by round; empty if it failed."""
        ratios: dict[str, list[float]] = {name: [] for name in ready}
        names, rounds = list(ready), self._protocol.rounds
        for more in (rounds, self._effort.most - rounds):
            if not names or more < 1:
                break
            base, *others = self._measure_with_single({name: ready[name] for name in names}, more)
            for one in others:
                if one.failure:
                    self.failure, ratios[one.name] = one.failure, []
                ratios[one.name] += [a / b for a, b in zip(one.rounds, base.rounds, strict=False)]
            names = [one.name for one in others if not one.failure and self._needs_more_rounds(ratios[one.name])]
        return ratios

    def _needs_more_rounds(self, ratios: Sequence[float]) -> bool:
        rounds = Measurement("", tuple(ratios))
        return rounds.spread > self._effort.steady or rounds.seconds * self.single < self._best

    def _measure_with_single(self, ready: dict[str, PreparedPlacement], rounds: int) -> list[Measurement]:
        """Measure the single device, which comes first, and placements. A failed single device is restarted once.

        Raises RunError if it fails again.
        """
        protocol = replace(self._protocol, rounds=rounds)
        for _ in range(2):
            if self._reference is None:
                self._reference = self._context.runtime.prepare(self._context.job)
            measurements = measure({SINGLE: self._reference, **ready}, self._context.fresh, protocol)
            if not measurements[0].failure:
                return measurements
            self._reference.close()
            self._reference = None
        raise RunError(f"the single device, which placements are compared with, fails: {measurements[0].failure}")

    def _take_spare(self, row: Ints) -> _SpareWorkers | None:
        """Workers that have run another placement on the same devices."""
        spares = self._spares[_used_devices(row)]
        return spares.pop() if spares else None

    def _keep_or_close(self, workers: _SpareWorkers, *, failed: bool) -> None:
        spares = self._spares[workers.devices]
        reusable = not failed and isinstance(workers.prepared, Movable) and workers.moves < _MAX_MOVES
        if reusable and len(spares) < self._effort.side_by_side:
            spares.append(workers)
        else:
            workers.prepared.close()

    def _close_workers(self, more: Mapping[str, _SpareWorkers] = MappingProxyType({})) -> None:
        """End all workers, including those of `more`."""
        for workers in (*more.values(), *(spare for spares in self._spares.values() for spare in spares)):
            workers.prepared.close()
        self._spares.clear()
        if self._reference is not None:
            self._reference.close()
        self._reference = None


@dataclass(frozen=True, slots=True, eq=False)
class _SpareWorkers:
    """Workers on some devices, and the number of placements that they have run before this one."""

    devices: tuple[int, ...]
    prepared: PreparedPlacement
    moves: int = 0


def reward_of(
    name: str, problem: Problem, setting: Setting = _BRIEF_SETTING, effort: MeasuringEffort = _EFFORT
) -> Callable[[], MeasuredReward] | None:
    """A function that creates the reward of this name, here or in another process; None for the simulated one.

    It can be pickled. The runtime and the protocol of `setting` are ignored: they follow from the name and the problem.
    Raises InputError for an unknown name, and for a model or devices that the runtime does not support.
    """
    if name not in REWARDS:
        raise InputError(f"there is no reward {name!r}", remedy=f"choose from {', '.join(REWARDS)}")
    if name == SIMULATED:
        return None
    protocol = choose_protocol(problem, None, BRIEF_PROTOCOL.rounds, effort.seconds)
    if protocol.in_flight == 1:
        protocol = replace(BRIEF_PROTOCOL, seconds=effort.seconds)
    setting = replace(setting, runtime=name, protocol=protocol)
    prepare_measurement(problem, setting)
    return partial(MeasuredReward, problem, setting, effort)


def _used_devices(device: Ints) -> tuple[int, ...]:
    return tuple(np.unique(device).tolist())


def _resources(place: Place) -> list[str]:
    """The resources that only one process may measure on at a time."""
    return [f"core-{core}" for core in place.cores] or [f"{place.kind}-{re.sub(r'[^A-Za-z0-9]', '-', place.name)}"]


def _has_equal_places(context: MeasurementContext) -> bool:
    """Whether devices with equal costs are also bound to equal places."""
    places = [(place.kind, len(place.cores), sorted(place.options.items())) for place in context.places]
    return all(
        places[device] == places[other] for device, other in enumerate(interchangeable(context.problem).tolist())
    )
