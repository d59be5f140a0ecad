"""hsdag: groups that a network parses out of the graph, and the device of each (Duan et al., NeurIPS 2024)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from placewise.errors import PlacerError
from placewise.placers.base import PlacerInfo
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.placer import LearnedPlacer, require_share


@dataclass(frozen=True)
class HsdagOptions(LearningOptions):
    """The settings of HSDAG, besides those of training.

    An update walks through `steps` states, and draws its `samples` evenly from them; a state's rewards are weighed by
    `discount` to the power of its number. In each state `rounds` of parsing make groups, or where that is `varied` none
    in the first two states, one in the next two, and so on up to `rounds`, in turn; a node may keep to itself where it
    may be `alone`: in no state (the paper), in every second or in all. With `moves`, a sample is the best placement so
    far in which up to so many groups move on (one for sure, every other at even odds), and its reward is what it
    gains; with none (the paper), every group is placed anew. Ours, for exploration: `jitter` is the scale of Gumbel
    noise on what edges are kept by, and `explore` counts groups; `PAPER` has none of these. `encoder` gcn or none;
    `hidden` is the width of every layer, `dropout` the share of the encoder's outputs that is left out. `chains`
    merges sole children with sole parents: always (the paper), in the states where no node is alone by `alternate`, or
    never; by itself (auto) it does so always in graphs of more than 500 blocks, else in every second state: a chain
    that may not be cut can cost some per cent. What the network is told of a unit, besides the kinds of its ops:
    `shape` of outputs, in- and out-`degrees`, `fractal` dimension, sines of its `position` and the `identity` of its
    topological place; `seconds` on each device and in transfers, which the paper does not give.
    """

    samples: int = 24
    reward: Literal["root", "inverse", "negative", "log"] = "inverse"
    baseline: Literal["moving", "batch", "none"] = "batch"
    elite: float = 0.25
    entropy: float = 0.0
    explore: float = 0.5
    steps: int = 6
    rounds: int = 2
    varied: bool = True
    alone: Literal["never", "always", "alternate"] = "alternate"
    moves: int = 2
    jitter: float = 1.0
    encoder: Literal["gcn", "none"] = "gcn"
    hidden: int = 64
    dropout: float = 0.2
    chains: Literal["auto", "always", "alternate", "never"] = "auto"
    shape: bool = True
    degrees: bool = True
    fractal: bool = True
    position: bool = True
    identity: bool = True
    seconds: bool = True

    def __post_init__(self) -> None:
        LearningOptions.__post_init__(self)
        for name in ("steps", "rounds", "hidden"):
            if getattr(self, name) < 1:
                raise PlacerError(f"{name} is {getattr(self, name)}", remedy="give one or more")
        if self.moves < 0:
            raise PlacerError(f"moves is {self.moves}", remedy="give zero or more")
        require_share("dropout", self.dropout)
        if not (self.jitter >= 0 and math.isfinite(self.jitter)):
            raise PlacerError(f"jitter is {self.jitter}", remedy="give a number from zero")

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections of features that the network is given."""
        wanted = {
            "shape": self.shape, "in_degree": self.degrees, "out_degree": self.degrees, "fractal": self.fractal,
            "position": self.position, "place": self.identity, "seconds": self.seconds, "sent": self.seconds,
        }  # fmt: skip
        return ("kind", *(name for name, given in wanted.items() if given))


PAPER: Mapping[str, Any] = {
    "samples": 20, "steps": 20, "updates": 25, "baseline": "none", "normalized": False, "elite": 1.0, "discount": 0.95,
    "entropy": 0.0, "rate": 1e-3, "alone": "never", "explore": 0.0, "restless": 0.0, "renewed": 0, "jitter": 0.0,
    "chains": "always", "rounds": 1, "varied": False, "moves": 0, "hidden": 128, "seconds": False,
}  # fmt: skip
"""Options that follow the paper and its configuration to the letter: one episode of 20 steps makes an update."""


class HsdagPlacer(LearnedPlacer):
    """Features of the graph → groups by graph parsing → a device per group, learned from the time of placements."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="hsdag",
        summary="groups parsed out of the graph by a network, and a device for each, learned from rewards",
        source="Duan et al., NeurIPS 2024 (arXiv 2405.14185), HSDAG",
        extra="learn",
    )
    Options = HsdagOptions
    network = "placewise.placers.learned.networks.hsdag:policy_of"
