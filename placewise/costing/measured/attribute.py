"""Times of kernels → times of ops: every kernel's time is shared out over its ops, as the estimates say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from placewise.costing.measured.table import TimingRow, clipped
from placewise.errors import CostError
from placewise.model.columns import Bools, Floats
from placewise.model.graph import Graph


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """Seconds per run [n_ops] on one device, which ops have any, and what no op was found for."""

    seconds: Floats
    measured: Bools
    unmatched: tuple[TimingRow, ...]

    @property
    def given(self) -> float:
        return float(self.seconds[self.measured].sum())

    @property
    def lost(self) -> float:
        return sum(row.seconds for row in self.unmatched)


def assign_by_name(rows: Sequence[TimingRow], graph: Graph) -> Attribution:
    """The times of rows that are of ops; a name goes before a pattern. Raises CostError for an op that is not there."""
    ops = {name: op for op, name in enumerate(graph.ops.name)}
    seconds, measured = np.zeros(graph.n_ops), np.zeros(graph.n_ops, np.bool_)
    for row in sorted(rows, key=lambda row: row.name in ops):
        matches = [ops[row.name]] if row.name in ops else []
        if not matches and ("*" in row.name or "?" in row.name):
            matches = [op for name, op in ops.items() if fnmatchcase(name, row.name)]
        if not matches:
            remedy = "use the names that are the keys of a plan's assignment"
            raise CostError(f"the model has no op {clipped(row.name)!r}", where=row.place, remedy=remedy)
        seconds[matches], measured[matches] = row.seconds, True
    return Attribution(seconds, measured, ())


def distribute_times(rows: Sequence[TimingRow], owners: Sequence[Sequence[int]], estimate: Floats) -> Attribution:
    """`estimate` [n_ops] are the weights of the shares; given and lost seconds together are those of the rows."""
    seconds, measured = np.zeros(len(estimate)), np.zeros(len(estimate), np.bool_)
    weight = np.where(np.isfinite(estimate), estimate, 0.0)
    for row, owner in zip(rows, owners, strict=True):
        if owner:
            part = weight[list(owner)]
            total = part.sum()
            seconds[list(owner)] += row.seconds * (part / total if total > 0 else np.full(len(owner), 1 / len(owner)))
            measured[list(owner)] = True
    lost = tuple(row for row, owner in zip(rows, owners, strict=True) if not owner)
    return Attribution(seconds, measured, lost)
