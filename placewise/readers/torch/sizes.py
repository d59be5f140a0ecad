"""The numbers behind symbolic dimensions, and a refusal that says which one is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from placewise._util.text import dim_options
from placewise.errors import ModelFileError
from placewise.readers.torch.symbols import OpenSymbol, evaluate, symbols_in

_DATA_DEPENDENT = re.compile(r"z?uf?\d+")
BATCH = "batch"
"""Stands for the first dimension of every input that has an open one."""
Size = int | str
"""A number, or an expression of symbols as sympy writes it."""
Range = tuple[int, int | None]
"""The least and the largest size of a dimension, both included; None for no end."""
_NO_RANGES: Mapping[str, Range] = MappingProxyType({})
_DEFAULT_MINIMUM = 2  # the least size of what torch takes to be open


class Sizes:
    """Sizes by symbol, for programs whose inputs have the shapes, or are the numbers, `inputs`.

    `dims` may name a symbol (``s77``), an input and an axis (``input_ids:0``), an input that is a number (``n``), or
    all first axes (``batch``); `ranges` has what the program was exported for, by symbol, also of symbols that no input
    is. Raises ModelFileError for a name that the program does not have, and for a number below 1 or out of its range.
    A range from 2 takes 1 as well: torch.export writes it where nobody gave a minimum, and whether or not 1 is a
    special case for the program.
    """

    def __init__(
        self,
        inputs: Mapping[str, Sequence[Size | None] | Size | None],
        dims: Mapping[str, int],
        *,
        ranges: Mapping[str, Range] = _NO_RANGES,
    ) -> None:
        self._places, self._ranges = _open_dims(inputs), ranges
        self._numbers: dict[str, int] = {}
        self._memory: dict[str, int] = {}
        for name, number in dims.items():
            symbols = self._symbols_named(name)
            if not symbols:
                shown = ", ".join(f"{place} ({symbol})" for place, symbol in self._places.items())
                remedy = f"its symbolic dimensions are {shown}" if shown else "its shapes are fixed: leave out dims"
                raise ModelFileError(f"the program has no dimension {name!r}", remedy=remedy)
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ModelFileError(f"dimension {name!r} is {number!r}", remedy="give a whole number from 1")
            for symbol in symbols:
                _check_range(name, number, ranges.get(symbol, (1, None)))
            if any(self._numbers.setdefault(symbol, number) != number for symbol in symbols):
                raise ModelFileError(f"dimension {name!r} is given two numbers", remedy="give it once")

    def _symbols_named(self, name: str) -> list[str]:
        """The symbols that a name stands for."""
        if name in self._places:
            return [self._places[name]]
        if name in self._places.values() or name in self._ranges or is_data_dependent(name):
            return [name]
        return [symbol for place, symbol in self._places.items() if name == BATCH and place.endswith(":0")]

    def resolve_or_none(self, size: Size | None) -> int | None:
        """The number, or None where it is none or open."""
        try:
            return None if size is None else self.resolve(size, "", "")
        except ModelFileError:
            return None

    def resolve(self, size: Size | None, tensor: str, op: str) -> int:
        """The number that a dimension of `tensor`, made by `op`, is; ModelFileError where it stays open."""
        if isinstance(size, int):
            return size
        text = size or ""
        if text not in self._memory:
            try:
                self._memory[text] = evaluate(text, self._numbers)
            except OpenSymbol as symbol:
                raise self._unresolved(symbol.name, tensor, op) from None
            except ValueError as error:
                raise ModelFileError(
                    f"a dimension of tensor {tensor!r} is {text[:80]!r}: {error}", remedy="export it with fixed shapes"
                ) from None
        return self._memory[text]

    def _unresolved(self, symbol: str, tensor: str, op: str) -> ModelFileError:
        if is_data_dependent(symbol):
            return ModelFileError(
                f"the size {symbol!r} of tensor {tensor!r}, made by op {op!r}, depends on the data",
                remedy=f"say how large it is, for example {dim_options([symbol])}",
            )
        open_dims = [place for place, name in self._places.items() if name == symbol]
        shown = f" ({', '.join(open_dims)})" if open_dims else ""
        return ModelFileError(
            f"dimension {symbol!r}{shown} is symbolic",
            remedy=f"give a number: {dim_options(open_dims[:1] or [symbol])}",
        )


def _check_range(name: str, number: int, exported: Range) -> None:
    """Raise ModelFileError for a size that the program was not exported for."""
    least, largest = exported
    if (number >= least or least <= _DEFAULT_MINIMUM) and (largest is None or number <= largest):
        return
    shown = f"from {max(least, 1)}" + ("" if largest is None else f" to {largest}")
    raise ModelFileError(
        f"dimension {name!r} is {number}, and the program was exported for sizes {shown}",
        remedy=f"give a size {shown}" + ("" if is_data_dependent(name) else ", or export it with another range"),
    )


def is_data_dependent(name: str) -> bool:
    """Whether torch calls a size so that only the data decide (``u0``)."""
    return _DATA_DEPENDENT.fullmatch(name) is not None


def _open_dims(inputs: Mapping[str, Sequence[Size | None] | Size | None]) -> dict[str, str]:
    """``input:axis``, or ``input`` if that is a number, → symbol: for every one that is nothing but a symbol."""
    open_dims = {}
    for name, value in inputs.items():
        sizes = {name: value} if value is None or isinstance(value, (int, str)) else _axes(name, value)
        for place, size in sizes.items():
            symbols = symbols_in(size) if isinstance(size, str) and size.startswith("Symbol(") else []
            if len(symbols) == 1:
                open_dims[place] = symbols[0]
    return open_dims


def _axes(name: str, shape: Sequence[Size | None]) -> dict[str, Size | None]:
    return {f"{name}:{axis}": size for axis, size in enumerate(shape)}
