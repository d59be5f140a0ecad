"""placeto: a walk over the units of a graph that moves one at a time, by a policy that fits any graph and cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from placewise.errors import PlacerError
from placewise.placers.base import PlacerInfo
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.placer import LearnedPlacer


@dataclass(frozen=True)
class PlacetoOptions(LearningOptions):
    """Training as in Addanki et al., NeurIPS 2019, with what differs told in docs/learning.md.

    Blocks (colocation groups) are units where there are at most `most_units`; else `units` says what goes together:
    `chains` of sole readers, the rules of `colocation`, or no more than `blocks`; and heavy edges join what are still
    too many. `start` of an episode: a placement at `random`, the best `single` device, or the `best` placement so
    far. `rewarded`: after `moves`, by the time that each saves, or at the `end` alone. `stay`: how much likelier than
    a move it is, as log odds, that a unit stays, before anything is learned. `rounds` of message passing between
    neighbours, `hidden` numbers per unit and way; `pooled`: parents, children and parallel units are summed up, else
    the policy sees the unit's own embedding alone.

    `start`, `stay`, `rate` and the moving baseline were chosen on random graphs of 40 to 60 ops with 2,000 prices
    each.
    """

    reward: Literal["root", "inverse", "negative", "log"] = "negative"
    rate: float = 5e-3
    explore: float = 0.0
    units: Literal["blocks", "chains", "colocation"] = "chains"
    most_units: int = 64
    start: Literal["random", "single", "best"] = "best"
    rewarded: Literal["moves", "end"] = "moves"
    stay: float = 2.0
    rounds: int = 8
    hidden: int = 16
    pooled: bool = True

    def __post_init__(self) -> None:
        LearningOptions.__post_init__(self)
        for name, least in (("most_units", 1), ("rounds", 0), ("hidden", 1)):
            if getattr(self, name) < least:
                raise PlacerError(f"{name} is {getattr(self, name)}", remedy=f"give {least} or more")


class PlacetoPlacer(LearnedPlacer):
    """Moves one unit after the other, each by an embedding of the graph as it is placed at that moment."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="placeto",
        summary="a policy that moves unit after unit, trained for the time that each move saves",
        source="Addanki et al., NeurIPS 2019 (Placeto)",
        extra="learn",
    )
    Options: ClassVar[type[LearningOptions]] = PlacetoOptions
    network: ClassVar[str] = "placewise.placers.learned.networks.placeto:placeto"
