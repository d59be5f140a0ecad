"""What is wrong with a field of a file, in plain words: the kind of fault that pydantic reports → a sentence's end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_MUST = "must be "
_NUMBER, _WHOLE, _TEXT = "must be a number", "must be a whole number", "must be a text"
_LIST, _TABLE = "must be a list", "must be a table of names and values"
_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not known here",
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "must be a finite number",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "int_parsing_size": "is too large",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": _TEXT,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "set_type": _LIST,
    "frozen_set_type": _LIST,
    "dict_type": _TABLE,
    "mapping_type": _TABLE,
    "model_type": _TABLE,
    "model_attributes_type": _TABLE,
    "literal_error": "must be {expected}",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be {ge:g} or more",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be {le:g} or less",
    "too_short": "needs {min_length} or more entries",
    "too_long": "has more than {max_length} entries",
    "value_error": "is wrong: {error}",
}

Place = tuple[int | str, ...]
"""Keys and indices, from the outermost."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault that is told: pydantic's name of its kind, its place and words, and how many other places have one."""

    kind: str
    place: Place
    words: str
    more: int


def first_fault(errors: Iterable[Mapping[str, Any]], document: object) -> Fault:
    """The first of pydantic's errors.

    A value that may be of several kinds has errors of each: the deepest inside the value is taken, since that kind came
    nearest, or all kinds are named. What is around the place is not counted: it is wrong because of it.
    """
    found = [(place_of(error, document), error) for error in errors]
    top = found[0][0]
    place, first = max((each for each in found if each[0][: len(top)] == top), key=lambda each: len(each[0]))
    words = list(dict.fromkeys(fault_of(error) for other, error in found if other == place))
    more = len({other for other, _ in found if other != place[: len(other)]})
    return Fault(first["type"], place, _join_kinds(words), more)


def _join_kinds(words: list[str]) -> str:
    """``"must be true or false, a number or a text"`` of such that each say what a value must be; else the first."""
    kinds = [each.removeprefix(_MUST) for each in words if each.startswith(_MUST)]
    if len(kinds) < len(words) or len(kinds) < 2:
        return words[0]
    return f"{_MUST}{', '.join(kinds[:-1])} or {kinds[-1]}"


def fault_of(error: Mapping[str, Any]) -> str:
    """``"must be a whole number"`` for one entry of pydantic's list of errors."""
    words = _WORDS.get(error["type"])
    if words is None:
        return f"is wrong: {error['msg'][:1].lower()}{error['msg'][1:]}"
    return words.format(**error.get("ctx", {}))


def place_of(error: Mapping[str, Any], document: object) -> Place:
    """The keys and indices that lead to a fault, without the names of the kinds that pydantic tried on the way."""
    location = tuple(error["loc"])
    place, value = list[int | str](), document
    for number, part in enumerate(location):
        if _has(value, part):
            value = value[part]  # type: ignore[index]
            place.append(part)
        elif number == len(location) - 1 and error["type"] == "missing":
            place.append(part)
    return tuple(place)


def _has(value: object, part: int | str) -> bool:
    if isinstance(value, Mapping):
        return part in value
    return isinstance(value, (list, tuple)) and isinstance(part, int) and part < len(value)
