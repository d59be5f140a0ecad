"""Faults in plain words: every kind that our files can raise, and those that nobody foresaw."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from placewise._util.validation_errors import fault_of, first_fault
from placewise.errors import InputError


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


TABLE = "a table of names and values"


class Span(BaseModel):
    """One kind of a field that may be of several."""

    model_config = ConfigDict(extra="forbid")
    least: int
    most: int


class Several(BaseModel):
    """Fields of several kinds, inside others."""

    sizes: Annotated[dict[str, Annotated[int, Field(strict=True)] | tuple[int, ...] | Span], Field(min_length=1)] = {}
    options: dict[str, bool | int | str] = {}
    rows: Annotated[tuple[Several, ...], Field(min_length=1)] | None = None


@pytest.mark.parametrize(
    ("document", "place", "words", "more"),
    [
        ({"sizes": {"n": 1e30}}, ("sizes", "n"), f"must be a whole number, a list or {TABLE}", 0),
        ({"sizes": {"n": "x", "m": "x"}}, ("sizes", "n"), f"must be a whole number, a list or {TABLE}", 1),
        ({"sizes": {"n": [2, "x"]}}, ("sizes", "n", 1), "must be a whole number", 0),
        ({"sizes": {"n": {"least": 1, "most": 1.5}}}, ("sizes", "n", "most"), "must be a whole number", 0),
        ({"sizes": {"n": {"least": 1}}}, ("sizes", "n", "most"), "is missing", 0),
        ({"sizes": {"int": {"least": 1, "most": 2, "Span": 3}}}, ("sizes", "int", "Span"), "is not known here", 0),
        ({"options": {"a": [1]}}, ("options", "a"), "must be true or false, a whole number or a text", 0),
        (
            {"rows": [{"sizes": {"n": None}}]},
            ("rows", 0, "sizes", "n"),
            f"must be a whole number, a list or {TABLE}",
            0,
        ),
        ({"rows": []}, ("rows",), "needs 1 or more entries", 0),
    ],
)
def test_a_fault_is_where_the_document_has_it(
    document: object, place: tuple[object, ...], words: str, more: int
) -> None:
    """By keys and indices alone: what pydantic calls the kinds that it tried is no place, and they are one fault."""
    with pytest.raises(ValidationError) as caught:
        Several.model_validate(document)
    fault = first_fault(caught.value.errors(), document)
    assert (fault.place, fault.words, fault.more) == (place, words, more)


def test_an_error_is_one_sentence_whatever_is_in_it() -> None:
    """Control characters are written out, halves of characters too, and a name without end is cut; its parts stay."""
    hostile = "\x1b[2J" + "x" * 10_000 + "\nend\u202e\udc80"
    error = InputError(f"no op {hostile!s}", where=hostile, remedy="check\nit").at("model.onnx")
    said = str(error)
    assert len(said) < 1_300 and said.isprintable() and said.encode()
    assert said.startswith("model.onnx: \\x1b[2Jxx") and "\\x0aend\\u202e\\udc80: no op" in said
    assert said.endswith("check\\x0ait") and hostile in error.where
