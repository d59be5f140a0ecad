"""Ctrl-C, a stop from another thread and the time limit end bounds and naive answers with what there is so far."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from simulate_problems import random_problem, seeded

from placewise import _native
from placewise.core.baselines import NO_BOUND, collect_baselines
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.model.problem import Constraints, Objective, Problem
from placewise.model.result import Bound, Proposal, Reason
from placewise.model.verdict import NO_TIME
from placewise.placers import registry
from placewise.placers.base import NO_HINTS, Budget, Stopwatch, run_placer
from placewise.placers.baselines.balanced import BalancedPlacer
from placewise.placers.list_scheduling import list_common
from placewise.simulate import bound_soon, lower_bound
from placewise.simulate.bounds import assignment

ENDLESS = 60.0
"""Seconds that nothing here takes unless what should end it is not heard."""
SOON = 10.0
"""Seconds in which even a busy machine ends."""


def toy(kind: str = "throughput") -> Problem:
    """A small problem whose optimum nobody proves in passing."""
    return random_problem(seeded(5), max_ops=12).with_(objective=Objective(kind))  # type: ignore[arg-type]


def endless_bound(*_: Any, go_on: Callable[[], bool], **__: Any) -> Bound:
    """A bound that is found only when it must end."""
    until = time.monotonic() + ENDLESS
    while go_on() and time.monotonic() < until:
        time.sleep(0.005)
    return Bound(1e-300, "endless")


@pytest.fixture
def quick() -> Any:
    """The test ends soon."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < SOON


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("placer", "threads"), [("auto", 1), ("auto", 2), ("etf", 2)])
def test_ctrl_c_during_the_bound(monkeypatch: pytest.MonkeyPatch, placer: str, threads: int) -> None:
    """The answer is the best naive one, whoever was asked, under what is proved so far, within half a second."""
    monkeypatch.setattr("placewise.core.place.lower_bound", endless_bound)
    sent: list[float] = []

    def interrupt() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(1.0, interrupt)
    timer.start()
    result = place(toy(), placer, Budget(threads=threads))
    took = time.monotonic() - sent[0]
    assert result.status.reason is Reason.INTERRUPTED and result.bound.method == "endless"
    assert placer == "auto" or "etf was interrupted before it began" in result.notes[0]
    assert result.value == min(judged.value for _, judged in result.baselines.values() if judged.valid)
    assert took < 0.5


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_while_the_bound_is_begun(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Nothing waits for a bound that was told to begin, or that does not look at the clock."""
    begun, ended = threading.Event(), threading.Event()

    def deaf_bound(*_: Any, **__: Any) -> Bound:
        begun.set()
        ended.wait(ENDLESS)
        return Bound(0.0, "deaf")

    class Pool(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **named: Any) -> Any:
            super().submit(*arguments, **named)
            begun.wait(ENDLESS)
            raise KeyboardInterrupt

    monkeypatch.setattr("placewise.core.place.lower_bound", deaf_bound)
    monkeypatch.setattr("placewise.core.place.ThreadPoolExecutor", Pool)
    try:
        result = place(toy(), budget=Budget(threads=threads))
    finally:
        ended.set()
    assert result.status.reason is Reason.INTERRUPTED and result.bound == Bound(0.0, NO_BOUND)
    assert (result.placement is None) == (threads > 1)  # with one thread the naive answers come first


def test_ctrl_c_during_the_bound_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The naive answers count."""

    def interrupted(*_: object, **__: object) -> Bound:
        raise KeyboardInterrupt

    monkeypatch.setattr("placewise.placers.base.lower_bound", interrupted)
    problem = build("zoo:bert-base", "2xP100", ProblemOptions(objective="step", graph="training"))
    result = place(problem)
    assert result.placement is not None and result.status.reason is Reason.INTERRUPTED
    assert result.bound == Bound(0.0, NO_BOUND)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_stop_from_another_thread_during_the_bound(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """The same, by the flag of the budget."""
    monkeypatch.setattr("placewise.core.place.lower_bound", endless_bound)
    stop = _native.StopFlag()
    threading.Timer(0.5, stop.set).start()
    result = place(toy(), budget=Budget(threads=threads, stop=stop))
    assert result.placement is not None and result.bound.method == "endless"


def test_ctrl_c_during_the_naive_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those made before it count, and no placer is asked; a note says so where somebody asked for one."""

    def interrupted(*_: object) -> Proposal:
        return Proposal(None, reason=Reason.INTERRUPTED)

    monkeypatch.setattr(BalancedPlacer, "propose", interrupted)
    result, alone = place(toy()), place(toy(), "local")
    assert result.placement is not None and result.status.reason is Reason.INTERRUPTED
    assert alone.value == result.value and alone.status.reason is Reason.INTERRUPTED
    assert "local was interrupted before it began" in alone.notes[0]


def test_a_stopped_search_makes_one_naive_answer() -> None:
    """The others say that there was no time."""
    stop = _native.StopFlag()
    stop.set()
    naive = collect_baselines(toy(), Budget(stop=stop), Stopwatch(Budget(stop=stop)))
    assert len(naive.judged) == 1 and all(other.broken == NO_TIME for other in naive.others.values())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("name", "kind"),
    [("auto", "latency"), ("cover", "throughput"), ("cpsat", "latency"), ("local", "latency"), ("windows", "latency"),
     ("windows", "throughput")],
)  # fmt: skip
def test_placers_alone_bound_within_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch, name: str, kind: str) -> None:
    """Without a bound among the hints, a placer that is called by itself keeps its time limit."""
    monkeypatch.setattr("placewise.placers.base.lower_bound", endless_bound)
    problem = toy(kind)
    assert not registry.create(name).supports(problem)
    proposal = run_placer(registry.create(name), problem, Budget(1.0), hints=NO_HINTS)
    assert proposal.placement is not None


@pytest.mark.usefixtures("quick")
def test_a_bound_of_a_placement_that_is_only_judged_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """For plans that are exported or loaded there is no time limit of the user's."""
    monkeypatch.setattr("placewise.simulate.bounds.bounds.lower_bound", endless_bound)
    monkeypatch.setattr("placewise.simulate.bounds.bounds.SOON", 0.1)
    assert bound_soon(toy()).method == "endless"


@pytest.mark.parametrize("kind", ["throughput", "latency"])
def test_the_fractional_assignment_looks_at_the_clock(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """One round of prices each, once time is over; what it proves then is no more than with all time."""
    problem, rounds = toy(kind), list[int]()
    solve = assignment.AssignmentMaster.solve

    def counted(self: assignment.AssignmentMaster) -> Any:
        rounds.append(1)
        return solve(self)

    monkeypatch.setattr(assignment.AssignmentMaster, "solve", counted)
    at_once, asked = lower_bound(problem, go_on=lambda: False), len(rounds)
    full = lower_bound(problem)
    assert at_once.value <= full.value and asked <= 2 < len(rounds) - asked


@pytest.mark.parametrize("name", ["heft", "etf", "critical_path"])
def test_list_schedules_look_at_the_clock(name: str) -> None:
    """Once all time is over there is no answer; one that is late for its share goes on while it would be lost."""
    problem = build("zoo:random-layered", "4xV100-16GB", ProblemOptions(objective="latency", dims={"n_ops": 2000}))
    late = run_placer(registry.create(name), problem, Budget(1e-9))
    assert late.placement is None and late.reason is Reason.TIME_LIMIT and "ran out of time" in late.notes[-1]
    assert run_placer(registry.create(name), problem, Budget(1e-9, latest=ENDLESS)).placement is not None


def test_what_is_left_of_the_latest_moment() -> None:
    """It passes with the time, stays at the end of the seconds where it is not given, and a stop ends it."""
    stop = _native.StopFlag()
    watch = Stopwatch(Budget(0.0, latest=ENDLESS, stop=stop))
    rest = watch.rest()
    assert watch.out and 0 < watch.last < ENDLESS and rest.latest is not None and rest.latest < ENDLESS
    assert Stopwatch(Budget(0.0)).last == 0 and Stopwatch(Budget()).rest().latest is None
    stop.set()
    assert watch.last == 0


@pytest.mark.parametrize("name", ["balanced", "heft", "dpl"])
def test_an_interrupted_split_of_a_line_is_not_lost(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Ctrl-C in the dynamic program along one order is the reason why the placer stopped."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    problem = toy().with_(constraints=Constraints(contiguous=True))
    assert run_placer(registry.create(name), problem).reason is Reason.FINISHED
    monkeypatch.setattr(_native.StageExpansion, "expand", interrupt)
    assert run_placer(registry.create(name), problem).reason is Reason.INTERRUPTED


@pytest.mark.parametrize("asked", ["topo", "pack"])
def test_an_interrupted_helper_of_a_list_schedule_is_not_lost(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    """Nor is Ctrl-C in what another placer does for one."""

    def interrupted(*_: object) -> Proposal:
        return Proposal(None, reason=Reason.INTERRUPTED)

    monkeypatch.setattr(registry.placer_class(asked), "propose", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list_common._ask(asked, toy(), Stopwatch(Budget()))
