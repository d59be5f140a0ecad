"""hdp: a network assigns ops to groups, and a sequence-to-sequence network places the groups; both learn jointly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from placewise.placers.base import PlacerInfo
from placewise.placers.learned.options import LearningOptions, require_at_least, require_number
from placewise.placers.learned.placer import LearnedPlacer
from placewise.placers.learned.sequence import PAPER, SequenceOptions

PER_DEVICE, MAX_GROUPS = 20, 256
"""The number of groups follows the authors' code: TensorFlow's grappler, hierarchical_controller.py."""


@dataclass(frozen=True)
class HDPOptions(SequenceOptions):
    """Options of a grouper and a placer.

    `groups` is their number (0: 20 per device, 256 at most), never more than there are ops. `grouper_width` is the
    width of the grouper's hidden layer. `nearness` is the initial preference of the grouper for groups of ops that are
    close in topological order (0: none, as in the paper). `neighbours` is the number of inputs, and of readers, of an
    op whose places the grouper sees.
    """

    paper: ClassVar[Mapping[str, Any]] = {**PAPER, "samples": 8, "groups": MAX_GROUPS, "nearness": 0.0}
    groups: int = 0
    grouper_width: int = 64
    nearness: float = 2.0
    neighbours: int = 4
    both_ways: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, groups=0, grouper_width=1, neighbours=0)
        require_number("nearness", self.nearness)

    def n_groups(self, n_units: int, n_devices: int) -> int:
        """The number of groups for a problem."""
        return max(1, min(self.groups or min(MAX_GROUPS, PER_DEVICE * n_devices), n_units))


class HDPPlacer(LearnedPlacer):
    """Hierarchical device placement: a grouper and a placer, trained jointly."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="hdp",
        summary="one network assigns ops to groups, another places the groups; both learn jointly from rewards",
        source="Mirhoseini et al., A Hierarchical Model for Device Placement, ICLR 2018",
        extra="learn",
    )
    Options: ClassVar[type[LearningOptions]] = HDPOptions
    network: ClassVar[str] = "placewise.placers.learned.networks.hdp:hdp"
