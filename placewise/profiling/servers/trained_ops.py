"""What is timed of a training step, by the names of the ops of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainedOps:
    """The names of the ops of a training graph: forward and backward ops of each call by its number, those of the loss,
    and the update of each weight; how they are updated, and which weights are not.
    """

    forward: Mapping[int, tuple[str, ...]]
    backward: Mapping[int, tuple[str, ...]]
    loss: tuple[str, ...]
    loss_backward: tuple[str, ...]
    updates: Mapping[str, tuple[str, ...]]
    optimizer: str
    frozen: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
