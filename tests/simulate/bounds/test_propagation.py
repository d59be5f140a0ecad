"""Propagation in intervals, against what CP-SAT proves of the same programs."""

from __future__ import annotations

import itertools

import pytest
from simulate_problems import Choose, seeded
from soak import enough, seeds

from placewise.simulate.bounds.intervals import IntervalProgram, bound_interval
from placewise.simulate.bounds.propagation import one_machine_end, propagated_bound


def random_program(choose: Choose) -> IntervalProgram:
    """An interval of 2 to 7 ops in which delays are as long as some ops, or as all of them."""
    n, most = choose(2, 7), (5, 20, 60)[choose(0, 2)]
    seconds = (0, *(choose(0, 10) for _ in range(n)), 0)
    edges: dict[tuple[int, int], int] = {}
    for v in range(1, n + 1):
        for u in {choose(max(0, v - 3), v - 1) for _ in range(choose(1, 2))}:
            edges[u, v] = choose(0, most)
    for u in range(1, n + 1):
        if not any(edge[0] == u for edge in edges):
            edges[u, n + 1] = choose(0, most)
    block = list(range(n + 2))
    for _ in range(choose(0, 3)):
        block[choose(1, n + 1)] = block[choose(0, n)]
    numbers: dict[int, int] = {}
    groups = tuple(numbers.setdefault(own, len(numbers)) for own in block)
    return IntervalProgram(
        seconds, tuple((u, v, d) for (u, v), d in sorted(edges.items())), groups, 1 + (choose(0, 5) == 0)
    )


def test_never_above_what_is_proved():
    """Never above the optimum of the program, above its longest path in a fifth of them, often the optimum, and 98 %
    of all optima together.
    """
    tight = sharper = total = least = optima = 0
    for seed in seeds(240):
        program = random_program(seeded(seed))
        most, quick = bound_interval(program, 10.0)[0], propagated_bound(program)
        assert quick <= max(most, longest(program))
        total, tight = total + 1, tight + (quick == most)
        sharper += quick > longest(program)
        least, optima = least + quick * (seed < 60), optima + most * (seed < 60)
    assert least >= 0.979 * optima
    assert sharper > total / 5
    assert tight > total / 3


def longest(program: IntervalProgram) -> int:
    """The longest path without delays."""
    reach = [0] * len(program.seconds)
    for u, v, _ in program.delays:
        reach[v] = max(reach[v], reach[u] + program.seconds[u])
    return reach[-1]


@pytest.mark.parametrize(("delay", "least"), [(0, 10), (4, 18), (9, 24), (50, 30)])
def test_parallel_ops_wait_for_each_other_or_for_transfers(delay, least):
    """Three ops of 10 between two ends: together if links are free, in turn if they are slow."""
    edges = tuple((0, op, delay) for op in (1, 2, 3)) + tuple((op, 4, delay) for op in (1, 2, 3))
    program = IntervalProgram((0, 10, 10, 10, 0), tuple(sorted(edges)), (0, 1, 2, 3, 4), 1)
    bound = propagated_bound(program)
    assert bound <= bound_interval(program, 10.0)[0]
    assert bound == pytest.approx(least, abs=1)


def test_one_machine_is_never_above_any_order():
    """Against every order of five tasks; the same where all start at once."""
    equal = 0
    for seed in seeds(200):
        choose = seeded(seed)
        tasks = [(choose(0, 8) * choose(0, 1), choose(1, 5), choose(0, 8)) for _ in range(5)]
        best = min(end_in_order(order) for order in itertools.permutations(tasks))
        assert one_machine_end(tasks) <= best
        equal += one_machine_end(tasks) == best
        together = [(0, own, tail) for _, own, tail in tasks]
        assert one_machine_end(together) == min(end_in_order(order) for order in itertools.permutations(together))
    assert equal > enough(100)


def end_in_order(tasks: tuple[tuple[int, int, int], ...]) -> int:
    """When tasks end that run whole, in this order."""
    now = end = 0
    for head, own, tail in tasks:
        now = max(now, head) + own
        end = max(end, now + tail)
    return end
