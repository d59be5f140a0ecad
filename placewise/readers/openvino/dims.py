"""Open dimensions of the inputs: their names, and the user's numbers in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from placewise.errors import ModelFileError
from placewise.readers.openvino.kinds import INPUT
from placewise.readers.openvino.net import Layer, Net
from placewise.readers.openvino.structure import Sources

BATCH = "batch"
"""The first dimension of every input that is open there."""


def set_dims(net: Net, sources: Sources, dims: Mapping[str, int]) -> None:
    """Put numbers in place of the open dimensions. Raises ModelFileError for names that the model does not have."""
    del sources
    open_dims = dict(_open_dims(net))
    for name, number in dims.items():
        if name not in open_dims and name != BATCH:
            shown = ", ".join(map(repr, list(open_dims)[:8])) or "none: all its shapes are fixed"
            raise ModelFileError(f"the model has no dimension {name!r}", remedy=f"its open dimensions are {shown}")
        if number < 1:
            raise ModelFileError(f"dimension {name!r} is {number}", remedy="give a number from 1")
    if open_dims:
        names = list(open_dims)
        raise ModelFileError(
            f"the dimensions {', '.join(map(repr, names[:8]))} are open",
            remedy="fix them with model.reshape before openvino.save_model, or with ovc --input",
        )


def _open_dims(net: Net) -> Iterator[tuple[str, tuple[Layer, int]]]:
    for layer in net.layers:
        if layer.type == INPUT:
            for axis, dim in enumerate(layer.outputs[0].dims):
                if dim < 0:
                    yield f"{layer.name}:{axis}", (layer, axis)
