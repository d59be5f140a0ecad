"""Where searches begin: which placers are asked, and when nobody is."""

from __future__ import annotations

import numpy as np
import pytest
from toy_problems import boxes

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.base import Budget, Hints, SearchContext
from placewise.placers.shared import starting_placements
from placewise.placers.shared.starting_placements import (
    LAST_RESORT,
    QUICK,
    SEARCH,
    StartingPlacements,
    find_starting_placements,
    keeps_rules,
)

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
    """A valid hint comes first and is enough, unless it names who made it: then all others are asked."""
    problem = tight(kind, 9.0, 9.0)
    assert starts(problem, hints=Hints((FULL,))).asked == []
    named = starts(problem, hints=Hints((FULL,), by=("heft", "single")))
    assert named.placements[0].device.tolist() == [0, 0, 1]
    assert named.asked == [name for name, _ in QUICK[kind] if name not in ("heft", "single")]
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
    found = starts(problem, hints=Hints((FULL,), by=("single",)))
    assert found.interrupted and [placement.device.tolist() for placement in found.placements] == [[0, 0, 1]]
    assert len(found.asked) == 1


def test_orders_are_kept_where_they_are_wanted() -> None:
    """`plain` placements have devices only."""
    problem = tight("latency", 9.0, 9.0)
    for plain in (True, False):
        (only,) = starts(problem, hints=Hints((FULL,)), plain=plain).placements
        assert (only.order is None) == plain
