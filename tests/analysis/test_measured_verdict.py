"""The verdict on a placement that ran: what it gains beside the spread of the runs."""

from __future__ import annotations

import numpy as np
import pytest

import placewise as pw
from placewise.analysis.measure_placements import PLAN, SINGLE, MeasuredPlacement, MeasuredPlacements, measured_verdict
from placewise.model.placement import Placement
from placewise.runtimes.base import RuntimeInfo
from placewise.runtimes.measure import Measurement, Protocol


def measured(*rounds: float, split: bool = True) -> MeasuredPlacements:
    """A single device that takes one second in every round, and a plan that takes these."""
    problem = pw.build("zoo:random-layered", "2xL4", pw.ProblemOptions(dims={"n_ops": 20}))
    alone = np.zeros(problem.n_ops, np.int32)
    device = np.arange(problem.n_ops, dtype=np.int32) % 2 if split else alone
    runs = (
        MeasuredPlacement(SINGLE, Placement(alone), 1.0, Measurement(SINGLE, (1.0,) * len(rounds))),
        MeasuredPlacement(PLAN, Placement(device), 1.0, Measurement(PLAN, rounds)),
    )
    return MeasuredPlacements(RuntimeInfo("none", "a runtime", "operator", (), ""), (), problem, Protocol(), runs)


@pytest.mark.parametrize(
    ("rounds", "sentence"),
    [
        ((0.5, 0.5, 0.5), "The split is worth it: measured 2.00× as fast as the best single device."),
        ((0.6, 0.8, 1.0), "Do not split: the gain of 25.0% is below 3 times the spread of the runs (25.0%)."),
        ((2.0, 2.0, 2.0), "Do not split: the best single device is 2.00× as fast."),
    ],
)
def test_a_measured_gain_counts_above_three_times_the_spread(rounds: tuple[float, ...], sentence: str) -> None:
    """Above the spread, within it, and slower."""
    assert measured_verdict(measured(*rounds), PLAN) == sentence


def test_one_device_is_no_split() -> None:
    """A plan on the same single device is not judged by its noise."""
    assert measured_verdict(measured(0.5, split=False), PLAN) == "Nothing is split: one device runs everything."
