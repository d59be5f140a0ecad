"""colocrl: an LSTM reads groups of ops, and another one decides their devices in sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from placewise.placers.base import PlacerInfo
from placewise.placers.learned.options import LearningOptions, require_at_least
from placewise.placers.learned.placer import LearnedPlacer
from placewise.placers.learned.sequence import PAPER, SequenceOptions


@dataclass(frozen=True)
class ColocRLOptions(SequenceOptions):
    """Options of a sequence policy over co-located groups.

    `colocate_over`: the paper's rules of co-location join groups in graphs with more ops (or groups) than this; shorter
    sequences do not need them (0: always). `neighbours` is the largest number of columns for the neighbours of a group;
    beyond it, groups that are close in the order share one. `kind_width` is the width of the learned vector of an op
    kind.
    """

    paper: ClassVar[Mapping[str, Any]] = {**PAPER, "samples": 8, "colocate_over": 0}
    colocate_over: int = 512
    neighbours: int = 512
    kind_width: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, neighbours=1, kind_width=1, colocate_over=0)


class ColocRLPlacer(LearnedPlacer):
    """Device placement by a sequence-to-sequence policy over co-located groups."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="colocrl",
        summary="a sequence-to-sequence policy over co-located groups, trained on the reward",
        source="Mirhoseini et al., Device Placement Optimization with Reinforcement Learning, ICML 2017",
        extra="learn",
    )
    Options: ClassVar[type[LearningOptions]] = ColocRLOptions
    network: ClassVar[str] = "placewise.placers.learned.networks.colocrl:colocrl"
