"""read_openvino: from an IR file to an imported model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from placewise.errors import InputError
from placewise.model.graph import Source
from placewise.readers.base import NO_DIMS, ImportedModel, describe_unknown_shapes
from placewise.readers.openvino.convert import build_graph
from placewise.readers.openvino.dims import set_dims
from placewise.readers.openvino.parse import parse_ir
from placewise.readers.openvino.structure import check_version, sources_of


def looks_like_openvino(start: bytes) -> bool:
    """Whether the start of a file looks like an IR: XML whose first element is <net>."""
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    return text.startswith(b"<net") or (text.startswith((b"<?xml", b"<!--")) and b"<net" in text)


def read_openvino(path: Path, *, dims: Mapping[str, int] = NO_DIMS) -> ImportedModel:
    """Read the XML of an OpenVINO IR (version 10 or 11) as the raw view: one op per layer.

    Inputs, constants and outputs are ops of the kinds Input, Constant and Output; the folded view replaces them by
    tensors and weights. The .bin file is never opened: sizes of constants come from the XML, and constants at the same
    location are tied. `origin` holds layer ids. If, Loop and TensorIterator stay one op, which uses the constants in
    their bodies. `dims` sets open dimensions: ``{"input_ids:1": 128}`` one dimension of one input, ``{"batch": 8}`` the
    first dimension of all inputs in which it is open.

    Raises ModelFileError or GraphError, naming the file.
    """
    try:
        net, sha256 = parse_ir(path)
        check_version(net)
        sources = sources_of(net)
        set_dims(net, sources, dims)
        source = Source(str(path), sha256, "openvino", options={"dims": dict(dims)}, view="raw")
        graph = build_graph(net, sources, source)
    except InputError as error:
        raise error.at(str(path)) from None
    return ImportedModel(graph, warnings=tuple(describe_unknown_shapes(graph)))
