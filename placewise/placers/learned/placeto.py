"""placeto: a policy walks over the units of a graph and moves one at a time; it fits any graph and cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from placewise.placers.base import PlacerInfo
from placewise.placers.learned.options import PLAIN, LearningOptions, require_at_least
from placewise.placers.learned.placer import LearnedPlacer


@dataclass(frozen=True)
class PlacetoOptions(LearningOptions):
    """Training as in Addanki et al., NeurIPS 2019; docs/learning.md lists the differences.

    Units: blocks (colocation groups) if there are at most `most_units`. Otherwise `units` joins `chains` of sole
    readers, groups by the rules of `colocation`, or nothing (`blocks`), and then heavy edges join units down to
    `most_units`. Episodes `start` at a `random` placement, the best `single` device, or the `best` placement so far.
    `stay` is the initial log odds of staying against a move. The network has `rounds` of message passing and `hidden`
    numbers per unit and direction.

    The defaults of `start`, `stay`, `rate` and the moving baseline were chosen on random graphs of 40 to 60 ops with
    2,000 evaluations each.
    """

    paper: ClassVar[Mapping[str, Any]] = {
        **PLAIN, "samples": 8, "rate": 1e-3, "final_rate": 0.1, "entropy": 0.01, "start": "random", "stay": 0.0,
    }  # fmt: skip
    reward: Literal["root", "inverse", "negative", "log"] = "negative"
    rate: float = 5e-3
    explore: float = 0.0
    units: Literal["blocks", "chains", "colocation"] = "chains"
    most_units: int = 64
    start: Literal["random", "single", "best"] = "best"
    stay: float = 2.0
    rounds: int = 8
    hidden: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, most_units=1, rounds=0, hidden=1)


class PlacetoPlacer(LearnedPlacer):
    """Moves one unit after the other, based on an embedding of the graph and its current placement."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="placeto",
        summary="a policy that moves one unit after the other, trained on the time that each move saves",
        source="Addanki et al., NeurIPS 2019 (Placeto)",
        extra="learn",
    )
    Options: ClassVar[type[LearningOptions]] = PlacetoOptions
    network: ClassVar[str] = "placewise.placers.learned.networks.placeto:placeto"
