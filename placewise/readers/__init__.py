"""Readers: a file or a live model → a Graph, or a whole Problem where it says more. Name and content tell formats."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from placewise._util.safe_open import open_regular
from placewise.errors import ModelFileError
from placewise.readers.base import ImportedModel
from placewise.readers.huggingface import read_huggingface
from placewise.readers.onnx import read_onnx
from placewise.readers.openvino import looks_like_openvino, read_openvino
from placewise.readers.pipedream import looks_like_pipedream, read_pipedream
from placewise.readers.tensorflow import looks_like_tensorflow, read_tensorflow
from placewise.readers.tensorflow.file import resolve_file
from placewise.readers.torch.file import looks_like_pt2, read_pt2
from placewise.readers.workload import read_workload

_NO_DIMS: Mapping[str, int] = MappingProxyType({})
_START = 1 << 16
"""Bytes at the start of a file that tell its format."""


_IR_VERSION = b"\x08"
"""How an ONNX file begins, whatever it is called: its first field is a number."""
_CONFIGURATION = re.compile(rb'"(model_type|architectures)"\s*:')


class ReadOptions(NamedTuple):
    """What a reader may be told besides the file; each takes what it needs."""

    dims: Mapping[str, int] = _NO_DIMS
    objective: str = "throughput"
    graph: str = "inference"
    dtype: str | None = None


class Format(NamedTuple):
    """A format: what it is called in messages, its reader, and whether its files have open dimensions."""

    name: str
    read: Callable[[Path, ReadOptions], ImportedModel]
    has_dims: bool = True


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "onnx": Format("ONNX model", lambda path, asked: read_onnx(path, dims=asked.dims)),
        "openvino": Format("OpenVINO IR", lambda path, asked: read_openvino(path, dims=asked.dims)),
        "pt2": Format("torch.export program", lambda path, asked: read_pt2(path, dims=asked.dims)),
        "tensorflow": Format("TensorFlow graph", lambda path, asked: read_tensorflow(path, dims=asked.dims)),
        "huggingface": Format(
            "Hugging Face configuration",
            lambda path, asked: read_huggingface(
                path, dims=asked.dims, dtype=asked.dtype, training=asked.graph == "training"
            ),
        ),
        "workload": Format("workload", lambda path, asked: read_workload(path, objective=asked.objective), False),
        "profile": Format("profile", lambda path, asked: read_pipedream(path, graph=asked.graph), False),
    }
)


def read(path: Path, asked: ReadOptions = ReadOptions()) -> ImportedModel:  # noqa: B008
    """The graph, or the problem, in a file of any of the `FORMATS`.

    `asked.dims` gives open dimensions their numbers; `objective` ("throughput" or "latency") says how a workload is
    meant, whose file does not; `graph` ("inference" or "training") which graph of a profile is wanted, which holds
    both; `dtype` the element type of a model that is built from its configuration. Raises ModelFileError, GraphError,
    CostError or MissingExtraError.
    """
    found = FORMATS[format_of(path)]
    if asked.dims and not found.has_dims:
        raise ModelFileError(f"a {found.name} has no symbolic dimensions", where=str(path), remedy="leave out --dim")
    return found.read(path, asked)


def format_of(path: Path) -> str:
    """The key in `FORMATS`, by the suffixes .onnx, .pt2 and .xml, else by the first bytes; ONNX if nothing else fits.

    Raises ModelFileError for what cannot be read, is empty, or is a folder of no model.
    """
    if os.path.isfile(path / "config.json"):
        return "huggingface"
    try:
        if path.is_dir():
            if resolve_file(path) != path:
                return "tensorflow"
            raise ModelFileError(
                "the folder holds neither config.json nor saved_model.pb",
                where=str(path),
                remedy="give the model's file, or the folder of a SavedModel or of a Hugging Face model",
            )
        with open_regular(path) as file:
            head = file.read(_START)
    except OSError as error:
        raise ModelFileError(f"cannot be read ({error.strerror})", where=str(path), remedy="check the path") from None
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start and len(head) < _START:
        raise ModelFileError("the file is empty", where=str(path), remedy="export or download the model again")
    if path.suffix == ".onnx":
        return "onnx"
    if looks_like_pt2(path):
        return "pt2"
    if path.suffix == ".xml" or looks_like_openvino(start):
        return "openvino"
    if path.suffix == ".json" and _CONFIGURATION.search(start):
        return "huggingface"
    if start[:1] in (b"{", b"["):
        return "workload"
    if looks_like_pipedream(start):
        return "profile"
    is_onnx = path.suffix == ".pb" and start[:1] == _IR_VERSION
    if looks_like_tensorflow(path) or (path.suffix in (".pb", ".pbtxt", ".meta") and not is_onnx):
        return "tensorflow"
    return "workload" if path.suffix == ".json" else "onnx"
