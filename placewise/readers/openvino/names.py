"""Module paths from the names that converters give to layers."""

from __future__ import annotations

from placewise.readers.naming import path_of

_TORCH = "__module."


def scope_of(name: str) -> str:
    """``__module.layer1.0.conv1/aten::_convolution/Convolution`` and ``/layer1/conv1/Conv`` → ``layer1.0.conv1``."""
    if name.startswith(_TORCH):
        return name.removeprefix(_TORCH).split("/", 1)[0]
    return path_of(name)
