"""Bounds from a path with the chains beside it: by hand, and against placements and calls of small problems."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from simulate_problems import random_problem, seeded
from soak import enough, seeds

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.columns import Ints
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.simulate import evaluate, judge_placement
from placewise.simulate.bounds import chain_ways, parallel_chains
from placewise.simulate.bounds.chain_ways import find_front, keep_best
from placewise.simulate.bounds.parallel_chains import best_split, chains_bound
from placewise.simulate.bounds.paths import path_bound

SUBGRAPH = Objective("latency", execution="subgraph", memory="sum")


def rows_of(problem: Problem) -> Ints:
    """Every placement [k, n_ops] that keeps groups together on devices that may run them."""
    usable = problem.allowed & np.isfinite(problem.costs.op_seconds)
    homes = [np.flatnonzero(usable[problem.block == b].all(axis=0)).tolist() for b in range(problem.n_blocks)]
    return np.array(list(itertools.product(*homes)), np.int32).reshape(-1, problem.n_blocks)[:, problem.block]


def find_least(problem: Problem, rng: np.random.Generator, tries: int) -> float:
    """The least value of all placements with the judge's calls, and of some with other calls; inf if none is valid."""
    rows = rows_of(problem)
    if not len(rows):
        return np.inf
    values = evaluate(problem, rows)
    order = np.argsort(values, kind="stable")
    finite = order[np.isfinite(values[order])].tolist()
    least = next((float(values[k]) for k in finite if judge_placement(problem, Placement(rows[k])).valid), np.inf)
    for _ in range(tries):
        row = rows[order[rng.integers(min(len(rows), 60))]]
        call = rng.integers(0, 4, problem.n_ops)
        judged = judge_placement(problem, Placement(row, np.sort(call) if rng.random() < 0.7 else call))
        least = min(least, judged.value) if judged.valid else least
    return least


def build_problem(
    edges: list[tuple[int, int]], groups: list[int], memory: float, seconds: Any, moved: Any, **options: Any
) -> Problem:
    """Ops of one byte in `groups` with a tensor each; seconds [n_ops, 2], on two equal accelerators and on the host."""
    builder, held = GraphBuilder(), options.get("held", [1] * len(groups))
    for op, group in enumerate(groups):
        builder.add_op(f"op{op}", "Op", group=group, state_bytes=held[op])
    outputs = options.get("outputs", ())
    tensors = [builder.add_tensor(op, nbytes=1, output=op in outputs) for op in range(len(groups))]
    for readers in options.get("inputs", ()):
        tensors.append(builder.add_tensor(-1, nbytes=1))
        for reader in readers:
            builder.add_edge(tensors[-1], reader)
    for maker, reader in edges:
        builder.add_edge(tensors[maker], reader)
    overhead, transfers = options.get("overhead", 0.0), options.get("transfers", "staged")
    names = "ab"
    devices = (*(Device(name, memory=memory, call_overhead=overhead) for name in names), Device("cpu", kind="cpu"))
    ends = [(a, b) for a, b in itertools.permutations((*names, HOST), 2) if transfers == "direct" or HOST in (a, b)]
    cluster = Cluster(devices, tuple(Link(*pair, 1.0) for pair in ends), transfers)
    transfer = np.zeros((len(tensors), len(cluster.class_bandwidth)))
    transfer[:, 1:] = np.array(moved)[:, None]
    table = np.array(seconds, np.float64)[:, [0, 0, 1]]
    return Problem(builder.build(), cluster, CostTable.given(table, transfer), SUBGRAPH)


def draw_series(rng: np.random.Generator, most: int) -> Problem:
    """Bottlenecks joined by one to three chains, neighbours in one group, tight memory, and edges that skip ops.

    Some ops make outputs, two may read one input, and some sums of times are not exact in floating point.
    """
    groups, edges, last, tie = [0], list[tuple[int, int]](), 0, rng.random()
    while len(groups) < most:
        tails = list[int]()
        for _ in range(rng.integers(1, 4)):
            tail = last
            for _ in range(rng.integers(0, 3)):
                groups.append(groups[-1] + int(tail != len(groups) - 1 or rng.random() > tie))
                edges.append((tail, len(groups) - 1))
                tail = len(groups) - 1
            tails.append(tail)
        groups.append(groups[-1] + int(rng.random() > tie))
        last = len(groups) - 1
        edges += [(tail, last) for tail in dict.fromkeys(tails)]
    n = len(groups)
    held = rng.integers(0, 4, n).tolist()
    unit, inputs = rng.choice([4, 10]), [rng.choice(n, 2, replace=False).tolist()] * int(rng.integers(2))
    seconds = rng.integers(0, 9, (n, 2)) / unit * [1, rng.choice([1, 5, 20])]
    return build_problem(
        edges, groups, float(np.ceil(sum(held) * rng.uniform(0.3, 1.1))), seconds,
        rng.integers(0, 9, n + len(inputs)) / unit, inputs=inputs, outputs=np.flatnonzero(rng.random(n) < 0.2).tolist(),
        held=held, overhead=float(rng.integers(0, 2)) / 4, transfers=("staged", "direct")[rng.integers(2)],
    )  # fmt: skip


@pytest.mark.parametrize("most", [chain_ways.MOST_WAYS, 8])
def test_no_placement_of_parallel_chains_is_below_the_bound(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains beside each other with tight memory, whatever is rounded; often some placement is as good as the bound."""
    monkeypatch.setattr(chain_ways, "MOST_WAYS", most)
    monkeypatch.setattr(chain_ways, "MOST_COMPARED", 2 * most)
    monkeypatch.setattr(parallel_chains, "MOST_LABELS", most // 4)
    bounded, tight = 0, 0
    for seed in seeds(60):
        rng = np.random.default_rng(seed)
        problem = draw_series(rng, int(rng.integers(3, 7)))
        bound, least = chains_bound(problem).value, find_least(problem, rng, 40)
        assert bound <= least
        bounded, tight = bounded + bool(np.isfinite(least)), tight + bool(0 < least <= bound * (1 + 1e-9))
    assert bounded > enough(45)
    assert tight > enough(8)


def test_no_placement_of_any_graph_is_below_the_bound() -> None:
    """Random graphs with rules, phases, several hosts, unequal devices and links."""
    bounded = 0
    for seed in seeds(60):
        problem = random_problem(
            seeded(seed), max_ops=6, max_devices=3, objective=SUBGRAPH, rules=seed % 3 == 0, scarce=seed % 4 != 0
        ).with_(objective=SUBGRAPH)
        least = find_least(problem, np.random.default_rng(seed), 20)
        assert chains_bound(problem).value <= least
        bounded += bool(np.isfinite(least))
    assert bounded > enough(30)


DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_an_op_beside_the_path_runs_somewhere() -> None:
    """a → b → d and a → c → d, two ops to an accelerator, tensors of 5 s: two calls send and receive two tensors each.

    Minimum cuts leave b out of all calls; but then what is before and after it waits for two more transfers.
    """
    problem = build_problem(DIAMOND, [0, 1, 2, 3], 2, [[1, 100], [1, 100], [2, 100], [1, 100]], [5, 5, 5, 5])
    assert path_bound(problem).value < 25 - 1
    assert chains_bound(problem).value == pytest.approx(1 + 1 + 10 + 10 + 2 + 1, rel=1e-9)
    assert find_least(problem, np.random.default_rng(0), 0) == pytest.approx(25)


def test_chains_on_one_accelerator_take_turns() -> None:
    """b and c are in the group of d, but not in its call for nothing: 4 s and 3 s on one accelerator are 7 s."""
    problem = build_problem(DIAMOND, [0, 1, 1, 1], 3, [[1, 100], [4, 100], [3, 100], [1, 100]], [1, 0, 0, 0])
    assert chains_bound(problem).value == pytest.approx(1 + 1 + 1 + 4 + 3 + 1, rel=1e-9)
    assert find_least(problem, np.random.default_rng(0), 200) == pytest.approx(11)


def test_a_group_that_is_parted_needs_room_on_one_accelerator() -> None:
    """The tensor from b to c costs nothing: they may be in two calls, but then four bytes are on one accelerator."""
    edges, seconds, moved = [(0, 1), (1, 2), (2, 3)], [[1, 100]] * 4, [5, 0, 5, 5]
    assert chains_bound(build_problem(edges, [0, 1, 2, 3], 3, seconds, moved)).value == pytest.approx(4, rel=1e-9)
    tied = build_problem(edges, [0, 1, 1, 2], 3, seconds, moved)
    assert chains_bound(tied).value == pytest.approx(4 + 2 * 5, rel=1e-9)
    assert find_least(tied, np.random.default_rng(0), 100) == pytest.approx(14)


def test_the_calls_behind_the_bound_cost_as_much() -> None:
    """The split of the diamond: two calls of two ops on two accelerators, in an order in which they can run."""
    problem = build_problem(DIAMOND, [0, 1, 2, 3], 2, [[1, 100], [1, 100], [2, 100], [1, 100]], [5, 5, 5, 5])
    split = best_split(problem)
    assert split is not None and sorted(split.kept.tolist()) == [0, 1, 2, 3]
    assert sorted(map(len, split.calls)) == [2, 2] and len(set(split.run)) == 2
    device, call = np.full(4, 2), np.zeros(4)
    for number, (ops, run) in enumerate(zip(split.calls, split.run, strict=True)):
        device[list(ops)], call[list(ops)] = run, number
    judged = judge_placement(problem, Placement(device, call))
    assert judged.valid and judged.value == pytest.approx(split.value, rel=1e-9)


def test_less_work_proves_less() -> None:
    """Without work for tables only one chain of each section is left; with none at all, nothing is proved."""
    problem = build_problem(DIAMOND, [0, 1, 2, 3], 2, [[1, 100], [1, 100], [2, 100], [1, 100]], [5, 5, 5, 5])
    values = [chains_bound(problem, work=work).value for work in (0, 60, 1e6)]
    assert values == sorted(values) and values[0] == 0 < values[1] < values[2]
    assert 0 < chains_bound(problem, go_on=lambda: False).value <= values[2]


def test_rows_that_are_beaten_go() -> None:
    """What is left of random rows is what no other row beats; rounding leaves few rows, none of them larger."""
    values = np.random.default_rng(0).integers(0, 6, (300, 4)).astype(np.float64)
    front = {tuple(row) for row in values[find_front(values)].tolist()}
    rows = {tuple(row) for row in values.tolist()}
    assert front == {
        r for r in rows if not any(s != r and all(a <= b for a, b in zip(s, r, strict=True)) for s in rows)
    }
    many = np.random.default_rng(1).random((3000, 4))
    rounded, left = keep_best(many)
    assert len(left) <= chain_ways.MOST_WAYS and (rounded <= many[left]).all()
    assert (rounded[None] <= many[:, None]).all(axis=2).any(axis=1).all()


def test_chains_that_are_kept_do_not_overlap() -> None:
    """Of random chains beside a path the slowest first: each is kept unless it shares an op with one that is, or its
    part of the path overlaps another part, or is too long; of equal edges one is.
    """
    for seed in range(30):
        rng, ears = np.random.default_rng(seed), []
        for _ in range(12):
            i, j = sorted(rng.choice(40, 2, replace=False).tolist())
            ops = tuple(rng.choice(9, int(rng.integers(0, 3)), replace=False).tolist())
            ears.append((float(rng.permutation(1000)[0]), i, j, ops))
        kept = parallel_chains._keep_compatible(ears, 40)
        parts, used, wanted = list[tuple[int, int]](), set[int](), dict[tuple[int, int], list[tuple[int, ...]]]()
        for _, i, j, ops in sorted(ears, key=lambda ear: -ear[0]):
            apart = all(j <= a or b <= i for a, b in parts)
            if (i, j) not in parts and (not apart or j - i - 1 > parallel_chains.LONGEST_CHAIN):
                continue
            parts += [(i, j)] if (i, j) not in parts else []
            chains = wanted.setdefault((i, j), [])
            if not used & set(ops) and not (not ops and () in chains):
                chains.append(ops)
                used |= set(ops)
        assert kept == wanted


def test_of_many_labels_those_are_kept_that_none_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Least seconds with more bytes, and fewer bytes with more seconds; too many are rounded down, to none that is more
    than it was, and every label is at least as much as one that is left.
    """
    columns = np.random.default_rng(0).integers(0, 40, (4, 300)).astype(np.float64)
    kept = parallel_chains._keep_labels(columns, 40.0)
    pairs = {tuple(row) for row in columns[:2].T.tolist()}
    assert {tuple(row) for row in kept[:2].T.tolist()} == {
        (s, b) for s, b in pairs if not any((t, c) != (s, b) and t <= s and c <= b for t, c in pairs)
    }
    monkeypatch.setattr(parallel_chains, "MOST_LABELS", 4)
    slope = np.stack([np.arange(40.0), 40.0 - np.arange(40), np.zeros(40), np.zeros(40)])
    few = parallel_chains._keep_labels(slope.copy(), 40.0)
    assert 1 < few.shape[1] <= 4 and set(few[1].tolist()) <= {0.0, *(20 * (1 - 1e-15), 40 * (1 - 1e-15))}
    assert ((few[0] <= slope[0][:, None]) & (few[1] <= slope[1][:, None])).any(axis=1).all()
