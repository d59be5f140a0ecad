"""The buffers that ONNX Runtime plans for the values of a session, and how long each is held.

A value takes the place of one that it may overwrite and that dies with its kernel; else the buffer of a dead value of
the same shape and bytes per element, the latest to die first; else a buffer of its own. A buffer is held from the first
value in it to the last reader of the last one, also while it is idle. As in
onnxruntime/core/framework/allocation_planner.cc, for one stream.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from placewise.runtimes.onnxruntime.memory.kernels import Kernel, Session


class Span(NamedTuple):
    """A buffer: the kernels during the first and the last of which it is held, and its bytes."""

    first: int
    last: int
    nbytes: int


def spans_of(session: Session, *, bound: bool = False) -> list[Span]:
    """The buffers in the order in which they are asked for; what the caller gave has none.

    With `bound`, the caller also has a place for what is given back to it.
    """
    plan, end = _Plan(session), len(session.kernels) - 1
    for number, kernel in enumerate(session.kernels):
        plan.run(number, kernel)
    return [
        Span(first, end if buffer in session.kept else plan.last[buffer], session.values[buffer].nbytes)
        for buffer, first in plan.first.items()
        if not (bound and buffer in session.kept)
    ]


class _Plan:
    """Buffers are numbered by the first value in them; `left` counts the uses of all values in one that are to come."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._uses = Counter(value for kernel in session.kernels for value in kernel.reads)
        self._uses.update(session.kept | session.given)
        self._buffer = {value: value for value in session.given}
        self._left = {value: self._uses[value] for value in session.given}
        self._free: list[int] = []
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}

    def run(self, number: int, kernel: Kernel) -> None:
        for row, value in enumerate(kernel.makes):
            buffer = self._buffer[value] = self._chosen(kernel, row, value)
            if buffer == value:
                self.first[buffer], self._left[buffer] = number, 0
            self._left[buffer] += self._uses[value]
        for value in kernel.reads:
            self._left[self._buffer[value]] -= 1
        for buffer in dict.fromkeys(self._buffer[value] for value in (*kernel.reads, *kernel.makes)):
            self.last[buffer] = number
            if not self._left[buffer]:
                self._free.insert(0, buffer)

    def _chosen(self, kernel: Kernel, row: int, value: int) -> int:
        """The buffer of a value that is made; its own number is a new one."""
        wanted = self._session.values[value]
        if value in self._session.kept:
            return value
        if row == 0 and kernel.view and kernel.reads:
            return self._buffer[kernel.reads[0]]
        if wanted.shape is None:
            return value
        for other in kernel.over if row == 0 else ():
            if self._left[self._buffer[other]] == 1 and self._equal(other, value):
                return self._buffer[other]
        for buffer in self._free if wanted.shape else ():
            if self._equal(buffer, value):
                self._free.remove(buffer)
                return buffer
        return value

    def _equal(self, one: int, other: int) -> bool:
        values = self._session.values
        return (values[one].shape, values[one].item) == (values[other].shape, values[other].item)
