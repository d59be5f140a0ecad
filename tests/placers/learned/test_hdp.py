"""HDP: groups are drawn as they are scored, ops that share no device are kept apart, known optima, many ops."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st
from learned_policies import assert_goes_on
from simulate_problems import random_problem, seeded
from soak import examples
from strategies import problems

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.errors import PlacerError
from placewise.model.problem import Problem
from placewise.placers.base import Budget, run_placer
from placewise.placers.learned.hdp import HDPOptions, HDPPlacer, HDPPolicy
from placewise.placers.learned.policy import untrained_policy
from placewise.placers.registry import create
from placewise.simulate import evaluate

hdp = partial(untrained_policy, HDPPolicy)


def zoo(family: str, n: int, seed: int) -> Problem:
    """A random graph of the zoo on two equal devices."""
    dims = {"n_ops": n, "seed": seed, "batch": 32, "size": 32}
    return build(f"zoo:random-{family}", "2xV100", ProblemOptions(objective="latency", dims=dims))


def restless(problem: Problem, options: HDPOptions, seed: int = 0) -> HDPPolicy:
    """A policy whose logits are far from even."""
    policy = hdp(problem, options, seed)
    for parameter in policy.parameters():
        parameter.data *= 2.0
    return policy


def no_price(rows: np.ndarray) -> np.ndarray:
    """One second for everything."""
    return np.ones(len(rows))


def test_draws_follow_their_probabilities() -> None:
    """Three ops, two groups, two devices: the probabilities of all that can be decided add up to 1, and draws agree."""
    policy = restless(zoo("layered", 3, 0), HDPOptions(groups=2, hidden=8, nearness=0.5))
    grid = itertools.product(itertools.product(range(2), repeat=3), itertools.product(range(2), repeat=2))
    rows = [(group, device) for group, device in grid if len(set(group)) == 2 or device[1 - group[0]] == 0]
    choices = {"group": torch.tensor([g for g, _ in rows]), "device": torch.tensor([d for _, d in rows])}
    log_prob, _ = policy.log_prob(choices)
    p = log_prob.sum(dim=1).exp().detach().numpy()
    # A group without ops decides nothing, but its device is fed to the next: only the second may be left out.
    last = np.array([len(set(g)) == 2 or g[0] == 0 for g, _ in rows])
    whole = p[last].sum()
    count = 20_000
    drawn = policy.rollout(count, torch.Generator().manual_seed(2), no_price).choices
    seen: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for group, device in zip(drawn["group"].tolist(), drawn["device"].tolist(), strict=True):
        seen[tuple(group), (device[0], 0) if set(group) == {0} else tuple(device)] += 1
    second_alone = sum(n for (group, _), n in seen.items() if set(group) == {1}) / count
    assert whole == pytest.approx(1 - second_alone, abs=0.02) and 0 < second_alone < 0.5
    for (group, device), chance in itertools.compress(zip(rows, p.tolist(), strict=True), last.tolist()):
        error = 5 * np.sqrt(chance * (1 - chance) / count) + 1e-4
        assert seen[group, device] / count == pytest.approx(chance, abs=error)


def test_a_group_without_ops_decides_nothing() -> None:
    """Its device changes no placement, and its log p and entropy are 0."""
    policy = restless(zoo("layered", 6, 0), HDPOptions(groups=3, hidden=8))
    group = torch.tensor([[0, 0, 2, 2, 2, 0]] * 2)
    device = torch.tensor([[0, 0, 1], [0, 1, 1]])
    log_prob, entropy = policy.log_prob({"group": group, "device": device})
    assert log_prob.shape == (2, 6 + 3)
    assert (log_prob[:, 7] == 0).all() and (entropy[:, 7] == 0).all() and (log_prob[:, [6, 8]] < 0).all()
    first, second = policy.placements(group, device)
    assert first.tolist() == second.tolist() == [0, 0, 1, 1, 1, 0]


def test_what_a_group_is_told() -> None:
    """Means of its ops, their number, and its edges to others, worked by hand on a chain of four."""
    policy = hdp(zoo("series-parallel", 4, 8), HDPOptions(groups=2, hidden=8), 0)
    tail, head = policy.view.tail.tolist(), policy.view.head.tolist()
    group = torch.tensor([[0, 0, 1, 1]])
    told, allowed, used = policy._describe_groups(group)
    matrix = policy.get_buffer("basic")
    assert torch.allclose(told[0, 0, : matrix.shape[1]], matrix[:2].mean(dim=0))
    assert torch.allclose(told[0, 1, : matrix.shape[1]], matrix[2:].mean(dim=0))
    assert told[0, 0, matrix.shape[1]] == pytest.approx(np.log(3) / np.log(5))
    edges = np.zeros((2, 2))
    for a, b in zip(tail, head, strict=True):
        edges[a // 2, b // 2] += 1
    both = np.concatenate((edges, edges.T), axis=1)
    assert np.allclose(told[0, :, -4:].numpy(), both / (both.max(axis=1, keepdims=True) + 1))
    assert allowed.all() and used.all()


@examples(15)
@given(problems(max_ops=6), st.integers(0, 2**20), st.integers(1, 4))
def test_ops_go_only_where_they_may(problem: Problem, seed: int, n_groups: int) -> None:
    """On any problem and grouping: allowed devices, whole blocks, finite log p and gradients."""
    if not all(problem.allowed[problem.block == b].all(axis=0).any() for b in set(problem.block.tolist())):
        return
    policy = hdp(problem, HDPOptions(hidden=8, groups=n_groups), seed)
    rollout = policy.rollout(5, torch.Generator().manual_seed(seed), no_price)
    rows = policy.placements(rollout.choices["group"], rollout.choices["device"])
    for row in (*rows, *policy.greedy(no_price)):
        assert problem.allowed[np.arange(problem.n_ops), row].all()
        assert all(len(set(row[problem.block == b].tolist())) == 1 for b in set(problem.block.tolist()))
    log_prob, entropy = policy.log_prob(rollout.choices)
    assert torch.isfinite(log_prob).all() and (log_prob <= 1e-6).all() and (entropy >= -1e-6).all()
    torch.autograd.backward(log_prob.sum() + entropy.sum())
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters() if p.grad is not None)


def test_an_op_that_may_not_follow_its_group_goes_to_its_fastest_device() -> None:
    """A group goes where one of its ops may; what may not run there stays behind, and the rest goes."""
    problem = zoo("layered", 6, 0)
    seconds = np.array(problem.costs.op_seconds)
    seconds[2, 1] = np.inf
    barred = problem.with_(costs=type(problem.costs).given(seconds, problem.costs.transfer_seconds))
    policy = hdp(barred, HDPOptions(groups=2, hidden=8), 0)
    group = torch.tensor([[0] * 6, [0, 0, 1, 0, 0, 0]])
    _, allowed, _ = policy._describe_groups(group)
    assert allowed[0, 0].tolist() == [True, True] and allowed[1, 1].tolist() == [True, False]
    rows = policy.placements(group, torch.tensor([[1, 0], [1, 0]]))
    assert rows.tolist() == [[1, 1, 0, 1, 1, 1]] * 2


def test_near_ops_begin_in_one_group() -> None:
    """Untrained, an op is likely in the group at its place of the order, without nearness anywhere."""
    problem = zoo("layered", 60, 1)
    near = torch.softmax(hdp(problem, HDPOptions(groups=6, nearness=3.0), 0)._group_logits(), dim=1)
    far = torch.softmax(hdp(problem, HDPOptions(groups=6, nearness=0.0), 0)._group_logits(), dim=1)
    wanted = torch.arange(60) * 6 // 60
    own = torch.arange(60)
    assert float(near[own, wanted].mean().detach()) > 0.6
    assert float(far[own, wanted].mean().detach()) < 0.3


@pytest.mark.parametrize(
    ("family", "seed"),
    [("layered", 0), *(pytest.param(*more, marks=pytest.mark.soak) for more in (("branchy", 1), ("erdos-renyi", 2)))],
)
def test_near_the_optimum_of_small_graphs(family: str, seed: int) -> None:
    """Twelve ops on two devices: within 2 % of the best of all placements, which one device is not."""
    problem = zoo(family, 12, 60)
    every = np.array(list(itertools.product(range(2), repeat=12)), np.int32)
    best = float(np.nanmin(evaluate(problem, every)))
    alone = float(evaluate(problem, np.zeros((1, 12), np.int32))[0])
    proposal = run_placer(HDPPlacer(), problem, Budget(iterations=250, seed=seed))
    assert proposal.placement is not None
    assert float(evaluate(problem, proposal.placement.device[None])[0]) <= 1.02 * best < alone


def test_thousands_of_ops() -> None:
    """An update over 10,000 ops, and a greedy answer, in groups of which there are 40."""
    problem = zoo("layered", 10_000, 3)
    trainer = HDPPlacer().trainer(problem, None, 0)
    trainer.begin()
    trainer.run(Budget(iterations=1))
    assert trainer.policy.n_groups == 40 and trainer.pricing.asked >= 16 and trainer.pricing.best is not None


def test_the_same_seed_gives_the_same_placement() -> None:
    """Whatever torch's own generator is at."""
    problem = zoo("layered", 20, 62)
    found = []
    for state in (1, 2):
        torch.manual_seed(state)
        proposal = run_placer(create("hdp"), problem, Budget(iterations=6, seed=4))
        found.append((proposal.placement.device.tolist(), [step.value for step in proposal.history]))
    assert found[0] == found[1]


def test_training_goes_on_where_its_state_was_taken() -> None:
    """Three updates by one trainer, three more by it or by another from its state: the same to the last bit."""
    assert_goes_on(HDPPlacer(), zoo("layered", 20, 62))


def test_one_op_and_one_device() -> None:
    """The smallest problems have an answer."""
    for seed in range(6):
        problem = random_problem(seeded(seed), max_ops=1, max_devices=1)
        proposal = run_placer(HDPPlacer(), problem, Budget(iterations=2))
        assert proposal.placement is not None or proposal.infeasible or proposal.notes


@pytest.mark.parametrize(
    "options", [{"groups": -1}, {"grouper_width": 0}, {"nearness": -1.0}, {"neighbours": -1}, {"hidden": 0}]
)
def test_options_that_mean_nothing_are_refused(options: dict[str, object]) -> None:
    """With a sentence that names them."""
    with pytest.raises(PlacerError, match=next(iter(options))):
        create("hdp", options)
