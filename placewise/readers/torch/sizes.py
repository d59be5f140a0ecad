"""Resolve symbolic dimensions, with errors that name the missing one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from placewise._util.text import dim_options
from placewise.errors import ModelFileError
from placewise.readers.torch.symbols import OpenSymbol, evaluate, symbols_in

_DATA_DEPENDENT = re.compile(r"z?uf?\d+")
BATCH = "batch"
"""The name for the first dimension of all inputs in which it is open."""
Size = int | str
"""A number, or an expression of symbols in sympy's srepr."""
Range = tuple[int, int | None]
"""The smallest and the largest size of a dimension, inclusive; None: unbounded."""
_NO_RANGES: Mapping[str, Range] = MappingProxyType({})
_DEFAULT_MINIMUM = 2  # the default minimum of open dimensions in torch


class Sizes:
    """Sizes by symbol, for a program with these input shapes or numeric inputs (`inputs`).

    Keys of `dims` are symbols (``s77``), inputs and axes (``input_ids:0``), numeric inputs (``n``), or ``batch`` for
    all first axes. `ranges` are the exported ranges by symbol, including symbols that are not inputs. Raises
    ModelFileError for unknown names, and for numbers below 1 or out of range. A range from 2 also accepts 1:
    torch.export writes 2 as the default minimum, whether or not 1 is a special case.
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
        """The symbols that a name refers to."""
        if name in self._places:
            return [self._places[name]]
        if name in self._places.values() or name in self._ranges or is_data_dependent(name):
            return [name]
        return [symbol for place, symbol in self._places.items() if name == BATCH and place.endswith(":0")]

    def resolve_or_none(self, size: Size | None) -> int | None:
        """The number, or None if it is unknown."""
        try:
            return None if size is None else self.resolve(size, "", "")
        except ModelFileError:
            return None

    def resolve(self, size: Size | None, tensor: str, op: str) -> int:
        """The number for a dimension of `tensor`, an output of `op`. Raises ModelFileError if it is open."""
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
                remedy=f"give its size, for example {dim_options([symbol])}",
            )
        open_dims = [place for place, name in self._places.items() if name == symbol]
        shown = f" ({', '.join(open_dims)})" if open_dims else ""
        return ModelFileError(
            f"dimension {symbol!r}{shown} is symbolic",
            remedy=f"give a number: {dim_options(open_dims[:1] or [symbol])}",
        )


def _check_range(name: str, number: int, exported: Range) -> None:
    """Raise ModelFileError for a size outside the exported range."""
    least, largest = exported
    if (number >= least or least <= _DEFAULT_MINIMUM) and (largest is None or number <= largest):
        return
    shown = f"from {max(least, 1)}" + ("" if largest is None else f" to {largest}")
    raise ModelFileError(
        f"dimension {name!r} is {number}, and the program was exported for sizes {shown}",
        remedy=f"give a size {shown}" + ("" if is_data_dependent(name) else ", or export it with another range"),
    )


def is_data_dependent(name: str) -> bool:
    """Whether a symbol is data-dependent in torch (``u0``)."""
    return _DATA_DEPENDENT.fullmatch(name) is not None


def _open_dims(inputs: Mapping[str, Sequence[Size | None] | Size | None]) -> dict[str, str]:
    """``input:axis`` (or ``input`` for numbers) → symbol, for all dimensions that are plain symbols."""
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
