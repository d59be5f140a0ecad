"""gdp: a policy places all ops of a graph at once; its weights fit any graph and any devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from placewise.errors import PlacerError
from placewise.placers.base import PlacerInfo
from placewise.placers.learned.options import PLAIN, LearningOptions, require_at_least, require_number, require_share
from placewise.placers.learned.placer import LearnedPlacer, Observer

if TYPE_CHECKING:
    from placewise.placers.learned.checkpoint import Checkpoint

SHIPPED = Path(__file__).parent / "pretrained" / "gdp"
"""The weights in the package."""
SHAPE = ("layers", "attentions", "heads", "hidden", "inner", "prior_sets")
"""Options that determine the number of weights."""


@dataclass(frozen=True)
class GdpOptions(LearningOptions):
    """Training as in Zhou et al. 2019 (GDP); docs/learning.md lists the differences.

    Units are blocks (colocation groups); with `units` "coarse", graphs of more than `most_units` blocks are coarsened
    first. The network has `layers` of neighbourhood aggregation, then `attentions` layers with `heads` over segments of
    `segment` units, and `rounds` in which devices are scored with the loads and neighbours that follow from the round
    before; `hidden` numbers per unit, `inner` per unit and device.

    `prior` is the weight of the initial scores, which prefer fast and idle devices, the neighbours' devices, and what
    list schedulers choose (0: none). There are `prior_sets` sets of such weights, each of which gives choices of its
    own; samples are drawn from the first. `refinements` is the largest number of times that the policy refines the best
    of its choices, while that helps. In a share `moving` of the updates, `regions` of units that are close in an order
    move together, from the best placement so far. `pretrained` starts from the weights in the package.

    Switches: `attention`, `superposition`, `device_features`, and `advice`, which adds the choices of list schedulers
    as features and prices the placement of METIS.
    """

    paper: ClassVar[Mapping[str, Any]] = {
        **PLAIN, "epochs": 4, "rate": 1e-4, "entropy": 0.01, "units": "all", "attentions": 3, "heads": 8, "hidden": 128,
        "rounds": 1, "prior_sets": 1, "refinements": 0, "prior": 0.0, "moving": 0.0, "device_features": False,
        "advice": False, "pretrained": False,
    }  # fmt: skip
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
    prior_sets: int = 16
    refinements: int = 12
    prior: float = 1.0
    moving: float = 1.0
    regions: int = 2
    attention: bool = True
    superposition: bool = True
    device_features: bool = True
    advice: bool = True
    pretrained: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, most_units=1, layers=0, attentions=0, heads=1, segment=1, rounds=1, hidden=1, inner=1)
        require_at_least(self, prior_sets=1, refinements=0, regions=1)
        if self.hidden % self.heads:
            raise PlacerError(f"hidden is {self.hidden}", remedy=f"give a multiple of the {self.heads} heads")
        require_share("moving", self.moving)
        require_number("prior", self.prior)


class GdpPlacer(LearnedPlacer):
    """Without updates, it places graphs that it was never trained on."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="gdp",
        summary="a policy that places all ops at once, on any graph; shipped with preferences, its network untrained",
        source="Zhou et al. 2019, arXiv 1910.01578 (GDP); Zhou et al., NeurIPS 2020 (GO)",
        extra="learn",
    )
    Options: ClassVar[type[LearningOptions]] = GdpOptions
    network: ClassVar[str] = "placewise.placers.learned.networks.gdp:gdp"

    def __init__(self, options: LearningOptions | None = None, observer: Observer | None = None) -> None:
        super().__init__(options, observer)
        if self.trained is None and getattr(self.options, "pretrained", False) and SHIPPED.is_dir():
            shipped: Checkpoint = import_module("placewise.placers.learned.checkpoint").read_checkpoint(SHIPPED)
            _require_shape(self.options, shipped.header.options)
            self.trained = shipped


def _require_shape(options: LearningOptions, shipped: Mapping[str, Any]) -> None:
    """Raise PlacerError unless the weights in the package fit a network of this shape."""
    for name in SHAPE:
        wanted = getattr(options, name)
        if name in shipped and shipped[name] != wanted:
            raise PlacerError(
                f"{name} is {wanted}, and {shipped[name]} in the weights that come with Placewise",
                remedy="give pretrained=false to start without them",
            )
