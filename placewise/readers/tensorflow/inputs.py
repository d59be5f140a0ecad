"""The model's inputs, and sizes that the user gives for their open dimensions."""

from __future__ import annotations

from collections.abc import Mapping

from placewise._util.text import dim_options
from placewise.errors import ModelFileError
from placewise.readers.tensorflow.abstract_values import Type
from placewise.readers.tensorflow.lists import HANDLE
from placewise.readers.tensorflow.nodes import Node
from placewise.readers.tensorflow.types import Shape, dtype_of, is_handle

BATCH = "batch"
"""Name of an open first dimension of an input; other open dimensions are called ``input:axis``."""


class InputDims:
    """Sizes that the user gives, and the names of the dimensions that the model leaves open."""

    def __init__(self, given: Mapping[str, int]) -> None:
        for name, number in given.items():
            if number < 1:
                raise ModelFileError(f"dimension {name!r} is {number}", remedy="give a number from 1")
        self._given, self._asked = dict(given), set[str]()

    def fill_shape(self, name: str, shape: Shape) -> Shape:
        """Fill the open dimensions of input `name`; raises ModelFileError for those without a size."""
        sizes, missing = [], []
        for axis, size in enumerate(shape):
            names = [f"{name}:{axis}", *([BATCH] if axis == 0 else [])]
            if size < 0:
                self._asked.update(names)
                number = next((self._given[symbol] for symbol in names if symbol in self._given), -1)
                missing += names[-1:] if number < 0 else []
                size = number
            sizes.append(size)
        if missing:
            verb, noun = ("is", "dimension") if len(missing) == 1 else ("are", "dimensions")
            raise ModelFileError(
                f"{noun} {', '.join(map(repr, missing))} of input {name!r} {verb} open",
                remedy="give a number: " + dim_options(missing),
            )
        return tuple(sizes)

    def check(self) -> None:
        """Raise ModelFileError for a size that no open dimension uses."""
        for name in self._given:
            if name not in self._asked:
                names = ", ".join(map(repr, sorted(self._asked)[:8])) or "none: all its inputs are fixed"
                raise ModelFileError(
                    f"the model has no open dimension {name!r}", remedy=f"its open dimensions are {names}"
                )


def read_input_types(node: Node, dims: InputDims) -> list[Type]:
    """The types of an input node's outputs."""
    codes = node.types("output_types") or node.types("component_types")
    if codes:
        shapes = node.shapes("output_shapes") or node.shapes("_output_shapes")
        kinds = [(code, shapes[place] if place < len(shapes) else None) for place, code in enumerate(codes)]
    else:
        code = node.attr["dtype"].type if "dtype" in node.attr else node.attr["T"].type if "T" in node.attr else 0
        declared = node.shapes("_output_shapes")
        shape = node.shape("shape")
        kinds = [(code, shape if shape is not None else declared[0] if declared else None)]
    types = []
    for port, (code, shape) in enumerate(kinds):
        name = f"{node.name}:{port}" if port else node.name
        if is_handle(code):
            types.append(HANDLE)
        else:
            types.append(Type(dtype_of(code), None if shape is None else dims.fill_shape(name, shape)))
    return types
