"""How many cases a test looks at: a sample in `make test`, all of them and `FACTOR` times as many in `make soak`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

FACTOR = int(os.environ.get("PLACEWISE_SOAK", "1"))
SOAKS = "PLACEWISE_SOAK" in os.environ
SHARE = 0.25
"""Of the random cases that a test names, what `make test` looks at."""


def seeds(count: int) -> range:
    """Seeds of random cases: a quarter of `count` in `make test`."""
    return range(_scale(count))


def examples(count: int, **options: Any) -> settings:
    """Examples that hypothesis draws: a quarter of `count` in `make test`; no deadline, since machines are shared."""
    return settings(max_examples=_scale(count), deadline=None, **options)


def enough(count: int) -> int:
    """Of the random cases, how many must be of a kind for a test to say something: as `seeds`, a quarter of `count`."""
    return _scale(count) if SOAKS else int(count * SHARE)


def sample(cases: Sequence[Any], every: int = 3) -> list[Any]:
    """Parameters of a test, alone or in tuples, of which `make test` tries each `every`th, from the first on."""
    return [
        case if i % every == 0 else later(*case) if isinstance(case, tuple) else later(case)
        for i, case in enumerate(cases)
    ]


def later(*values: Any) -> Any:
    """Parameters of a test for `make soak` alone."""
    return pytest.param(*values, marks=pytest.mark.soak)


def _scale(count: int) -> int:
    return count * FACTOR if SOAKS else max(1, round(count * SHARE))
