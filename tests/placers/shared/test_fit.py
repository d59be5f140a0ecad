"""Placements whose activations turn out too large: capacities shrink, and blocks move where nothing else helps."""

from __future__ import annotations

import numpy as np
import pytest
from toy_problems import boxes

from placewise.model.columns import Floats, Ints
from placewise.model.problem import Constraints, Objective, Problem
from placewise.placers.shared.fit import ROUNDS, fit_memory
from placewise.placers.shared.rules import find_broken_rule


def row(rooms: list[float], **rules: bool) -> Problem:
    """Three ops of 4 bytes in a row, with tensors of 1 byte that count while they are alive."""
    problem = boxes([4, 4, 4], rooms, constraints=Constraints(**rules))  # type: ignore[arg-type]
    return problem.with_(objective=Objective("throughput", memory="live"))


class Proposals:
    """Proposes placements one after the other, then none, and notes the capacities that it was given."""

    def __init__(self, *devices: list[int]) -> None:
        self._left, self.rooms = list(devices), list[list[float]]()

    def __call__(self, capacity: Floats) -> Ints | None:
        self.rooms.append(capacity.tolist())
        return np.array(self._left.pop(0), np.int32) if self._left else None


def test_nothing_needs_no_room() -> None:
    """Without ops there is a placement of none, and nobody is asked for it."""
    proposals = Proposals()
    device, shrunk = fit_memory(boxes([], [1.0]), proposals)
    assert device is not None and device.tolist() == [] and not shrunk and proposals.rooms == []


def test_equal_devices_shrink_together() -> None:
    """Two ops of 8 bytes need 10 with their tensors, where 9 are: 7 are left of that device and of its equal."""
    proposals = Proposals([0, 0, 1], [0, 1, 2])
    device, shrunk = fit_memory(row([9.0, 9.0, 20.0]), proposals)
    assert device is not None and device.tolist() == [0, 1, 2] and shrunk
    assert proposals.rooms == [[9.0, 9.0, 20.0], [7.0, 7.0, 20.0]]
    device, shrunk = fit_memory(row([9.0, 9.0, 20.0]), Proposals([2, 2, 0]))
    assert device is not None and device.tolist() == [2, 2, 0] and not shrunk


def test_the_last_proposal_is_repaired() -> None:
    """Where nothing else is proposed, blocks of the last one move, unless stages have a shape; none is made of none."""
    problem = row([9.0, 9.0, 20.0])
    device, shrunk = fit_memory(problem, Proposals([0, 0, 1]))
    assert device is not None and shrunk and find_broken_rule(problem, device) == ""
    assert fit_memory(row([9.0, 9.0, 20.0], contiguous=True), Proposals([0, 0, 1])) == (None, True)
    assert fit_memory(problem, Proposals()) == (None, False)


@pytest.mark.parametrize("stubborn", [ROUNDS, ROUNDS + 1])
def test_asking_ends(stubborn: int) -> None:
    """After `ROUNDS` proposals that do not fit nobody is asked again."""
    proposals = Proposals(*([[0, 0, 1]] * stubborn))
    device, shrunk = fit_memory(row([9.0, 9.0, 20.0], contiguous=True), proposals)
    assert device is None and shrunk and len(proposals.rooms) == ROUNDS


def test_no_capacity_is_below_zero() -> None:
    """Ops without bytes whose tensors need 2 where 1 is: nothing is left, and no less."""
    problem = boxes([0, 0, 0], [1.0, 9.0]).with_(objective=Objective("throughput", memory="live"))
    proposals = Proposals([0, 0, 1], [1, 1, 1])
    device, shrunk = fit_memory(problem, proposals)
    assert device is not None and device.tolist() == [1, 1, 1] and shrunk
    assert proposals.rooms == [[1.0, 9.0], [0.0, 9.0]]
