"""Points of sweeps, made by hand or drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from placewise.files.sweep_file import MemoryRecord, NeedsRecord, PointRecord


def made_point(sizes: dict[str, int], *, fits: bool | None = True, devices: str = "a", **figures: Any) -> PointRecord:
    """A point with or without a plan; the model takes as many bytes as its sizes add up to."""
    status = {True: "feasible", False: "infeasible", None: "unknown"}[fits]
    bytes_needed = float(sum(sizes.values()))
    needs = figures.pop(
        "needs", NeedsRecord(weights=1.0, state=bytes_needed, activations=bytes_needed, largest=bytes_needed)
    )
    peak = figures.pop("peak", bytes_needed)
    memory = (MemoryRecord(device="cuda:0", peak=peak, capacity=1e9),) if fits else ()
    return PointRecord(sizes=sizes, devices=devices, status=status, needs=needs, memory=memory, **figures)


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """The definition: nowhere greater, and somewhere less."""
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
