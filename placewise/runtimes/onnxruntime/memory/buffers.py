"""The buffers that ONNX Runtime plans for the values of a session, and how long each is held.

A value overwrites one that ends with its kernel, if it may; else it takes the buffer of an ended value of the same
shape and bytes per element, the latest to end first; else a new buffer. A buffer is held from its first value to the
last reader of its last value, even while it is idle. As in onnxruntime/core/framework/allocation_planner.cc, for one
stream.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from placewise.runtimes.onnxruntime.memory.session import Session, SessionKernel


class Span(NamedTuple):
    """A buffer: the first and the last kernel during which it is held, and its bytes."""

    first: int
    last: int
    nbytes: int


def plan_buffers(session: Session, *, bound: bool = False) -> list[Span]:
    """The buffers in the order of their allocation; inputs have none, and with `bound` outputs have none either."""
    plan, end = _BufferPlan(session), len(session.kernels) - 1
    for number, kernel in enumerate(session.kernels):
        plan.add_kernel(number, kernel)
    return [
        Span(first, end if buffer in session.outputs else plan.last[buffer], session.values[buffer].nbytes)
        for buffer, first in plan.first.items()
        if not (bound and buffer in session.outputs)
    ]


class _BufferPlan:
    """Buffers have the number of their first value; `_left` counts the coming uses of all values in each."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._uses = Counter(value for kernel in session.kernels for value in kernel.reads)
        self._uses.update(session.outputs | session.inputs)
        self._buffer = {value: value for value in session.inputs}
        self._left = {value: self._uses[value] for value in session.inputs}
        self._free: list[int] = []
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}

    def add_kernel(self, number: int, kernel: SessionKernel) -> None:
        for row, value in enumerate(kernel.makes):
            buffer = self._buffer[value] = self._choose_buffer(kernel, row, value)
            if buffer == value:
                self.first[buffer], self._left[buffer] = number, 0
            self._left[buffer] += self._uses[value]
        for value in kernel.reads:
            self._left[self._buffer[value]] -= 1
        for buffer in dict.fromkeys(self._buffer[value] for value in (*kernel.reads, *kernel.makes)):
            self.last[buffer] = number
            if not self._left[buffer]:
                self._free.insert(0, buffer)

    def _choose_buffer(self, kernel: SessionKernel, row: int, value: int) -> int:
        """The buffer of a new value; the number of the value itself means a new buffer."""
        result = self._session.values[value]
        if value in self._session.outputs:
            return value
        if row == 0 and kernel.view and kernel.reads:
            return self._buffer[kernel.reads[0]]
        if result.shape is None:
            return value
        for other in kernel.overwrites if row == 0 else ():
            if self._left[self._buffer[other]] == 1 and self._has_same_layout(other, value):
                return self._buffer[other]
        for buffer in self._free if result.shape else ():
            if self._has_same_layout(buffer, value):
                self._free.remove(buffer)
                return buffer
        return value

    def _has_same_layout(self, one: int, other: int) -> bool:
        values = self._session.values
        return (values[one].shape, values[one].itemsize) == (values[other].shape, values[other].itemsize)
