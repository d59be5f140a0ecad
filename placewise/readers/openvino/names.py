"""Module paths from the names that converters give to layers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from placewise.readers.base import module_path
from placewise.readers.openvino.net import Layer
from placewise.readers.openvino.structure import Sources

_MODULE, _VALUE = "__module.", "self."
_PART = "/WithoutBiases"  # one of the layers that an ONNX Gemm becomes
_MADE_UP = re.compile(r"[A-Za-z]+_\d+(_compressed)?")


def scope_of(name: str) -> str:
    """``__module.layer1.0.conv1/aten::_convolution/Convolution`` and ``/layer1/conv1/Conv`` → ``layer1.0.conv1``."""
    if name.startswith(_MODULE):
        return name.removeprefix(_MODULE).split("/", 1)[0]
    if name.startswith(_VALUE):
        return name.removeprefix(_VALUE).rpartition(".")[0]
    return "" if "::" in name else module_path(name.removesuffix(_PART))


def scopes_of(layers: Sequence[Layer], sources: Sources) -> list[str]:
    """The module path of every layer; one that the converter made itself is where the layer is that reads it."""
    scopes = [scope_of(layer.name) for layer in layers]
    own = [bool(scope) or not _MADE_UP.fullmatch(layer.name) for layer, scope in zip(layers, scopes, strict=True)]
    for (reader, _), (made, _) in sorted(sources.items(), reverse=True):
        if not own[made] and scopes[reader]:
            scopes[made] = scopes[reader]
    return scopes
