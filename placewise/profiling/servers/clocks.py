"""Clocks for calls: that of the host, and events of a GPU, which has its own time and answers later."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

_CUDA: Any = torch.cuda


class Clock(Protocol):
    """Marks moments between calls; what lies between two marks is known after `wait`."""

    def mark(self) -> Any:
        """The moment between the calls before and after."""

    def wait(self) -> None:
        """Wait until everything that was called has been computed."""

    def seconds(self, begin: Any, end: Any) -> float:
        """The seconds between two marks."""


class HostClock:
    """The processor's: a call has been computed when it returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def wait(self) -> None:
        pass

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class GpuClock:
    """Events on the current stream of a GPU: neither launching nor waiting for each call is part of its time."""

    def __init__(self, device: str) -> None:
        self._device = device

    def mark(self) -> Any:
        event = _CUDA.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait(self) -> None:
        torch.cuda.synchronize(self._device)

    def seconds(self, begin: Any, end: Any) -> float:
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds * 1e-3
