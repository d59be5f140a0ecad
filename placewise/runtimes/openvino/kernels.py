"""Which ops of a graph each kernel computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placewise.model.columns import Ints
from placewise.readers.openvino.folded_model import FoldedModel
from placewise.runtimes.openvino.server import Kernel

_NO_WORK = frozenset({"Constant", "Parameter", "Result"})


@dataclass(frozen=True, slots=True)
class Attributed:
    """A kernel's mean seconds, and the ops of the graph behind it: fused ones together, none for a mere reordering.

    `device` is OpenVINO's name of the device that ran it.
    """

    name: str
    type: str
    device: str
    seconds: float
    ops: tuple[int, ...]


def attributed(kernels: Sequence[Kernel], listing: FoldedModel, belongs: Ints) -> list[Attributed]:
    """The kernels with the ops of the graph that they compute, `belongs` [n of the listing] as `counterparts` says.

    What no kernel names was fused into what reads it: names get lost where ops are rewritten.
    """
    kernel_of = [-1] * len(listing)
    for number, kernel in enumerate(kernels):
        for row in kernel.ops:
            kernel_of[row] = number
    readers: list[list[int]] = [[] for _ in range(len(listing))]
    for row, sources in enumerate(listing.sources):
        for source in sources:
            readers[source].append(row)
    for row in reversed(range(len(listing))):
        if kernel_of[row] < 0 and listing.type[row] not in _NO_WORK:
            kernel_of[row] = next((kernel_of[reader] for reader in readers[row] if kernel_of[reader] >= 0), -1)
    ops: list[set[int]] = [set() for _ in kernels]
    for row, number in enumerate(kernel_of):
        if number >= 0 and listing.type[row] not in _NO_WORK and belongs[row] >= 0:
            ops[number].add(int(belongs[row]))
    return [
        Attributed(kernel.name, kernel.type, kernel.device, kernel.seconds, tuple(sorted(own)))
        for kernel, own in zip(kernels, ops, strict=True)
    ]
