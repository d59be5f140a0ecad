"""What trainers and their workers send each other: plain data.

Controllers share one problem (`Controller…`), other workers a corpus of problems (`Corpus…`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.placers.learned.objectives import TrainStats, to_tensors
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.policy import Policy, Rollout
from placewise.training.workers.config import WorkerConfig
from placewise.training.workers.measuring import MakeEvaluate

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class RolloutArrays:
    """A rollout as arrays, and `old`: log p of its decisions [K, D] under the policy that drew it."""

    choices: Arrays
    seconds: Floats
    path: Floats | None
    weight: Floats | None
    old: npt.NDArray[Any]

    @classmethod
    def pack(cls, rollout: Rollout, old: Tensor) -> RolloutArrays:
        """Convert a rollout to arrays."""
        choices = {name: value.numpy() for name, value in rollout.choices.items()}
        return cls(choices, rollout.seconds, rollout.path, rollout.weight, old.numpy())

    def unpack(self) -> tuple[Rollout, Tensor]:
        """The rollout, and `old` as a tensor."""
        rollout = Rollout(to_tensors(self.choices, ""), self.seconds, self.path, self.weight)
        return rollout, torch.from_numpy(np.array(self.old))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TaskResult:
    """What a worker learned: REINFORCE returns `stats` and `gradients`, PPO the episodes themselves (`rollout`).

    `asked` counts the placements that were passed in.
    """

    asked: int = 0
    stats: TrainStats | None = None
    gradients: Arrays | None = None
    rollout: RolloutArrays | None = None


@dataclass(frozen=True, slots=True)
class ControllerSpec:
    """Everything that creates a controller. Its functions can be pickled. Without `make_evaluate` the judge rewards."""

    make_policy: Callable[[], Policy]
    options: LearningOptions
    config: WorkerConfig
    make_evaluate: MakeEvaluate | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ControllerTask:
    """Roll out `count` episodes with these parameters, and return how to change them.

    The controller may price `most` placements within `seconds`; with `greedy` it prices the policy's own choices too.
    `keys` and `values` are digests and seconds of placements that other controllers have priced. `reference` is the
    time of the single device that makes rewards of different workers comparable (NaN: not measured yet). The other
    fields are the state of the server's learner.
    """

    parameters: Arrays
    scale: float
    baseline: float | None
    steps: Floats | None
    updates: int
    extra_decisions: float
    progress: float
    count: int
    most: int
    seconds: float
    greedy: bool
    keys: tuple[bytes, ...]
    values: Floats
    reference: float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ControllerResult(TaskResult):
    """The placements [n, n_ops] that a controller priced, their seconds [n], and what it learned.

    `lost` placements were sent to workers that died. Of the `deaths` of workers, `row` came after the last of the
    `results`. `exhausted`: the limit on placements ended the rollout.
    """

    rows: Ints
    seconds: Floats
    lost: int = 0
    deaths: int = 0
    row: int = 0
    results: int = 0
    failure: str = ""
    reference: float = math.nan
    exhausted: bool = False


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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CorpusResult(TaskResult):
    """The best known placement now, and gradients per decision.

    `distance` is the mean −log p of a decision of the imitated placement, `seconds` the time of the policy's own choice
    (inf: it cannot run).
    """

    known: BestKnown
    distance: float = float("nan")
    seconds: float = float("inf")
