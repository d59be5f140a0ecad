"""Moves of segments: what ColocRL and HDP, as GDP, do from the best placement so far."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st
from soak import examples
from strategies import problems
from toy_problems import zoo

from placewise.model.problem import Problem
from placewise.placers.learned.colocrl import ColocRLOptions, ColocRLPolicy
from placewise.placers.learned.hdp import HDPOptions, HDPPolicy
from placewise.placers.learned.objectives import Learner
from placewise.placers.learned.policy import Policy, Rollout, segment_of, untrained_policy
from placewise.placers.learned.pricing import Pricing, single_device_rows

MAKERS = {"colocrl": (ColocRLPolicy, ColocRLOptions(moving=1.0)), "hdp": (HDPPolicy, HDPOptions(moving=1.0))}


def rolled(problem: Problem, name: str, seed: int) -> tuple[Policy, Rollout, np.ndarray] | None:
    """A policy, its moves, and the placement that they began with; None where no device can run all."""
    make, options = MAKERS[name]
    pricing = Pricing(problem)
    if not len(single_device_rows(problem)):
        return None
    pricing(single_device_rows(problem))
    assert pricing.best is not None
    began, policy = pricing.best.copy(), untrained_policy(make, problem, options, seed)
    return policy, policy.rollout(5, torch.Generator().manual_seed(seed), pricing), began


@pytest.mark.parametrize("name", sorted(MAKERS))
@examples(8)
@given(problems(max_ops=6), st.integers(0, 2**20))
def test_a_segment_goes_to_one_device_and_its_odds_add_up(name: str, problem: Problem, seed: int) -> None:
    """Whoever may go there does, all others stay, and rewards are told from the best placement.

    Over all devices, the probabilities of a segment's move sum to one; the move that was drawn has one, and gradients.
    """
    found = rolled(problem, name, seed)
    if found is None:
        return
    policy, rollout, began = found
    assert rollout.path is not None and rollout.path.shape == (5, 2)
    assert (rollout.path[:, 0] == Pricing(problem)(began[None])[0]).all()
    segments, move = (rollout.choices[name].numpy() for name in ("segment", "move"))
    held = rollout.choices["start"].numpy()
    goes = segments & policy.view.allowed[:, move].T
    placed = policy.view.placements(np.where(goes, move[:, None], held))
    assert np.array_equal(rollout.path[:, 1], Pricing(problem)(placed), equal_nan=True)
    log_prob, entropy = policy.log_prob(rollout.choices)
    assert torch.isfinite(log_prob).all()
    torch.autograd.backward(log_prob.sum() + entropy.sum())
    assert all(value.grad is None or torch.isfinite(value.grad).all() for value in policy.parameters())
    choices = dict(rollout.choices)
    total = torch.zeros(5)
    for device in range(problem.n_devices):
        choices["move"] = torch.full((5,), device)
        total += policy.log_prob(choices)[0][:, -1].exp()
    assert torch.allclose(total, torch.ones(5), atol=1e-5)


@given(st.integers(1, 300), st.floats(0, 1), st.floats(0, 1))
def test_segments_are_of_all_lengths_and_never_long(n: int, long: float, place: float) -> None:
    """Units of a segment are adjacent; there are no more than a quarter and two of them."""
    inside = np.flatnonzero(segment_of(torch.arange(n) + 0.5, torch.tensor([long, place])).numpy())
    assert (np.diff(inside) == 1).all()
    assert len(inside) <= n / 4 + 2


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_moves_leave_the_baseline_of_whole_placements_alone(name: str) -> None:
    """What moves gain has an average of its own."""
    problem = zoo("layered", 20, 3)
    found = rolled(problem, name, 1)
    assert found is not None
    policy, rollout, _ = found
    learner = Learner(policy, MAKERS[name][1], 1.0)
    learner.learn(rollout)
    assert learner.baseline is None and learner.steps is not None and learner.steps.shape == (1,)
