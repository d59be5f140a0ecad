"""gdp: every op of a graph is placed at once, by a policy whose weights fit any graph and any devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from placewise.errors import PlacerError
from placewise.placers.base import PlacerInfo
from placewise.placers.learned.observer import Observer
from placewise.placers.learned.options import AT_MOST, LARGEST, LearningOptions
from placewise.placers.learned.placer import LearnedPlacer

if TYPE_CHECKING:
    from placewise.placers.learned.checkpoint import Checkpoint

SHIPPED = Path(__file__).parent / "pretrained" / "gdp"
"""The weights that come with the package."""
SHAPE = ("layers", "attentions", "heads", "hidden", "inner", "leanings")
"""Options that say how many weights there are."""


@dataclass(frozen=True)
class GdpOptions(LearningOptions):
    """Training as in Zhou et al. 2019 (GDP), with what differs told in docs/learning.md.

    Blocks (colocation groups) are units; with `units` "coarse", graphs of more than `most_units` are grouped first.
    `layers` of neighbourhood aggregation, then `attentions` layers of `heads` over segments of `segment` units, and
    `rounds` in which devices are scored with what the round before would make of loads and neighbours; `hidden` numbers
    per unit, `inner` per unit and device. `prior` weighs what scores are before anything is learned, leanings: speed,
    neighbours, loads, and what list schedulers would do (0: nothing). There are `leanings` sets of them, each of which
    gives favourites of its own; draws come from the first. Asked for favourites, the policy `looks` again at the best
    of them, at most so often, while that brings something better. In a share `moving` of the updates, `regions` of
    units that stand side by side move together, from the `best` placement so far, from the policy's `own` choice, or
    from both in turn (`start`). `pretrained`: the weights that come with the package are the first ones. Switches of
    parts: `attention`, `superposition`, `device_features`, and `advice`, which tells the policy what list schedulers
    would do, and has what METIS does priced as well.
    """

    algorithm: Literal["reinforce", "ppo"] = "ppo"
    epochs: int = 2
    rate: float = 5e-4
    units: Literal["coarse", "all"] = "coarse"
    most_units: int = 512
    layers: int = 2
    attentions: int = 2
    heads: int = 4
    segment: int = 256
    rounds: int = 8
    hidden: int = 64
    inner: int = 32
    leanings: int = 16
    looks: int = 12
    prior: float = 1.0
    moving: float = 1.0
    regions: int = 2
    start: Literal["best", "own", "both"] = "best"
    attention: bool = True
    superposition: bool = True
    device_features: bool = True
    advice: bool = True
    pretrained: bool = True

    def __post_init__(self) -> None:
        LearningOptions.__post_init__(self)
        least = {
            "most_units": 1,
            "layers": 0,
            "attentions": 0,
            "heads": 1,
            "segment": 1,
            "rounds": 1,
            "hidden": 1,
            "inner": 1,
            "leanings": 1,
            "looks": 0,
            "regions": 1,
        }
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise PlacerError(f"{name} is {getattr(self, name)}", remedy=f"give {bound} or more")
        if self.hidden % self.heads:
            raise PlacerError(f"hidden is {self.hidden}", remedy=f"give a multiple of the {self.heads} heads")
        if not 0 <= self.moving <= 1:
            raise PlacerError(f"moving is {self.moving}", remedy="give a share from 0 to 1")
        if not 0 <= self.prior <= LARGEST:
            raise PlacerError(f"prior is {self.prior}", remedy=f"give a number from zero{AT_MOST}")


class GdpPlacer(LearnedPlacer):
    """ReadOptions without updates, it places a graph that it was never trained on."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="gdp",
        summary="a policy that places all ops at once, and whose weights fit any graph and any devices",
        source="Zhou et al. 2019, arXiv 1910.01578 (GDP); Zhou et al., NeurIPS 2020 (GO)",
        extra="learn",
    )
    Options: ClassVar[type[LearningOptions]] = GdpOptions
    network: ClassVar[str] = "placewise.placers.learned.networks.gdp:gdp"

    def __init__(self, options: LearningOptions | None = None, observer: Observer | None = None) -> None:
        super().__init__(options, observer)
        if self.trained is None and getattr(self.options, "pretrained", False) and SHIPPED.is_dir():
            shipped: Checkpoint = import_module("placewise.placers.learned.checkpoint").read(SHIPPED)
            _require_shape(self.options, shipped.header.options)
            self.trained = shipped


def _require_shape(options: LearningOptions, shipped: Mapping[str, Any]) -> None:
    """Raise PlacerError unless the weights that come with the package are for a network of this shape."""
    for name in SHAPE:
        wanted = getattr(options, name)
        if name in shipped and shipped[name] != wanted:
            raise PlacerError(
                f"{name} is {wanted}, and {shipped[name]} in the weights that come with Placewise",
                remedy="give pretrained=false to begin with none",
            )
