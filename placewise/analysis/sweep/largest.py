"""The largest size that fits: by bisection between sizes that were tried, where memory grows with the size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from placewise.analysis.sweep.axes import Axis
from placewise.files.sweep_file import LargestRecord, NeedsRecord, PointRecord


@dataclass(frozen=True, slots=True, eq=False)
class AxisLine:
    """The points that differ in the size of one axis alone, ascending."""

    axis: Axis
    others: Mapping[str, int]
    devices: str
    points: tuple[PointRecord, ...]

    def size(self, point: PointRecord) -> int:
        return point.sizes[self.axis.name]


def list_lines(axes: Sequence[Axis], points: Sequence[PointRecord]) -> list[AxisLine]:
    """Every line along every axis, in the order of the points. A probe belongs to the line that asked for it."""
    lines = []
    for axis in axes:
        groups: dict[tuple[str, tuple[tuple[str, int], ...]], list[PointRecord]] = {}
        for point in points:
            others = tuple((name, size) for name, size in point.sizes.items() if name != axis.name)
            groups.setdefault((point.devices, others), []).append(point)
        rest = [other for other in axes if other.name != axis.name]
        for (devices, others), group in groups.items():
            if all(dict(others)[other.name] in other.sizes for other in rest):
                ordered = sorted(group, key=lambda point: point.sizes[axis.name])
                lines.append(AxisLine(axis, dict(others), devices, tuple(ordered)))
    return lines


def is_monotone(line: AxisLine) -> bool:
    """Whether memory grows along the line, as far as it was tried: nothing shrinks, and nothing fits above a misfit."""
    needs = [point.needs for point in line.points if point.needs is not None]
    if any(not _no_less(small, large) for small, large in pairwise(needs)):
        return False
    fits = [point.fits for point in line.points if point.fits is not None]
    return not any(large and not small for small, large in pairwise(fits))


def next_probe(line: AxisLine, resolution: float) -> int | None:
    """The size to try next between the largest that fits and the next one; None if these are close enough.

    They are where no more than `resolution`, a share of the greater, lies between them, rounded down to a power of two.
    """
    bracket = find_bracket(line)
    if bracket is None or not line.axis.doubles or not is_monotone(line):
        return None
    low, high = bracket
    step = step_of(high, resolution)
    probe = low + max((high - low) // step // 2, 1) * step
    return None if high - low <= step or any(line.size(point) == probe for point in line.points) else probe


def step_of(high: int, resolution: float) -> int:
    """How far apart a size that fits and one that does not may stay: a power of two, or 1."""
    return 1 << max(int(resolution * high).bit_length() - 1, 0)


def find_bracket(line: AxisLine) -> tuple[int, int] | None:
    """The largest size that fits, and the next one that was tried; None unless there are both."""
    fitting = [line.size(point) for point in line.points if point.fits]
    errors = {line.size(point) for point in line.points if point.status == "error"}
    sizes = [line.size(point) for point in line.points]
    above = [size for size in sizes if fitting and size > fitting[-1] and size not in errors]
    return (fitting[-1], above[0]) if above else None


def largest_of(line: AxisLine) -> LargestRecord:
    """What the line says."""
    fitting = [line.size(point) for point in line.points if point.fits]
    failing = [point for point in line.points if point.fits is not True and point.status != "error"]
    failing = [point for point in failing if not fitting or line.size(point) > fitting[-1]]
    monotone = is_monotone(line)
    return LargestRecord(
        name=line.axis.name,
        others=dict(line.others),
        devices=line.devices,
        fits=fitting[-1] if fitting else None,
        fails=line.size(failing[0]) if failing else None,
        method="bisection" if monotone and line.axis.doubles else "trying",
        monotone=monotone,
        known=not failing or failing[0].fits is False,
    )


def _no_less(small: NeedsRecord, large: NeedsRecord) -> bool:
    return (
        small.weights <= large.weights
        and small.state <= large.state
        and small.activations <= large.activations
        and small.largest <= large.largest
    )
