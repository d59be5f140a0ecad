"""Strides: whether a reshape is a view or a copy."""

from __future__ import annotations

from collections.abc import Sequence


def is_contiguous(shape: Sequence[int], strides: Sequence[int] | None) -> bool:
    """Whether elements are in row-major order without gaps; unknown strides count as contiguous."""
    if strides is None or 0 in shape:
        return True
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def is_view(shape: Sequence[int], strides: Sequence[int] | None, wanted: Sequence[int]) -> bool:
    """Whether a tensor can be viewed with the shape `wanted`, of equally many elements, without a copy.

    Adjacent dimensions that are contiguous in memory form a run; every run must consist of whole dimensions of
    `wanted`.
    """
    if strides is None or 0 in shape or is_contiguous(shape, strides):
        return True
    runs = _runs(shape, strides)
    dims = [size for size in wanted if size != 1]
    place = 0
    for run in runs:
        covered = 1
        while covered < run and place < len(dims):
            covered *= dims[place]
            place += 1
        if covered != run:
            return False
    return place == len(dims)


def _runs(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The number of elements of each maximal run of dimensions, ignoring dimensions of length 1."""
    runs: list[int] = []
    outer = 0
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and outer == stride * size:
            runs[-1] *= size
        else:
            runs.append(size)
        outer = stride
    return runs
