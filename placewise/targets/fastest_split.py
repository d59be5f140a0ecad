"""Exports as their target runs them; where much is lost, the fastest split of layers instead of the nearest one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from weakref import WeakKeyDictionary

from placewise._util.units import format_seconds
from placewise.core.target_rules import find_rule
from placewise.errors import PlacewiseError
from placewise.exporters.base import OptionValue
from placewise.exporters.writing import Export, export_placement
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Judgement
from placewise.placers.base import Budget, Hints
from placewise.simulate import judge_placement
from placewise.targets.place_for import place_for
from placewise.targets.relays import judge_on_target

LAYERED = frozenset({"deepspeed", "llama.cpp", "megatron", "vllm"})
"""Targets that know whole layers only, all of whose splits are searched."""
TOLERATED = 0.01
"""The loss up to which the nearest split is taken."""
SECONDS = 5.0
"""For a search, at most."""
_FASTEST: WeakKeyDictionary[Problem, dict[str, tuple[float, Placement | None]]] = WeakKeyDictionary()
"""By target, the seconds of the longest search (inf: it came to its end) and what was found."""


def export_fastest(
    problem: Problem, placement: Placement, target: str, options: Mapping[str, OptionValue] | None = None
) -> Export:
    """The files of `target` for a placement, as `export_placement` has them.

    Where the nearest split of layers breaks a rule or loses more than `TOLERATED`, the fastest one is exported, if
    there is a faster one; plans with stages keep the nearest. Raises what `export_placement` does.
    """
    nearest = export_placement(problem, placement, target, options)
    if not nearest.projected or problem.ways is not None:
        return nearest
    found = find_faster(problem, placement, target, nearest.exported.placement)
    if found is None:
        return nearest
    fastest = export_placement(problem, found, target, options)
    moved = int((fastest.exported.placement.device != placement.device).sum())
    return replace(fastest, asked=nearest.asked, projected=True, moved=moved, fastest=True)


def describe_execution(made: Export, *, searched: bool = False) -> str:
    """What the exported placement takes as its target runs it, where the plan says otherwise.

    `searched`: the plan was made for that target; only relays are then no part of its value.
    """
    target = made.info.name
    with suppress(PlacewiseError):
        if searched and not find_rule(target).relays:
            return ""
        value = judge_on_target(made.problem, made.exported.placement, target).value
        if not math.isclose(value, made.said.value, rel_tol=TOLERATED):
            took, instead = format_seconds(value), format_seconds(made.said.value)
            if searched:
                return f"what skips a stage passes through it: run so, the plan takes {took}, not {instead}"
            said = f"{target} {find_rule(target).runs}: run so, the plan takes {took} instead of {instead}"
            return f"{said} (place --for {target} searches what it can run)"
    return ""


def find_faster(
    problem: Problem, placement: Placement, target: str, nearest: Placement, seconds: float = SECONDS
) -> Placement | None:
    """The fastest split that a target of layers can express, where the `nearest` one of a placement loses much.

    None if that one is good enough, or if nothing faster keeps the rules.
    """
    if target not in LAYERED or placement.replicas is not None:
        return None
    with suppress(PlacewiseError):
        kept, value = judge_on_target(problem, nearest, target), judge_placement(problem, placement).value
        if not kept.valid or kept.value > value * (1 + TOLERATED):
            return _find_better(problem, placement, target, kept, seconds)
    return None


def _find_better(
    problem: Problem, placement: Placement, target: str, nearest: Judgement, seconds: float
) -> Placement | None:
    known = _FASTEST.setdefault(problem, {})
    longest, found = known.get(target, (-math.inf, None))
    if longest < seconds:
        begun = perf_counter()
        found = _search(problem, placement, target, seconds) or found
        known[target] = (math.inf if perf_counter() - begun < seconds else seconds), found
    judged = None if found is None else judge_on_target(problem, found, target)
    better = judged is not None and judged.valid and (not nearest.valid or judged.value < nearest.value)
    return found if better else None


def _search(problem: Problem, start: Placement, target: str, seconds: float) -> Placement | None:
    with suppress(PlacewiseError):
        budget = Budget(seconds=seconds)
        return place_for(problem, target, budget=budget, hints=Hints((start,)), advise=False, compare=False).placement
    return None
