"""What ColocRL and HDP share: the settings of a sequence-to-sequence policy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from placewise.errors import PlacerError
from placewise.placers.learned.options import LearningOptions


@dataclass(frozen=True)
class SequenceOptions(LearningOptions):
    """The settings of an encoder and a decoder over a sequence of groups.

    `hidden`: width of both; `device_width` of the device that the decoder is fed. `attention`: the decoder looks at
    all groups, else only at its own state. `aligned`: it is also fed the encoder's state at the group that it
    decides. `both_ways`: the encoder reads forwards and backwards. `adjacency`: groups are told their neighbours;
    `costs`: and their seconds on each device, what they send, hold, and where on the longest paths they are.
    A share `moving` of updates begins with the best placement so far, from which a stretch of groups moves to one
    device, and its reward is what it gains (0: none, the paper).
    Logits are divided by `temperature`, then bounded by `tanh_constant` · tanh (0: not bounded).

    `entropy`, `rate`, `costs`, `aligned` and the algorithm were chosen on random graphs of 14 to 48 ops.
    """

    hidden: int = 64
    device_width: int = 16
    attention: bool = True
    aligned: bool = True
    both_ways: bool = False
    adjacency: bool = True
    costs: bool = False
    temperature: float = 1.0
    tanh_constant: float = 5.0
    moving: float = 0.9
    rate: float = 3e-3
    entropy: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("hidden", "device_width"):
            if getattr(self, name) < 1:
                raise PlacerError(f"{name} is {getattr(self, name)}", remedy="give one or more")
        if self.both_ways and self.hidden % 2:
            raise PlacerError(
                f"hidden is {self.hidden}", remedy="give an even number where the encoder reads both ways"
            )
        if not 0 <= self.moving <= 1:
            raise PlacerError(f"moving is {self.moving}", remedy="give a share from 0 to 1")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise PlacerError(f"temperature is {self.temperature}", remedy="give a number above zero")
        if not (self.tanh_constant >= 0 and math.isfinite(self.tanh_constant)):
            raise PlacerError(f"tanh_constant is {self.tanh_constant}", remedy="give a number from zero")
