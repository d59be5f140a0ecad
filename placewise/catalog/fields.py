"""Field types with units, and the conversion of pydantic's errors into ClusterError."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from placewise._util.units import parse_bandwidth, parse_bytes, parse_flops, parse_seconds
from placewise._util.validation_errors import first_fault
from placewise.errors import ClusterError, InputError


def _parse_with(parse: Callable[[str | float], float]) -> BeforeValidator:
    def convert(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError(f"{value!r} is neither a number nor a string with a unit")
        try:
            return parse(value)
        except InputError as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(convert)


Bytes = Annotated[float, _parse_with(parse_bytes)]
BytesPerSecond = Annotated[float, _parse_with(parse_bandwidth)]
FlopsPerSecond = Annotated[float, _parse_with(parse_flops)]
Seconds = Annotated[float, _parse_with(parse_seconds)]
Share = Annotated[float, Field(strict=True, gt=0, le=1)]
"""Above 0 and up to 1."""

_REMEDY = "see the cluster file in docs/devices.md"


class Table(BaseModel):
    """A table of a TOML file: frozen; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


T = TypeVar("T", bound=Table)


def validate_table(table: type[T], values: object, where: str) -> T:
    """`values` as a table. Raises ClusterError naming `where` and the first invalid key."""
    try:
        return table.model_validate(values)
    except ValidationError as error:
        fault = first_fault(error.errors(include_url=False), values)
        key = _format_key(fault.place)
        place = f"{where}: {key}" if key else where
        if fault.kind == "extra_forbidden":
            raise ClusterError("unknown key", where=place, remedy=_suggest_key(table, fault.place)) from None
        words = fault.words.removeprefix("is wrong: ")
        raise ClusterError(words, where=place, remedy="" if fault.kind == "value_error" else _REMEDY) from None


def _format_key(location: tuple[int | str, ...]) -> str:
    key = ""
    for part in location:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else part
    return key


def _suggest_key(table: type[BaseModel], location: tuple[int | str, ...]) -> str:
    known = sorted(_collect_keys(table))
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f"did you mean {close[0]!r}?" if close else "remove it, or check its spelling"


def _collect_keys(table: Any, seen: frozenset[Any] = frozenset()) -> set[str]:
    """All keys of a table and of its nested tables, which may be recursive."""
    if not (isinstance(table, type) and issubclass(table, BaseModel)):
        return {key for part in getattr(table, "__args__", ()) for key in _collect_keys(part, seen)}
    if table in seen:
        return set()
    inside = (_collect_keys(field.annotation, seen | {table}) for field in table.model_fields.values())
    return set(table.model_fields).union(*inside)
