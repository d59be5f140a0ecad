"""Placements drawn from probabilities: which come, in what order, and what happens to those that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from toy_problems import boxes

from placewise.errors import PlacerError
from placewise.model.problem import Constraints, Problem, Rule
from placewise.placers.base import Hints
from placewise.placers.shared.priors import draw_placements, match_labels, read_priors
from placewise.placers.shared.rules import find_broken_rule


def told(problem: Problem, rows: list[list[float]], count: int) -> list[list[int]]:
    likely = read_priors(problem, Hints(probabilities=np.array(rows)))
    return [device.tolist() for device in draw_placements(problem, likely, count, 0)]


def test_what_does_not_fit_is_repaired() -> None:
    """Three ops of 4 bytes that belong on a device of 8: two stay, one moves, and the same is not drawn twice."""
    problem = boxes([4, 4, 4], [8.0, 8.0])
    (found,) = told(problem, [[1.0, 0.0]] * 3, 4)
    assert sorted(found) == [0, 0, 1] and find_broken_rule(problem, np.array(found, np.int32)) == ""


def test_stages_are_not_repaired() -> None:
    """Where stages form a chain, what does not fit or comes back is dropped."""
    chain = Constraints(contiguous=True)
    assert told(boxes([4, 4, 4], [8.0, 8.0], constraints=chain), [[1.0, 0.0]] * 3, 4) == []
    wide = boxes([4, 4, 4], [99.0, 99.0], constraints=chain)
    assert told(wide, [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], 4) == []
    assert told(wide, [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], 4) == [[0, 1, 1]]


def test_the_most_probable_comes_first_and_draws_are_different() -> None:
    """Of two even devices both are drawn, as a whole, since ops of the same probabilities stay together."""
    problem = boxes([1, 1, 1], [99.0, 99.0])
    assert told(problem, [[0.4, 0.6]] * 3, 1) == [[1, 1, 1]]
    assert told(problem, [[0.4, 0.6]] * 3, 9) == [[1, 1, 1], [0, 0, 0]]
    assert told(problem, [[0.4, 0.6]] * 3, 0) == []


@pytest.mark.parametrize(
    "rows", [[[1.0, 0.0]] * 2, [[1.0]] * 3, [[1.0, -0.1]] * 3, [[np.nan, 1.0]] * 3, [[np.inf, 1.0]] * 3]
)
def test_probabilities_that_do_not_fit_are_refused(rows: list[list[float]]) -> None:
    """A row per op and a number per device, none negative or missing: the remedy says the shape."""
    problem = boxes([1, 1, 1], [9.0, 9.0])
    with pytest.raises(PlacerError, match="the probabilities of the hints do not fit") as refused:
        read_priors(problem, Hints(probabilities=np.array(rows)))
    assert refused.value.remedy == "give 3 × 2 numbers, none below zero"


def test_probabilities_are_shares_of_the_devices_that_are_allowed() -> None:
    """Groups add up what their ops have, and lose what rules forbid; where nothing is left, all devices are alike."""
    rules = Constraints(forbidden=(Rule("x0", "d2"), Rule("x2", "d0")))
    problem = boxes([1, 1, 1], [9.0, 9.0, 9.0], group=[0, 0, 1], constraints=rules)
    told = Hints(probabilities=np.array([[1.0, 2.0, 5.0], [3.0, 2.0, 5.0], [1.0, 0.0, 0.0]]))
    assert read_priors(problem, told).tolist() == [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    alone = read_priors(problem, told, np.array([0, 1, 1]), 3)
    assert alone.tolist() == [[1 / 3, 2 / 3, 0.0], [0.0, 2 / 7, 5 / 7], [1 / 3, 1 / 3, 1 / 3]]
    assert read_priors(problem, Hints()).shape == (0, 3)


def test_equal_devices_get_the_names_that_are_most_probable() -> None:
    """Three equal devices: each old name goes to the new one with most of its mass, the largest mass first."""
    problem = boxes([1, 1, 1, 1], [9.0, 9.0, 9.0])
    likely = np.array([[0.0, 0.9, 0.1], [0.0, 0.9, 0.1], [0.7, 0.2, 0.1], [0.0, 0.6, 0.4]])
    assert match_labels(problem, likely, np.array([[0, 0, 1, 2], [2, 2, 2, 2]], np.int32)).tolist() == [
        [1, 1, 0, 2], [1, 1, 1, 1],
    ]  # fmt: skip
