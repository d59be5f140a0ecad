"""The model's inputs, and the user's numbers for the dimensions that they leave open."""

from __future__ import annotations

from collections.abc import Mapping

from placewise._util.text import dim_options
from placewise.errors import ModelFileError
from placewise.readers.tensorflow.abstract_values import Type
from placewise.readers.tensorflow.lists import HANDLE
from placewise.readers.tensorflow.nodes import Node
from placewise.readers.tensorflow.types import Shape, dtype_of, is_handle

BATCH = "batch"
"""What the first dimension of an input is called where the file leaves it open; others are ``input:axis``."""


class InputDims:
    """The user's numbers, and which names the model asked for."""

    def __init__(self, given: Mapping[str, int]) -> None:
        for name, number in given.items():
            if number < 1:
                raise ModelFileError(f"dimension {name!r} is {number}", remedy="give a number from 1")
        self._given, self._asked = dict(given), set[str]()

    def fill_shape(self, name: str, shape: Shape) -> Shape:
        """The shape of input `name` without open dimensions; raises ModelFileError for those without a number."""
        sizes, missing = [], []
        for axis, size in enumerate(shape):
            names = [f"{name}:{axis}", *([BATCH] if axis == 0 else [])]
            if size < 0:
                self._asked.update(names)
                found = next((self._given[symbol] for symbol in names if symbol in self._given), -1)
                missing += names[-1:] if found < 0 else []
                size = found
            sizes.append(size)
        if missing:
            verb, noun = ("is", "dimension") if len(missing) == 1 else ("are", "dimensions")
            raise ModelFileError(
                f"{noun} {', '.join(map(repr, missing))} of input {name!r} {verb} open",
                remedy="give a number: " + dim_options(missing),
            )
        return tuple(sizes)

    def check(self) -> None:
        """Raise ModelFileError for a number that nothing asked for."""
        for name in self._given:
            if name not in self._asked:
                shown = ", ".join(map(repr, sorted(self._asked)[:8])) or "none: all its inputs are fixed"
                raise ModelFileError(
                    f"the model has no open dimension {name!r}", remedy=f"its open dimensions are {shown}"
                )


def read_input_types(node: Node, dims: InputDims) -> list[Type]:
    """The types of what an input node gives."""
    listed = node.types("output_types") or node.types("component_types")
    if listed:
        shapes = node.shapes("output_shapes") or node.shapes("_output_shapes")
        kinds = [(code, shapes[place] if place < len(shapes) else None) for place, code in enumerate(listed)]
    else:
        code = node.attr["dtype"].type if "dtype" in node.attr else node.attr["T"].type if "T" in node.attr else 0
        noted = node.shapes("_output_shapes")
        shape = node.shape("shape")
        kinds = [(code, shape if shape is not None else noted[0] if noted else None)]
    found = []
    for port, (code, shape) in enumerate(kinds):
        name = f"{node.name}:{port}" if port else node.name
        if is_handle(code):
            found.append(HANDLE)
        else:
            found.append(Type(dtype_of(code), None if shape is None else dims.fill_shape(name, shape)))
    return found
