"""Arguments of a type that nobody expects: one sentence each, found by the option matrix (tests/fuzzing)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import placewise as pw
from placewise.errors import InputError, OutputError

NO_PATHS = (5, b"plan.json", ["plan.json"], {"path": "plan.json"}, np.array([1, 2]))


@pytest.fixture(scope="module")
def problem() -> pw.Problem:
    return pw.build("zoo:random-layered", "2xL4,cpu", pw.ProblemOptions(dims={"n_ops": 5}))


@pytest.fixture(scope="module")
def plan(problem: pw.Problem) -> pw.Plan:
    return pw.place(problem, placer="single")


@pytest.mark.parametrize("odd", NO_PATHS, ids=repr)
@pytest.mark.parametrize(
    "call",
    [
        lambda problem, plan, odd: pw.place(problem, placer="single", start=odd),
        lambda problem, plan, odd: pw.judge(problem, odd),
        lambda problem, plan, odd: pw.check(problem, odd),
        lambda problem, plan, odd: pw.export(odd, "dot"),
        lambda problem, plan, odd: pw.explain(odd, "op"),
        lambda problem, plan, odd: pw.diff(plan, odd),
        lambda problem, plan, odd: pw.report(odd),
        lambda problem, plan, odd: pw.Plan.load(odd),
    ],
)
def test_what_is_no_path(problem: pw.Problem, plan: pw.Plan, call: Callable[..., Any], odd: Any) -> None:
    """A plan is a Plan or the path of a file."""
    with pytest.raises(InputError, match="the path of a file is"):
        call(problem, plan, odd)


@pytest.mark.parametrize("odd", NO_PATHS, ids=repr)
def test_what_is_no_path_to_write(plan: pw.Plan, odd: Any) -> None:
    """Nor is a plan or a report written to it."""
    for call in (plan.save, plan.report):
        with pytest.raises(OutputError, match="the path of a file is"):
            call(odd)


@pytest.mark.parametrize("odd", [None, 3, [1, 2], [["dp"]], {"dp": 1}], ids=repr)
def test_what_names_no_placers(problem: pw.Problem, odd: Any) -> None:
    """Placers to compare are a text or a list of texts."""
    with pytest.raises(InputError, match="the placers are"):
        pw.compare(problem, placers=odd)


@pytest.mark.parametrize("odd", [np.array([1, 2]), [], "", {}, False], ids=repr)
@pytest.mark.parametrize("name", ["seed", "gap"])
def test_what_is_no_seed_and_no_gap(problem: pw.Problem, name: str, odd: Any) -> None:
    """Also where Python takes it for false, or does not know."""
    with pytest.raises(InputError):
        pw.place(problem, placer="single", **{name: odd})


def test_a_seed_and_a_gap_of_nought_leave_those_of_the_budget(problem: pw.Problem) -> None:
    """They are the defaults."""
    plan = pw.place(problem, placer="random", budget=pw.Budget(seed=3, gap=0.5))
    assert plan.assignment == pw.place(problem, placer="random", seed=3).assignment


@pytest.mark.parametrize("odd", [None, "2", 1.5, True, -1, [2]], ids=repr)
def test_what_is_no_depth(problem: pw.Problem, odd: Any) -> None:
    """Scopes are cut to a whole number of parts."""
    with pytest.raises(InputError, match="the depth is"):
        pw.inspect(problem, depth=odd)


@pytest.mark.parametrize("odd", [None, 3, b"op", ["op"], np.array(["op"]), np.array(None)], ids=repr)
def test_what_names_no_op_and_no_devices(plan: pw.Plan, odd: Any) -> None:
    """An op is a text, and so is each device where it could be instead; a plan without splits needs an op."""
    with pytest.raises(InputError, match="no op is named" if odd is None else "the op is"):
        pw.explain(plan, odd)
    if np.ndim(odd) == 0:
        with pytest.raises(InputError, match="why_not is"):
            pw.explain(plan, plan.problem.graph.ops.name[0], odd)


@pytest.mark.parametrize("odd", [np.array(None), np.array([1, 2]), np.array([["a", "cpu"]])], ids=repr)
@pytest.mark.parametrize("name", ["pins", "forbid", "unsupported"])
def test_arrays_are_no_rules(name: str, odd: Any) -> None:
    """Rules are a mapping or a list of pairs."""
    with pytest.raises(InputError, match=f"{name} is array"):
        pw.ProblemOptions(**{name: odd})
