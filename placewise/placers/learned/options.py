"""The options that all learned policies share, and the old names of renamed options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

from placewise.errors import PlacerError

LARGEST = 1e15
"""Largest option value: the product of two of them is still a single-precision number."""
AT_MOST = f" to {LARGEST:g}"
Baseline = Literal["moving", "average", "batch", "none"]
RENAMED = {
    "failed": "failure_penalty",
    "forgiven": "invalid_grace",
    "leanings": "prior_sets",
    "looks": "refinements",
    "renewed": "restart_after",
    "restless": "extra_exploration",
}
"""Old names of options → their names. Both are read, from users and from checkpoints; the new ones are written."""
PLAIN: Mapping[str, Any] = {
    "elite": 1.0, "entropy": 0.0, "explore": 0.0, "extra_exploration": 0.0, "restart_after": 0, "greedy_every": 0,
    "normalized": False,
}  # fmt: skip
"""The part of `paper` presets that all policies share: plain policy gradients on whole placements."""


def require_at_least(options: object, **least: int) -> None:
    """Raise PlacerError for the first option below its least value."""
    words = {0: "zero", 1: "one"}
    for name, bound in least.items():
        if getattr(options, name) < bound:
            raise PlacerError(f"{name} is {getattr(options, name)}", remedy=f"give {words.get(bound, bound)} or more")


@dataclass(frozen=True)
class LearningOptions:
    """Options of training.

    `preset` chooses the values of all options that are not given: `default`, ours, is a search that a network guides;
    `paper` follows the policy's paper (docs/learning.md lists what still differs). Options that
    are given win.

    Length of training: an update draws `samples` episodes. Without a limit in the budget there are `updates` of them;
    0 means that the policy is not trained and only its own choices are priced. `patience` stops after that many updates
    without a better placement (0: never). `checkpoint` is where the initial weights come from.

    Rewards: a function of the seconds t over those of the best single device s: `root` −√(t/s), `inverse` s/t,
    `negative` −t/s, `log` −log(t/s). A failed placement counts as `failure_penalty` times s, and is left out after
    `invalid_grace` updates. `discount` weighs later rewards if there are several.

    Advantages: the `baseline` is the `moving` average of rewards (with `decay`), the `average` of all, the mean of the
    `batch`, or `none`;
    `normalized` divides advantages by their standard deviation. With `elite` < 1 only that best share of an update
    counts, by what it is above the rest (risk-seeking policy gradients, Petersen et al., ICLR 2021).

    Steps: `rate` is Adam's, and falls to `final_rate` times itself along the budget. With a rate of 0 everything runs
    but the update of the parameters: the control without learning. Gradients are clipped at norm `clip_norm`. PPO
    takes `epochs` steps per update, with ratios within 1 ± `clip`.

    Exploration: `entropy` is the weight of the entropy bonus, which falls to zero along the budget. On average,
    `explore` decisions per placement are uniformly random. After an update of which less than a quarter is unseen,
    there are `extra_exploration` more of them, and as many fewer after any other, at most half of all decisions. In a
    budget of evaluations, training restarts from its initial weights after `restart_after` updates without a better
    placement if the last update was mostly seen; the best placement and all prices are kept (0: never).
    Every `greedy_every` updates, and at the end, the policy's preferred placement is priced (0: only where there are no
    updates).

    Examples
    --------
    >>> LearningOptions(samples=8).preset
    'default'

    """

    aliases: ClassVar[Mapping[str, str]] = RENAMED
    paper: ClassVar[Mapping[str, Any]] = {}
    preset: Literal["default", "paper"] = "default"
    samples: int = 16
    updates: int = 100
    algorithm: Literal["reinforce", "ppo"] = "reinforce"
    reward: Literal["root", "inverse", "negative", "log"] = "root"
    baseline: Baseline = "moving"
    normalized: bool = True
    elite: float = 1.0
    decay: float = 0.9
    rate: float = 1e-3
    final_rate: float = 1.0
    entropy: float = 0.01
    explore: float = 1.0
    extra_exploration: float = 0.25
    restart_after: int = 40
    greedy_every: int = 10
    clip_norm: float = 1.0
    discount: float = 1.0
    epochs: int = 4
    clip: float = 0.2
    failure_penalty: float = 10.0
    invalid_grace: int = 5000
    patience: int = 0
    checkpoint: str = ""

    def __new__(cls, *values: Any, **given: Any) -> Self:
        """Remember which options are given, so that a preset leaves them alone."""
        made = super().__new__(cls)
        positional = [field.name for field in fields(cls)][: len(values)]
        made.__dict__["given"] = {*positional, *given}
        return made

    def __post_init__(self) -> None:
        given = self.__dict__.pop("given")
        if self.preset == "paper":
            if not self.paper:
                raise PlacerError("preset is 'paper', and this policy has no paper", remedy="leave out the preset")
            for name in self.paper.keys() - given:
                object.__setattr__(self, name, self.paper[name])
        require_at_least(self, samples=1, epochs=1, updates=0, invalid_grace=0, patience=0, restart_after=0)
        require_at_least(self, greedy_every=0)
        self.require_numbers("clip_norm", "failure_penalty", "clip", above_zero=True)
        self.require_numbers("rate", "decay", "discount", "entropy", "explore", "extra_exploration", "final_rate")
        if not 0 < self.elite <= 1:
            raise PlacerError(f"elite is {self.elite}", remedy="give a share above 0, at most 1")

    def require_shares(self, *names: str, below_one: bool = False) -> None:
        """Raise PlacerError for the first option that is not from 0 to 1, or with `below_one` from 0 to below 1."""
        for name in names:
            value = getattr(self, name)
            if not (0 <= value <= 1) or (below_one and value == 1):
                remedy = "give a share from 0 to below 1" if below_one else "give a share from 0 to 1"
                raise PlacerError(f"{name} is {value}", remedy=remedy)

    def require_numbers(self, *names: str, above_zero: bool = False) -> None:
        """Raise PlacerError for the first option that is not from 0 (or above it) to LARGEST."""
        for name in names:
            value = getattr(self, name)
            if not (0 <= value <= LARGEST) or (above_zero and not value):
                lowest = "above" if above_zero else "from"
                raise PlacerError(f"{name} is {value}", remedy=f"give a number {lowest} zero{AT_MOST}")
