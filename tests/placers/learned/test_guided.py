"""The placer `guided`: what a policy thinks becomes hints, and a search goes on from there."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given
from latency_brute_force import optimum
from simulate_problems import problems, random_problem, seeded
from soak import examples

from placewise._util.units import format_seconds
from placewise.catalog import read_cluster
from placewise.core.place import place
from placewise.costing.roofline import cost_table
from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints
from placewise.model.problem import Objective, Problem
from placewise.model.result import Outcome, Reason
from placewise.placers.base import Budget, Hints, Progress, SearchContext, run_placer
from placewise.placers.learned.policy import Policy
from placewise.placers.learned.pricing import Pricing
from placewise.placers.local_search.local import TemperPlacer
from placewise.placers.registry import create
from placewise.simulate import Evaluator, evaluate
from placewise.zoo.random import random_graph

OPERATOR = Objective("latency", execution="operator")
POLICIES = ("gdp", "placeto", "doppler", "hsdag", "colocrl", "hdp")
QUICKLY: dict[str, Any] = {"search": "temper", "samples": 4}


def zoo_problem(n_ops: int = 30, devices: str = "2xP100,cpu", objective: Objective = OPERATOR) -> Problem:
    """A random graph of the zoo."""
    graph, cluster = random_graph("layered", n_ops, 906, size=64), read_cluster(devices)
    return Problem(graph, cluster, cost_table(graph, cluster), objective)


def heard(monkeypatch: pytest.MonkeyPatch) -> list[Hints]:
    """What temper is told from now on."""
    told: list[Hints] = []
    propose = TemperPlacer.propose

    def listen(self: TemperPlacer, search: SearchContext) -> Any:
        told.append(search.hints)
        return propose(self, search)

    monkeypatch.setattr(TemperPlacer, "propose", listen)
    return told


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_can_be_asked(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search hears probabilities of every op, and valid placements, the best first, with the policy's name."""
    told, problem = heard(monkeypatch), zoo_problem()
    found = place(problem, "guided", Budget(evaluations=200), options={"policy": policy, **QUICKLY})
    assert found.placement is not None and len(told) == 1
    likely, placements = told[0].probabilities, told[0].placements
    assert likely is not None and likely.shape == (problem.n_ops, problem.n_devices)
    assert likely.sum(axis=1) == pytest.approx(1) and not likely[~problem.allowed].any()
    values = [evaluate(problem, placement.device[None])[0] for placement in placements]
    assert values == sorted(values) and np.isfinite(values).all() and told[0].by == (policy,) * len(placements)
    assert f"{policy} alone: {format_seconds(values[0])}" in found.notes
    assert found.value <= values[0] * (1 + 1e-12)


def test_a_policy_that_there_was_no_time_for_is_not_blamed() -> None:
    """Its note says that it was not asked."""
    found = place(zoo_problem(), "guided", Budget(evaluations=0), options={"policy": "hsdag"})
    assert "hsdag alone: not run: there was no time" in found.notes


@pytest.mark.parametrize("told", ["both", "placements", "probabilities"])
def test_what_the_search_is_told(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either part of what the policy thinks can be kept back."""
    hints, problem = heard(monkeypatch), zoo_problem()
    place(problem, "guided", Budget(evaluations=100), options={"told": told, **QUICKLY})
    assert bool(hints[0].placements) == (told != "probabilities")
    assert (hints[0].probabilities is not None) == (told != "placements")


def test_what_the_policy_says_of_itself_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user should know of how asking went, such as that memory was short, stands among the notes."""
    monkeypatch.setattr(Policy, "notes", ("memory is short",))
    found = run_placer(create("guided", QUICKLY), zoo_problem(), Budget(evaluations=40))
    assert found.placement is not None and found.notes[-2] == "memory is short"


@examples(10)
@given(problems(max_ops=6, scarce=True, rules=True))
def test_proposals_keep_the_rules_and_come_twice(problem: Problem) -> None:
    """Whatever the problem: what is proposed is valid, the same the second time, or there are words why not."""
    placer = create("guided", QUICKLY if problem.objective.kind == "latency" else {"search": "local", "samples": 4})
    if placer.supports(problem) is not None:
        return
    first, second = (place(problem, placer, Budget(iterations=4, seed=5)) for _ in range(2))
    assert first.placement == second.placement
    assert first.placement is not None or first.unmet or first.notes


@pytest.mark.parametrize("seed", range(4))
def test_small_problems_end_at_the_optimum(seed: int) -> None:
    """The policy's opinion keeps no search from the best placement."""
    problem = random_problem(seeded(seed), max_ops=5, max_devices=3, objective=Objective("latency", memory="sum"))
    best, found = optimum(problem), place(problem, "guided", Budget(iterations=300), options=QUICKLY)
    assert (found.status.outcome is Outcome.INFEASIBLE) == bool(np.isinf(best))
    assert found.placement is None or found.value == pytest.approx(best, rel=1e-9, abs=1e-15)


def test_learning_first_is_worth_no_less() -> None:
    """With updates the policy learns on the problem itself before it is asked, within the same evaluations."""
    problem = zoo_problem()
    price, asked = Pricing(problem), []

    def count(placements: Ints) -> Floats:
        asked.append(len(placements))
        return price(placements)

    options = {"policy": "gdp", "updates": 3, **QUICKLY}
    found = run_placer(create("guided", options), problem, Budget(evaluations=300, seed=1), evaluate=count)
    assert found.placement is not None
    assert evaluate(problem, found.placement.device[None])[0] == price.value
    assert 3 * 16 < sum(asked) <= 300 + 60


@pytest.mark.parametrize("most", [1, 6, 40])
def test_asking_ends_with_the_budget(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the search begins, no more placements were priced than the budget of evaluations allows."""
    problem, asked, spent = zoo_problem(), list[int](), list[int]()
    price, propose = Evaluator(problem), TemperPlacer.propose

    def count(placements: Ints) -> Floats:
        asked.append(len(placements))
        return price(placements)

    def begin(self: TemperPlacer, search: SearchContext) -> Any:
        spent.extend((sum(asked), search.budget.evaluations or 0))
        return propose(self, search)

    monkeypatch.setattr(TemperPlacer, "propose", begin)
    found = run_placer(create("guided", QUICKLY), problem, Budget(evaluations=most), evaluate=count)
    assert found.placement is not None and spent[0] <= most and sum(spent) == most


def test_hints_stay_hints() -> None:
    """A placement that is known already is where the search begins as well, and nothing worse comes back."""
    problem = zoo_problem()
    known = run_placer(create("temper"), problem, Budget(seed=2)).placement
    assert known is not None
    found = place(problem, "guided", Budget(iterations=0), options=QUICKLY, hints=Hints((known,)))
    assert found.value <= evaluate(problem, known.device[None])[0]


@pytest.mark.parametrize("after", [1, 4])
def test_what_is_interrupted_gives_the_best_so_far(after: int) -> None:
    """Ctrl-C while the policy is asked, or later: the answer is the best that was priced by then."""
    problem, calls = zoo_problem(), []
    price = Evaluator(problem)

    def interrupted(placements: Ints) -> Floats:
        calls.append(len(placements))
        if len(calls) > after:
            raise KeyboardInterrupt
        return price(placements)

    found = run_placer(create("guided", QUICKLY), problem, Budget(), evaluate=interrupted)
    assert found.reason is Reason.INTERRUPTED and found.placement is not None


def test_signs_of_life_and_history_count_from_the_beginning() -> None:
    """Who listens hears who is asked; seconds go on, and what the search finds comes after the asking."""
    problem, said, asked = zoo_problem(), list[Progress](), list[float]()
    price, placer = Evaluator(problem), create("guided", {"search": "auto", "samples": 4})

    def timed(placements: Ints) -> Floats:
        asked.append(time.monotonic() - begun)
        return price(placements)

    begun = time.monotonic()
    found = run_placer(placer, problem, Budget(0.5), evaluate=timed, on_progress=said.append)
    assert said[0].message == "asking gdp" and found.history
    seconds = [each.seconds for each in said]
    assert seconds == sorted(seconds) and found.history[0].seconds > asked[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"samples": 0}, "samples is 0"), ({"updates": -1}, "updates is -1"), ({"policy": "expert"}, "policy"),
     ({"search": "cpsat"}, "search")],
)  # fmt: skip
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    """What cannot be asked is said by name."""
    with pytest.raises(PlacerError, match=message):
        create("guided", options)


def test_searches_say_what_they_do_not_take() -> None:
    """The search for the other objective, and rules that a policy does not keep, are refused in words."""
    latency, throughput = zoo_problem(), zoo_problem(objective=Objective("throughput"))
    assert create("guided", {"search": "local"}).supports(latency) is None
    assert "temper" in (create("guided", {"search": "temper"}).supports(throughput) or "")
    assert create("guided").supports(throughput) is None
