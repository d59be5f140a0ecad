"""Threads: the answer to a work budget does not depend on them, and the wish reaches whoever searches."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import placewise as pw
from placewise import _native
from placewise._util.cores import usable_cores
from placewise.cli.app import app
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.errors import InputError
from placewise.model.problem import Problem
from placewise.placers import registry
from placewise.placers.base import Budget, SearchContext, Stopwatch
from placewise.simulate import Evaluator

WORK = {
    "local": Budget(iterations=3, seed=5),
    "temper": Budget(iterations=40, seed=5),
    "windows": Budget(iterations=2, seed=5),
    "cover": Budget(iterations=2, seed=5),
    "auto": Budget(iterations=1, seed=5),
}
THROUGHPUT: tuple[dict[str, Any], ...] = ({"contiguous": False}, {"contiguous": True})
LATENCY: tuple[dict[str, Any], ...] = ({"execution": "operator"}, {"execution": "subgraph"})
CASES = [
    ("throughput", THROUGHPUT[0], "cover"),
    *(("throughput", wish, name) for wish in THROUGHPUT for name in ("local", "windows", "auto")),
    *(("latency", wish, name) for wish in LATENCY for name in ("temper", "windows", "auto")),
]


def branchy(objective: str, n_ops: int = 40, **wish: Any) -> Problem:
    return build(
        "zoo:random-branchy", "3xV100-16GB,cpu", ProblemOptions(objective=objective, dims={"n_ops": n_ops}, **wish)
    )


@pytest.mark.parametrize(("objective", "wish", "name"), CASES)
def test_one_thread_answers_what_eight_do(objective: str, wish: dict[str, Any], name: str) -> None:
    """A seed and a work budget: the same placement, value and bound, however many threads there are."""
    problem = branchy(objective, 24 if name == "cover" else 40, **wish)
    one, eight = (place(problem, name, replace(WORK[name], threads=threads)) for threads in (1, 8))
    assert one.placement is not None and one.placement == eight.placement
    assert (one.value, one.lower_bound, one.status) == (eight.value, eight.lower_bound, eight.status)


@pytest.mark.parametrize("name", ["local", "temper"])
def test_evaluations_are_shared_out_alike(name: str) -> None:
    """The same where the number of placements that may be priced is what ends the search."""
    problem = branchy("throughput" if name == "local" else "latency")
    budgets = (Budget(evaluations=3000, seed=1, threads=threads) for threads in (1, 8))
    one, eight = (place(problem, name, budget) for budget in budgets)
    assert one.placement is not None and one.placement == eight.placement


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2", 1025])
def test_threads_are_a_whole_number(threads: Any) -> None:
    """Anything else is refused in a sentence, in a budget and in Python's `place` and `compare`."""
    for call in (Budget, *(lambda threads, run=run: run("zoo:vgg-16", "cpu", threads=threads) for run in RUNS)):
        with pytest.raises(InputError, match=r"the budget's number of threads is .*; give a whole number from 1"):
            call(threads=threads)


RUNS = (pw.place, pw.compare)


def test_a_budget_keeps_its_threads() -> None:
    """What is left of a budget may be shared out among as many; without a wish it is all cores."""
    watch = Stopwatch(Budget(9.0, iterations=4, threads=3))
    assert watch.rest().threads == 3 and watch.rest().iterations == 4
    assert watch.short_of(1.0).rest().threads == 3 and watch.rest().most_threads == 3
    assert Budget().most_threads == usable_cores() >= 1


def test_a_stopped_budget_has_no_time_left() -> None:
    """Another thread's word ends a search, and those that it asks."""
    stop = _native.StopFlag()
    watch = Stopwatch(Budget(stop=stop))
    assert not watch.out and not watch.rest().seconds < np.inf
    stop.set()
    assert watch.out and watch.rest().seconds == 0 and Stopwatch(watch.rest()).stopped


class Spy:
    """A placer that says what budget it is given."""

    def __init__(self) -> None:
        self.budgets: list[Budget] = []

    def __call__(self, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        propose = kind.propose

        def spied(this: Any, search: SearchContext) -> Any:
            self.budgets.append(search.budget)
            return propose(this, search)

        monkeypatch.setattr(kind, "propose", spied)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Budget]:
    """The budgets that `etf` is given, whoever asks it."""
    spy = Spy()
    spy(registry.placer_class("etf"), monkeypatch)
    return spy.budgets


def command(*words: str) -> Any:
    return CliRunner().invoke(app, [*words, "zoo:random-branchy", "--dim", "n_ops=12", "-d", "2xV100-16GB", "-q"])


@pytest.mark.parametrize(
    "words", [("place", "--placer", "etf"), ("place", "--placer", "auto"), ("compare", "--placers", "etf,single")]
)
def test_the_option_reaches_the_budget(heard: list[Budget], words: tuple[str, ...]) -> None:
    """`--threads` of the commands that search, through `auto` as well; without it there is no wish."""
    assert command(*words, "--threads", "3").exit_code == 0
    assert heard and all(budget.threads == 3 for budget in heard)
    heard.clear()
    assert command(*words).exit_code == 0
    assert heard and all(budget.threads is None for budget in heard)


@pytest.mark.parametrize("verb", ["place", "compare"])
def test_the_command_refuses_bad_threads(verb: str) -> None:
    """Exit code 2 and the sentence."""
    done = command(verb, "--threads", "0")
    assert done.exit_code == 2 and "the budget's number of threads is 0; give a whole number" in done.output


def test_python_hands_threads_on(heard: list[Budget]) -> None:
    """`pw.place` and `pw.compare` put them into a budget of any kind."""
    for run, said in ((pw.place, {"placer": "etf"}), (pw.compare, {"placers": "etf"})):
        for budget in (None, "5s", 5.0, Budget(5.0, seed=4)):
            run(branchy("latency"), budget=budget, threads=2, **said)  # type: ignore[operator]
            assert heard[-1].threads == 2 and heard[-1].seed == (4 if isinstance(budget, Budget) else 0)


def test_long_batches_are_priced_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices short enough for Ctrl-C give the values of the whole batch."""
    problem = branchy("latency", execution="operator")
    rows = np.random.default_rng(0).integers(0, 3, (50, problem.n_ops)).astype(np.int32)
    whole = Evaluator(problem, threads=1)(rows)
    judge = sys.modules["placewise.simulate.judge.judge"]
    monkeypatch.setattr(judge, "SLICE", 7 * problem.n_ops)
    monkeypatch.setattr(judge, "LITTLE", problem.n_ops)
    for threads in (1, 3):
        assert (Evaluator(problem, threads=threads)(rows) == whole).all()
