"""What the worker of a program is told: which program, and which device, by number, runs each of its calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Payload:
    """A program in a file, and per number of a call (`origin`) its device.

    `names` are those of the calls that ops stand for, `start` when the judge lets them start (seconds), `shown` what
    messages call the program.
    """

    path: str
    shown: str
    device: Mapping[int, int]
    names: Mapping[int, str]
    start: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class LanePlace:
    """Where a lane computes: ``cpu`` or ``cuda:1``, and the cores of its thread."""

    device: str
    cores: tuple[int, ...] = ()

    @property
    def is_cuda(self) -> bool:
        return self.device.startswith("cuda")
