"""The first picture of a page: what each device holds, how full it is, and how sure its figures are."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from placewise.coarsen.module_parts import ModulePart, parts_of
from placewise.model.problem import Problem
from placewise.model.result import DeviceUse
from placewise.reporting.device_parts import count_parts, describe_parts
from placewise.reporting.page.columns import clean_text
from placewise.reporting.page.plan_view import PlanView

MAX_SEGMENTS = 64
"""A model whose parts alternate more often is not drawn as a strip."""
MAX_PARTS = 12
"""How many parts of a device a page lists."""
ASSUMED, UNKNOWN, CATALOGUE = "assumed", "unknown", "catalogue"
_GUESSED = re.compile(r"assumed: |model not given|this machine, estimated")
_MISSING = re.compile(r"(memory|memory bandwidth|peak speed|efficiency) is not given")
_KNOWN_TIMES = frozenset({"measured", "given"})


def overview_part(view: PlanView) -> dict[str, Any]:
    """`cards` of the devices that run anything, `unused` devices, `strip` of the model, and `figures` in sentences.

    A card has the `device`, its `node`, its `words`, how sure its `figures` are, the shares of its memory that are
    `resident` and at the `peak` (None: without limit), its `share` of the compute, its largest `parts` as rows of name,
    ops, seconds and bytes, and how many `more` there are. The strip is a row per stretch: device, share of the time,
    name.
    """
    uses = {use.device: use for use in view.uses}
    used = [d for d, name in enumerate(view.devices) if name in uses and (uses[name].ops or uses[name].repeats)]
    parts = None if view.placed is None else parts_of(view.placed.problem, view.placed.placement)
    words = [""] * len(view.devices) if parts is None else describe_parts(parts, len(view.devices))
    ratings = _rate_devices(view)
    compute = math.fsum(use.compute for use in uses.values() if math.isfinite(use.compute))
    cards = [
        _card(d, uses[view.devices[d]], words[d], ratings[d][0], compute, [] if parts is None else parts.on(d))
        | {"node": clean_text(view.nodes[d])}
        for d in used
    ]
    return {
        "cards": cards,
        "unused": [clean_text(name) for d, name in enumerate(view.devices) if d not in used] if cards else [],
        "strip": [] if parts is None else [[d, share, clean_text(name)] for d, share, name in cut_strip(parts.parts)],
        "figures": [clean_text(text) for text in _describe_figures([(view.devices[d], ratings[d]) for d in used])],
    }


def _card(
    device: int, use: DeviceUse, words: str, rating: str, compute: float, parts: Sequence[ModulePart]
) -> dict[str, Any]:
    shown = parts if count_parts(parts) <= MAX_PARTS else parts[: MAX_PARTS - 1]
    return {
        "device": device,
        "words": clean_text(words or (f"runs the stage of {use.repeats} as well" if use.repeats else "")),
        "figures": rating,
        "memory": memory_shares(use.resident, use.peak, use.capacity),
        "share": use.compute / compute if compute > 0 and math.isfinite(use.compute) else None,
        "parts": [[clean_text(part.short), part.ops, part.seconds, part.bytes] for part in shown],
        "more": count_parts(parts) - count_parts(shown),
    }


def memory_shares(resident: float, peak: float, capacity: float) -> list[float] | None:
    """The shares of a device's own memory that are resident and in use at the peak, at most 1; None without limit."""
    if not math.isfinite(capacity) or not math.isfinite(peak):
        return None
    whole = max(capacity, peak)
    return [0.0, 0.0] if whole <= 0 else [min(max(resident, 0.0), peak) / whole, peak / whole]


def cut_strip(parts: Sequence[ModulePart]) -> list[tuple[int, float, str]]:
    """The model from its first op to its last as stretches of devices: (device, share, name of the largest part).

    Shares are of the seconds, or of the ops where nothing takes time, and add up to 1. Empty where devices alternate
    too often to be drawn.
    """
    timed = any(part.seconds > 0 for part in parts)
    whole = math.fsum(part.seconds if timed else part.ops for part in parts)
    strip = []
    for device, each in groupby(sorted(parts, key=lambda part: part.first), key=lambda part: part.device):
        members = list(each)
        largest = max(members, key=lambda part: (part.seconds, part.ops))
        strip.append((device, math.fsum(p.seconds if timed else p.ops for p in members) / whole, largest.short))
    return strip if len(strip) <= MAX_SEGMENTS else []


def rate_figures(notes: Collection[str], sources: Collection[str]) -> tuple[str, str]:
    """How sure the figures of a device are, and why: assumed, unknown, the catalogue's, or "" for those that are given.

    `notes` are what was assumed of it, `sources` where the times of its ops come from.
    """
    if sources and _KNOWN_TIMES.issuperset(sources):
        return "", ""
    for rating, pattern in ((ASSUMED, _GUESSED), (UNKNOWN, _MISSING)):
        found = next((note for note in notes if pattern.match(note)), None)
        if found is not None:
            return rating, found
    return (CATALOGUE, "") if notes else ("", "")


def _rate_devices(view: PlanView) -> list[tuple[str, str]]:
    """The rating of every device, by the model's cluster or else by the plan's."""
    if view.placed is not None:
        problem = view.placed.problem
        return [rate_figures(device.notes, _time_sources(problem, d)) for d, device in enumerate(problem.cluster)]
    if view.plan.cluster is not None:
        return [rate_figures(device.notes, ()) for device in view.plan.cluster.devices]
    return [("", "")] * len(view.devices)


def _time_sources(problem: Problem, device: int) -> set[str]:
    codes = problem.costs.op_source[np.isfinite(problem.costs.op_seconds[:, device]), device]
    return {problem.costs.sources[code] for code in np.unique(codes).tolist()}


def _describe_figures(ratings: Sequence[tuple[str, tuple[str, str]]]) -> Iterator[str]:
    """A sentence per kind of figures that nobody gave, and reason."""
    for rating, words in ((ASSUMED, "are assumed"), (UNKNOWN, "are not known")):
        names: dict[str, list[str]] = {}
        for name, (found, why) in ratings:
            if found == rating:
                names.setdefault(why.removeprefix("assumed: "), []).append(name)
        for why, devices in names.items():
            yield f"The figures of {join_names(devices)} {words} ({why})."
    known = [name for name, (found, _) in ratings if found == CATALOGUE]
    if known:
        whose = f"The figures of {join_names(known)} are the catalogue's"
        yield f"{whose}; the efficiency that is reached is assumed."


def join_names(names: Sequence[str]) -> str:
    """Names with commas and "and"; the first few of many."""
    if len(names) > MAX_PARTS:
        return f"{', '.join(names[: MAX_PARTS - 1])} and {len(names) - MAX_PARTS + 1} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
