"""What counts as an answer: the case loads and its figures are figures, or an error of ours in one sentence."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass

from placewise.errors import InternalError, PlacewiseError

LONGEST = 1_300
"""Characters of a sentence, the name of the file and of what is meant in it included."""
REFUSED, LOADED, FAULT = "refused", "loaded", "fault"


class Unsound(AssertionError):
    """A case was read, and what came of it cannot be."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What became of a case, and the words: our sentence, or what went wrong and where."""

    outcome: str
    words: str = ""


def classify_error(error: BaseException | None) -> CaseResult:
    """The result of a case that ended with this error, or with none."""
    if error is None:
        return CaseResult(LOADED)
    if isinstance(error, PlacewiseError) and not isinstance(error, InternalError):
        message = str(error)
        flaw = find_flaw(message)
        return CaseResult(FAULT, f"{flaw}: {message!r:.2000}") if flaw else CaseResult(REFUSED, message)
    return CaseResult(FAULT, "".join(traceback.format_exception(error))[-6_000:])


def find_flaw(message: str) -> str:
    """What keeps a text from being one sentence for people; empty where nothing does."""
    if not message.strip():
        return "no word"
    if len(message) > LONGEST:
        return f"{len(message)} characters"
    if any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 or letter in "\u2028\u2029" for letter in message):
        return "control characters"
    if any(0xD800 <= ord(letter) < 0xE000 for letter in message):
        return "characters that cannot be printed"
    return "a traceback" if "Traceback" in message else ""


def kind_of(words: str) -> str:
    """A short name for a fault: equal faults have equal ones."""
    lines = [line.strip() for line in words.strip().splitlines()] or [""]
    ours = [line for line in lines if line.startswith("File ") and "/placewise/" in line]
    place = ours[-1].partition("/placewise/")[2].replace('", line ', ":").partition(",")[0] if ours else ""
    return f"{place} {lines[-1][:90]}".strip() if place else re.sub(r"\d+|: .*", "", lines[0])[:60]
