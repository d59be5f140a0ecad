"""What each device holds, in words: "layers 0–12, embed_tokens and 3 smaller parts"."""

from __future__ import annotations

from collections.abc import Sequence

from placewise.coarsen.module_parts import ModulePart, ModuleParts, parts_of
from placewise.model.placement import Placement
from placewise.model.problem import Problem

MAX_PARTS = 4
"""How many parts of a device are named; of one more, all are."""


def describe_device_parts(problem: Problem, placement: Placement) -> list[str]:
    """What each device [n_devices] holds, in words; "" for one that runs nothing.

    All devices of a split stage hold the same, each its share.
    """
    words = describe_parts(parts_of(problem, placement), problem.n_devices)
    for group in placement.stages:
        for device in group.devices:
            words[device] = words[group.devices[0]]
    return words


def describe_parts(parts: ModuleParts, n_devices: int) -> list[str]:
    """What each device holds, in words. If all others are named in full, the last is "the rest"."""
    lists = [parts.on(device) for device in range(n_devices)]
    cut = [device for device, listed in enumerate(lists) if count_parts(listed) > MAX_PARTS + 1]
    words = [join_parts(listed) for listed in lists]
    if len(cut) == 1 and sum(1 for listed in lists if listed) > 1:
        words[cut[0]] = f"the rest: {words[cut[0]]}"
    return words


def count_parts(parts: Sequence[ModulePart]) -> int:
    """How many parts there are, small ones included."""
    return sum(part.parts for part in parts)


def join_parts(parts: Sequence[ModulePart]) -> str:
    """The largest of a device's parts, in the order of the model, and how many smaller ones there are."""
    count = count_parts(parts)
    shown = parts if count <= MAX_PARTS + 1 else parts[:MAX_PARTS]
    names = [part.short for part in sorted(shown, key=lambda part: part.first)]
    names += [f"{count - len(shown)} smaller parts"] if count > len(shown) else []
    comma = "; " if any("," in name or " and " in name for name in names) else ", "
    if len(names) < 2:
        return "".join(names)
    return f"{comma.join(names[:-1])}{comma if comma == '; ' else ' '}and {names[-1]}"
