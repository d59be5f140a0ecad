"""hdp: a network deals ops into groups, a sequence-to-sequence network places the groups; both learn together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from placewise.errors import PlacerError
from placewise.placers.base import PlacerInfo
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.placer import LearnedPlacer
from placewise.placers.learned.sequence import SequenceOptions

PER_DEVICE, MOST_GROUPS = 20, 256
"""Groups: the rule of TensorFlow's grappler, hierarchical_controller.py, which is the authors' own code."""


@dataclass(frozen=True)
class HDPOptions(SequenceOptions):
    """The settings of a grouper and a placer.

    `groups`: how many (0: 20 per device, 256 at most), never more than there are ops. `grouper_width`: its hidden
    layer. `nearness`: how strongly an untrained grouper keeps ops together that are near in topological order
    (0: not at all, as in the paper). `neighbours`: how many of an op's inputs and of its readers the grouper is told.
    """

    groups: int = 0
    grouper_width: int = 64
    nearness: float = 2.0
    neighbours: int = 4
    both_ways: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("groups", 0), ("grouper_width", 1), ("neighbours", 0)):
            if getattr(self, name) < least:
                raise PlacerError(f"{name} is {getattr(self, name)}", remedy=f"give {least} or more")
        if not (self.nearness >= 0 and math.isfinite(self.nearness)):
            raise PlacerError(f"nearness is {self.nearness}", remedy="give a number from zero")

    def n_groups(self, n_units: int, n_devices: int) -> int:
        """How many groups a problem is given."""
        return max(1, min(self.groups or min(MOST_GROUPS, PER_DEVICE * n_devices), n_units))


class HDPPlacer(LearnedPlacer):
    """Hierarchical device placement: a grouper and a placer, trained jointly."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="hdp",
        summary="ops dealt into groups by one network, groups placed by another, learned jointly from rewards",
        source="Mirhoseini et al., A Hierarchical Model for Device Placement, ICLR 2018",
        extra="learn",
    )
    Options: ClassVar[type[LearningOptions]] = HDPOptions
    network = "placewise.placers.learned.networks.hdp:hdp"
