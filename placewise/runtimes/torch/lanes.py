"""The devices of one process as lanes: what the thread of each enters, and how values go from one to another.

Lanes of the processor share its memory: nothing is copied between them, and each is a thread on its own cores. A GPU
has one stream for its calls, and one for the copies to every other device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from placewise.errors import RunError
from placewise.runtimes.torch.payload import LanePlace
from placewise.runtimes.torch.task_graph import HOST

_CUDA: Any = torch.cuda


@dataclass(frozen=True, slots=True)
class _Copied:
    """A value on its way to a lane: there as soon as `event`, on the stream of the copy, has passed."""

    value: Any
    event: Any


class Lanes:
    """Lanes in this process; raises RunError for a GPU that PyTorch does not see."""

    def __init__(self, places: Sequence[LanePlace]) -> None:
        self.places = places
        self._streams: dict[int, Any] = {}
        self._copies: dict[tuple[int, int], Any] = {}
        for lane, place in enumerate(places):
            if place.is_cuda:
                number = int(place.device.partition(":")[2] or 0)
                here = torch.cuda.device_count()
                if number >= here:
                    raise RunError(f"PyTorch sees {here} GPUs here, and {place.device} is none of them")
                self._streams[lane] = _CUDA.Stream(place.device)

    def enter(self, lane: int) -> Any:
        """What the thread of a lane enters: its cores, its stream, no gradients."""
        return self._inside(lane)

    @contextmanager
    def _inside(self, lane: int) -> Iterator[None]:
        place = self.places[lane]
        if place.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, place.cores)  # of this thread alone
            torch.set_num_threads(len(place.cores))
        with torch.no_grad():
            if lane not in self._streams:
                yield
            else:
                with torch.cuda.device(place.device), torch.cuda.stream(self._streams[lane]):
                    yield

    def send(self, value: Any, source: int, target: int) -> Any:
        """The value for another lane; a copy that a GPU is part of begins as soon as the value is computed."""
        there = "cpu" if target == HOST else self.places[target].device
        if not isinstance(value, torch.Tensor) or not (value.is_cuda or there.startswith("cuda")):
            return value
        stream = self._copy_stream(value, source, target, there)
        if value.is_cuda:
            made = _CUDA.Event()
            made.record(torch.cuda.current_stream(value.device))
            stream.wait_event(made)
        with torch.cuda.stream(stream):
            moved = value.to(there, non_blocking=True)
            event = _CUDA.Event()
            event.record(stream)
        if value.is_cuda:
            value.record_stream(stream)
        return _Copied(moved, event)

    def receive(self, value: Any, lane: int) -> Any:
        """The value as the lane's own thread may read it."""
        if not isinstance(value, _Copied):
            return value
        if lane in self._streams:
            self._streams[lane].wait_event(value.event)
            value.value.record_stream(self._streams[lane])
        else:
            value.event.synchronize()
        return value.value

    def _copy_stream(self, value: torch.Tensor, source: int, target: int, there: str) -> Any:
        if (source, target) not in self._copies:
            self._copies[source, target] = _CUDA.Stream(value.device if value.is_cuda else there)
        return self._copies[source, target]
