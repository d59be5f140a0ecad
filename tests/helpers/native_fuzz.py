"""Random problems and nonsense for the C++ kernels: what `make native-check` runs under sanitizers.

    PYTHONPATH=tests/helpers:tests python -m native_fuzz --problems 10000 --seed 0

Every problem is placed by one of the placers of its objective under a little work, bounded and judged. Meanwhile the
calls of the extension module are recorded; some of them are made again with damaged arguments (other lengths, types
and dimensions, numbers that are negative, huge or no numbers). An object that was made from damaged arguments takes
the place of its like in other calls, some of which two threads make at once. Each must end with an answer, or with an
exception that a caller can understand: never with a crash, which ends this process, or with any other exception.
"""

from __future__ import annotations

import argparse
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from simulate_problems import random_problem, seeded
from split_problems import split_problem

from placewise import _native
from placewise.core.place import place
from placewise.errors import InternalError
from placewise.model.problem import Constraints, Problem
from placewise.model.result import Outcome
from placewise.placers import registry
from placewise.placers.base import Budget


class LateError(Exception):
    """A damaged call had its time: what it was asked to do may be endless, and a kernel listens to signals."""


ACCEPTED = (InternalError, TypeError, ValueError, OverflowError, MemoryError, LateError)
"""What a kernel may raise: our error for columns that do not belong together, Python's own for wrong types."""
LATE = 2.0
"""Seconds that a damaged call may take."""
KEPT = 40
"""Calls of a kernel that are remembered."""
NUMBERS = (-(2**62), -(2**40), -2, -1, 0, 1, 2, 3, 63, 64, 65, 1000, 2**62, 2**63 - 1)
FLOATS = (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 0.5, 1e300)
LEARNED = {"colocrl", "doppler", "gdp", "hdp", "hsdag", "placeto"}
Call = tuple[Callable[..., Any], list[Any], dict[str, Any]]


class Recorder:
    """Remembers calls of the extension's functions, constructors and methods, with copies of their arrays."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.calls: dict[str, list[Call]] = {}

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, remembered when it is called."""

        def called(*args: Any, **kwargs: Any) -> Any:
            kept = self.calls.setdefault(name, [])
            call = function, [_copied(value) for value in args], {key: _copied(kwargs[key]) for key in kwargs}
            if len(kept) < KEPT:
                kept.append(call)
            elif self.rng.random() < 0.1:
                kept[self.rng.randrange(KEPT)] = call
            return function(*args, **kwargs)

        return called

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within, calls are remembered."""
        functions = {name: value for name, value in vars(_native).items() if _bound(value)}
        kinds = {name: value for name, value in vars(_native).items() if isinstance(value, type)}
        methods = {
            (kind, name): value
            for kind in kinds.values()
            for name, value in vars(kind).items()
            if _bound(value) and not name.startswith("_")
        }
        for (kind, name), value in methods.items():
            setattr(kind, name, _method(self.wrap(f"{kind.__name__}.{name}", value)))
        for name, value in functions.items():
            setattr(_native, name, self.wrap(name, value))
        for name, value in kinds.items():
            setattr(_native, name, _Constructor(value, self.wrap(name, value)))
        try:
            yield
        finally:
            for name, value in (functions | kinds).items():
                setattr(_native, name, value)
            for (kind, name), value in methods.items():
                setattr(kind, name, value)

    def replay(self) -> None:
        """One remembered call of a random kernel again, damaged; none where nothing was called yet."""
        if not self.calls:
            return
        function, args, kwargs = self.rng.choice(self.calls[self.rng.choice(sorted(self.calls))])
        args = [_copied(value) for value in args]
        places = [k for k, value in enumerate(args) if not _is_native(value)] + [*kwargs]
        for key in self.rng.sample(places, min(len(places), self.rng.choice((1, 1, 2)))):
            if isinstance(key, int):
                args[key] = self.damaged(args[key])
            else:
                kwargs = {**kwargs, key: self.damaged(kwargs[key])}
        with suppress(*ACCEPTED), _limited():
            made = function(*args, **kwargs)
            if isinstance(made, _native.StageSearch):  # reads its columns when it searches
                for sums in (False, True):
                    made.search(self.rng.choice((1.0, 1e300)), sums, 0.1)
                    made.stages()
            self._use(made, 3)

    def _use(self, made: Any, depth: int) -> None:
        """Make some remembered calls that take an object of this class, with this one, and use what they make."""
        if not depth or not _is_native(made):
            return
        users = [
            call for calls in self.calls.values() for call in calls
            if any(type(value) is type(made) for value in (*call[1], *call[2].values()))
        ]  # fmt: skip
        for function, given, named in self.rng.sample(users, min(len(users), 4)):
            args = [made if type(value) is type(made) else _copied(value) for value in given]
            kwargs = {key: made if type(value) is type(made) else _copied(value) for key, value in named.items()}
            if self.rng.random() < 0.2:
                other = threading.Thread(target=_try, args=(function, [_copied(value) for value in args], kwargs))
                other.start()
                _try(function, args, kwargs)
                other.join()
            else:
                self._use(_try(function, args, kwargs), depth - 1)

    def damaged(self, value: Any) -> Any:
        """Something else than a value, of the same kind most often."""
        rng = self.rng
        if isinstance(value, np.ndarray):
            return self._damaged_array(value.copy())
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return rng.choice(NUMBERS)
        if isinstance(value, float):
            return rng.choice(FLOATS)
        return rng.choice((None, 0, "text", np.zeros(3)))

    def _damaged_array(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        rng, flat = self.rng, array.reshape(-1)
        way = rng.randrange(8)
        if way == 0:
            return array[: rng.randrange(len(array) + 1)].copy() if array.ndim else array
        if way == 1:
            return np.concatenate((array, array)) if array.ndim else array
        if way == 2:
            with np.errstate(invalid="ignore"):
                return array.astype(rng.choice((np.float32, np.int64, np.int32, np.float64, np.bool_)))
        if way == 3:
            return array.reshape(1, *array.shape)
        if len(flat) and array.dtype != np.bool_:
            for _ in range(rng.choice((1, 1, 3))):
                flat[rng.randrange(len(flat))] = rng.choice(_numbers(array.dtype))
        elif len(flat):
            flat[rng.randrange(len(flat))] ^= True
        return array


class _Constructor:
    """Stands where a class of the extension stands, and remembers what it is made from."""

    def __init__(self, kind: type, make: Callable[..., Any]) -> None:
        self._kind, self._make = kind, make

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._make(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kind, name)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, self._kind)


@contextmanager
def _limited() -> Iterator[None]:
    """Within, LateError is raised after `LATE` seconds."""

    def raise_late(*_: Any) -> None:
        raise LateError

    before = signal.signal(signal.SIGALRM, raise_late)
    signal.setitimer(signal.ITIMER_REAL, LATE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _try(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What a call gives; None where it raises what it may."""
    with suppress(*ACCEPTED):
        return function(*args, **kwargs)
    return None


def _numbers(dtype: np.dtype[Any]) -> list[Any]:
    """The numbers that a column of some type can be damaged with."""
    if dtype.kind == "f":
        return list(FLOATS)
    bounds = np.iinfo(dtype)
    return [number for number in NUMBERS if bounds.min <= number <= bounds.max]


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: function(self, *args, **kwargs)


def _bound(value: Any) -> bool:
    return type(value).__name__ in ("nb_func", "nb_method")


def _is_native(value: Any) -> bool:
    return type(value).__module__ == _native.__name__


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def search(problem: Problem, number: int) -> None:
    """Place a problem by one placer after the other: whatever it answers, `place` judges and checks it."""
    names = sorted(set(registry.known_names()) - LEARNED) if problem.ways is None else ["parallel_dp"]
    for step in range(len(names)):
        placer = registry.create(names[(number + step) % len(names)])
        if placer.supports(problem) is None:
            budget = Budget(seconds=0.3, iterations=2, evaluations=200, seed=number)
            result = place(problem, placer, budget)
            assert result.status.outcome in Outcome
            return


def random_split(number: int, seed: int) -> Problem:
    """A problem whose ops may be split: any objective, links and classes of devices, up to four ways per degree."""
    return split_problem(
        seed, classes=1 + number // 6 % 3, transfers=("staged", "direct")[number // 18 % 2],
        kind=("throughput", "throughput", "latency")[number // 6 % 3], even=number // 12 % 2 == 0, hosts=True,
        rules=True, most_ways=1 + number // 6 % 4,
    )  # fmt: skip


def main() -> int:
    """Run so many problems, and four times as many damaged calls; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"kernels of {_native.__file__}", flush=True)
    print(*run(options.problems, options.seed), sep="\n")
    return 0


def run(problems: int, seed: int) -> list[str]:
    """What was done, in lines."""
    recorder = Recorder(seed)
    for number in range(problems):
        choose = seeded(seed * 1_000_003 + number)
        shaped = Constraints(contiguous=True) if number % 3 == 0 else None
        problem = random_problem(
            choose, max_ops=14, scarce=number % 4 == 0, rules=number % 5 == 0, alike=number % 2 == 0
        )
        if number % 6 == 5:
            problem = random_split(number, seed * 1_000_003 + number)
        elif shaped is not None and problem.objective.kind == "throughput":
            problem = problem.with_(constraints=shaped)
        with recorder.recording():
            search(problem, number)
        for _ in range(4):
            recorder.replay()
    kernels = sum(len(calls) > 0 for calls in recorder.calls.values())
    return [f"{problems} problems placed, {4 * problems} damaged calls, {kernels} kernels and methods called"]


if __name__ == "__main__":
    raise SystemExit(main())
