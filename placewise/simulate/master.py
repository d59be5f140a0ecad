"""A linear program of a few rows whose columns arrive one by one, by the revised simplex method.

Columns are assignments: the seconds that each gives to every class of devices, and the bytes. The program mixes
them so that no class needs more than T per device and memory is kept but for a penalty, and minimizes T. Its
dual variables are prices of time and memory. Nothing here has to be exact: whoever uses the prices proves with
them, and a bad price costs quality only. No library is used for so little: HiGHS and OR-Tools cannot be loaded
into one process (google/or-tools#5246), and the judge is loaded beside every placer.
"""

from __future__ import annotations

import numpy as np

from placewise.model.columns import Floats, Longs

_PENALTY = 1e6
_TOLERANCE = 1e-9


class Master:
    """The program over the assignments added so far; rows are classes, limited memories, and Σ shares = 1."""

    def __init__(self, machines: Longs, room: Floats, first: Floats) -> None:
        n_time, n_memory = len(machines), len(room)
        unit = np.eye(n_time + n_memory + 1)
        pace = np.concatenate((-machines.astype(np.float64), np.zeros(n_memory + 1)))
        self.n_time = n_time
        self.right = np.concatenate((np.zeros(n_time), room, [1.0]))
        # T, what is left of every row, what is missing of every memory, and the first assignment.
        self.columns = np.column_stack((pace, unit[:, :-1], -unit[:, n_time:-1], np.append(first, 1.0)))
        self.cost = np.zeros(self.columns.shape[1])
        self.cost[0], self.cost[1 + n_time + n_memory : -1] = 1.0, _PENALTY
        missing = first[n_time:] > room
        self.basis = np.arange(1, n_time + n_memory + 2)
        self.basis[np.argmax(first[:n_time] / machines)] = 0
        self.basis[n_time:-1] += n_memory * missing
        self.basis[-1] = len(self.cost) - 1
        self.dual = np.zeros(len(self.right))

    def add(self, column: Floats) -> None:
        """One more assignment."""
        self.columns = np.column_stack((self.columns, np.append(column, 1.0)))
        self.cost = np.append(self.cost, 0.0)

    def solve(self, *, most_pivots: int = 100) -> tuple[Floats, float]:
        """The prices of the classes' time and of the memories, and the least T (with penalty) over all mixtures."""
        for _ in range(most_pivots):
            basic = self.columns[:, self.basis]
            try:
                self.dual = np.linalg.solve(basic.T, self.cost[self.basis])
                reduced = self.cost - self.dual @ self.columns
                entering = int(reduced.argmin())
                direction, amount = np.linalg.solve(basic, np.stack((self.columns[:, entering], self.right), axis=1)).T
            except np.linalg.LinAlgError:
                break
            if reduced[entering] > -_TOLERANCE or not (direction > _TOLERANCE).any():
                break
            ratio = np.where(
                direction > _TOLERANCE, np.maximum(amount, 0.0) / np.maximum(direction, _TOLERANCE), np.inf
            )
            self.basis[int(ratio.argmin())] = entering
        return np.maximum(-self.dual[:-1], 0.0), float(self.dual @ self.right)
