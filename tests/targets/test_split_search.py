"""The search for splits: the same optimum as pricing every split, and bounds that hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from export_models import stack_graph, stack_problem
from soak import seeds

from placewise.exporters.projection import range_bytes, stage_devices
from placewise.exporters.space import Line, find_cuts
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.placement import Placement
from placewise.model.problem import Communication, Objective, Problem
from placewise.model.result import Proposal
from placewise.placers.base import Budget, SearchContext
from placewise.placers.shared.interchangeable import interchangeable
from placewise.simulate import judge_placement
from placewise.targets.split_search import SplitPlacer, count_splits
from placewise.targets.stage_bounds import bound_stages

UNITS = 5


def drawn_problem(seed: int) -> tuple[Problem, Line]:
    """Units of one or two ops with links to any later unit, on two or three accelerators, equal or not, and a CPU."""
    rng = np.random.default_rng(seed)
    builder, unit, made = GraphBuilder(), list[int](), list[int]()
    given = builder.add_tensor(-1, shape=(int(rng.integers(1, 9)),), dtype="int8", name="x")
    for number in range(UNITS):
        for _ in range(int(rng.integers(1, 3))):
            op = builder.add_op(f"op{len(unit)}", "MatMul" if len(unit) % 3 else "Relu")
            reads = {*made[-1:], *rng.choice(made, min(len(made), 2)).tolist()} if made else {given}
            for tensor in sorted({*reads, *([given] if rng.random() < 0.3 else [])}):
                builder.add_edge(tensor, op)
            builder.use_weight(builder.add_weight(f"w{op}", shape=(int(rng.integers(1, 5)),), dtype="int8"), op)
            last, size = number == UNITS - 1, int(rng.integers(1, 9))
            out = bool(last or rng.random() < 0.2)
            made.append(builder.add_tensor(op, shape=(size,), dtype="int8", name=f"t{op}", output=out))
            unit.append(number)
    graph, count = builder.build(), int(rng.integers(2, 4))
    memory = float(rng.choice([np.inf, 40.0, 25.0]))
    overhead = float(rng.choice([0.0, 0.5]))
    devices = [Device(f"cuda:{d}", memory=memory, call_overhead=overhead) for d in range(count)] + [
        Device("cpu", "cpu")
    ]
    names = [device.name for device in devices[:-1]]
    links = [link for name in names for link in (Link(name, HOST, 4.0), Link(HOST, name, 2.0))]
    direct = rng.random() < 0.5
    if direct:
        links += [Link(a, b, 8.0) for a, b in permutations(names, 2)]
    cluster = Cluster(tuple(devices), tuple(links), "direct" if direct else "staged")
    kinds = rng.integers(0, 2, count) if rng.random() < 0.5 else np.zeros(count, np.int64)
    columns = rng.integers(1, 6, (len(unit), 2)).astype(float)
    seconds = np.column_stack([columns[:, kinds], 3 * columns[:, 0]])
    modes: list[Communication] = ["blocking", "overlap", "duplex"]
    objective = Objective("throughput", modes[seed % 3]) if rng.random() < 0.5 else Objective(execution="sequential")
    problem = Problem(graph, cluster, CostTable.given(seconds, transfer_seconds_of(graph, cluster)), objective)
    first = count if rng.random() < 0.5 else -1
    lead = int(rng.integers(0, count)) if first >= 0 and rng.random() < 0.5 else -1
    return problem, Line(np.array(unit, np.int32), ~cluster.is_host, first, lead, leads_from=int(rng.integers(1, 3)))


def all_splits(problem: Problem, line: Line) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The devices and bounds of every split of a line. A device that leads stands for those equal to it."""
    usable, found, kind = np.flatnonzero(line.devices).tolist(), [], interchangeable(problem)
    start = [line.first] if line.first >= 0 else []
    for length in range(0 if start else 1, len(usable) + 1):
        for devices in permutations(usable, length):
            leads = line.lead < 0 or kind[line.lead] not in kind[[*devices[1:]]] or kind[devices[0]] == kind[line.lead]
            for cuts in combinations(range(1, line.count), length + len(start) - 1):
                if leads or cuts[0] < line.leads_from:
                    found.append(((*start, *devices), (0, *cuts, line.count)))
    return found


def valid_values(problem: Problem, line: Line) -> list[float]:
    """The values of all splits that keep the rules, as the judge has them."""
    return [
        judged.value
        for devices, bounds in all_splits(problem, line)
        if (judged := judge_placement(problem, Placement(stage_devices(bounds, devices)[line.unit]))).valid
    ]


@pytest.mark.parametrize("seed", seeds(60))
def test_no_split_is_better(seed: int) -> None:
    """The judge prices every split one by one: the search finds the best that keeps the rules, and proves it."""
    problem, line = drawn_problem(seed)
    values = []
    for devices, bounds in all_splits(problem, line):
        judged = judge_placement(problem, Placement(stage_devices(bounds, devices)[line.unit]))
        values.append(judged.value if judged.valid else np.inf)
    proposal = SplitPlacer("it", (line,)).propose(SearchContext(problem, Budget()))
    if proposal.placement is None:
        assert min(values) == np.inf and "fits" in proposal.infeasible
        return
    assert judge_placement(problem, proposal.placement).value == pytest.approx(min(values))
    assert proposal.bound is not None and proposal.bound.value == pytest.approx(min(values))


@pytest.mark.parametrize("seed", seeds(30))
def test_stages_never_take_less_than_their_bound(seed: int) -> None:
    """The sum of the bounds of the stages, or the largest of them, is below the value of every split."""
    problem, line = drawn_problem(seed)
    devices = list(range(problem.n_devices))
    costs = bound_stages(problem, line, devices)
    for order, bounds in all_splits(problem, line):
        parts = [costs[device, bounds[k], bounds[k + 1]] for k, device in enumerate(order)]
        judged = judge_placement(problem, Placement(stage_devices(bounds, order)[line.unit]))
        if judged.valid:
            least = sum(parts) if problem.objective.kind == "latency" else max(parts)
            assert least <= judged.value


def test_stages_without_room_for_their_activations_are_left_out() -> None:
    """A stage whose weights fit, and whose largest op does not fit beside them, has no cost; with room it has one."""
    problem, line = drawn_problem(0)
    device = int(np.flatnonzero(line.devices)[0])
    largest = int(problem.graph.tensors.bytes.max())
    weights = range_bytes(problem, line.unit, line.count)[0, -1]
    for room, fits in ((weights + largest / 2, False), (weights + 100 * largest, True)):
        devices = [replace(d, memory=room) if n == device else d for n, d in enumerate(problem.cluster)]
        cluster = replace(problem.cluster, devices=tuple(devices))
        cost = bound_stages(problem.with_(cluster=cluster), line, [device])[0, 0, -1]
        assert np.isfinite(cost) == fits


@pytest.mark.parametrize("seed", seeds(10))
def test_splits_are_counted(seed: int) -> None:
    """Without names of equal devices, the list of all splits is as long as the count says."""
    problem, line = drawn_problem(seed)
    kind = problem.costs.op_seconds.T.tolist()
    different = {(tuple(map(str, (kind[d] for d in devices))), bounds) for devices, bounds in all_splits(problem, line)}
    assert count_splits(problem, line) == len(different)


def test_cuts_are_found_again() -> None:
    """Devices and bounds of a split come back; a placement that returns to a device has none."""
    problem = stack_problem(stack_graph(3), objective=Objective())
    unit = np.arange(problem.n_ops, dtype=np.int32)
    placement = Placement(stage_devices((0, 2, problem.n_ops), (1, 0))[unit])
    assert find_cuts(problem, placement, unit) == ((1, 0), (0, 2, problem.n_ops))
    back = Placement(stage_devices((0, 1, 2, problem.n_ops), (1, 0, 1))[unit])
    assert find_cuts(problem, back, unit) is None


def answers_with_honest_bounds() -> Iterator[tuple[Problem, Proposal, float]]:
    """Drawn problems, what the search proposes for them, and the best of all splits, which no bound exceeds."""
    for seed in range(40):
        problem, line = drawn_problem(seed)
        proposal = SplitPlacer("it", (line,)).propose(SearchContext(problem, Budget()))
        if proposal.placement is None:
            continue
        best = min(valid_values(problem, line))
        assert proposal.bound is not None and proposal.bound.value <= best * (1 + 1e-9)
        yield problem, proposal, best


def test_a_search_that_ends_early_keeps_an_honest_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two splits priced at most, the bound is below the optimum, and not called one of all splits."""
    monkeypatch.setattr("placewise.targets.split_search.MOST_SPLITS", 2)
    below = 0
    for _, proposal, _ in answers_with_honest_bounds():
        assert proposal.bound is not None
        below += proposal.bound.method.startswith("bounds")
    assert below


@pytest.mark.parametrize("seed", seeds(20))
def test_a_split_however_short_the_time(seed: int) -> None:
    """Where some split keeps the rules, a search whose time is over at once finds one."""
    problem, line = drawn_problem(seed)
    whole = SplitPlacer("it", (line,)).propose(SearchContext(problem, Budget()))
    short = SplitPlacer("it", (line,)).propose(SearchContext(problem, Budget(seconds=1e-9)))
    assert (short.placement is None) == (whole.placement is None)


def test_a_search_among_equal_splits_ends_close_to_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once many splits are priced, a best one close to the bound is enough; the bound stays below every split."""
    monkeypatch.setattr("placewise.targets.split_search.MANY_SPLITS", 1)
    monkeypatch.setattr("placewise.targets.split_search.CLOSE", 0.5)
    ended = 0
    for problem, proposal, best in answers_with_honest_bounds():
        assert proposal.placement is not None
        found = judge_placement(problem, proposal.placement).value
        assert found <= 2 * best * (1 + 1e-9)
        ended += found > best * (1 + 1e-9)
    assert ended
