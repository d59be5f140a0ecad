"""Features of units, as columns in named sections.

Sections and their sources: `kind` (mean one-hot of op kinds), `shape` (log dims of outputs), `in_degree`,
`out_degree` (one-hot), `fractal` (fractal dimension), `position` (sines of the topological index) and `place` (the
index itself, as a share): Duan et al., NeurIPS 2024; `seconds` (log time on each device), `sent` (log time to send
the outputs), `weights` (share of the smallest memory), `levels` (longest paths from the start and to the end, of the
critical path): list scheduling, and Doppler (arXiv 2505.23131). Policies that fit any graph also use `degrees` (their
logarithms), `work` (log shares of the whole), `places` (`orders.py`) and `backward`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placewise import _native
from placewise.coarsen.merging import sums
from placewise.errors import PlacerError
from placewise.model.columns import Floats, offsets_of
from placewise.placers.learned.orders import fastest_seconds, order_positions
from placewise.placers.learned.view import View
from placewise.placers.shared.memory_footprint import compute_footprint
from placewise.simulate.judge.ranks import downward_ranks, mean_op_seconds, mean_transfer_seconds, upward_ranks
from placewise.simulate.problem_arrays import arrays_of

Singles = npt.NDArray[np.float32]

RANK, DIM_SCALE = 4, 10.0
"""A shape is described by its last four dimensions, as log(1 + dim) / 10."""
DEGREES = 8
"""One column per degree; the last one is for seven or more."""
POSITIONS, POSITION_BASE = 16, 1000.0
HASHED = 32
"""Columns of hashed kinds, for policies that must fit graphs with other kinds."""
REACH = 512
"""Units that a walk around one visits, for its fractal dimension."""


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """`matrix` [n_units, width], finite; `layout`: the sections in order, with their widths."""

    matrix: Singles
    layout: tuple[tuple[str, int], ...]

    @property
    def width(self) -> int:
        return int(self.matrix.shape[1])


ALL = ("kind", "shape", "in_degree", "out_degree", "fractal", "position", "seconds", "sent", "weights", "levels")


def build_features(view: View, sections: Iterable[str] = ALL, *, hashed: bool = False) -> Features:
    """Compute sections of features. With `hashed`, the columns of kinds are the same for all graphs.

    Raises PlacerError for an unknown section.
    """
    blocks: list[tuple[str, Singles]] = []
    for name in sections:
        if name not in _SECTIONS:
            raise PlacerError(f"there is no feature {name!r}", remedy=f"choose from {', '.join(_SECTIONS)}")
        columns = _kinds(view, hashed=hashed) if name == "kind" else _SECTIONS[name](view)
        blocks.append((name, np.ascontiguousarray(columns, np.float32).reshape(view.n, -1)))
    layout = tuple((name, columns.shape[1]) for name, columns in blocks)
    return Features(np.concatenate([np.zeros((view.n, 0), np.float32), *(block for _, block in blocks)], 1), layout)


def time_scale(view: View) -> float:
    """The time unit of features, in seconds: the mean time of a unit on the devices that may run it."""
    mean = float(mean_op_seconds(view.problem).sum()) / max(view.n, 1)
    return mean if mean > 0 else 1.0


def _kinds(view: View, *, hashed: bool = False) -> Floats:
    kind = view.problem.graph.ops.kind
    names = sorted({kind.values[code] for code in np.unique(kind.codes).tolist()})
    column = {name: zlib.crc32(name.encode()) % HASHED if hashed else place for place, name in enumerate(names)}
    of_code = np.array([column.get(name, 0) for name in kind.values], np.int64)
    table = np.zeros((view.n, HASHED if hashed else len(names)))
    np.add.at(table, (view.unit, of_code[kind.codes]), 1.0)
    mean: Floats = table / np.maximum(table.sum(axis=1, keepdims=True), 1.0)
    return mean


def _shapes(view: View) -> Floats:
    """The last dimensions, as means over all outputs of the ops."""
    tensors = view.problem.graph.tensors
    made = np.flatnonzero(tensors.producer >= 0)
    dims = np.zeros((len(made), RANK))
    offsets, values = tensors.shape.offsets, tensors.shape.values
    for back in range(1, RANK + 1):
        place = offsets[made + 1] - back
        has = place >= offsets[made]
        dims[has, -back] = np.log1p(np.maximum(values[place[has]], 0)) / DIM_SCALE
    unit = view.unit[tensors.producer[made]]
    count = np.maximum(np.bincount(unit, minlength=view.n), 1)
    return np.stack([sums(column, unit, view.n) / count for column in dims.T], axis=1)


def _degrees(ends: npt.NDArray[np.integer], n: int) -> Floats:
    table = np.zeros((n, DEGREES))
    table[np.arange(n), np.minimum(np.bincount(ends, minlength=n), DEGREES - 1)] = 1.0
    return table


def _positions(view: View) -> Floats:
    """Sines and cosines of the topological index, with base 1000 (Duan et al. 2024, section 2.2, as printed)."""
    rate = POSITION_BASE ** (-np.arange(0, POSITIONS, 2) / POSITIONS)
    angle = np.arange(view.n)[:, None] * rate
    return np.concatenate((np.sin(angle), np.cos(angle)), axis=1)


def _seconds(view: View) -> Floats:
    """log(1 + time in mean times) on each device; −1 where it is not allowed."""
    return np.where(view.allowed, np.log1p(np.where(view.allowed, view.seconds, 0.0) / time_scale(view)), -1.0)


def _sent(view: View) -> Floats:
    outwards = sums(view.flow, view.tail, view.n)
    made = view.problem.graph.tensors.producer
    sent = mean_transfer_seconds(view.problem)[made >= 0]
    everything = sums(sent, view.unit[made[made >= 0]], view.n)
    return np.log1p(np.stack((outwards, everything), axis=1) / time_scale(view))


def _weights(view: View) -> Floats:
    footprint = compute_footprint(view.problem, view.unit, view.n).totals().astype(np.float64)
    room = view.problem.capacity[np.isfinite(view.problem.capacity) & (view.problem.capacity > 0)]
    return footprint / (room.min() if len(room) else max(float(footprint.sum()), 1.0))


def _levels(view: View) -> Floats:
    """Mean over ops of the longest path to each, and from each to the end, as shares of the longest of all."""
    a = arrays_of(view.problem)
    before, after = downward_ranks(view.problem, a), upward_ranks(view.problem, a)
    longest = max(float(after.max(initial=0.0)), float(before.max(initial=0.0)))
    count = np.maximum(np.bincount(view.unit, minlength=view.n), 1)
    columns = [sums(column, view.unit, view.n) / count / (longest or 1.0) for column in (before, after)]
    return np.stack(columns, axis=1)


def _all_degrees(view: View) -> Floats:
    """Logarithms of in- and out-degrees."""
    return np.stack(
        [np.log1p(np.bincount(ends, minlength=view.n)) / DEGREES for ends in (view.head, view.tail)], axis=1
    )


def _work(view: View) -> Floats:
    """Shares of all work: of the unit on its fastest device, and of its traffic in and out; log10 over six decades."""
    work = fastest_seconds(view)
    arrives, leaves = sums(view.flow, view.head, view.n), sums(view.flow, view.tail, view.n)
    shares = np.stack((work, arrives, leaves), axis=1) / (float(work.sum()) or 1.0)
    return np.log10(np.clip(shares, 1e-6, 1e6)) / 6 + 1


def _backward(view: View) -> Floats:
    """The share of a unit's ops in the backward pass."""
    backward = view.problem.graph.ops.backward.astype(np.float64)
    return sums(backward, view.unit, view.n) / np.maximum(np.bincount(view.unit, minlength=view.n), 1)


def fractal_dimensions(n: int, tail: npt.NDArray[np.integer], head: npt.NDArray[np.integer]) -> Floats:
    """The slope of log N(v, r) over log r for each node [n], N the nodes within r edges of v, either way.

    By least squares over r = 1, 2, … up to the end of the walk (Duan et al. 2024, section 2.2); 0 for fewer than two
    distances. A walk ends after `REACH` nodes, so that the run time is linear in n.
    """
    start, end = np.concatenate((tail, head)), np.concatenate((head, tail)).astype(np.int32)
    order = np.lexsort((end, start))
    slope: Floats = _native.fractal_dimensions(offsets_of(start[order], n), end[order], REACH)
    return slope


_SECTIONS: dict[str, Callable[[View], Floats]] = {
    "kind": _kinds,
    "shape": _shapes,
    "in_degree": lambda view: _degrees(view.head, view.n),
    "out_degree": lambda view: _degrees(view.tail, view.n),
    "fractal": lambda view: fractal_dimensions(view.n, view.tail, view.head),
    "position": _positions,
    "place": lambda view: np.arange(view.n) / max(view.n - 1, 1),
    "seconds": _seconds,
    "sent": _sent,
    "weights": _weights,
    "levels": _levels,
    "degrees": _all_degrees,
    "work": _work,
    "places": order_positions,
    "backward": _backward,
}
