"""What the training of every policy is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from placewise.errors import PlacerError

LARGEST = 1e15
"""Of any number: products of two of them are single-precision numbers still."""
AT_MOST = f" to {LARGEST:g}"


@dataclass(frozen=True)
class LearningOptions:
    """The settings of training; each policy has the defaults of its paper where that names them.

    `samples` episodes make an update, `updates` of which are made where the budget sets no limit. `reward` is a
    function of seconds t over those of the best single device s: `root` −√(t/s), `inverse` s/t, `negative` −t/s,
    `log` −log(t/s). A placement that fails counts as `failed` times s, and after `forgiven` updates not at all.
    `baseline`: `moving` average of rewards (`decay`), mean of the `batch`, or `none`; `normalized` divides
    advantages by their deviation. Of each update the best `elite` share alone counts, by what it is above that line
    (1: all, above or below the baseline): after Petersen et al. (ICLR 2021, risk-seeking policy gradients), for who
    looks for the best placement and not for good ones on average. `rate` is Adam's, falling to `final_rate` of
    itself along the budget; gradients are cut at norm `clip_norm`. `entropy` weighs exploration, falling alike;
    `explore` decisions of a placement are left to chance, on average, however sure the policy is, and `restless` more
    after every update of which less than a quarter was unseen, as many fewer after every other; of all, half at most.
    Under a budget of evaluations, after `renewed` updates without a better placement, if the last one was of that kind,
    training begins anew, from the weights that it began with; what was found and seen is kept (0: never).
    PPO takes
    `epochs` steps per update within a ratio of 1 ± `clip`. `discount` weighs later rewards where there are several.
    `patience`: stop after so many updates without a better placement (0: never). `checkpoint`: where the weights
    are from that training begins with. With no `updates` at all, it is only asked what it thinks best.
    """

    samples: int = 16
    updates: int = 100
    algorithm: Literal["reinforce", "ppo"] = "reinforce"
    reward: Literal["root", "inverse", "negative", "log"] = "root"
    baseline: Literal["moving", "batch", "none"] = "moving"
    normalized: bool = True
    elite: float = 1.0
    decay: float = 0.9
    rate: float = 1e-3
    final_rate: float = 1.0
    entropy: float = 0.01
    explore: float = 1.0
    restless: float = 0.25
    renewed: int = 40
    clip_norm: float = 1.0
    discount: float = 1.0
    epochs: int = 4
    clip: float = 0.2
    failed: float = 10.0
    forgiven: int = 5000
    patience: int = 0
    checkpoint: str = ""

    def __post_init__(self) -> None:
        for name in ("samples", "epochs"):
            if getattr(self, name) < 1:
                raise PlacerError(f"{name} is {getattr(self, name)}", remedy="give one or more")
        for name in ("rate", "clip_norm", "failed", "clip"):
            if not 0 < getattr(self, name) <= LARGEST:
                raise PlacerError(f"{name} is {getattr(self, name)}", remedy=f"give a number above zero{AT_MOST}")
        for name in ("decay", "discount", "entropy", "explore", "restless", "final_rate"):
            if not 0 <= getattr(self, name) <= LARGEST:
                raise PlacerError(f"{name} is {getattr(self, name)}", remedy=f"give a number from zero{AT_MOST}")
        if not 0 < self.elite <= 1:
            raise PlacerError(f"elite is {self.elite}", remedy="give a share above 0, at most 1")
        for name in ("updates", "forgiven", "patience", "renewed"):
            if getattr(self, name) < 0:
                raise PlacerError(f"{name} is {getattr(self, name)}", remedy="give zero or more")
