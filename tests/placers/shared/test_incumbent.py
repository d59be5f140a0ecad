"""The best placement of a search so far: what replaces it, what proves it, and what is answered in the end."""

from __future__ import annotations

import numpy as np
from toy_problems import toy

from placewise.model.placement import Placement
from placewise.model.problem import Objective
from placewise.model.result import Bound, Reason
from placewise.placers.shared.schedule_models.incumbent import Incumbent, value_of
from placewise.simulate import Evaluator

ONE, TWO, TURNED = (Placement(np.array(device, np.int32)) for device in ([0, 0], [0, 1], [1, 0]))


def test_only_what_is_better_is_kept() -> None:
    """2 s on one device, 1.25 s on two, whose names do not matter; equal values and broken rules change nothing."""
    incumbent = Incumbent(toy(), None, Bound(0.0, "none"))
    assert incumbent.offer(ONE) and incumbent.value == 2.0
    assert not incumbent.offer(ONE)
    assert incumbent.offer(TWO) and incumbent.value == 1.25
    assert not incumbent.offer(TURNED) and not incumbent.offer(ONE)
    assert incumbent.best == TWO and incumbent.value == 1.25
    small = Incumbent(toy(memory=15.0), None, Bound(0.0, "none"))
    assert not small.offer(ONE) and small.best is None and np.isinf(value_of(small.problem, ONE, None))
    assert small.offer(TWO)


def test_an_order_is_kept_only_where_it_helps() -> None:
    """With the order that the judge chooses by itself, or a useless one, the placement is kept without it."""
    problem = toy().with_(objective=Objective("latency", execution="operator", memory="sum"))
    incumbent = Incumbent(problem, Evaluator(problem), Bound(0.0, "none"))
    assert incumbent.offer(Placement(ONE.device, order=np.array([0, 1], np.int32)))
    assert incumbent.best == ONE


def test_bounds_only_rise_and_prove_what_they_reach() -> None:
    """A bound of 1.25 s proves 1.25 s, and one of 1 s does not replace it."""
    incumbent = Incumbent(toy(), None, Bound(0.0, "none"))
    incumbent.offer(TWO)
    for bound, optimal in ((Bound(1.0, "weak"), False), (Bound(1.25, "strong"), True), (Bound(1.0, "weak"), True)):
        incumbent.prove(bound)
        assert incumbent.optimal == optimal
    assert incumbent.bound.method == "strong"
    assert not Incumbent(toy(), None, Bound(9.0, "all")).optimal


def test_answers() -> None:
    """The best with its names in order, nothing with a reason, or a proof that there is nothing."""
    incumbent = Incumbent(toy(), None, Bound(1.0, "work"))
    nothing = incumbent.answer(("note",))
    assert nothing.placement is None and nothing.notes == ("note", "no placement was found that keeps the rules")
    incumbent.offer(TURNED)
    answer = incumbent.answer(("note",))
    assert answer.placement == TWO and answer.bound == Bound(1.0, "work") and answer.notes == ("note",)
    incumbent.infeasible = "too large"
    proof = incumbent.answer()
    assert proof.placement is None and proof.reason is Reason.PROVED and proof.infeasible == "too large"
