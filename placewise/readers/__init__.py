"""Readers: a file or a live model → a Graph, or a whole Problem where it says more. Suffix and content tell formats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placewise.errors import ModelFileError
from placewise.readers.base import Reading
from placewise.readers.onnx import read_onnx
from placewise.readers.pipedream import looks_like_pipedream, read_pipedream
from placewise.readers.workload import read_workload

_NO_DIMS: Mapping[str, int] = {}


def read(
    model: str,
    *,
    dims: Mapping[str, int] = _NO_DIMS,
    objective: str = "throughput",
    graph: str = "inference",
    dtype: str | None = None,
) -> Reading:
    """The graph, or the problem, in a file: ONNX, a published workload (JSON), or a PipeDream profile (text).

    `dims` gives the symbolic dimensions of an ONNX model; `objective` ("throughput" or "latency") says how a
    workload is meant, whose file does not; `graph` ("inference" or "training") which graph of a profile is
    wanted, which holds both. Raises ModelFileError, GraphError or CostError.
    """
    path = Path(model)
    found = format_of(path)
    if found == "onnx":
        return read_onnx(path, dims=dims)
    if dims:
        raise ModelFileError(f"a {found} has no symbolic dimensions", where=str(path), remedy="leave out --dim")
    if found == "workload":
        return read_workload(path, objective=objective)
    return read_pipedream(path, graph=graph)


def read_torch(model: Any, inputs: Any, *, dims: Mapping[str, int] = _NO_DIMS) -> Reading | None:
    """The graph of a PyTorch module with example inputs or of an exported program; None if it is neither."""
    return None


def format_of(path: Path) -> str:
    """``"workload"``, ``"profile"`` or ``"onnx"``, by suffix, else by the first bytes."""
    try:
        with path.open("rb") as file:
            start = file.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n")
    except OSError as error:
        raise ModelFileError(f"cannot be read ({error.strerror})", where=str(path), remedy="check the path") from None
    if path.suffix == ".json" or (path.suffix != ".onnx" and start[:1] in (b"{", b"[")):
        return "workload"
    if path.suffix != ".onnx" and looks_like_pipedream(start):
        return "profile"
    return "onnx"
