"""The measured reward: what placements really take on this machine, as placers and policies ask for it.

Machines drift and are disturbed, and a policy asks for hundreds of placements over minutes. So a few of them are timed
in turns with the best single device; what counts is the median, over rounds, of their ratio in the same round, times
what the single device took at the beginning.
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
from typing import Self

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
from placewise.processes.turns import turn
from placewise.runtimes import registry
from placewise.runtimes.base import Movable, Prepared
from placewise.runtimes.binding import Place
from placewise.runtimes.measure import Measurement, Protocol, measure, settled

SIMULATED = "simulated"
REWARDS = (SIMULATED, *registry.names())
"""What a policy can be rewarded by: the judge, or a runtime."""
BRIEF = Protocol(rounds=3, samples=1, warm_up=1)
"""How a placement is timed: briefly, since there are many; repeated where that was not enough."""
_OLD = 64
"""Workers are let go after so many placements: what they do not give back is then given back."""


@dataclass(frozen=True, slots=True)
class Care:
    """How much care is taken of every placement.

    So many are timed `side_by_side`, and `preparing` of them made ready at once. Rounds are repeated, up to `most`,
    where their quartiles are further apart than `steady` (a share), and where a placement would be the best so far, so
    that what is best by luck is found out. `seconds` is how long any one answer about a placement may take before the
    placement has failed, and after which no further rounds begin.
    """

    side_by_side: int = 4
    preparing: int = 2
    steady: float = 0.1
    most: int = 9
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if min(self.side_by_side, self.preparing, self.most) < 1 or not (self.steady >= 0 and self.seconds > 0):
            raise InputError(f"no placement can be measured with {self}", remedy="give numbers from 1")


_BRIEFLY, _CARE = Setting(protocol=BRIEF), Care()


class MeasuredReward:
    """An `Evaluate` by running placements: [K, n_ops] → seconds [K], NaN where one failed.

    A placement has failed if it does not start, run or end in time, or gives other outputs than the single device;
    `failure` is the runtime's reason for the last one. Every placement is checked: the run that shows its outputs
    warms it up as well. What was seen is not measured again; `evaluations` counts what was. `single` is the seconds of
    the best single device. Rewards of several processes that share cores measure in turns.

    Raises InputError and its kin for a runtime or a device that is not here and for a model that cannot be run;
    RunError, later, if the single device itself does not run any more. Close it, or use it as a context manager.
    """

    def __init__(self, problem: Problem, setting: Setting = _BRIEFLY, care: Care = _CARE) -> None:
        self.evaluations, self.failure = 0, ""
        self._care, self._course = care, prepare_measurement(problem, setting)
        longest = min(setting.protocol.seconds, care.seconds)
        self._protocol = replace(setting.protocol, seconds=longest, least=1)
        self._same = _exchangeable(self._course)
        self._needs = [need for place in self._course.places for need in _needs(place)]
        self._spares: dict[tuple[int, ...], list[_Kept]] = defaultdict(list)
        self._pool = ThreadPoolExecutor(care.preparing, "prepare")
        self._seen: dict[bytes, float] = {}
        self._reference: Prepared | None = None
        try:
            self._reference = self._course.runtime.prepare(self._course.job)
            self._wanted = settled(self._reference, self._course.fresh)
            rounds = max(care.most, setting.protocol.rounds)
            with turn(*self._needs):
                protocol = replace(self._protocol, rounds=rounds)
                alone = measure({SINGLE: self._reference}, self._course.fresh, protocol)[0]
            if alone.failure:
                raise RunError(alone.failure)
        except RunError as error:
            self.close()
            raise InputError(
                f"this model cannot be measured: {error}", remedy="take another runtime, or the simulated reward"
            ) from None
        self.single = self._best = alone.seconds
        self._seen[self._key(self._course.job.placement.device)] = self.single

    def __call__(self, placements: Ints) -> Floats:
        rows = np.ascontiguousarray(placements, np.int32)
        keys = [self._key(row) for row in rows]
        fresh = {key: row for key, row in zip(keys, rows, strict=True) if key not in self._seen}
        waiting, many = list(fresh), self._care.side_by_side
        for first in range(0, len(waiting), many):
            some = waiting[first : first + many]
            with turn(*self._needs):
                self._seen.update(zip(some, self._timed([fresh[key] for key in some]), strict=True))
        return np.array([self._seen[key] for key in keys])

    def close(self) -> None:
        """End all workers."""
        self._pool.shutdown(cancel_futures=True)
        self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _key(self, device: Ints) -> bytes:
        """What is the same for placements that only exchange devices which do not differ."""
        row = relabel(self._course.problem, device) if self._same else device
        return hashlib.blake2b(np.ascontiguousarray(row, np.int32).tobytes(), digest_size=16).digest()

    def _timed(self, rows: Sequence[Ints]) -> list[float]:
        """The seconds of a few placements, side by side."""
        self.evaluations += len(rows)
        found = dict.fromkeys(map(str, range(len(rows))), float("nan"))
        ready: dict[str, _Kept] = {}
        try:
            self._make_ready(rows, ready)
            for name, ratios in self._ratios({name: kept.prepared for name, kept in ready.items()}).items():
                if ratios:
                    found[name] = float(np.median(ratios)) * self.single
            self._best = min([self._best, *(seconds for seconds in found.values() if seconds == seconds)])
        except BaseException:
            self._drop(ready)  # a worker may still be at what nobody waits for
            raise
        for name, kept in ready.items():
            self._put_away(kept, well=found[name] == found[name])
        return list(found.values())

    def _make_ready(self, rows: Sequence[Ints], ready: dict[str, _Kept]) -> None:
        """Add those of the placements that start and give the right outputs, by their number."""
        futures = [self._pool.submit(self._prepared, Placement(row), self._spare(row)) for row in rows]
        for number, future in enumerate(futures):
            try:
                kept = ready[str(number)] = future.result()
                self._course.check_outputs(kept.prepared, self._wanted, "the placement")
            except (RunError, InputError) as error:
                self.failure = str(error)
                if str(number) in ready:
                    ready.pop(str(number)).prepared.close()

    def _prepared(self, placement: Placement, spare: _Kept | None) -> _Kept:
        if spare is not None and isinstance(spare.prepared, Movable):
            try:
                spare.prepared.move(placement)
                return replace(spare, age=spare.age + 1)
            except (RunError, InputError):
                spare.prepared.close()  # it may be the worker's fault: the placement has another chance
        job = replace(self._course.job.on(placement), seconds=min(self._course.job.seconds, self._care.seconds))
        return _Kept(_used(placement.device), self._course.runtime.prepare(job))

    def _ratios(self, ready: dict[str, Prepared]) -> dict[str, list[float]]:
        """How many times as long as the single device each took, round by round; none where it failed."""
        found: dict[str, list[float]] = {name: [] for name in ready}
        names, rounds = list(ready), self._protocol.rounds
        for more in (rounds, self._care.most - rounds):
            if not names or more < 1:
                break
            base, *others = self._side_by_side({name: ready[name] for name in names}, more)
            for one in others:
                if one.failure:
                    self.failure, found[one.name] = one.failure, []
                found[one.name] += [a / b for a, b in zip(one.rounds, base.rounds, strict=False)]
            names = [one.name for one in others if not one.failure and self._doubtful(found[one.name])]
        return found

    def _doubtful(self, ratios: Sequence[float]) -> bool:
        seen = Measurement("", tuple(ratios))
        return seen.spread > self._care.steady or seen.seconds * self.single < self._best

    def _side_by_side(self, ready: dict[str, Prepared], rounds: int) -> list[Measurement]:
        """The single device first. It is started again if it fails. Raises RunError if it fails again."""
        protocol = replace(self._protocol, rounds=rounds)
        for _ in range(2):
            if self._reference is None:
                self._reference = self._course.runtime.prepare(self._course.job)
            found = measure({SINGLE: self._reference, **ready}, self._course.fresh, protocol)
            if not found[0].failure:
                return found
            self._reference.close()
            self._reference = None
        raise RunError(f"the single device, which placements are compared with, fails: {found[0].failure}")

    def _spare(self, row: Ints) -> _Kept | None:
        """Workers that have run another placement on the same devices."""
        known = self._spares[_used(row)]
        return known.pop() if known else None

    def _put_away(self, kept: _Kept, *, well: bool) -> None:
        known = self._spares[kept.devices]
        if well and isinstance(kept.prepared, Movable) and kept.age < _OLD and len(known) < self._care.side_by_side:
            known.append(kept)
        else:
            kept.prepared.close()

    def _drop(self, more: Mapping[str, _Kept] = MappingProxyType({})) -> None:
        """End all workers, and those of `more`."""
        for kept in (*more.values(), *(kept for known in self._spares.values() for kept in known)):
            kept.prepared.close()
        self._spares.clear()
        if self._reference is not None:
            self._reference.close()
        self._reference = None


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """Workers on some devices, and how many placements they have had before this one."""

    devices: tuple[int, ...]
    prepared: Prepared
    age: int = 0


def reward_of(
    name: str, problem: Problem, setting: Setting = _BRIEFLY, care: Care = _CARE
) -> Callable[[], MeasuredReward] | None:
    """What makes the reward of this name, here or in another process (it can be pickled); None for the simulated one.

    The runtime and the protocol of `setting` are not looked at: they follow from the name and the problem. Raises
    InputError for an unknown name, and for a model or devices that this runtime does not have.
    """
    if name not in REWARDS:
        raise InputError(f"there is no reward {name!r}", remedy=f"choose from {', '.join(REWARDS)}")
    if name == SIMULATED:
        return None
    protocol = choose_protocol(problem, None, BRIEF.rounds, care.seconds)
    if protocol.in_flight == 1:
        protocol = replace(BRIEF, seconds=care.seconds)
    setting = replace(setting, runtime=name, protocol=protocol)
    prepare_measurement(problem, setting)
    return partial(MeasuredReward, problem, setting, care)


def _used(device: Ints) -> tuple[int, ...]:
    return tuple(np.unique(device).tolist())


def _needs(place: Place) -> list[str]:
    """What nobody else may measure on at the same time."""
    return [f"core-{core}" for core in place.cores] or [f"{place.kind}-{re.sub(r'[^A-Za-z0-9]', '-', place.name)}"]


def _exchangeable(course: MeasurementContext) -> bool:
    """Whether the devices that the costs cannot tell apart are also in places that are alike."""
    kind, places = interchangeable(course.problem), course.places
    alike_places = [
        (places[d].kind, len(places[d].cores), sorted(places[d].options.items()))
        == (places[k].kind, len(places[k].cores), sorted(places[k].options.items()))
        for d, k in enumerate(kind.tolist())
    ]
    return all(alike_places)
