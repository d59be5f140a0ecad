"""What several bounds search with: prices of time and of memory, and the largest value that a test refutes."""

from __future__ import annotations

import sys
from fractions import Fraction

import numpy as np
import pytest

from placewise.model.columns import Floats
from placewise.simulate.bounds.assignment import AssignmentMaster, find_prices, round_down
from placewise.simulate.bounds.bisection import find_refuted

MACHINES = np.array([2, 1])
"""Two machines of one kind, which hold one byte together, and one that holds everything."""


class Blocks:
    """Three blocks of a second and a byte each, on either kind; notes the prices that it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[float], list[float]]] = []

    def __call__(self, pace: Floats, per_byte: Floats) -> tuple[float, Floats, Floats]:
        self.asked.append((pace.tolist(), per_byte.tolist()))
        prices = np.array([pace[0] + per_byte[0], pace[1]])
        seconds = np.zeros(2)
        seconds[prices.argmin()] = 3.0
        return 3 * float(prices.min()), seconds, seconds[:1]

    def search(self, **options: object) -> tuple[float, Floats]:
        """The best bound over prices, and these."""
        return find_prices(self, MACHINES, np.array([1.0]), 3.0, 3.0, **options)  # type: ignore[arg-type]


def test_prices_prove_the_bound_that_they_come_with() -> None:
    """One block fits on the two machines, so that the third works 2 s; a second of all costs 1 at most."""
    blocks = Blocks()
    bound, prices = blocks.search()
    assert bound == pytest.approx(2.0, rel=1e-6) and bound <= 2
    assert all(MACHINES @ np.array(pace) <= 1 + 1e-12 and min(pace + per) >= 0 for pace, per in blocks.asked)
    assert blocks.asked[0] == ([1 / 3, 1 / 3], [0.0])
    per_byte = prices[2:] * 3 / 3
    assert bound == pytest.approx(blocks(prices[:2], per_byte)[0] - float(per_byte[0]), rel=1e-9)


@pytest.mark.parametrize(
    ("options", "asked"),
    [({"rounds": 3}, 3), ({"go_on": lambda: False}, 1), ({"least": 1e9}, 1), ({"rounds": 2, "least": 1.0}, 2)],
    ids=["rounds", "nobody waits", "no more to find", "both"],
)
def test_a_search_for_prices_ends_early(options: dict[str, object], asked: int) -> None:
    """After so many rounds, when nobody waits, or where no more than is known can come out."""
    blocks = Blocks()
    value, _ = blocks.search(**options)
    assert len(blocks.asked) == asked and 0 < value <= 2


def test_the_master_program_mixes_assignments() -> None:
    """All on the two machines needs 3 bytes of 1, all on the third 3 s: a third here and the rest there take 2 s.

    One byte more would save a second, and so would another third machine; alone, 2 bytes are missing.
    """
    master = AssignmentMaster(MACHINES, np.array([1.0]))
    master.add(np.array([3.0, 0.0, 3.0]))
    assert master.solve()[1] == pytest.approx(1.5 + 2e6)
    master.add(np.array([0.0, 3.0, 0.0]))
    prices, value = master.solve()
    assert value == pytest.approx(2.0) and prices.tolist() == pytest.approx([0.0, 1.0, 1.0])


def test_sums_are_rounded_below_what_they_stand_for() -> None:
    """Sums of a million terms stay below the exact one, by little."""
    terms = np.random.default_rng(0).uniform(0, 1, 20_000)
    exact = sum(map(Fraction, terms.tolist()))
    assert float(exact) * (1 - 1e-10) < round_down(float(np.cumsum(terms)[-1]), len(terms)) < exact
    lost = [1 - round_down(1.0, count) for count in (0, 1_000_000)]
    assert lost == pytest.approx([4e3 * sys.float_info.epsilon, 4.004e6 * sys.float_info.epsilon], rel=1e-3)


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("limit", [1.0, 1.5, 40.0])
def test_steps_double_and_then_halve(unit: float, limit: float) -> None:
    """All up to a limit is refuted: it is found up to a share of 5e-4 and no closer, in few steps, from below."""
    tried: list[float] = []

    def refutes(value: float) -> bool:
        tried.append(value / unit)
        return value <= limit * unit

    found = find_refuted(unit, refutes, lambda: True) / unit
    assert found == max([0.0, *(value for value in tried if value <= limit)]) and len(tried) < 26
    low, high = max(found, 1.0), min(value for value in tried if value > limit)
    assert low <= limit < high <= low * (1 + 5.01e-4) and high >= low * (1 + 1.2e-4)
    first = tried[: tried.index(next(value for value in tried if value > limit)) + 1]
    steps = [b / a - 1 for a, b in zip([1.0, *first], first, strict=False)]
    assert steps == pytest.approx([0.002 * 2**k for k in range(len(first))])


def test_a_refutation_ends_where_it_is_told() -> None:
    """At the steepest step, without time, and at once where nothing is known; all that was refuted counts."""
    tried: list[float] = []

    def refute(value: float) -> bool:
        tried.append(value)
        return True

    assert find_refuted(1.0, refute, lambda: True, steepest=0.016) == pytest.approx(1.002 * 1.004 * 1.008)
    assert find_refuted(1.0, refute, lambda: len(tried) < 5) == pytest.approx(1.002 * 1.004) and len(tried) == 5
    assert find_refuted(0.0, refute, lambda: True) == find_refuted(1.0, refute, lambda: False) == 0
    assert len(tried) == 5
