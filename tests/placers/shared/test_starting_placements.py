"""Where searches begin: which placers are asked, and when nobody is."""

from __future__ import annotations

import numpy as np
import pytest
from toy_problems import boxes

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Bound, Proposal, Reason
from placewise.placers.base import Budget, Hints, Placer, SearchContext
from placewise.placers.shared import starting_placements
from placewise.placers.shared.starting_placements import (
    LAST_RESORT,
    QUICK,
    SEARCH,
    SEARCH_EVALUATIONS,
    StartingPlacements,
    find_starting_placements,
    keeps_rules,
)
from placewise.simulate import lower_bound

KINDS = pytest.mark.parametrize("kind", ["throughput", "latency"])
FULL = Placement(np.array([0, 0, 1], np.int32), order=np.array([0, 1, 2], np.int32))


def starts(
    problem: Problem, seconds: float = np.inf, hints: Hints | None = None, **options: float
) -> StartingPlacements:
    """What is found within a budget, from hints if there are any."""
    return find_starting_placements(SearchContext(problem, Budget(seconds), hints or Hints()), **options)  # type: ignore[arg-type]


def tight(kind: str, *rooms: float) -> Problem:
    """Three ops of 4 bytes in a row."""
    return boxes([4, 4, 4], list(rooms), kind=kind)


@KINDS
def test_quick_placers_are_asked_in_turn(kind: str) -> None:
    """Each of them where there is time, and all that they find keeps the rules."""
    found = starts(tight(kind, 9.0, 9.0))
    assert found.asked == [name for name, _ in QUICK[kind]] and found.placements and not found.infeasible
    assert all(keeps_rules(tight(kind, 9.0, 9.0), placement) for placement in found.placements)


@KINDS
def test_a_proof_or_the_end_of_time_ends_the_round(kind: str) -> None:
    """Nobody is asked after a proof that nothing fits; without time only the last resort is."""
    proved = starts(tight(kind, 6.0, 6.0))
    assert proved.infeasible and not proved.placements and len(proved.asked) < len(QUICK[kind])
    late = starts(tight(kind, 9.0, 9.0), 0.0)
    assert late.asked == [LAST_RESORT] and not late.infeasible


@KINDS
def test_hints_stand_in_for_quick_placers(kind: str) -> None:
    """A valid hint comes first and is enough; an invalid one is not."""
    problem = tight(kind, 9.0, 9.0)
    hinted = starts(problem, hints=Hints((FULL,)))
    assert hinted.asked == [] and [one.device.tolist() for one in hinted.placements] == [[0, 0, 1]]
    invalid = Placement(np.zeros(3, np.int32))
    assert starts(problem, hints=Hints((invalid,))).asked and not keeps_rules(problem, invalid)
    assert starts(problem, hints=Hints((FULL,)), search_share=0.5).asked == [SEARCH]


def test_other_models_and_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint for other ops is no start; Ctrl-C while placers run ends the round with what hints gave."""
    problem = tight("latency", 9.0, 9.0)
    assert not keeps_rules(problem, Placement(np.zeros(2, np.int32)))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(starting_placements, "run_placer", interrupt)
    found = starts(problem, hints=Hints((FULL,)), search_share=0.5)
    assert found.interrupted and [placement.device.tolist() for placement in found.placements] == [[0, 0, 1]]
    assert found.asked == [SEARCH]


def test_orders_are_kept_where_they_are_wanted() -> None:
    """`plain` placements have devices only."""
    problem = tight("latency", 9.0, 9.0)
    for plain in (True, False):
        (only,) = starts(problem, hints=Hints((FULL,)), plain=plain).placements
        assert (only.order is None) == plain


class Asked:
    """In place of placers: proposes what it is told to, and notes the seconds and evaluations that each is given."""

    def __init__(self, proposal: Proposal) -> None:
        self.proposal, self.given = proposal, list[tuple[str, float, int | None]]()
        self.hints: Hints | None = None

    def __call__(self, placer: Placer, _: Problem, budget: Budget, *, hints: Hints, **__: object) -> Proposal:
        self.given.append((placer.info.name, budget.seconds, budget.evaluations))
        self.hints = hints
        return self.proposal


@KINDS
def test_each_placer_has_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Until something is found all the time there is, then a quarter together; half that where a search for half of the
    time follows, which is told what was found; the last resort gets half. Without a limit a search counts its prices.
    """
    problem, found = tight(kind, 9.0, 9.0), Proposal(Placement(FULL.device))
    for search, share, proposal in ((0.0, 0.25, found), (0.5, 0.125, found), (0.0, 1.0, Proposal(None))):
        asked = Asked(proposal)
        monkeypatch.setattr(starting_placements, "run_placer", asked)
        starts(problem, 1000.0, search_share=search)
        names = [name for name, _ in QUICK[kind]] + [SEARCH] * bool(search) + [LAST_RESORT] * (share == 1)
        assert [name for name, *_ in asked.given] == names and {limit for *_, limit in asked.given} == {None}
        seconds = [1000.0] + [1000.0 * share] * (len(QUICK[kind]) - 1) + [500.0] * (share != 0.25)
        assert [given for _, given, _ in asked.given] == pytest.approx(seconds, abs=20)
        if search:
            assert asked.hints is not None and asked.hints.bound == lower_bound(problem)
            assert [row.device.tolist() for row in asked.hints.placements] == [[0, 0, 1]] * len(QUICK[kind])
            starts(problem, search_share=search)
            assert asked.given[-1] == (SEARCH, np.inf, SEARCH_EVALUATIONS if kind == "latency" else None)


@KINDS
def test_the_round_ends_where_a_placer_was_interrupted(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """What it had counts, and so does its bound if it is higher; nobody else is asked, and there is no search."""
    found, bound = Placement(FULL.device), Bound(1.5, "told")
    for known, kept in ((1.0, bound), (2.0, Bound(2.0, "known"))):
        asked = Asked(Proposal(found, bound, Reason.INTERRUPTED))
        monkeypatch.setattr(starting_placements, "run_placer", asked)
        hints = Hints(bound=Bound(known, "known"))
        result = starts(tight(kind, 9.0, 9.0), hints=hints, search_share=0.5)
        assert result.interrupted and len(asked.given) == 1 and result.bound == kept
        assert result.placements == [found]
