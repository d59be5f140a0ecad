"""How many random cases a test looks at: a sample in `make test`, `FACTOR` times as many in `make soak`."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

FACTOR = int(os.environ.get("PLACEWISE_SOAK", "1"))


def seeds(count: int) -> range:
    """Seeds of random cases: `count` in `make test`."""
    return range(count * FACTOR)


def examples(count: int, **options: Any) -> settings:
    """Examples that hypothesis draws: `count` in `make test`; no deadline, since machines are shared."""
    return settings(max_examples=count * FACTOR, deadline=None, **options)
