"""What every reader gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from placewise._util.safe_open import read_regular
from placewise.errors import ModelFileError
from placewise.model.columns import Floats
from placewise.model.graph import Graph
from placewise.model.problem import Problem

LARGEST_TEXT = 1 << 28
"""Bytes of a file that is read as one text; the largest published workload has 612 kB."""


@dataclass(frozen=True, slots=True, eq=False)
class ImportedModel:
    """What a reader gives back: a graph, a whole problem where the file says one, and what to warn of.

    `op_seconds` [n_ops] are the times on an accelerator, where the file is a profile of one. `modules` has the class of
    each module by its path, where the reader knows it (``{"encoder.layer.0": "BertLayer"}``).
    """

    graph: Graph
    problem: Problem | None = None
    warnings: tuple[str, ...] = ()
    op_seconds: Floats | None = None
    modules: Mapping[str, str] = field(default_factory=dict)


def file_bytes(path: Path) -> bytes:
    """All of a file that is one text. Raises ModelFileError, with the path."""
    try:
        return read_regular(path, LARGEST_TEXT)
    except OSError as error:
        raise ModelFileError(f"cannot be read ({error.strerror})", where=str(path), remedy="check the path") from None
