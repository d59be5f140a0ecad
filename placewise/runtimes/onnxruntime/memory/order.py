"""The order in which ONNX Runtime runs the kernels of a session: what a result needs, the latest of it first.

From the kernels whose results no other reads, the last one first, back to what they read, again the last one first; a
kernel runs when all that it reads has been made. As in Graph::ReverseDFSFrom of onnxruntime/core/graph/graph.cc.
"""

from __future__ import annotations

from dataclasses import replace

from placewise.runtimes.onnxruntime.memory.kernels import Kernel, Session


def in_order(session: Session) -> Session:
    """The session with its kernels in the order in which they run; ranks say which of them are later."""
    maker = {value: kernel for kernel in session.kernels for value in kernel.makes}
    read = {value for kernel in session.kernels for value in kernel.reads}
    ends = [kernel for kernel in session.kernels if read.isdisjoint(kernel.makes)]
    todo = [(kernel, False) for kernel in _by_rank(ends)]
    seen, order = set[Kernel](), list[Kernel]()
    while todo:
        kernel, ready = todo.pop()
        if ready:
            order.append(kernel)
        elif kernel not in seen:
            seen.add(kernel)
            before = {maker[value] for value in kernel.reads if value in maker}
            todo += [(kernel, True), *((other, False) for other in _by_rank(before - seen))]
    return replace(session, kernels=order)


def _by_rank(kernels: set[Kernel] | list[Kernel]) -> list[Kernel]:
    return sorted(kernels, key=lambda kernel: kernel.rank)
