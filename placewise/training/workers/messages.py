"""Messages between the server and its controllers: plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from placewise.model.columns import Floats, Ints
from placewise.placers.learned.objectives import TrainStats, to_tensors
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.policy import Policy, Rollout
from placewise.training.workers.config import WorkerConfig
from placewise.training.workers.measuring import MakeEvaluate

Arrays = Mapping[str, npt.NDArray[Any]]


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


@dataclass(frozen=True, slots=True, eq=False)
class ControllerResult:
    """The placements [n, n_ops] that a controller priced, their seconds [n], and what it learned.

    `lost` placements were sent to workers that died. Of the `deaths` of workers, `row` came after the last of the
    `results`. `exhausted`: the limit on placements ended the rollout. REINFORCE returns `stats` and `gradients`, PPO
    the episodes themselves (`rollout`).
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
    exhausted: bool = False
    stats: TrainStats | None = None
    gradients: Arrays | None = None
    rollout: RolloutArrays | None = None


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
