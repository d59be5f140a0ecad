"""How much work the first bound of `place` may take."""

from __future__ import annotations

from typing import Any

import pytest
from toy_problems import zoo

from placewise.core.place import place
from placewise.model.problem import Constraints, Objective
from placewise.model.result import Bound, Outcome
from placewise.placers.base import Budget
from placewise.simulate import lower_bound


@pytest.mark.parametrize(
    ("placer", "contiguous", "slow"), [("dp", True, False), ("dp", False, True), ("heft", True, True)]
)
def test_a_dynamic_program_over_few_ideals_waits_for_no_slow_bound(
    monkeypatch: pytest.MonkeyPatch, placer: str, contiguous: bool, slow: bool
) -> None:
    """It proves a chain optimal by itself; other placers prove nothing."""
    allowed: list[float] = []

    def bound(*args: Any, work: float, **options: Any) -> Bound:
        allowed.append(work)
        return lower_bound(*args, work=work, **options)

    monkeypatch.setattr("placewise.core.place.lower_bound", bound)
    problem = zoo("layered", 10, 0, "2xL4,cpu")
    chain = problem.with_(objective=Objective("throughput"), constraints=Constraints(contiguous=contiguous))
    result = place(chain, placer, Budget(20.0))
    assert [work > 0 for work in allowed] == [slow]
    assert slow or result.status.outcome is Outcome.OPTIMAL
