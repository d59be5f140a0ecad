"""A check and its outcome: it works, it failed, what it needs is not here, or it was not run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from placewise.errors import MissingExtraError, PlacewiseError

Status = Literal["works", "failed", "not here", "not run"]
Figures = Mapping[str, float | str]
LONGEST = 300
"""The most letters of a foreign error in a message."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of a check.

    `area` is its heading and `name` what was checked. `text` is what was found, or why it failed, is not here or was
    not run, in one sentence; `seconds` is how long it took, and `figures` are what was measured, in seconds, bytes and
    bytes/s.
    """

    area: str
    name: str
    status: Status
    text: str
    seconds: float = 0.0
    figures: Figures = field(default_factory=dict)


class NotHere(Exception):
    """What a check needs is not on this machine; the text says what."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check: `run` returns what it found and measured. It raises `NotHere`, or anything else if it fails."""

    area: str
    name: str
    run: Callable[[], tuple[str, dict[str, Any]]]


def run_checks(checks: Iterator[Check], until: float = float("inf")) -> Iterator[Checked]:
    """The outcome of each check, one after the other; none starts after the moment `until` of ``time.monotonic``."""
    for check in checks:
        begin = time.monotonic()
        if begin > until:
            yield Checked(check.area, check.name, "not run", "the time for all checks was used up before this one")
            continue
        status, text, figures = _run_check(check)
        yield Checked(check.area, check.name, status, text, time.monotonic() - begin, figures)


def _run_check(check: Check) -> tuple[Status, str, Figures]:
    try:
        return ("works", *check.run())
    except (NotHere, MissingExtraError) as reason:
        return "not here", str(reason), {}
    except PlacewiseError as error:
        return "failed", str(error), {}
    except Exception as error:  # a library that is broken must not end the other checks
        lines = str(error).splitlines() or [""]
        return "failed", f"{type(error).__name__}: {lines[0][:LONGEST]}", {}
