"""The result type of all readers, and helpers that they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np

from placewise._util.safe_open import read_regular
from placewise.errors import ModelFileError
from placewise.model.columns import Floats
from placewise.model.graph import Graph
from placewise.model.problem import Problem

FLOATING = ("float", "bfloat", "complex")
"""How the names of floating-point types begin."""
NO_DIMS: Mapping[str, int] = MappingProxyType({})
LARGEST_TEXT = 1 << 28
"""The largest text file in bytes; the largest published workload has 612 kB."""


@dataclass(frozen=True, slots=True, eq=False)
class ImportedModel:
    """A graph, the whole problem if the file describes one, and warnings.

    `op_seconds` [n_ops] are times on an accelerator, if the file is a profile of one. `modules` maps module paths to
    class names, if the reader knows them (``{"encoder.layer.0": "BertLayer"}``).
    """

    graph: Graph
    problem: Problem | None = None
    warnings: tuple[str, ...] = ()
    op_seconds: Floats | None = None
    modules: Mapping[str, str] = field(default_factory=dict)


def read_text_file(path: Path) -> bytes:
    """The bytes of a text file. Raises ModelFileError with the path."""
    try:
        return read_regular(path, LARGEST_TEXT)
    except OSError as error:
        raise ModelFileError(f"cannot be read ({error.strerror})", where=str(path), remedy="check the path") from None


def first_floating(dtypes: Iterable[str]) -> str:
    """The first floating-point type; "" if there is none."""
    return next((dtype for dtype in dtypes if dtype.startswith(FLOATING)), "")


def unique_name(name: str, taken: set[str]) -> str:
    """`name`, with a number appended if it is in `taken`; adds the result to `taken`."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}#{number}"
    taken.add(free)
    return free


def module_path(name: str) -> str:
    """``/layer1/layer1.0/conv1/Conv`` → ``layer1.0.conv1``: exporters repeat a container's name in its children."""
    path: list[str] = []
    for part in filter(None, name.split("/")[:-1]):
        if path and part.startswith(path[-1] + "."):
            path.pop()
        path.append(part)
    return ".".join(path)


def describe_unknown_shapes(graph: Graph) -> list[str]:
    """A warning about tensors of unknown shape, naming the first one in topological order; empty if there are none."""
    unknown = np.flatnonzero(graph.tensors.bytes < 0)
    if not len(unknown):
        return []
    first, op = graph.tensors.name[unknown[0]], int(graph.tensors.producer[unknown[0]])
    place = f"{first!r}, made by {graph.ops.kind[op]}" if op >= 0 else repr(first)
    verb = "shape" if len(unknown) == 1 else "shapes"
    stays = "stays" if len(unknown) == 1 else "stay"
    return [f"the {verb} of {len(unknown)} of {graph.n_tensors} tensors {stays} unknown (first: {place})"]
