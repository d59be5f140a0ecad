"""The first rule that a placement breaks, in a sentence; each rule broken once, on the edge where it has one."""

from __future__ import annotations

import numpy as np
import pytest
from toy_problems import boxes

from placewise.model.problem import Constraints, Objective, Problem, Rule
from placewise.placers.shared.rules import find_broken_rule


def line(rooms: list[float], memory: str = "sum", **rules: object) -> Problem:
    """Three ops of 4 bytes in a row, with tensors of 1 byte."""
    problem = boxes([4, 4, 4], rooms, constraints=Constraints(**rules))  # type: ignore[arg-type]
    return problem.with_(objective=Objective("throughput", memory=memory))  # type: ignore[arg-type]


def said(problem: Problem, *device: int) -> str:
    return find_broken_rule(problem, np.array(device, np.int32))


def test_rules_have_their_sentences() -> None:
    """Pins, groups, chains, their order, and paths that come back."""
    rooms = [99.0, 99.0]
    assert said(line(rooms, pins=(Rule("x1", "d1"),)), 0, 0, 0) == "op 'x1' may not run on d0"
    torn = "the colocation group of op 'x0' is on several devices"
    assert said(line(rooms, together=(("x0", "x1"),)), 0, 1, 1) == torn
    assert said(line(rooms, contiguous=True), 0, 1, 0) in (
        "the stages are no chain: d0 → d1 → d0", "the stages are no chain: d1 → d0 → d1",
    )  # fmt: skip
    late = "the stage of d0 follows that of d1, which comes later"
    assert said(line(rooms, contiguous=True, ordered=True), 1, 1, 0) == late
    assert said(line(rooms, convex=True), 0, 1, 0) == "a path leaves d0 and comes back at op 'x2'"


@pytest.mark.parametrize(
    "rules", [{}, {"contiguous": True}, {"contiguous": True, "ordered": True}, {"convex": True}], ids=str
)
def test_what_keeps_the_rules_breaks_none(rules: dict[str, bool]) -> None:
    """One device, and a chain in the order of the devices."""
    problem = line([99.0, 99.0], "live", **rules)
    assert said(problem, 0, 0, 0) == said(problem, 0, 1, 1) == ""


@pytest.mark.parametrize(
    ("memory", "room", "sentence"),
    [
        ("sum", 12.0, ""),
        ("sum", 11.0, "d0 would need at least 12 B and may use 11 B: 1 B short"),
        ("live", 14.0, ""),
        ("live", 13.0, "d0 would need 14 B and may use 13 B: 1 B short"),
        ("live", 12.0, "d0 would need 14 B and may use 12 B: 2 B short"),
        ("live", 11.0, "d0 would need at least 12 B and may use 11 B: 1 B short"),
    ],
)
def test_memory_to_the_byte(memory: str, room: float, sentence: str) -> None:
    """12 bytes of state, and 2 of tensors while the middle op runs, which are not measured where state is too much."""
    assert said(line([room], memory), 0, 0, 0) == sentence
