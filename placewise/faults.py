"""What is wrong with a field of a file, in plain words: the kind of fault that pydantic reports → a sentence's end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def fault_of(error: Mapping[str, Any]) -> str:
    """``"must be a whole number"`` for one entry of pydantic's list of errors."""
    words = _WORDS.get(error["type"])
    if words is None:
        return f"is wrong: {error['msg'][:1].lower()}{error['msg'][1:]}"
    return words.format(**error.get("ctx", {}))
