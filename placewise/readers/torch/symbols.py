"""Evaluate size expressions in sympy's srepr, without sympy and without eval."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

MAX_TEXT = 20_000
MAX_SIZE = 1 << 62
"""Larger sizes are refused: byte counts are 64-bit integers."""


class OpenSymbol(Exception):
    """A symbol without a value."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def evaluate(text: str, sizes: Mapping[str, int]) -> int:
    """The value of an expression such as ``Add(Symbol('s77', integer=True), Integer(1))``.

    Raises OpenSymbol for a symbol that is not in `sizes`, and ValueError for anything but integer arithmetic.
    """
    if len(text) > MAX_TEXT:
        raise ValueError("the expression is too long")
    try:
        value = _value(ast.parse(text, mode="eval").body, sizes)
    except (SyntaxError, RecursionError, MemoryError, ArithmeticError, LookupError, TypeError) as error:
        raise ValueError(f"it cannot be evaluated ({error or type(error).__name__})") from None
    if value != int(value):
        raise ValueError(f"it is {value}, and a size is a whole number")
    return int(value)


def symbols_in(text: str) -> list[str]:
    """The distinct symbols of an expression; none if it is invalid."""
    try:
        nodes = list(ast.walk(ast.parse(text[:MAX_TEXT], mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return list(
        dict.fromkeys(
            str(node.args[0].value)
            for node in nodes
            if _function_name(node) == "Symbol"
            and isinstance(node, ast.Call)
            and isinstance(node.args[0], ast.Constant)
        )
    )


def _function_name(node: ast.AST) -> str:
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args
    return node.func.id if named and isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _value(node: ast.AST, sizes: Mapping[str, int]) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _check_bounds(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, sizes)
    name = _function_name(node)
    if not isinstance(node, ast.Call) or not name:
        raise ValueError("it is not arithmetic")
    if name == "Symbol":
        symbol = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
        if symbol not in sizes:
            raise OpenSymbol(str(symbol))
        return sizes[str(symbol)]
    if name not in _FUNCTIONS:
        raise ValueError(f"{name} is not known")
    return _check_bounds(_FUNCTIONS[name]([_value(argument, sizes) for argument in node.args]))


def _check_bounds(value: Any) -> Any:
    if not -MAX_SIZE < value < MAX_SIZE or (isinstance(value, Fraction) and value.denominator > MAX_SIZE):
        raise ValueError("it is too large")
    return int(value) if isinstance(value, Fraction) and value.denominator == 1 else value


def _power(values: Sequence[Any]) -> Any:
    base, exponent = values
    if abs(exponent) > 62:
        raise ValueError("it is too large")
    return Fraction(base) ** exponent if isinstance(exponent, int) and exponent < 0 else base**exponent


_FUNCTIONS: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "Integer": lambda v: v[0],
    "Rational": lambda v: Fraction(v[0], v[1]),
    "Add": sum,
    "Mul": math.prod,
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": lambda v: v[0] // v[1],
    "CleanDiv": lambda v: v[0] // v[1],
    "CeilDiv": lambda v: -(-v[0] // v[1]),
    "IntTrueDiv": lambda v: v[0] / v[1],
    "FloatTrueDiv": lambda v: v[0] / v[1],
    "Mod": lambda v: v[0] % v[1],
    "PythonMod": lambda v: v[0] % v[1],
    "ModularIndexing": lambda v: v[0] // v[1] % v[2],
    "Max": max,
    "Min": min,
    "Abs": lambda v: abs(v[0]),
    "floor": lambda v: math.floor(v[0]),
    "ceiling": lambda v: math.ceil(v[0]),
    "FloorToInt": lambda v: math.floor(v[0]),
    "CeilToInt": lambda v: math.ceil(v[0]),
    "TruncToInt": lambda v: math.trunc(v[0]),
    "RoundToInt": lambda v: round(v[0]),
    "ToFloat": lambda v: v[0],
    "Identity": lambda v: v[0],
    "LShift": lambda v: v[0] << min(v[1], 62),
    "RShift": lambda v: v[0] >> min(v[1], 62),
    "BitwiseFn_bitwise_and": lambda v: reduce(lambda a, b: a & b, v),
}
"""Functions of sympy and torch.utils._sympy.functions for integer arithmetic."""
