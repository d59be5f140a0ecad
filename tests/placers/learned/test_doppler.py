"""Doppler: schedules by hand, decisions scored as they were drawn, a teacher that is imitated, and three stages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import assume, given
from hypothesis import strategies as st
from simulate_problems import problems, random_problem, seeded
from soak import examples

from placewise.catalog import read_cluster
from placewise.core.place import place
from placewise.costing.roofline import cost_table
from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints
from placewise.model.problem import Objective, Problem
from placewise.placers.base import Budget, Stopwatch
from placewise.placers.learned.doppler import Doppler, DopplerOptions, _choose, _sum_along
from placewise.placers.learned.partial_schedules import PartialSchedules, schedule_graph
from placewise.placers.learned.policy import copy_parameters, untrained_policy
from placewise.placers.learned.pricing import Pricing
from placewise.placers.registry import create
from placewise.simulate import evaluate, why_infeasible
from placewise.simulate.judge.ranks import upward_ranks
from placewise.simulate.problem_arrays import arrays_of, find_crossing_uses
from placewise.training.train import TrainingSetting, train
from placewise.zoo.random import random_graph

SMALL: dict[str, Any] = {"rounds": 2, "hidden": 8, "samples": 5, "imitation": 3}
FREE = Objective("latency", execution="contention-free")


def zoo_problem(n_ops: int = 30, seed: int = 3, devices: str = "3xP100") -> Problem:
    """A random branchy graph whose transfers never queue."""
    graph, cluster = random_graph("branchy", n_ops, seed, size=64), read_cluster(devices)
    return Problem(graph, cluster, cost_table(graph, cluster), FREE)


def some_policy(problem: Problem, seed: int = 0, **options: object) -> Doppler:
    """A small untrained policy."""
    return untrained_policy(Doppler, problem, DopplerOptions(**{**SMALL, **options}), seed)


def drawn(seed: int) -> torch.Generator:
    """A source of randomness."""
    return torch.Generator().manual_seed(seed)


def test_a_schedule_by_hand() -> None:
    """Two producers and a reader on two devices: ranks, paths, when units start, and what the heuristic chooses."""
    tail, head = np.array([0, 1], np.int32), np.array([2, 2], np.int32)
    seconds = np.array([[2.0, 2.0], [3.0, 3.0], [1.0, 1.0]])
    graph = schedule_graph(tail, head, np.array([4.0, 1.0]), seconds, np.ones((3, 2), np.bool_), 1 - np.eye(2))
    assert graph.rank.tolist() == [7.0, 5.0, 1.0]
    assert graph.onward.tolist() == [2, 2, 3] and graph.backward.tolist() == [3, 3, 0]
    schedule = PartialSchedules(graph, 1)
    taken = []
    while schedule.ready.any():
        unit = schedule.critical().argmax(axis=1)
        device = schedule.quickest(unit, schedule.state(unit)).argmax(axis=1)
        schedule.place(unit, device)
        taken.append((int(unit[0]), int(device[0])))
    assert taken == [(0, 0), (1, 1), (2, 0)]
    assert schedule.start[0, :3].tolist() == [0.0, 0.0, 4.0] and schedule.end[0, :3].tolist() == [2.0, 3.0, 5.0]
    again = PartialSchedules(graph, 1)
    for unit in range(3):
        state = again.state(np.array([unit]))
        again.place(np.array([unit]), np.array([0]))
    elsewhere = np.log1p(np.array([[5.0, 0.0], [5.0, 0.0], [0.0, 0.0], [5.0, 0.0], [0.0, 1.0], [0.0, 1.0]]) / 2.0)
    np.testing.assert_allclose(state[0].T, elsewhere)
    assert again.end[0, :3].tolist() == [2.0, 5.0, 6.0]


@examples(12)
@given(st.integers(0, 2**20))
def test_ranks_are_those_of_heft(seed: int) -> None:
    """Where every op is a unit, the heuristic's ranks are the upward ranks of the list schedulers.

    Where an op sends another one several tensors, these add up, and ranks are no smaller.
    """
    problem = random_problem(seeded(seed), max_ops=8, training=False)
    policy = some_policy(problem)
    assume(policy.view.n == problem.n_ops and problem.allowed.any(axis=1).all())
    a, uses = arrays_of(problem), find_crossing_uses(problem)
    ranks = upward_ranks(problem)[np.argsort(policy.view.unit)]
    assert (policy.graph.rank >= ranks * (1 - 1e-7)).all()
    pairs = list(zip(a.producer[a.consumed[uses]].tolist(), a.consumers[uses].tolist(), strict=True))
    if len(set(pairs)) == len(pairs):
        np.testing.assert_allclose(policy.graph.rank, ranks)


@pytest.mark.parametrize("seed", range(6))
def test_schedules_keep_their_rules(seed: int) -> None:
    """Whatever the devices: a unit starts as soon as its inputs are there and its device is idle, and not before."""
    policy, rng = some_policy(zoo_problem(seed=seed)), np.random.default_rng(seed)
    graph, schedule, order = policy.graph, PartialSchedules(policy.graph, 4), list[Ints]()
    while schedule.ready.any():
        order.append(schedule.critical().argmax(axis=1))
        schedule.state(order[-1])
        schedule.place(order[-1], rng.integers(0, policy.view.n_devices, 4))
    for k in range(4):
        device, start, end = schedule.device[k], schedule.start[k], schedule.end[k]
        idle = np.zeros(policy.view.n_devices)
        for unit in [int(step[k]) for step in order]:
            edges = (policy.view.head == unit) & (policy.view.tail < unit)
            read, flow = policy.view.tail[edges], policy.view.flow[edges]
            arrivals = end[read] + flow * graph.pace[device[read], device[unit]]
            assert start[unit] == pytest.approx(max(arrivals.max(initial=0.0), idle[device[unit]]))
            assert end[unit] == pytest.approx(start[unit] + policy.view.seconds[unit, device[unit]])
            idle[device[unit]] = end[unit]


@examples(10)
@given(problems(max_ops=7, rules=True), st.integers(0, 2**20), st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 0.3]))
def test_decisions_are_scored_as_they_were_drawn(problem: Problem, seed: int, moving: float, epsilon: float) -> None:
    """The scores that an episode saw, step by step, are those of `log_prob`; no unit leaves its rights or its turn."""
    assume(not why_infeasible(problem))
    policy = some_policy(problem, seed, moving=moving, epsilon=epsilon)
    seen: list[torch.Tensor] = []
    inner = policy._devices
    policy._devices = lambda *given, **how: seen.append(inner(*given, **how)) or seen[-1]  # type: ignore[method-assign, func-returns-value]
    price = Pricing(problem)
    price(policy.suggestions())
    seen.clear()
    rollout = policy.rollout(5, drawn(seed), price)
    choices, steps = rollout.choices, torch.stack(seen[-policy.view.n :], dim=1)
    log_p, entropy = policy.log_prob(choices)
    n, anew = policy.view.n, choices["anew"]
    expected = steps.gather(2, choices["device"][:, :, None])[:, :, 0].where(anew, 0.0)
    assert torch.allclose(log_p[:, n:], expected, atol=1e-4) and torch.isfinite(entropy).all()
    assert policy.allowed[choices["order"], choices["device"]].all()
    assert (choices["order"].sort(dim=1).values == torch.arange(n)).all()
    turn = choices["order"].argsort(dim=1)
    tail, head = torch.from_numpy(policy.graph.reads).nonzero(as_tuple=True)
    assert (turn[:, tail] < turn[:, head]).all()
    one = choices["ready"].sum(dim=2) == 1
    assert (log_p[:, :n][one] == 0).all() and (log_p <= 0).all()
    if not moving:
        assert rollout.path is None and anew.all()


def test_moves_leave_the_others_alone() -> None:
    """Units that are not placed anew keep the device of the best placement so far, and count in no score."""
    problem = zoo_problem()
    policy, price = some_policy(problem, moving=1.0), Pricing(problem)
    rollout = policy.rollout(6, drawn(1), price)
    start = policy.view.devices(policy.suggestions()[evaluate(problem, policy.suggestions()).argmin()][None])[0]
    order, device, anew = (rollout.choices[name] for name in ("order", "device", "anew"))
    kept = torch.from_numpy(start).long()[order]
    assert anew.any(dim=1).all() and not anew.all() and (device == kept)[~anew].all()
    assert rollout.path is not None and (rollout.path[:, 0] == evaluate(problem, policy.suggestions()).min()).all()
    assert (policy.log_prob(rollout.choices)[0][:, policy.view.n :][~anew] == 0).all()


def test_choices_by_draws() -> None:
    """In proportion to the weights; or the largest, and in a share epsilon any that is not zero."""
    weight = np.array([[1.0, 0.0, 3.0]] * 4)
    draw = np.array([[0.0, 0.2, 0.3, 0.99], [0.0, 0.4, 0.6, 0.9]])
    assert _choose(weight, draw, None).tolist() == [0, 0, 2, 2]
    assert _choose(weight, draw, 0.5).tolist() == [0, 0, 2, 2]
    assert _choose(weight, draw, 0.0).tolist() == [2, 2, 2, 2]


def test_paths_are_summed() -> None:
    """Along pointers 0 → 2 → 3 and 1 → 3."""
    h = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    assert _sum_along(h, np.array([2, 3, 3, 4])).flatten().tolist() == [13.0, 10.0, 12.0, 8.0]


def test_the_heuristic_is_imitated() -> None:
    """After some steps the heuristic's decisions are far likelier, and the likeliest episode is about as good."""
    problem = zoo_problem(24)
    trainer: Any = create("doppler", {**SMALL, "hidden": 16, "imitation": 60, "rate": 1e-2}).trainer(problem, None, 0)
    trainer.begin()
    lesson = next(trainer.policy.lessons(drawn(5)))
    before = float(trainer.policy.log_prob(lesson)[0].detach().sum(dim=1).mean())
    trainer.teach(Stopwatch(Budget()))
    after = float(trainer.policy.log_prob(lesson)[0].detach().sum(dim=1).mean())
    assert after > 0.5 * before and trainer.learner.updates == 0
    heuristic = evaluate(problem, trainer.policy.suggestions())
    assert evaluate(problem, trainer.policy.greedy(trainer.pricing))[0] < 1.3 * float(np.median(heuristic))
    taught = copy_parameters(trainer.policy)
    trainer.teach(Stopwatch(Budget()))
    assert all(torch.equal(taught[name], value) for name, value in trainer.policy.state_dict().items())


def test_epsilon_falls_to_zero() -> None:
    """At the end of the budget, the paper's policy draws nothing any more: every episode is the likeliest."""
    policy = some_policy(zoo_problem(), preset="paper")
    firsts = policy._episodes(4, drawn(0))[1]
    policy.progress = 1.0
    lasts = policy._episodes(4, drawn(0))[1]
    assert len(np.unique(firsts, axis=0)) > 1
    assert (lasts == policy._episodes(1)[1]).all()


def test_the_average_of_all_rewards_is_the_papers_baseline() -> None:
    """After each update, the mean of the rewards so far."""
    problem = zoo_problem(12)
    trainer: Any = create("doppler", {**SMALL, "preset": "paper", "imitation": 0, "samples": 1}).trainer(
        problem, None, 0
    )
    trainer.begin()
    rewards: list[float] = []
    trainer.run(Budget(iterations=5), lambda update: rewards.append(update.stats.reward))
    assert trainer.learner.baseline == pytest.approx(float(np.mean(rewards)))


def test_the_same_seed_gives_the_same_answer() -> None:
    """And another one other weights; moves and whole placements, with the teacher's ties."""
    found = []
    for seed in (0, 0, 1):
        trainer: Any = create("doppler", SMALL).trainer(zoo_problem(), None, seed)
        trainer.begin()
        trainer.run(Budget(iterations=8))
        found.append((trainer.pricing.best.tolist(), [value.sum().item() for value in trainer.policy.parameters()]))
    assert found[0] == found[1] and found[0][1] != found[2][1]


def test_three_stages(tmp_path: Any) -> None:
    """Imitation and simulation, then measured times from the same weights: the third stage imitates nobody again."""
    problem, kept = zoo_problem(14), tmp_path / "kept"
    simulated = TrainingSetting("doppler", SMALL, Budget(iterations=3), checkpoint=kept)
    first = train(problem, simulated)
    assert first.result.placement is not None

    class Stopwatches:
        """Measured times: the judge's, with a device that is twice as slow as simulated."""

        def __call__(self, rows: Ints) -> Floats:
            return evaluate(problem, rows) * (1 + (rows == 0).mean(axis=1))

    placer: Any = create("doppler", {**SMALL, "checkpoint": str(kept)})
    trainer = placer.trainer(problem, Stopwatches(), 0)
    weights = copy_parameters(trainer.policy)
    trainer.begin(placer.starts(problem))
    trainer.teach(Stopwatch(Budget()))
    assert all(torch.equal(weights[name], value) for name, value in trainer.policy.state_dict().items())
    trainer.run(Budget(iterations=3))
    assert trainer.measured and trainer.learner.updates == 3 and np.isfinite(trainer.pricing.value)
    assert not all(torch.equal(weights[name], value) for name, value in trainer.policy.state_dict().items())
    other = create("doppler", {**SMALL, "checkpoint": str(kept), "updates": 0})
    assert place(zoo_problem(20, 5, "4xP100"), other).placement is not None


def test_it_is_no_worse_than_its_teacher() -> None:
    """The default prices the heuristic's placements first; the paper's preset suggests nothing."""
    problem = zoo_problem()
    policy = some_policy(problem)
    result = place(problem, create("doppler", SMALL), Budget(iterations=2))
    assert result.value is not None and result.value <= evaluate(problem, policy.suggestions()).min()
    assert not len(some_policy(problem, preset="paper").suggestions())


def test_large_graphs_are_coarsened() -> None:
    """No more units than `most_units`, on a graph with blocks of many ops; edges against their order are no inputs."""
    policy = some_policy(zoo_problem(60), most_units=16)
    assert policy.view.n <= 16
    order = policy._episodes(2, drawn(0))[0]["order"]
    assert (order.sort(dim=1).values == torch.arange(policy.view.n)).all()


@pytest.mark.parametrize(("options", "words"), [
    ({"epsilon": 1.5}, "epsilon is 1.5"), ({"moving": -0.1}, "moving is -0.1"), ({"moves": 0}, "moves is 0"),
    ({"imitation": -1}, "imitation is -1"), ({"hidden": 1}, "hidden is 1"), ({"baseline": "median"}, "'baseline'"),
])  # fmt: skip
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    """One sentence with the option and its value."""
    with pytest.raises(PlacerError, match=words):
        create("doppler", options)
