"""What the worker of a program receives: the program, and the device that runs each of its calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Payload:
    """A program in a file (`path`) and the device number of each call, by the number of the call (`origin`).

    `names` are the names of the calls that ops stand for, `start` their start times by the judge in seconds, and
    `shown` is the program's name in messages. `trusted`: loading it may run what the file holds. `tf32` is what GPUs
    compute in TF32: "products", "convolutions" or "nothing".
    """

    path: str
    shown: str
    device: Mapping[int, int]
    names: Mapping[int, str]
    start: Mapping[int, float]
    trusted: bool = False
    tf32: str = "nothing"


@dataclass(frozen=True, slots=True)
class LanePlace:
    """Where a lane computes: ``cpu`` or ``cuda:1``, and the cores of its thread."""

    device: str
    cores: tuple[int, ...] = ()

    @property
    def is_cuda(self) -> bool:
        return self.device.startswith("cuda")
