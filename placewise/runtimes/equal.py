"""Whether two runs of a model gave the same outputs, as nearly as their element type allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise.errors import RunError
from placewise.runtimes.inputs import Arrays

TOLERANCES: Mapping[str, float] = {"float64": 1e-6, "float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
"""The most that an entry may differ, relative to the largest entry of the reference (in size): other kernels, other
orders of sums. Lower precision on one device counts for all."""


def require_equal(reference: Arrays, found: Arrays, *, who: str, precision: str = "") -> float:
    """The largest difference, as a share of the tolerance. Raises RunError if an output differs by more, or is missing.

    `precision` is the lowest in which a device computes, if lower than that of the outputs.
    """
    if set(reference) != set(found):
        lost = sorted(set(reference) ^ set(found))
        raise RunError(f"{who} has other outputs than the single-device run: {', '.join(lost)}")
    worst = 0.0
    for name, wanted in reference.items():
        got = found[name]
        if wanted.shape != got.shape or wanted.dtype != got.dtype:
            raise RunError(
                f"{who} gives the output {name!r} as {got.dtype}{list(got.shape)} instead of "
                f"{wanted.dtype}{list(wanted.shape)}"
            )
        tolerance = max(TOLERANCES.get(str(wanted.dtype), 0.0), TOLERANCES.get(precision, 0.0))
        if wanted.dtype.kind in "iubSUO":
            tolerance = 0.0 if not precision else 1.0
        difference = _difference(wanted, got)
        if not difference <= tolerance:
            raise RunError(
                f"{who} gives another output {name!r} than the single-device run: they differ by {difference:.2g} of "
                f"its largest entry, and {tolerance:g} is allowed"
            )
        worst = max(worst, difference / tolerance if tolerance else 0.0)
    return worst


def _difference(wanted: npt.NDArray[Any], got: npt.NDArray[Any]) -> float:
    if wanted.dtype.kind in "SUOb":
        return float((wanted != got).any())
    if not wanted.size:
        return 0.0
    a, b = np.asarray(wanted, np.float64), np.asarray(got, np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    scale = np.abs(a[np.isfinite(a)]).max(initial=0.0) or 1.0
    off = np.where(same, 0.0, np.abs(a - b))
    return float("inf") if np.isnan(off).any() else float(off.max()) / scale
