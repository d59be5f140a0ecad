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
class Verdict:
    """What became of a case, and the words: our sentence, or what went wrong and where."""

    outcome: str
    words: str = ""


def verdict_on(error: BaseException | None) -> Verdict:
    """The verdict on a case that ended with this error, or with none."""
    if error is None:
        return Verdict(LOADED)
    if isinstance(error, PlacewiseError) and not isinstance(error, InternalError):
        said = str(error)
        flaw = flaw_of(said)
        return Verdict(FAULT, f"{flaw}: {said!r:.2000}") if flaw else Verdict(REFUSED, said)
    return Verdict(FAULT, "".join(traceback.format_exception(error))[-6_000:])


def flaw_of(said: str) -> str:
    """What keeps a text from being one sentence for people; empty where nothing does."""
    if not said.strip():
        return "no word"
    if len(said) > LONGEST:
        return f"{len(said)} characters"
    if any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 or letter in "\u2028\u2029" for letter in said):
        return "control characters"
    if any(0xD800 <= ord(letter) < 0xE000 for letter in said):
        return "characters that cannot be printed"
    return "a traceback" if "Traceback" in said else ""


def kind_of(words: str) -> str:
    """A short name for a fault: equal faults have equal ones."""
    lines = [line.strip() for line in words.strip().splitlines()] or [""]
    ours = [line for line in lines if line.startswith("File ") and "/placewise/" in line]
    place = ours[-1].partition("/placewise/")[2].replace('", line ', ":").partition(",")[0] if ours else ""
    return f"{place} {lines[-1][:90]}".strip() if place else re.sub(r"\d+|: .*", "", lines[0])[:60]
