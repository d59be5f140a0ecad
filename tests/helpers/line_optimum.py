"""The best split along a line, by trying all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate import judge_placement
from placewise.simulate.contiguity import Contraction


def best_along(problem: Problem, graph: Contraction, position: Ints) -> float:
    """The least max-load of any split of the line that keeps the rules; inf if there is none."""
    best = math.inf
    for home in splits(np.argsort(position).tolist(), problem.n_devices):
        device = np.array([home[c] for c in graph.component.tolist()], np.int32)
        judged = judge_placement(problem, Placement(device))
        best = min(best, judged.value) if judged.valid else best
    return best


def splits(line: list[int], devices: int) -> Iterator[dict[int, int]]:
    """Every way to give intervals of a line to devices, each device one interval at most: component → device."""
    for stages in range(1, min(len(line), devices) + 1):
        for cuts in itertools.combinations(range(1, len(line)), stages - 1):
            bounds = (0, *cuts, len(line))
            for chosen in itertools.permutations(range(devices), stages):
                yield {
                    line[i]: d
                    for d, (a, b) in zip(chosen, itertools.pairwise(bounds), strict=True)
                    for i in range(a, b)
                }
