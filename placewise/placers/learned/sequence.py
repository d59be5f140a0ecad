"""The options that ColocRL and HDP share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placewise.errors import PlacerError
from placewise.placers.learned.options import PLAIN, LearningOptions, require_at_least, require_number, require_share

PAPER: Mapping[str, Any] = {
    **PLAIN, "failure_penalty": 1e4, "hidden": 512, "aligned": False, "moving": 0.0, "rate": 1e-3,
}  # fmt: skip
"""What the papers of ColocRL and HDP share. A failure counts as √10,000 = 100."""


@dataclass(frozen=True)
class SequenceOptions(LearningOptions):
    """Options of a sequence-to-sequence policy.

    `hidden` is the width of encoder and decoder, `device_width` that of the device that the decoder is fed. `aligned`:
    the decoder is also fed the encoder's state at the group that it decides. `both_ways`: the encoder is bidirectional.
    A share `moving` of updates starts from the best placement so far: a segment of groups moves to one device, and the
    reward is the gain (0: none, as in the paper). Logits are divided by `temperature`, then bounded by `tanh_constant`
    · tanh (0: not bounded).

    The defaults of `entropy`, `rate`, `aligned` and the algorithm were chosen on random graphs of 14 to 48 ops.
    """

    hidden: int = 64
    device_width: int = 16
    aligned: bool = True
    both_ways: bool = False
    temperature: float = 1.0
    tanh_constant: float = 5.0
    moving: float = 0.9
    rate: float = 3e-3
    entropy: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, hidden=1, device_width=1)
        if self.both_ways and self.hidden % 2:
            raise PlacerError(f"hidden is {self.hidden}", remedy="give an even number for a bidirectional encoder")
        require_share("moving", self.moving)
        require_number("temperature", self.temperature, above_zero=True)
        require_number("tanh_constant", self.tanh_constant)
