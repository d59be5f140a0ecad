"""Placeto: decisions scored as they were drawn, devices by what they are, optima found, graphs never seen before."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import assume, given
from hypothesis import strategies as st
from simulate_problems import problems, random_problem, seeded
from soak import examples, later

from placewise.catalog import read_cluster
from placewise.core.place import place
from placewise.costing.roofline import cost_table
from placewise.errors import PlacerError
from placewise.model.problem import Objective, Problem
from placewise.placers.base import Budget, Stopwatch, run_placer
from placewise.placers.learned import placeto as network
from placewise.placers.learned.placeto import Placeto, PlacetoOptions, PlacetoPlacer
from placewise.placers.learned.policy import untrained_policy
from placewise.placers.learned.pricing import BudgetExhausted, Pricing
from placewise.placers.learned.trainer import Trainer
from placewise.placers.registry import create
from placewise.simulate import evaluate, why_infeasible
from placewise.zoo.random import random_graph

SMALL = {"rounds": 2, "hidden": 8, "samples": 6}


def zoo_problem(family: str, n_ops: int, seed: int, devices: str, objective: Objective | None = None) -> Problem:
    """A random graph of the zoo, large enough for its devices to be worth it."""
    graph, cluster = random_graph(family, n_ops, seed, size=64), read_cluster(devices)
    return Problem(graph, cluster, cost_table(graph, cluster), objective or Objective())


def some_policy(problem: Problem, seed: int = 0, **options: object) -> Placeto:
    """A small untrained policy over the blocks of a problem."""
    return untrained_policy(Placeto, problem, PlacetoOptions(**{**SMALL, "units": "blocks", **options}), seed)  # type: ignore[arg-type]


@examples(10)
@given(problems(max_ops=7, rules=True), st.integers(0, 2**20))
def test_decisions_are_scored_as_they_were_drawn(problem: Problem, seed: int) -> None:
    """Step by step, from the state that each decision saw: the same log p and entropy; no step leaves the rights."""
    assume(not why_infeasible(problem))
    policy = some_policy(problem, seed, start="random")
    rollout = policy.rollout(5, torch.Generator().manual_seed(seed), Pricing(problem))
    log_prob, entropy = policy.log_prob(rollout.choices)
    device = rollout.choices["start"].clone()
    order = policy.walk.order.tolist()
    prices = Pricing(problem)
    assert rollout.path is not None and rollout.path.shape == (5, len(order) + 1)
    for step, unit in enumerate(order):
        expected = prices(policy.view.placements(device.numpy()))
        assert np.array_equal(rollout.path[:, step], expected, equal_nan=True)
        spread = torch.log_softmax(policy.logits(device, torch.full((5,), step)), dim=-1)
        chosen = rollout.choices["moved"][:, step]
        assert policy.view.allowed[unit, chosen.numpy()].all()
        assert torch.allclose(log_prob[:, step], spread.gather(1, chosen[:, None])[:, 0], atol=1e-5)
        assert torch.allclose(entropy[:, step], torch.special.entr(spread.exp()).sum(dim=-1), atol=1e-5)
        device[:, unit] = chosen
    assert np.array_equal(rollout.path[:, -1], rollout.seconds, equal_nan=True)
    assert np.array_equal(rollout.seconds, prices(policy.view.placements(device.numpy())), equal_nan=True)


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scored in pieces of a few decisions, each computed again for its gradient: the same numbers and gradients."""
    problem = zoo_problem("branchy", 14, 3, "2xK80,i9-12900K")
    policy = some_policy(problem, start="random")
    rollout = policy.rollout(4, torch.Generator().manual_seed(1), Pricing(problem))
    found = []
    for size in (network.CHUNK, 1000):
        monkeypatch.setattr(network, "CHUNK", size)
        policy.zero_grad()
        log_prob, entropy = policy.log_prob(rollout.choices)
        torch.autograd.backward((log_prob * torch.arange(log_prob.numel()).view_as(log_prob) + entropy).sum())
        found.append([log_prob, entropy, *(parameter.grad.clone() for parameter in policy.parameters())])
    for whole, pieces in zip(*found, strict=True):
        assert torch.allclose(whole, pieces, rtol=1e-3, atol=1e-4)


@examples(15)
@given(st.integers(0, 2**20))
def test_devices_are_known_by_what_they_are(seed: int) -> None:
    """The same devices in another order get the same scores, in that order."""
    problem = random_problem(seeded(seed), max_ops=7, max_devices=4)
    policy, rng = some_policy(problem, seed), np.random.default_rng(seed)
    walk, order = policy.walk, torch.from_numpy(rng.permutation(problem.n_devices))
    device = torch.from_numpy(rng.integers(0, problem.n_devices, (3, walk.n)))
    step = torch.from_numpy(rng.integers(0, len(walk.order), 3))
    expected = policy.logits(device, step)[:, order]
    policy.walk = replace(
        walk, allowed=walk.allowed[:, order], cost=walk.cost[:, order], share=walk.share[:, order],
        pace=walk.pace[order][:, order],
    )  # fmt: skip
    assert torch.allclose(policy.logits(torch.argsort(order)[device], step), expected, atol=1e-5)


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_messages_go_as_far_as_rounds(rounds: int) -> None:
    """On a line, a unit's embedding depends on those within so many edges, and on no others."""
    problem = zoo_problem("branchy", 12, 1, "2xK80")
    policy = some_policy(problem, rounds=rounds)
    line = torch.arange(policy.walk.n - 1)
    n = policy.walk.n
    target = torch.cat((line + 1, line + n))
    policy.walk = replace(
        policy.walk, source=torch.cat((line, line + 1 + n)), target=target, sent=torch.ones(2 * n - 2),
        mean=torch.ones(2 * n), hears=torch.zeros(2 * n).index_fill(0, target, 1.0),
    )  # fmt: skip
    state = torch.randn(2 * n, 1, policy.features.width + network.STATE, requires_grad=True)
    found = policy.embedding(policy.walk, state, torch.zeros(n, 1, dtype=torch.int64))
    torch.autograd.backward(found[n // 2].sum())
    assert state.grad is not None
    reached = state.grad.abs().sum(dim=(1, 2)).view(2, n) > 0
    place = torch.arange(n) - n // 2
    assert torch.equal(reached[0], (place <= 0) & (place >= -rounds))
    assert torch.equal(reached[1], (place >= 0) & (place <= rounds))


@pytest.mark.parametrize(
    ("family", "seed", "devices", "objective"),
    [
        pytest.param("branchy", 1, "2xK80", Objective(), marks=pytest.mark.soak),
        later("layered", 2, "2xK80,i9-12900K", Objective()),
        pytest.param(
            "series-parallel", 3, "i9-12900K,Flex-170", Objective(execution="sequential"), marks=pytest.mark.soak
        ),
        ("erdos-renyi", 4, "2xK80", Objective("throughput")),
    ],
)
def test_near_the_optimum_of_small_graphs(family: str, seed: int, devices: str, objective: Objective) -> None:
    """Within two per cent of what exhaustive search proves, with 1,000 prices."""
    problem = zoo_problem(family, 9, seed, devices, objective)
    best = place(problem, "exhaustive").judgement
    options = {"units": "blocks", "rounds": 2, "hidden": 8}
    found = place(problem, "placeto", Budget(evaluations=1000, iterations=80), options=options).judgement
    assert best is not None and found is not None and found.valid
    assert found.value <= 1.02 * best.value


def greedy_seconds(problem: Problem, weights: dict[str, torch.Tensor] | None) -> float:
    """The value of the policy's own preferred placement over the best single device."""
    policy = some_policy(problem)
    if weights is not None:
        policy.load_state_dict(weights)
    single = Trainer(policy, policy.options, Pricing(problem))
    single.begin()
    return float(evaluate(problem, policy.greedy(Pricing(problem))).min() / single.pricing.value)


def test_trained_on_some_graphs_for_others() -> None:
    """Trained on graphs for two, three and four devices: on five others, without training, a tenth is saved."""
    devices = ("2xK80", "3xK80", "4xK80")
    options = PlacetoOptions(**SMALL, start="random", updates=20)  # type: ignore[arg-type]
    weights: dict[str, torch.Tensor] = {}
    for seed, cluster in enumerate(devices):
        problem = zoo_problem("layered", 14, 1 + seed, cluster)
        policy = untrained_policy(Placeto, problem, options, 0)
        policy.load_state_dict(weights or policy.state_dict())
        trainer = Trainer(policy, options, Pricing(problem))
        trainer.begin()
        trainer.run(Budget())
        weights = policy.state_dict()
    unseen = [zoo_problem("layered", 16, 11 + seed, devices[seed % 3]) for seed in range(5)]
    before = [greedy_seconds(problem, None) for problem in unseen]
    after = [greedy_seconds(problem, weights) for problem in unseen]
    assert np.mean(after) < 0.9 * min(np.mean(before), 1.0)


@examples(15)
@given(problems(max_ops=6, scarce=True, rules=True), st.integers(0, 100))
def test_whatever_the_problem(problem: Problem, seed: int) -> None:
    """Scarce memory, rules, one device: what is proposed keeps the rules, and the policy stays finite."""
    options = PlacetoOptions(**SMALL, start="random", updates=2)  # type: ignore[arg-type]
    placer = PlacetoPlacer(options)
    proposal = run_placer(placer, problem, Budget(seed=seed))
    assert not any("diverged" in note for note in proposal.notes)
    if proposal.placement is not None:
        assert np.isfinite(Pricing(problem)(proposal.placement.device[None])).all()


def test_moves_that_fail_count_as_failures() -> None:
    """Where memory holds one half each, whatever goes beyond has no price; updates are finite, the best one fits."""
    problem = zoo_problem("branchy", 12, 5, "2xK80")
    tight = problem.with_(cluster=read_cluster("2xK80@6MiB"))
    options = PlacetoOptions(**SMALL, units="blocks", start="random")  # type: ignore[arg-type]
    trainer = Trainer(untrained_policy(Placeto, tight, options, 0), options, Pricing(tight))
    rollout = trainer.policy.rollout(6, trainer.generator, trainer.pricing)
    assert rollout.path is not None and np.isnan(rollout.path).any()
    trainer.begin()
    stats = trainer.update(Stopwatch(Budget())).stats
    assert np.isfinite([stats.loss, stats.norm, stats.reward]).all()


def test_a_budget_of_prices_is_kept_inside_an_update() -> None:
    """An update would price hundreds; 40 are all that there are."""
    problem = zoo_problem("branchy", 30, 1, "2xK80,i9-12900K")
    asked = 0

    def measured(rows: np.ndarray) -> np.ndarray:
        nonlocal asked
        asked += len(rows)
        return evaluate(problem, rows)

    found = run_placer(PlacetoPlacer(), problem, Budget(evaluations=40), evaluate=measured)
    assert found.placement is not None and 20 < asked <= 40
    pricing = Pricing(problem)
    with pricing.limit_to(1, 60.0), pytest.raises(BudgetExhausted):
        pricing(np.array([[0] * 30, [1] * 30], np.int32))
    assert pricing.evaluations == 1, "what there is room for is priced"
    with pricing.limit_to(None, -1.0), pytest.raises(BudgetExhausted):
        pricing(np.ones((1, 30), np.int32))
    assert pricing.evaluations == 1 and len(pricing(np.ones((1, 30), np.int32))) == 1


def test_the_same_seed_and_a_resumed_training_end_alike() -> None:
    """Six updates are six updates, in one go, again, or with a stop after three."""
    problem = zoo_problem("layered", 14, 4, "2xK80,i9-12900K")
    options = PlacetoOptions(**SMALL, updates=6)  # type: ignore[arg-type]

    def trainer() -> Trainer:
        made = Trainer(untrained_policy(Placeto, problem, options, 7), options, Pricing(problem), 7)
        made.begin()
        return made

    watch, ends = Stopwatch(Budget(iterations=6)), []
    for stop in (6, 6, 3):
        training = trainer()
        for _ in range(stop):
            training.update(watch)
        if stop < 6:
            state = training.state()
            training = trainer()
            training.restore(*state)
            for _ in range(6 - stop):
                training.update(watch)
        ends.append(training)
    for one, other in pairwise(ends):
        assert np.array_equal(one.pricing.best, other.pricing.best) and one.curve[-1][2] == other.curve[-1][2]
        for name, value in one.policy.state_dict().items():
            assert torch.equal(value, other.policy.state_dict()[name])


@pytest.mark.parametrize(
    "switch", [{"rounds": 0}, {"start": "single"}, {"start": "random"},
               {"units": "colocation"}, {"baseline": "batch"}, {"algorithm": "ppo", "epochs": 2}],
)  # fmt: skip
def test_every_switch_trains(switch: dict[str, object]) -> None:
    """Each ablation improves on the best single device of a wide graph."""
    problem = zoo_problem("layered", 16, 6, "2xK80")
    found = run_placer(create("placeto", {**SMALL, **switch, "updates": 5}), problem, Budget())
    assert found.placement is not None
    single = min(evaluate(problem, np.array([[0] * 16, [1] * 16], np.int32)))
    assert evaluate(problem, found.placement.device[None])[0] < single


def test_units_are_joined_until_few_enough() -> None:
    """Chains of 300 ops, then heavy edges: about as many as asked for, and never more than twice that."""
    problem = zoo_problem("branchy", 300, 1, "2xK80")
    assert some_policy(problem, most_units=300).view.n == 300
    assert some_policy(problem, units="chains", most_units=299).view.n < 250
    assert 8 <= some_policy(problem, most_units=30).view.n <= 60


@pytest.mark.parametrize("options", [{"most_units": 0}, {"rounds": -1}, {"hidden": 0}, {"start": "first"}])
def test_options_that_make_no_sense(options: dict[str, object]) -> None:
    """Each is refused by its name."""
    with pytest.raises(PlacerError, match=next(iter(options))):
        create("placeto", options)
