"""The engine of learned placers: views, features, pricing, rewards and losses worked by hand, training that repeats."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st
from learned_policies import TablePlacer, TablePolicy, table
from simulate_problems import random_problem, seeded
from soak import examples
from strategies import problems

from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Reason
from placewise.placers.base import Budget, Stopwatch, run_placer
from placewise.placers.learned.features import ALL, build_features, fractal_dimensions
from placewise.placers.learned.objectives import Diverged, Learner
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.policy import Rollout, draw, mask_logits, score_choices
from placewise.placers.learned.pricing import Pricing
from placewise.placers.learned.trainer import Trainer
from placewise.placers.learned.view import build_view
from placewise.simulate import evaluate, judge_placement


def some_problem(seed: int = 0, **options: object) -> Problem:
    """Eight ops or fewer on two or three devices."""
    return random_problem(seeded(seed), max_ops=8, max_devices=3, **options)  # type: ignore[arg-type]


def free_problem() -> Problem:
    """Twelve ops or so, with a choice for most of them: thousands of placements."""
    found = (random_problem(seeded(seed), max_ops=12, max_devices=3) for seed in range(100))
    return next(problem for problem in found if np.log2(problem.allowed.sum(axis=1).clip(1)).sum() > 10)


@examples(30)
@given(problems(max_ops=6), st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_units_part_neither_groups_nor_labels(problem: Problem, label: list[int]) -> None:
    """Units are unions of blocks and labels, numbered without gaps; features are finite whatever the problem."""
    labels = np.array(label[: problem.n_ops])
    view = build_view(problem, labels)
    for groups in (problem.block, labels):
        for group in np.unique(groups):
            assert len(set(view.unit[groups == group].tolist())) == 1
    assert sorted(set(view.unit.tolist())) == list(range(view.n))
    assert (view.tail != view.head).all() and (view.flow >= 0).all()
    features = build_features(view)
    assert np.isfinite(features.matrix).all() and [name for name, _ in features.layout] == list(ALL)
    assert features.matrix.shape == (view.n, sum(width for _, width in features.layout))


def plain_fractals(n: int, tail: Ints, head: Ints) -> Floats:
    """Breadth-first search from each node and numpy's own least squares."""
    near: list[set[int]] = [set() for _ in range(n)]
    for a, b in zip(tail.tolist(), head.tolist(), strict=True):
        near[a].add(b)
        near[b].add(a)
    found = np.zeros(n)
    for node in range(n):
        distance, queue = {node: 0}, deque([node])
        while queue:
            here = queue.popleft()
            for other in near[here] - distance.keys():
                distance[other] = distance[here] + 1
                queue.append(other)
        far = max(distance.values())
        if far > 1:
            radii = np.arange(1, far + 1)
            counts = [sum(d <= radius for d in distance.values()) for radius in radii]
            found[node] = np.polyfit(np.log(radii), np.log(counts), 1)[0]
    return found


@examples(40)
@given(st.integers(1, 9), st.integers(0, 2**20))
def test_fractal_dimensions_are_slopes(n: int, seed: int) -> None:
    """On random graphs: the same as plain search and numpy's least squares."""
    ends = np.random.default_rng(seed).integers(0, n, (2, 2 * n)).astype(np.int32)
    tail, head = ends[:, ends[0] != ends[1]]
    assert fractal_dimensions(n, tail, head) == pytest.approx(plain_fractals(n, tail, head), abs=1e-9)


def test_a_line_has_one_dimension_and_a_square_two() -> None:
    """Well inside a line of 400 the dimension is near 1, inside a square of 22 × 22 near 2."""
    line = np.arange(399, dtype=np.int32)
    assert fractal_dimensions(400, line, line + 1)[200] == pytest.approx(1.0, abs=0.05)
    place = np.arange(22 * 22, dtype=np.int32).reshape(22, 22)
    tail = np.concatenate((place[:, :-1].ravel(), place[:-1].ravel()))
    head = np.concatenate((place[:, 1:].ravel(), place[1:].ravel()))
    assert 1.4 < fractal_dimensions(484, tail, head)[10 * 22 + 10] < 2.0


@examples(30)
@given(problems(max_ops=5), st.integers(0, 2**20))
def test_prices_are_the_judges_where_rules_are_kept(problem: Problem, seed: int) -> None:
    """NaN exactly where the judge finds a violation, its value elsewhere; what was seen is not priced again."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, problem.n_devices, (6, problem.n_ops)).astype(np.int32)
    pricing = Pricing(problem)
    seconds = pricing(rows)
    for row, found in zip(rows, seconds.tolist(), strict=True):
        judged = judge_placement(problem, Placement(row))
        good = not {v.kind for v in judged.violations} and math.isfinite(judged.value)
        assert math.isnan(found) != good
        if good:
            assert found == pytest.approx(evaluate(problem, row[None])[0])
    distinct = len({row.tobytes() for row in rows})
    assert pricing.evaluations == distinct and pricing.asked == 6
    again = Pricing(problem)
    again.restore(pricing.state())
    assert np.array_equal(again(rows), seconds, equal_nan=True) and again.evaluations == distinct
    finite = seconds[np.isfinite(seconds)]
    assert pricing.value == (finite.min() if len(finite) else math.inf)


def test_draws_follow_their_logits() -> None:
    """Of 20,000 draws from 1/8, 7/8 and nothing: within five deviations; the barred choice never comes."""
    logits = mask_logits(torch.log(torch.tensor([1.0, 7.0, 5.0])), torch.tensor([True, True, False]))
    drawn = draw(logits.expand(20_000, -1), torch.Generator().manual_seed(1))
    assert not (drawn == 2).any()
    assert abs(int((drawn == 0).sum()) - 2500) < 5 * math.sqrt(2500 * 7 / 8)
    log_prob, entropy = score_choices(logits, torch.tensor(1))
    assert float(log_prob) == pytest.approx(math.log(7 / 8))
    assert float(entropy) == pytest.approx(-(math.log(1 / 8) + 7 * math.log(7 / 8)) / 8)


def learner(**options: object) -> Learner:
    """A learner on a table, with a second as its scale."""
    problem = some_problem()
    return Learner(table(problem, LearningOptions(), 0), LearningOptions(**options), 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reward", "expected"),
    [("root", [-2.0, -1.0, -math.sqrt(10)]), ("inverse", [0.25, 1.0, 0.1]), ("negative", [-4, -1, -10]),
     ("log", [-math.log(4), 0.0, -math.log(10)])],
)  # fmt: skip
def test_rewards_of_seconds(reward: str, expected: list[float]) -> None:
    """4 s, 1 s and a failure, which counts as ten."""
    assert learner(reward=reward).rewards(np.array([4.0, 1.0, np.nan])) == pytest.approx(expected)


def test_the_gradient_is_that_of_reinforce() -> None:
    """Two episodes, no baseline, no entropy: −mean of reward × ∇ log p, by finite differences of the score."""
    problem = some_problem(3)
    policy = table(problem, LearningOptions(), 0)
    trained = Learner(policy, LearningOptions(baseline="none", normalized=False, entropy=0.0, reward="negative"), 1.0)
    generator = torch.Generator().manual_seed(2)
    rollout = policy.rollout(2, generator, lambda rows: np.array([3.0, 5.0]))
    loss, stats, _ = trained.loss(rollout, None, 0.0)
    loss.backward()
    every = torch.softmax(mask_logits(policy.logits, policy.get_buffer("allowed")), -1).detach()
    wanted = torch.zeros_like(every)
    for reward, device in zip((-3.0, -5.0), rollout.choices["device"], strict=True):
        one_hot = torch.nn.functional.one_hot(device, problem.n_devices)
        wanted -= reward * (one_hot - every) / 2
    assert torch.allclose(policy.logits.grad, wanted, atol=1e-6)
    assert stats.reward == -4.0


def test_rewards_on_the_way_are_discounted_sums_of_gains() -> None:
    """Seconds 4 → 1 → 9 with reward −t: gains 3 and −8; with discount a half the first decision earns 3 − 4."""
    trained = learner(baseline="none", normalized=False, reward="negative", discount=0.5)
    rollout = Rollout({}, np.array([9.0]), np.array([[4.0, 1.0, 9.0]]))
    assert trained._advantages(rollout, np.array([True]), 0.0).tolist() == [[-1.0, -8.0]]


def test_the_best_share_alone_counts() -> None:
    """Rewards −4, −1, −3, −2 and the best half: above the median, −2.5, are 1.5 and 0.5; the best quarter: 0.75."""
    rollout = Rollout({}, np.array([4.0, 1.0, 3.0, 2.0]))
    for elite, expected in ((0.5, [0.0, 1.5, 0.0, 0.5]), (0.25, [0.0, 0.75, 0.0, 0.0])):
        trained = learner(baseline="batch", normalized=False, reward="negative", elite=elite)
        assert trained._advantages(rollout, np.ones(4, np.bool_), -2.5).tolist() == expected


def test_failures_are_forgiven_after_so_many_updates() -> None:
    """First a failure counts as the constant; later it is left out, and an update of failures only moves nothing."""
    trained = learner(invalid_grace=1, entropy=0.0)
    policy = trained.policy
    assert isinstance(policy, TablePolicy)
    failing = policy.rollout(4, torch.Generator().manual_seed(0), lambda rows: np.array([1.0, 2.0, np.nan, np.nan]))
    assert trained.learn(failing).reward == pytest.approx((-1 - math.sqrt(2) - 2 * math.sqrt(10)) / 4)
    assert trained.learn(failing).reward == pytest.approx((-1 - math.sqrt(2)) / 2)
    trained.optimizer = torch.optim.SGD(policy.parameters(), 1.0)
    before = policy.logits.detach().clone()
    nothing = Rollout(failing.choices, np.full(4, np.nan))
    trained.learn(nothing)
    assert torch.equal(before, policy.logits.detach())


@pytest.mark.parametrize("algorithm", ["reinforce", "ppo"])
@pytest.mark.parametrize("seed", [1, 5, 8])
def test_a_table_learns(algorithm: str, seed: int) -> None:
    """Its preferred placement after 150 updates is the best of all placements of a few ops, or within a tenth of it."""
    problem = some_problem(seed)
    rate = 0.03 if algorithm == "ppo" else 0.1
    options = LearningOptions(rate=rate, algorithm=algorithm)  # type: ignore[arg-type]
    trainer = Trainer(table(problem, options, 0), options, Pricing(problem))
    trainer.begin()
    trainer.run(Budget(iterations=150))
    preferred = trainer.policy.greedy(trainer.pricing)
    every = np.array(np.meshgrid(*[range(problem.n_devices)] * problem.n_ops)).reshape(problem.n_ops, -1).T
    best = np.nanmin(Pricing(problem)(every.astype(np.int32)))
    assert trainer.pricing(preferred)[0] <= 1.1 * best
    assert trainer.pricing.value >= best


def test_the_same_seed_gives_the_same_training_and_another_another() -> None:
    """Curves and parameters to the last bit."""
    problem = free_problem()

    def trained(seed: int) -> Trainer:
        made = Trainer(table(problem, LearningOptions(), 0), LearningOptions(rate=0.1), Pricing(problem), seed)
        made.begin()
        made.run(Budget(iterations=5))
        return made

    one, same, other = trained(1), trained(1), trained(2)
    logits = [made.policy.get_parameter("logits") for made in (one, same, other)]
    assert torch.equal(logits[0], logits[1]) and not torch.equal(logits[0], logits[2])
    assert [step[::2] for step in one.curve] == [step[::2] for step in same.curve]


def test_training_goes_on_from_a_state_as_if_nothing_had_happened() -> None:
    """A new trainer that begins with the state after four of ten updates ends the same in every figure."""
    problem = free_problem()

    def fresh() -> Trainer:
        return Trainer(table(problem, LearningOptions(), 0), LearningOptions(rate=0.1), Pricing(problem), 3)

    whole, second = fresh(), fresh()
    states: list[tuple[dict[str, object], dict[str, np.ndarray]]] = []
    whole.begin()
    whole.run(Budget(iterations=10), lambda update: states.append(whole.state()))
    second.restore(*states[3])
    second.run(Budget(iterations=10))
    assert torch.equal(whole.policy.logits, second.policy.logits)
    assert whole.pricing.evaluations == second.pricing.evaluations and whole.pricing.value == second.pricing.value
    assert whole.learner.baseline == second.learner.baseline


def test_a_policy_that_diverges_stops_with_the_parameters_it_had() -> None:
    """A NaN in the loss: Diverged, nothing moved; the trainer stops, and its best stays."""
    problem = free_problem()
    policy = table(problem, LearningOptions(), 0)
    trainer = Trainer(policy, LearningOptions(), Pricing(problem))
    trainer.begin()
    best = trainer.pricing.value
    healthy = policy.log_prob
    policy.log_prob = lambda choices: tuple(part * math.nan for part in healthy(choices))  # type: ignore[method-assign,assignment]
    before = policy.logits.detach().clone()
    assert trainer.run(Budget(iterations=3)) is Reason.FINISHED and trainer.diverged
    assert torch.equal(before, policy.logits.detach()) and trainer.pricing.value <= best
    with pytest.raises(Diverged):
        trainer.learner.learn(policy.rollout(2, trainer.generator, trainer.pricing))


def test_the_budget_of_evaluations_is_kept() -> None:
    """Not one placement more is priced; an evaluate that is handed in is the one that is asked."""
    problem, asked = free_problem(), []

    def counted(rows: Ints) -> Floats:
        asked.extend(rows)
        return evaluate(problem, rows)

    proposal = run_placer(TablePlacer(), problem, Budget(evaluations=37), evaluate=counted)
    assert proposal.placement is not None and 30 < len(asked) <= 37


def test_training_ends_when_there_is_nothing_left_to_see() -> None:
    """Of three free ops on three devices there are 27 placements: once they are seen, training ends."""
    from toy_problems import boxes

    problem = boxes([1, 1, 1], [9.0, 8.0, 7.0])
    trainer = Trainer(table(problem, LearningOptions(), 0), LearningOptions(), Pricing(problem))
    trainer.begin()
    assert trainer.run(Budget(iterations=1000)) is Reason.FINISHED
    assert trainer.pricing.evaluations == 27 and trainer.learner.updates < 500
    again = Trainer(table(problem, LearningOptions(), 0), LearningOptions(), Pricing(problem))
    again.restore(*trainer.state())
    assert again.run(Budget(iterations=1000)) is Reason.FINISHED and again.learner.updates == trainer.learner.updates


def test_a_reward_that_always_fails_says_why() -> None:
    """Nothing is proposed; the reason is the last one that the reward gave."""

    class Broken:
        failure = "the runtime says no"

        def __call__(self, rows: Ints) -> Floats:
            return np.full(len(rows), np.nan)

    proposal = run_placer(TablePlacer(), some_problem(5), Budget(evaluations=500), evaluate=Broken())
    assert proposal.placement is None and "the runtime says no" in proposal.notes[-1]


def test_options_are_checked() -> None:
    """What no training could follow is refused with its name."""
    wrong = {"samples": 0, "rate": -1.0, "decay": -1.0, "patience": -1, "clip": math.nan, "entropy": 1e300, "elite": 2}
    for name, value in wrong.items():
        with pytest.raises(PlacerError, match=name):
            LearningOptions(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(PlacerError, match="no feature 'nonsense'"):
        build_features(build_view(some_problem(), np.zeros(some_problem().n_ops)), ("nonsense",))


def test_who_draws_nothing_new_grows_restless_and_who_does_calms_down() -> None:
    """`extra_decisions` rises with every updates of known placements, makes decisions less sure, and falls again."""
    problem = free_problem()
    options = LearningOptions(samples=4, extra_exploration=0.5)
    trainer = Trainer(table(problem, options, 0), options, Pricing(problem))
    trainer.begin()
    assert trainer.policy.exploration_share(10) == 0.1
    for number in (1, 2, 3):
        trainer._adjust_exploration(0)
        assert trainer.policy.extra_decisions == 0.5 * number
    assert trainer.policy.exploration_share(10) == 0.25
    figures, arrays = trainer.state()
    again = Trainer(table(problem, options, 0), options, Pricing(problem))
    again.restore(figures, arrays)
    assert again.policy.extra_decisions == 1.5
    for _ in range(5):
        trainer._adjust_exploration(4)
    assert trainer.policy.extra_decisions == 0.0


def test_who_finds_nothing_better_begins_anew_and_keeps_what_was_found() -> None:
    """After `renewed` stale updates: the first weights, no averages, moves from elsewhere; also when resumed."""
    problem = free_problem()
    options = LearningOptions(samples=4, restart_after=3, rate=1.0, explore=0.0, extra_exploration=0.0)
    trainer = Trainer(table(problem, options, 0), options, Pricing(problem))
    before = {name: value.clone() for name, value in trainer.policy.state_dict().items()}
    trainer.begin()
    watch = Stopwatch(Budget(evaluations=10_000))
    lives = []
    for number in range(200):
        trainer.update(watch)
        if trainer.pricing.base is None:
            lives.append(number)
            assert all(torch.equal(value, before[name]) for name, value in trainer.policy.state_dict().items())
            assert trainer.learner.baseline is None and not trainer.learner.optimizer.state
            figures, arrays = trainer.state()
            again = Trainer(table(problem, options, 0), options, Pricing(problem))
            again.restore(figures, arrays)
            assert again.pricing.base is None and again.pricing.value == trainer.pricing.value
        else:
            assert trainer.pricing.value <= trainer.pricing.base_value
    assert len(lives) > 1 and trainer.pricing.best is not None
    assert evaluate(problem, trainer.pricing.best[None])[0] == trainer.pricing.value
