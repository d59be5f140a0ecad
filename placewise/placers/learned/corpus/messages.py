"""Messages between the trainer on a corpus and its workers: plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy.typing as npt

from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.placers.learned.objectives import TrainStats
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.policy import Policy
from placewise.placers.learned.workers.messages import RolloutArrays

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class BestKnown:
    """The best known placement [n_ops] of a problem and its seconds, at first from a search.

    `scale` is the unit of rewards in seconds; `baseline` the moving average of rewards on this problem.
    """

    best: Ints
    value: float
    scale: float
    baseline: float | None = None


class PlacementCache(Protocol):
    """Keeps the results of searches between trainings. It can be pickled."""

    def find(self, problem: Problem) -> BestKnown | None:
        """The best known placement of a problem; None if it was not searched."""

    def keep(self, problem: Problem, known: BestKnown) -> None:
        """Store a result."""


@dataclass(frozen=True, slots=True)
class CorpusWorkerSpec:
    """Everything that creates a worker. It can be pickled.

    `problem` returns the problem of a number, always the same one; `make_policy` an untrained policy for a problem.
    `expert` is the placer to imitate, run once per problem ("": none), and `cache` keeps its placements.
    """

    problem: Callable[[int], Problem]
    make_policy: Callable[[Problem], Policy]
    options: LearningOptions
    expert: str = ""
    cache: PlacementCache | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CorpusTask:
    """Work on one problem with these `parameters` (None: those that the worker has).

    `search`: find a first placement, with the expert if `use_expert`. `learn`: return gradients, of a rollout with
    `seed` if `explore`, and of imitating the best known placement with weight `imitate`. `rollout` repeats the episodes
    of an earlier epoch of this update. `validate`: price the policy's own choices.
    """

    number: int
    kind: Literal["search", "learn", "validate"]
    known: BestKnown | None = None
    parameters: Arrays | None = None
    use_expert: bool = False
    seed: int = 0
    updates: int = 0
    progress: float = 0.0
    explore: bool = False
    imitate: float = 0.0
    rollout: RolloutArrays | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CorpusResult:
    """The best known placement now, and gradients per decision.

    `distance` is the mean −log p of a decision of the imitated placement, `asked` the number of placements priced,
    `seconds` the time of the policy's own choice (inf: it cannot run).
    """

    known: BestKnown
    gradients: Arrays | None = None
    stats: TrainStats | None = None
    distance: float = float("nan")
    rollout: RolloutArrays | None = None
    asked: int = 0
    seconds: float = float("inf")
