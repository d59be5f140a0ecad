"""Faults in plain words: every kind that our files can raise, and those that nobody foresaw."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from placewise.errors import InputError
from placewise.faults import fault_of


class Example(BaseModel):
    """One field of each kind."""

    number: float = 0.0
    whole: int = 0
    text: str = ""
    truth: bool = True
    names: frozenset[str] = frozenset()
    row: tuple[int, ...] = ()
    table: dict[str, float] = {}
    way: Literal["direct", "staged"] = "direct"
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    pattern: Annotated[str, Field(pattern="^a")] = "a"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("number", "much", "must be a number"),
        ("number", [], "must be a number"),
        ("whole", 1.5, "must be a whole number"),
        ("whole", "one", "must be a whole number"),
        ("text", 1, "must be a text"),
        ("truth", "perhaps", "must be true or false"),
        ("names", "Conv", "must be a list"),
        ("row", 3, "must be a list"),
        ("table", 3, "must be a table of names and values"),
        ("way", "by pigeon", "must be 'direct' or 'staged'"),
        ("share", 0, "must be above 0"),
        ("share", 2, "must be 1 or less"),
        ("pattern", "b", "is wrong: string should match pattern '^a'"),
    ],
)
def test_faults_in_plain_words(field: str, value: object, words: str) -> None:
    """Each says what the field must be."""
    with pytest.raises(ValidationError) as caught:
        Example.model_validate({field: value})
    assert fault_of(caught.value.errors()[0]) == words


def test_a_missing_field() -> None:
    """It is missing."""

    class Needy(BaseModel):
        name: str

    with pytest.raises(ValidationError) as caught:
        Needy.model_validate({})
    assert fault_of(caught.value.errors()[0]) == "is missing"


def test_an_error_is_one_sentence_whatever_is_in_it() -> None:
    """Control characters are written out, halves of characters too, and a name without end is cut; its parts stay."""
    hostile = "\x1b[2J" + "x" * 10_000 + "\nend\u202e\udc80"
    error = InputError(f"no op {hostile!s}", where=hostile, remedy="check\nit").at("model.onnx")
    said = str(error)
    assert len(said) < 1_300 and said.isprintable() and said.encode()
    assert said.startswith("model.onnx: \\x1b[2Jxx") and "\\x0aend\\u202e\\udc80: no op" in said
    assert said.endswith("check\\x0ait") and hostile in error.where
