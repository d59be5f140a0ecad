"""What tests of workers learn on."""

from __future__ import annotations

import numpy as np
from simulate_problems import random_problem, seeded

from placewise.model.problem import Objective, Problem
from placewise.placers.learned.options import LearningOptions

OPTIONS = LearningOptions(rate=0.1, samples=8)


def free_problem() -> Problem:
    """About ten ops with a choice for most of them."""
    found = (random_problem(seeded(seed), max_ops=12, max_devices=3, objective=Objective("latency"))
             for seed in range(100))  # fmt: skip
    return next(problem for problem in found if np.log2(problem.allowed.sum(axis=1).clip(1)).sum() > 10)
