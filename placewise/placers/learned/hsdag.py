"""hsdag: a network parses the graph into groups and chooses the device of each (Duan et al., NeurIPS 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from placewise.placers.base import PlacerInfo
from placewise.placers.learned.options import (
    LARGEST,
    PLAIN,
    LearningOptions,
    require_at_least,
    require_number,
    require_share,
)
from placewise.placers.learned.placer import LearnedPlacer


@dataclass(frozen=True)
class HsdagOptions(LearningOptions):
    """Options of HSDAG, besides those of training.

    Walk: an update visits `steps` states, and draws its `samples` evenly from them; rewards of state i are weighed by
    `discount` to the power i. A state has `rounds` of parsing. With `varied`, the first two states have none, the next
    two one, and so on up to `rounds`, in turn. Nodes may keep to themselves in `alone` states: never (the paper), every
    second (alternate) or always.

    Moves: with `moves` > 0, a sample is the best placement so far in which up to that many groups move (one certainly,
    each further one with probability ½), and its reward is the gain. With 0 (the paper), all groups are placed anew.

    Exploration, none of which is the paper's: `jitter` is the scale of Gumbel noise on edge scores, and `explore`
    counts groups. `dropout` is the share of the encoder's outputs that is dropped.

    Network: `hidden` is the width of all layers. `chains` merges sole children with sole
    parents: always (the paper), in states without lone nodes (alternate), or never. The default (auto) merges always in
    graphs of more than 500 blocks, and else alternates: a chain that cannot be split may cost some per cent.

    Features of a unit, besides the kinds of its ops: `shape` of outputs, in- and out-`degrees`, `fractal` dimension,
    sines of its `position` and the `identity` of its topological place; `seconds` on each device and in transfers,
    which the paper does not have.

    In the preset `paper`, an update is one episode of 20 steps, and 25 of them are the paper's whole budget.
    """

    paper: ClassVar[Mapping[str, Any]] = {
        **PLAIN, "samples": 20, "steps": 20, "updates": 25, "baseline": "none", "discount": 0.95, "clip_norm": LARGEST,
        "rate": 1e-3, "alone": "never", "jitter": 0.0, "chains": "always", "rounds": 1, "varied": False, "moves": 0,
        "hidden": 128, "seconds": False,
    }  # fmt: skip
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
        super().__post_init__()
        require_at_least(self, steps=1, rounds=1, hidden=1, moves=0)
        require_share("dropout", self.dropout, below_one=True)
        require_number("jitter", self.jitter)

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections of features of the network."""
        wanted = {
            "shape": self.shape, "in_degree": self.degrees, "out_degree": self.degrees, "fractal": self.fractal,
            "position": self.position, "place": self.identity, "seconds": self.seconds, "sent": self.seconds,
        }  # fmt: skip
        return ("kind", *(name for name, used in wanted.items() if used))


class HsdagPlacer(LearnedPlacer):
    """Features of the graph → groups by graph parsing → a device per group, learned from the time of placements."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="hsdag",
        summary="groups parsed out of the graph by a network, and a device for each, learned from rewards",
        source="Duan et al., NeurIPS 2024 (arXiv 2405.14185), HSDAG",
        extra="learn",
    )
    Options: ClassVar[type[LearningOptions]] = HsdagOptions
    network: ClassVar[str] = "placewise.placers.learned.networks.hsdag:hsdag"
