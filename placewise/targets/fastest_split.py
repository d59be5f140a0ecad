"""Exports that would lose much: the fastest split that a target of layers can express, instead of the nearest one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from weakref import WeakKeyDictionary

from placewise.errors import PlacewiseError
from placewise.exporters.base import OptionValue
from placewise.exporters.writing import Export, export_placement
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement
from placewise.placers.base import Budget, Hints
from placewise.simulate import judge_placement
from placewise.targets.place_for import place_for

LAYERED = frozenset({"deepspeed", "llama.cpp", "megatron", "vllm"})
"""Targets that know whole layers only, all of whose splits are searched."""
TOLERATED = 0.01
"""The loss up to which the nearest split is taken."""
SECONDS = 5.0
"""For a search, at most."""
_FASTEST: WeakKeyDictionary[Problem, dict[str, Placement | None]] = WeakKeyDictionary()
"""What was found, by target."""


def export_fastest(
    problem: Problem, placement: Placement, target: str, options: Mapping[str, OptionValue] | None = None
) -> Export:
    """The files of `target` for a placement, as `export_placement` has them.

    Where the nearest split of layers breaks a rule or loses more than `TOLERATED`, the fastest one is exported, if
    there is a faster one. Raises what `export_placement` does.
    """
    nearest = export_placement(problem, placement, target, options)
    if not nearest.projected:
        return nearest
    found = find_faster(problem, placement, target, nearest.said)
    if found is None:
        return nearest
    fastest = export_placement(problem, found, target, options)
    moved = int((fastest.exported.placement.device != placement.device).sum())
    return replace(fastest, asked=nearest.asked, projected=True, moved=moved, fastest=True)


def find_faster(
    problem: Problem, placement: Placement, target: str, nearest: Judgement, seconds: float = SECONDS
) -> Placement | None:
    """The fastest split that a target of layers can express, where the `nearest` one of a placement loses much.

    None if that one is good enough, or if nothing faster keeps the rules.
    """
    if target not in LAYERED or placement.replicas is not None:
        return None
    value = judge_placement(problem, placement).value
    if nearest.valid and nearest.value <= value * (1 + TOLERATED):
        return None
    known = _FASTEST.setdefault(problem, {})
    if target not in known:
        known[target] = _search(problem, placement, target, seconds)
    found = known[target]
    judged = None if found is None else judge_placement(problem, found)
    better = judged is not None and judged.valid and (not nearest.valid or judged.value < nearest.value)
    return found if better else None


def _search(problem: Problem, start: Placement, target: str, seconds: float) -> Placement | None:
    with suppress(PlacewiseError):
        budget = Budget(seconds=seconds)
        return place_for(problem, target, budget=budget, hints=Hints((start,)), advise=False).placement
    return None
