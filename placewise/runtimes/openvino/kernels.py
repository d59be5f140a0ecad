"""The kernels of a compiled model and the ops of a graph that each computes.

Ops carry a code while they are compiled, since the names of a model may hold anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placewise.model.columns import Ints
from placewise.readers.openvino.folded_model import FoldedModel

_PREFIX = "pw"
_SPLIT_OP = re.compile(rf'label="{_PREFIX}(\d+)\\n[^"]*?\\nsubgraph=(\d+)\\ndevice=([\w.]+)"')
_CODE = re.compile(rf"{_PREFIX}(\d+)")
_NO_WORK = frozenset({"Constant", "Parameter", "Result"})


@dataclass(frozen=True, slots=True)
class ProfiledKernel:
    """A kernel: its name and type, the ops that it names, OpenVINO's name of its device, and its mean seconds.

    The ops are rows of OpenVINO's list, or, after `attribute_kernels`, ops of the graph: several for fused ops, none
    for a reordering.
    """

    name: str
    type: str
    ops: tuple[int, ...]
    device: str
    seconds: float


def op_code(op: int) -> str:
    """The name of an op while it is compiled."""
    return f"{_PREFIX}{op}"


def parse_ops(names: str) -> tuple[int, ...]:
    """The ops in the list of names of a kernel, which are separated by commas."""
    return tuple(int(match[1]) for name in names.split(",") if (match := _CODE.fullmatch(name.strip())))


def parse_split(text: str) -> Mapping[int, tuple[int, str]]:
    """The (piece, device) of each op in HETERO's drawing of its split; constants are in every piece and have none."""
    return {int(op): (int(piece), device) for op, piece, device in _SPLIT_OP.findall(text)}


def list_kernels(model: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and ops of every kernel of a runtime model, by the name of the kernel."""
    kernels = {}
    for node in model.get_ops():
        info = node.get_rt_info()
        kind, names = (str(info[key].value) if key in info else "" for key in ("layerType", "originalLayersNames"))
        kernels[node.get_friendly_name()] = kind, parse_ops(names)
    return kernels


def attribute_kernels(kernels: Sequence[ProfiledKernel], listing: FoldedModel, belongs: Ints) -> list[ProfiledKernel]:
    """The kernels with the ops of the graph that they compute.

    `belongs` [n of the listing] is the graph's op of each op of OpenVINO (`counterparts`). An op that no kernel names
    was fused into its reader: names get lost when ops are rewritten.
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
        ProfiledKernel(kernel.name, kernel.type, tuple(sorted(own)), kernel.device, kernel.seconds)
        for kernel, own in zip(kernels, ops, strict=True)
    ]
