"""colocrl: an LSTM reads groups of ops, another decides their devices one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from placewise.errors import PlacerError
from placewise.placers.base import PlacerInfo
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.placer import LearnedPlacer
from placewise.placers.learned.sequence import SequenceOptions


@dataclass(frozen=True)
class ColocRLOptions(SequenceOptions):
    """The settings of a sequence policy over co-located groups.

    `colocate_over`: what the paper's rules of co-location join moves together where the graph has more ops (or groups
    of its own) than this; shorter sequences need no such help, and nothing is lost. 0: always.
    `neighbours`: so many columns at most tell which groups are next to a group; past them groups that are near
    in the order share one. `kind_width`: width of the learned vector of a kind of op.
    """

    colocate_over: int = 512
    neighbours: int = 512
    kind_width: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("neighbours", "kind_width"):
            if getattr(self, name) < 1:
                raise PlacerError(f"{name} is {getattr(self, name)}", remedy="give one or more")
        if self.colocate_over < 0:
            raise PlacerError(f"colocate_over is {self.colocate_over}", remedy="give zero or more")


class ColocRLPlacer(LearnedPlacer):
    """Device placement by a sequence-to-sequence policy, over groups that the rules of co-location make."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="colocrl",
        summary="a sequence-to-sequence policy over co-located groups, trained on the reward",
        source="Mirhoseini et al., Device Placement Optimization with Reinforcement Learning, ICML 2017",
        extra="learn",
    )
    Options: ClassVar[type[LearningOptions]] = ColocRLOptions
    network = "placewise.placers.learned.networks.colocrl:colocrl"
