"""The verdict on a placement that ran: what it gains over everything that needs no placer, round by round."""

from __future__ import annotations

import numpy as np
import pytest

import placewise as pw
from placewise.analysis.measure_placements import (
    PLAN,
    SINGLE,
    MeasuredPlacement,
    MeasuredPlacements,
    measured_verdict,
    tabulate_measurements,
)
from placewise.model.placement import Placement
from placewise.model.verdict import OWN_THREADS, REPLICAS
from placewise.reporting.measured import measurement_view
from placewise.reporting.plain import plain
from placewise.runtimes.base import RuntimeInfo
from placewise.runtimes.measure import Measurement, Protocol
from placewise.runtimes.paired import compare_rounds, least_rounds, summarize_ratios

SLOW_PHASES = (1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 1.0, 1.0, 2.0, 2.0)
"""Seconds of a machine that others use now and then: a spread of more than 100 %."""


def measured(rounds, *, single=None, split=True, **plain) -> MeasuredPlacements:
    """A single device of one second per round, or of these seconds; what else needs no placer; a plan of `rounds`."""
    problem = pw.build("zoo:random-layered", "2xL4", pw.ProblemOptions(dims={"n_ops": 20}))
    alone = np.zeros(problem.n_ops, np.int32)
    device = np.arange(problem.n_ops, dtype=np.int32) % 2 if split else alone
    names = {"own": OWN_THREADS, "copies": REPLICAS}
    runs = (
        MeasuredPlacement(SINGLE, Placement(alone), 1.0, Measurement(SINGLE, single or (1.0,) * len(rounds))),
        *(
            MeasuredPlacement(
                names[word], Placement(alone), 1.0, Measurement(names[word], own), copies=1 + (word == "copies")
            )
            for word, own in plain.items()
        ),
        MeasuredPlacement(PLAN, Placement(device), 1.0, Measurement(PLAN, rounds)),
    )
    return MeasuredPlacements(RuntimeInfo("none", "a runtime", "operator", (), ""), (), problem, Protocol(), runs)


def scaled(rounds, factor):
    return tuple(seconds * factor for seconds in rounds)


@pytest.mark.parametrize(
    ("rounds", "sentence"),
    [
        ((0.5,) * 6, "The split is worth it: measured 2.00× as fast as the best single device (95 %: 2.00 to 2.00)."),
        (
            (0.6, 0.8, 1.1) * 3,
            "Do not split: measured 1.25× as fast as the best single device (95 %: 0.91 to 1.67), which shows no gain.",
        ),
        ((2.0,) * 6, "Do not split: the best single device is 2.00× as fast (95 %: 2.00 to 2.00)."),
        (
            (0.5,) * 5,
            "5 rounds are too few to tell: measured 2.00× as fast as the best single device; 6 or more give an "
            "interval.",
        ),
        ((0.5,), "1 round is too few to tell: measured 2.00× as fast as the best single device; 6 or more give an "
         "interval."),
    ],
)  # fmt: skip
def test_a_gain_counts_if_its_interval_lies_above_one(rounds, sentence) -> None:
    """Above, across, below, and too few rounds."""
    assert measured_verdict(measured(rounds), PLAN) == sentence


@pytest.mark.parametrize(
    ("ratios", "error"),
    [((1.0, 2.0, 3.0, 4.0, 5.0, 6.0), 2.5 / 3.5), ((1.0,) * 5, 1.0), ((1.0, 9.0) * 3, 0.8), ((2.0,) * 6, 0.0)],
)
def test_an_error_is_half_an_interval(ratios, error) -> None:
    """As a share of the median; all of it where five rounds give no interval."""
    assert summarize_ratios(ratios).error == pytest.approx(error)


@pytest.mark.parametrize(("count", "said"), [(1, "1 round in turns"), (3, "3 rounds in turns")])
def test_a_table_says_how_many_rounds_ran(count, said) -> None:
    """Which may be fewer than were asked for, where the time was over."""
    assert tabulate_measurements(measured((0.5,) * count)).how.startswith(said)


def test_a_gain_of_a_tenth_counts_on_a_busy_machine() -> None:
    """Slow phases meet all placements of a round: the spread of a time is large, that of the ratio is not."""
    found = measured(scaled(SLOW_PHASES, 1 / 1.1), single=SLOW_PHASES)
    assert found.single.measurement.spread > 0.5
    assert measured_verdict(found, PLAN).startswith("The split is worth it: measured 1.10×")


def test_nothing_is_worth_it_while_the_plain_runtime_is_faster() -> None:
    """The runtime's own threads on all cores decide, and copies of the model in a stream."""
    plan = (0.7,) * 10
    assert measured_verdict(measured(plan, own=(0.5,) * 10), PLAN) == (
        "Do not split: the runtime's own threads on all cores are 1.40× as fast (95 %: 1.40 to 1.40)."
    )
    assert "Do not split: 2 copies of the model are 1.40×" in measured_verdict(measured(plan, copies=(0.5,) * 10), PLAN)
    sure = measured_verdict(measured(plan, own=(0.9,) * 10), PLAN)
    assert sure.startswith("The split is worth it: measured 1.29× as fast as the runtime's own threads on all cores")


def test_every_rival_must_be_beaten_for_sure() -> None:
    """A rival that is slower in the median, but by rounds that scatter across 1, is not beaten."""
    steady, doubtful = (0.9,) * 10, (0.6, 1.4) * 5
    assert "shows no gain" in measured_verdict(measured((0.8,) * 10, single=steady, own=doubtful), PLAN)


def test_there_is_no_verdict_while_a_rival_did_not_run() -> None:
    """What failed may have been faster."""
    found = measured((0.5,) * 10, own=())
    assert measured_verdict(found, PLAN).endswith(f"but {OWN_THREADS} did not run: no verdict.")


def test_one_device_is_no_split() -> None:
    """A plan on the same single device is not judged by its noise."""
    assert measured_verdict(measured((0.5,), split=False), PLAN) == "Nothing is split: one device runs everything."


def test_a_single_round_has_no_spread() -> None:
    """Quartiles of one number would say that nothing scatters."""
    spreads = []
    for rounds in ((0.5,), (0.5, 0.6)):
        row = plain(measurement_view(tabulate_measurements(measured(rounds), PLAN))).splitlines()[4]
        spreads.append(row.split()[3])
    assert spreads == ["–", "9.1%"]


@pytest.mark.parametrize("count", [6, 10, 15, 30])
def test_the_interval_holds_the_median_as_often_as_it_says(count) -> None:
    """Of 2,000 sets of skewed ratios with the median 1, the interval of at least 95 % holds it."""
    rng = np.random.default_rng(count)
    held = 0
    for _ in range(2000):
        ratios = np.exp(rng.standard_gamma(1.0, count) - np.log(2))
        found = compare_rounds(ratios.tolist(), [1.0] * count)
        held += found.low <= 1 <= found.high
    assert held >= 0.94 * 2000 and least_rounds() == 6
