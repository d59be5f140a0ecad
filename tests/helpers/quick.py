"""Options under which placers that search for long do little: for tests that ask every placer about many problems."""

from __future__ import annotations

from typing import Any

LEARNED = ("colocrl", "doppler", "gdp", "hdp", "hsdag", "placeto")
QUICK: dict[str, dict[str, Any]] = {
    "cover": {"rounds": 2, "steps": 300},
    "temper": {"searches": 4},
    **{name: {"updates": 2, "samples": 4} for name in LEARNED},
    "doppler": {"updates": 2, "samples": 4, "imitation": 2},
    "gdp": {"updates": 2, "samples": 4, "prior_sets": 2, "refinements": 1},
}
