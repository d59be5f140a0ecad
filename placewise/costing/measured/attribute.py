"""Attribute kernel times to ops: each kernel's time is divided among its ops in proportion to their estimates."""

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
    """Seconds per run [n_ops] on one device, the ops that have any, and the rows without an op."""

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
    """Assign rows that name ops; names take precedence over patterns. Raises CostError for a missing op."""
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
    """Distribute each row's seconds over its ops, weighted by `estimate` [n_ops]; no time is gained or lost."""
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
