"""What a teacher of many problems and its pupils tell each other: plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy.typing as npt

from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.placers.learned.corpus.evolution import Ways
from placewise.placers.learned.objectives import TrainStats
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.policy import Policy
from placewise.placers.learned.workers.messages import Drawn

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What is known of one problem: the best placement [n_ops] so far and its seconds, both of a search to begin with.

    `scale`: the seconds that count as one; `baseline`: the moving average of the rewards there.
    """

    best: Ints
    value: float
    scale: float
    baseline: float | None = None


class Shelf(Protocol):
    """Where what is known of problems is kept between trainings. It can be pickled."""

    def find(self, problem: Problem) -> Known | None:
        """What is known of a problem; None if it was not searched."""

    def keep(self, problem: Problem, known: Known) -> None:
        """Keep it."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What a pupil is made from; it can be pickled.

    `problem` gives the problem of a number, always the same; `make_policy` an untrained policy for a problem.
    `teacher` is the placer that is asked, once for every problem, what to imitate; "" for none. `shelf` is where
    that is kept. `only` these parameters are learned (none: all of them).
    """

    problem: Callable[[int], Problem]
    make_policy: Callable[[Problem], Policy]
    options: LearningOptions
    teacher: str = ""
    shelf: Shelf | None = None
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What a pupil shall do with one problem, with these `parameters` (None: those that it has).

    `search`: say what is known of it, and ask the teacher if it is to be `taught`. `learn`: say how the parameters
    should change, by rolling out with the chance of `seed` if `explore`; by imitating the best that is known, with
    a weight of `imitate`; and by what `climb` moves tried from its own best placement lead to. `drawn` are episodes
    of an earlier epoch of this update. `compare`: say what its favourites are worth in each of several `ways`, rows of
    some parameters. `try`: say what its favourite placement is worth.
    """

    number: int
    kind: Literal["search", "learn", "compare", "try"]
    known: Known | None = None
    parameters: Arrays | None = None
    taught: bool = False
    seed: int = 0
    updates: int = 0
    progress: float = 0.0
    explore: bool = False
    imitate: float = 0.0
    climb: int = 0
    ways: Ways | None = None
    drawn: Drawn | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a pupil found: what is known now, and how the parameters should change, per decision.

    `distance`: −log p of a decision of the best placement known, mean. `asked` placements were priced. `seconds`: of
    the favourite, inf where it cannot run.
    """

    known: Known
    gradients: Arrays | None = None
    lesson: TrainStats | None = None
    distance: float = float("nan")
    drawn: Drawn | None = None
    asked: int = 0
    seconds: float = float("inf")
    worth: Floats | None = None
