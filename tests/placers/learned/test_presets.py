"""The presets of learned policies, and the control whose learning rate is zero."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from simulate_problems import random_problem, seeded

from placewise.errors import PlacerError
from placewise.model.problem import Problem
from placewise.placers.base import Budget
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.policy import copy_parameters
from placewise.placers.learned.pricing import Pricing
from placewise.placers.registry import create, placer_class

POLICIES = ("hsdag", "colocrl", "hdp", "placeto", "gdp", "doppler")


def free_problem() -> Problem:
    """Twelve ops or so, with a choice for most of them: thousands of placements."""
    found = (random_problem(seeded(seed), max_ops=12, max_devices=3) for seed in range(100))
    return next(problem for problem in found if np.log2(problem.allowed.sum(axis=1).clip(1)).sum() > 10)


def learner(name: str, **options: Any) -> Any:
    """A small learned placer, which imitates briefly."""
    brief = {"imitation": 2} if name == "doppler" else {}
    return create(name, {"hidden": 16, **brief, **options})


@pytest.mark.parametrize("name", POLICIES)
def test_given_options_win_over_the_preset(name: str) -> None:
    """`preset=paper` sets all that it names; a value that is given stays, even if it is the default."""
    kind: Any = placer_class(name)
    paper, default = kind.Options(preset="paper"), kind.Options()
    assert {key: getattr(paper, key) for key in kind.Options.paper} == dict(kind.Options.paper)
    given = {"explore": default.explore, "restart_after": default.restart_after}
    for options in (create(name, {"preset": "paper", **given}).options, kind.Options(preset="paper", **given)):  # type: ignore[attr-defined]
        assert options == replace(paper, **given)
    assert pickle.loads(pickle.dumps(paper)) == paper


def test_only_policies_with_a_paper_have_its_preset() -> None:
    """Any other policy refuses it, and an unknown preset is refused by its name."""
    with pytest.raises(PlacerError, match="no paper"):
        LearningOptions(preset="paper")
    with pytest.raises(PlacerError, match="'preset' of 'hsdag' is 'letter'"):
        create("hsdag", {"preset": "letter"})


@pytest.mark.parametrize("name", POLICIES)
def test_the_papers_draw_whole_placements(name: str) -> None:
    """Nothing is suggested, and what was priced before changes no draw."""
    problem, drawn = free_problem(), []
    for device in range(2):
        price = Pricing(problem)
        price(np.full((1, problem.n_ops), device, np.int32))
        policy = learner(name, preset="paper").policy(problem, 1)
        assert not len(policy.suggestions())
        drawn.append(policy.rollout(4, torch.Generator().manual_seed(3), price).seconds.tolist())
    np.testing.assert_array_equal(*drawn)


@pytest.mark.parametrize("name", POLICIES)
def test_the_papers_price_draws_alone(name: str) -> None:
    """Beyond the single devices, which scale the rewards, only episodes are priced: never the preferred placement."""
    trainer = learner(name, preset="paper", samples=2).trainer(free_problem(), None, 0)
    trainer.begin()
    trainer.policy.greedy = None
    trainer.run(Budget(iterations=12))
    assert trainer.learner.updates == 12


@pytest.mark.parametrize("name", POLICIES)
def test_a_rate_of_zero_runs_all_but_the_update(name: str) -> None:
    """Gradients are computed, the best is found, but every parameter stays as it was."""
    trainer = learner(name, rate=0.0, samples=4).trainer(free_problem(), None, 0)
    before, norms = copy_parameters(trainer.policy), list[float]()
    trainer.begin()
    trainer.run(Budget(iterations=4), lambda update: norms.append(update.stats.norm))
    after = trainer.policy.state_dict()
    assert len(norms) == 4 and max(norms) > 0 and not trainer.diverged
    assert all(torch.equal(before[key], after[key]) for key in before)
