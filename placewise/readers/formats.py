"""The formats of model files, by name and content, and the reader of each."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from placewise._util.safe_open import open_regular
from placewise.errors import ModelFileError
from placewise.readers.apart import read_onnx_apart
from placewise.readers.base import NO_DIMS, ImportedModel
from placewise.readers.gguf import read_gguf
from placewise.readers.gguf.header import MAGIC
from placewise.readers.huggingface import read_huggingface
from placewise.readers.openvino import looks_like_openvino, read_openvino
from placewise.readers.pipedream import looks_like_pipedream, read_pipedream
from placewise.readers.piper import MARK, read_piper
from placewise.readers.torch.file import looks_like_pt2, read_pt2
from placewise.readers.workload import read_workload

_START = 1 << 16
"""Bytes at the start of a file that are examined to detect its format."""


_IR_VERSION = b"\x08"
"""The first byte of an ONNX file: the key of the field ir_version."""
_CHUNK = 1 << 20
_SUFFIXES = (".onnx", ".pt2", ".xml", ".pb", ".pbtxt", ".json", ".gguf", ".npz", ".txt")
_HUGGINGFACE_CONFIG = re.compile(rb'"(model_type|architectures)"\s*:')


class ReadOptions(NamedTuple):
    """Options of the readers; each reader uses those that apply to it.

    `dims` gives sizes of open dimensions. `objective` ("throughput" or "latency") applies to workloads, `graph`
    ("inference" or "training") to profiles, `dtype` to models built from a configuration, `cache_type` to GGUF models.
    """

    dims: Mapping[str, int] = NO_DIMS
    objective: str = "throughput"
    graph: str = "inference"
    dtype: str | None = None
    cache_type: str | None = None


class Format(NamedTuple):
    """A format: its name in messages, its reader, and whether its files may have open dimensions."""

    name: str
    read: Callable[[Path, ReadOptions], ImportedModel]
    has_dims: bool = True


def _read_tensorflow(path: Path, options: ReadOptions) -> ImportedModel:
    from placewise.readers.tensorflow import read_tensorflow  # protobuf's messages take a tenth of a start

    return read_tensorflow(path, dims=options.dims)


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "onnx": Format("ONNX model", lambda path, options: read_onnx_apart(path, dims=options.dims)),
        "openvino": Format("OpenVINO IR", lambda path, options: read_openvino(path, dims=options.dims)),
        "pt2": Format("torch.export program", lambda path, options: read_pt2(path, dims=options.dims)),
        "tensorflow": Format("TensorFlow graph", _read_tensorflow),
        "huggingface": Format(
            "Hugging Face configuration",
            lambda path, options: read_huggingface(
                path, dims=options.dims, dtype=options.dtype, training=options.graph == "training"
            ),
        ),
        "gguf": Format(
            "GGUF model", lambda path, options: read_gguf(path, dims=options.dims, cache_type=options.cache_type)
        ),
        "workload": Format("workload", lambda path, options: read_workload(path, objective=options.objective), False),
        "piper": Format(
            "instance of Piper", lambda path, options: read_piper(path, objective=options.objective), False
        ),
        "profile": Format("profile", lambda path, options: read_pipedream(path, graph=options.graph), False),
    }
)


def read_model(path: Path, options: ReadOptions = ReadOptions()) -> ImportedModel:  # noqa: B008
    """The graph or the problem in a file of any of the `FORMATS`.

    Raises ModelFileError, GraphError, CostError or MissingExtraError.
    """
    file_format = FORMATS[detect_format(path)]
    if options.dims and not file_format.has_dims:
        raise ModelFileError(
            f"a {file_format.name} has no symbolic dimensions", where=str(path), remedy="leave out --dim"
        )
    return file_format.read(path, options)


def detect_format(path: Path) -> str:
    """The key in `FORMATS`: by the suffixes .onnx, .pt2 and .xml, else by the first bytes; ONNX by default.

    Raises ModelFileError if the path cannot be read, is empty, or is a folder without a model.
    """
    if os.path.isfile(path / "config.json"):
        return "huggingface"
    try:
        if path.is_dir():
            from placewise.readers.tensorflow.file import resolve_file

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
        remedy = "check the path" + ("" if path.suffix in _SUFFIXES else "; models by name begin with hf: or zoo:")
        raise ModelFileError(f"cannot be read ({error.strerror})", where=str(path), remedy=remedy) from None
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start and len(head) < _START:
        raise ModelFileError("the file is empty", where=str(path), remedy="export or download the model again")
    if head.startswith(MAGIC) or path.suffix == ".gguf":
        return "gguf"
    if path.suffix == ".onnx":
        return "onnx"
    if looks_like_pt2(path):
        return "pt2"
    if path.suffix == ".xml" or looks_like_openvino(start):
        return "openvino"
    if path.suffix == ".json" and _HUGGINGFACE_CONFIG.search(start):
        return "huggingface"
    if start[:1] == b"{" and (MARK in start or (len(head) == _START and _mentions(path, MARK))):
        return "piper"
    if start[:1] in (b"{", b"["):
        return "workload"
    if looks_like_pipedream(start):
        return "profile"
    from placewise.readers.tensorflow import looks_like_tensorflow

    is_onnx = path.suffix == ".pb" and start[:1] == _IR_VERSION
    if looks_like_tensorflow(path) or (path.suffix in (".pb", ".pbtxt", ".meta") and not is_onnx):
        return "tensorflow"
    return "workload" if path.suffix == ".json" else "onnx"


def _mentions(path: Path, mark: bytes) -> bool:
    """Whether the file holds these bytes anywhere."""
    with open_regular(path) as file:
        tail = b""
        while chunk := file.read(_CHUNK):
            if mark in tail + chunk:
                return True
            tail = chunk[1 - len(mark) :]
    return False
