"""What peaks when, in sentences."""

from __future__ import annotations

from typing import Any

from placewise._util.units import format_bytes
from placewise.simulate import MemoryPeak

_KINDS = (("weight", "weights"), ("state", "state"), ("tensor", "tensors"))
_NAMED = 3
_LISTED = 20


def peak_line(peak: MemoryPeak) -> str:
    """When a device holds most and what, the largest of each kind by name."""
    kinds = []
    for kind, plural in _KINDS:
        parts = [part for part in peak.held if part.kind == kind]
        if parts:
            named = [f"{part.name} {format_bytes(part.bytes)}" for part in parts[:_NAMED]]
            more = [f"{len(parts) - _NAMED:,} more"] if len(parts) > _NAMED else []
            kinds.append(f"{plural} {format_bytes(peak.total(kind))} ({', '.join(named + more)})")
    return (
        f"{peak.device} holds most, {format_bytes(peak.bytes)}, while {peak.op} runs: {'; '.join(kinds) or 'nothing'}"
    )


def peak_record(peak: MemoryPeak) -> dict[str, Any]:
    """The same as plain values: bytes of each kind, and the largest twenty of all that is held."""
    totals = {plural: peak.total(kind) for kind, plural in _KINDS}
    held = [part._asdict() for part in peak.held[:_LISTED]]
    return {"device": peak.device, "op": peak.op, "bytes": peak.bytes, **totals, "count": len(peak.held), "held": held}
