"""The devices of one process as lanes: the context of each thread, and transfers of values between lanes.

Lanes of the processor are threads on their own cores and share memory without copies. A GPU has one stream for its
calls and one for the copies to each other device. Copies between a GPU and the host use pinned memory: from memory that
the system may move, a copy waits until it is done.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from placewise.runtimes.torch.payload import LanePlace
from placewise.runtimes.torch.split_program import require_gpu
from placewise.runtimes.torch.task_graph import HOST

_CUDA: Any = torch.cuda


@dataclass(frozen=True, slots=True)
class _PendingCopy:
    """A value that is being copied to a lane; it is complete when `event`, on the stream of the copy, has passed."""

    value: Any
    event: Any


class Lanes:
    """The lanes of this process. Raises RunError for a GPU that PyTorch does not see."""

    def __init__(self, places: Sequence[LanePlace]) -> None:
        self.places = places
        self._streams: dict[int, Any] = {}
        self._copies: dict[tuple[int, int], Any] = {}
        for lane, place in enumerate(places):
            if place.is_cuda:
                require_gpu(place.device)
                self._streams[lane] = _CUDA.Stream(place.device)

    @contextmanager
    def enter(self, lane: int) -> Iterator[None]:
        """The context of the thread of a lane: its cores, its stream, no gradients."""
        place = self.places[lane]
        if place.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, place.cores)  # applies to this thread only
            torch.set_num_threads(len(place.cores))
        with torch.no_grad():
            if lane not in self._streams:
                yield
            else:
                with torch.cuda.device(place.device), torch.cuda.stream(self._streams[lane]):
                    yield

    @property
    def has_gpu(self) -> bool:
        return bool(self._streams)

    def wait(self, lane: int) -> None:
        """Wait until a GPU has computed what this thread gave it; its calls return at once."""
        if lane in self._streams:
            computed = _CUDA.Event()
            computed.record(self._streams[lane])
            computed.synchronize()

    def send(self, value: Any, source: int, target: int) -> Any:
        """The value for another lane; a copy from or to a GPU starts when the value has been computed."""
        device = "cpu" if target == HOST else self.places[target].device
        if not isinstance(value, torch.Tensor) or not (value.is_cuda or device.startswith("cuda")):
            return value
        stream = self._copy_stream(value, source, target, device)
        if not (value.is_cuda or value.is_pinned()):
            value = value.pin_memory()
        if value.is_cuda:
            computed = _CUDA.Event()
            computed.record(torch.cuda.current_stream(value.device))
            stream.wait_event(computed)
        with torch.cuda.stream(stream):
            moved = torch.empty_like(value, device=device, pin_memory=device == "cpu").copy_(value, non_blocking=True)
            event = _CUDA.Event()
            event.record(stream)
        if value.is_cuda:
            value.record_stream(stream)
        return _PendingCopy(moved, event)

    def receive(self, value: Any, lane: int) -> Any:
        """The value, ready to be read in the thread of the lane."""
        if not isinstance(value, _PendingCopy):
            return value
        if lane in self._streams:
            self._streams[lane].wait_event(value.event)
            value.value.record_stream(self._streams[lane])
        else:
            value.event.synchronize()
        return value.value

    def _copy_stream(self, value: torch.Tensor, source: int, target: int, device: str) -> Any:
        if (source, target) not in self._copies:
            self._copies[source, target] = _CUDA.Stream(value.device if value.is_cuda else device)
        return self._copies[source, target]
