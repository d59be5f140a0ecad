"""Compare the outputs of two runs of a model within the tolerance of their element type."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from placewise.core.precision import TOLERANCES
from placewise.errors import RunError
from placewise.runtimes.inputs import Arrays


def require_equal(reference: Arrays, outputs: Arrays, *, who: str, precision: str = "") -> float:
    """The largest difference, as a share of the tolerance. Raises RunError if an output is missing or differs by more.

    `who` is the subject of messages. `precision` is the lowest in which a device computes, if lower than that of the
    outputs.
    """
    if set(reference) != set(outputs):
        unmatched = sorted(set(reference) ^ set(outputs))
        raise RunError(f"{who} has other outputs than the single-device run: {', '.join(unmatched)}")
    worst = 0.0
    for name, expected in reference.items():
        actual = outputs[name]
        if expected.shape != actual.shape or expected.dtype != actual.dtype:
            raise RunError(
                f"{who} gives the output {name!r} as {actual.dtype}{list(actual.shape)} instead of "
                f"{expected.dtype}{list(expected.shape)}"
            )
        tolerance = max(TOLERANCES.get(str(expected.dtype), 0.0), TOLERANCES.get(precision, 0.0))
        if expected.dtype.kind in "iubSUO":
            tolerance = 0.0 if not precision else 1.0
        difference = _relative_difference(expected, actual)
        if not difference <= tolerance:
            raise RunError(
                f"{who} gives another output {name!r} than the single-device run: they differ by {difference:.2g} of "
                f"its largest entry, and {tolerance:g} is allowed"
            )
        worst = max(worst, difference / tolerance if tolerance else 0.0)
    return worst


def _relative_difference(expected: npt.NDArray[Any], actual: npt.NDArray[Any]) -> float:
    if expected.dtype.kind in "SUOb":
        return float((expected != actual).any())
    if not expected.size:
        return 0.0
    a, b = np.asarray(expected, np.float64), np.asarray(actual, np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    scale = np.abs(a[np.isfinite(a)]).max(initial=0.0) or 1.0
    off = np.where(same, 0.0, np.abs(a - b))
    return float("inf") if np.isnan(off).any() else float(off.max()) / scale
