"""What server and controllers tell each other: plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from placewise.model.columns import Floats, Ints
from placewise.placers.learned.objectives import TrainStats
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.policy import Policy
from placewise.placers.learned.workers.backend import Crew
from placewise.placers.learned.workers.measuring import MakeEvaluate

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Brief:
    """What a controller is made from. Its functions can be pickled; without `make_evaluate` the judge is the reward."""

    make_policy: Callable[[], Policy]
    options: LearningOptions
    crew: Crew
    make_evaluate: MakeEvaluate | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Errand:
    """What a controller shall do: with these parameters, roll out `count` episodes and say how to change them.

    `most` is how many placements it may price, in `seconds`; `greedy`: the favourites as well. `keys` and `values` are
    what others priced meanwhile; `reference` the seconds of a single device by which rewards are made comparable, NaN
    if nobody measured it yet. The rest is how the server's learner stands.
    """

    parameters: Arrays
    scale: float
    baseline: float | None
    steps: Floats | None
    updates: int
    unrest: float
    progress: float
    count: int
    most: int
    seconds: float
    greedy: bool
    keys: tuple[bytes, ...]
    values: Floats
    reference: float


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """What a controller did: placements [n, n_ops] that it priced, at which seconds [n]; and what it learned.

    `lost` placements were handed to workers that died. Of `deaths` workers, `row` died after the last of the `results`
    that came back. `spent`: what it was allowed to price did not suffice. What it learned is a `lesson` with its
    `gradients` for REINFORCE, and `drawn` episodes for PPO.
    """

    rows: Ints
    seconds: Floats
    asked: int = 0
    lost: int = 0
    deaths: int = 0
    row: int = 0
    results: int = 0
    failure: str = ""
    reference: float = math.nan
    spent: bool = False
    lesson: TrainStats | None = None
    gradients: Arrays | None = None
    drawn: Drawn | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """A rollout as arrays, and `old`, the log p of its decisions [K, D] by the policy that drew it."""

    choices: Arrays
    seconds: Floats
    path: Floats | None
    weight: Floats | None
    old: npt.NDArray[Any]
