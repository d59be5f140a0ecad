"""place_for(): a plan for one target, from what that target can express, as it runs it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from placewise._util.units import format_bytes
from placewise.core.compute_buffer import describe_compute_buffer, describe_unknown, keep_least_buffer
from placewise.core.host_weights import describe_prompt_copies
from placewise.core.place import place
from placewise.core.target_rules import TARGETS, find_rule, keep_off, leave_room, missing_room, run_on_target
from placewise.errors import ExportError, InputError, PlacewiseError
from placewise.exporters.base import RunningExporter
from placewise.exporters.llama_cpp.buffers import find_buffers
from placewise.exporters.registry import create_exporter, require_library
from placewise.exporters.space import Line
from placewise.model.placement import Placement
from placewise.model.problem import Headroom, Problem
from placewise.model.result import OPTIMAL_GAP, Bound, Judgement, Outcome, Reason, Result, Status, gap_of
from placewise.placers.base import NO_HINTS, Budget, Hints, OnProgress, Placer, Stopwatch, ignore, run_placer
from placewise.placers.shared.interchangeable import interchangeable
from placewise.targets.relays import shorten_relays, with_relays
from placewise.targets.split_search import SplitPlacer
from placewise.targets.unit_bounds import assignment_bound

TRIES = 4
"""How often a search is repeated with more room for weights that are moved."""
ADVICE_SECONDS = 2.0
"""For each other target, where nothing fits."""
MOST_UNITS, CHAIN_SHARE, FEW_SPLITS = 300, 0.25, 200
"""Blocks at most, the share of the time, and the priced splits of which one close to the bound is enough, for a first
answer of stages that follow each other."""


def place_for(
    problem: Problem,
    target: str,
    placer: str | Placer = "auto",
    budget: Budget | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    hints: Hints = NO_HINTS,
    on_progress: OnProgress = ignore,
    advise: bool = True,
    compare: bool = True,
) -> Result:
    """Place a problem for a target: every placement that is looked at, naive ones too, is one that it can express.

    The result's problem is run as the target runs it; its bound holds for what is searched. Raises
    InputError for an unknown target, ExportError for one that cannot take the model or the devices. With `advise`, a
    proof that nothing fits names the targets for which something does; without `compare`, no naive answers are made.
    """
    exporter = find_exporter(target)
    asked = _without_disks(problem, exporter)
    try:
        space = exporter.space(run_on_target(asked, target) if find_rule(target).hosts == "lend" else asked)
    except ExportError as error:
        raise error if target in error.problem else error.at(target) from None
    if space.lines and placer != "auto":
        raise InputError(f"all splits of layers for {target} are searched", remedy="leave out the placer")
    parts = [asked] if space.lines else _distinct_parts(space.problems)
    results, watch = list[Result](), Stopwatch(budget or Budget())
    for number, part in enumerate(parts):
        on_target, rest = run_on_target(part, target), watch.rest()
        limits = replace(rest, seconds=rest.seconds / (len(parts) - number))
        chosen: str | Placer = SplitPlacer(target, space.lines, splits=space.splits) if space.lines else placer
        project = partial(_project, exporter, on_target)
        known = replace(hints, placements=tuple(filter(None, map(project, hints.placements))))
        if not space.lines:
            known = replace(known, placements=(*known.placements, *_chained(on_target, limits)))
        given = None if space.lines else options
        search = partial(place, placer=chosen, options=given, hints=known, on_progress=on_progress, project=project)
        search = partial(search, compare=compare)
        found = _place_with_room(on_target, limits, search)
        if find_rule(target).buffers:
            found = _place_with_buffers(found, asked, watch, search)
        if not space.lines:
            found = _bounded(found, assignment_bound(on_target))
        if not watch.out:
            found = shorten_relays(found, target, lambda restricted: search(restricted, budget=watch.rest()))  # noqa: B023
        results.append(replace(found, problem=_as_asked(found.problem, problem)))
    best = with_relays(_join(results), target)
    if advise and best.status.outcome is Outcome.INFEASIBLE:
        best = replace(best, unmet=f"{best.unmet}{_advice(problem, target)}")
    if find_rule(target).buffers and best.status.outcome is Outcome.INFEASIBLE:
        best = replace(best, unmet=f"{best.unmet}{_advise_host(problem)}")
    kept = describe_compute_buffer(asked, best.problem)
    if find_rule(target).buffers:
        kept += describe_unknown(best.problem)
        kept += () if best.placement is None else describe_prompt_copies(best.problem, best.placement)
    notes = (f"made for {target}, which {find_rule(target).runs}", *kept, *best.notes)
    return replace(best, seconds=watch.elapsed, target=target, notes=notes)


def _place_with_room(problem: Problem, budget: Budget, search: Callable[..., Result]) -> Result:
    """The result of a search, in which the first accelerator has room for the weights that are moved to it."""
    asked = problem
    for _ in range(TRIES):
        result = search(problem, budget=budget)
        short = missing_room(result, asked)
        if not short:
            return result
        problem = leave_room(problem, short)
    return result


def _place_with_buffers(first: Result, asked: Problem, watch: Stopwatch, search: Callable[..., Result]) -> Result:
    """The result, and what the compute buffers of its plan take; of a second search where that mends what they lack.

    Devices of which the user says what stays free are left as they are. That nothing fits is proved with the least
    buffers only: where something fits with those, and not with its own, nothing is found.
    """
    if first.placement is not None:
        return _fit_buffers(first, asked, watch, search)
    least = keep_least_buffer(first.problem, asked)
    if first.status.outcome is not Outcome.INFEASIBLE or least is first.problem:
        return first
    second = search(least, budget=watch.rest())
    if second.status.outcome is Outcome.INFEASIBLE:
        return second
    if second.placement is not None:
        fitted = _fit_buffers(second, asked, watch, search)
        assert fitted.placement is not None
        if not find_buffers(fitted.problem, fitted.placement).missing:
            return fitted
    reason = Reason.TIME_LIMIT if watch.out else Reason.FINISHED
    return replace(first, status=Status(Outcome.UNKNOWN, reason), unmet="", bound=second.bound)


def _fit_buffers(first: Result, asked: Problem, watch: Stopwatch, search: Callable[..., Result]) -> Result:
    """A result with a placement, or that of a second search whose buffers fit."""
    assert first.placement is not None
    buffers, rules = find_buffers(first.problem, first.placement), first.problem.constraints
    said = replace(first, notes=(*buffers.describe(), *first.notes))
    given = {spare.device for spare in asked.constraints.spare}
    room = {name: buffers.sizes[name] for name in buffers.missing.keys() - given}
    stopped = watch.out or first.status.reason is Reason.INTERRUPTED
    if not room or rules.headroom or "" in given or stopped:
        return said
    others = tuple(spare for spare in rules.spare if spare.device not in room)
    kept = tuple(Headroom(name, bytes=size) for name, size in sorted(room.items()))
    problem = first.problem.with_(constraints=replace(rules, spare=(*others, *kept)))
    second = search(problem, budget=watch.rest())
    if second.placement is None or (found := find_buffers(second.problem, second.placement)).missing:
        return said
    which = ", ".join(f"{format_bytes(spare.bytes)} of {spare.device}" for spare in kept)
    note = f"searched again with {which} kept free, since the buffers of the first plan did not fit"
    return replace(second, notes=(*found.describe(), note, *second.notes))


def _advice(problem: Problem, target: str) -> str:
    """Which other targets could run the model on these devices, in words; "" for GGUF files, which they do not load."""
    able, source = [], problem.graph.source
    if source is not None and source.format == "gguf":
        return ""
    for other in TARGETS:
        with suppress(PlacewiseError):
            if other == target:
                continue
            found = place_for(problem, other, budget=Budget(seconds=ADVICE_SECONDS), advise=False, compare=False)
            if found.placement is not None:
                able.append(other)
    return f"; {', '.join(able)} could run it: place --for {able[0]}" if able else ""


def _advise_host(problem: Problem) -> str:
    """That the input embedding has to be on a card only since no host may be used, in words; "" where one may."""
    if (problem.allowed.any(axis=0) & problem.cluster.is_host).any():
        return ""
    remedy = "leave out --no-offload" if problem.cluster.is_host.any() else "add cpu to the devices"
    return f"; llama.cpp keeps the input embedding in host memory: {remedy}"


def _distinct_parts(parts: Sequence[Problem]) -> list[Problem]:
    """The parts that are not another one under other names of equal devices."""
    kept, seen = list[Problem](), list[tuple[int, Counter[int]]]()
    for part in parts:
        kind = interchangeable(parts[0])
        usable = np.flatnonzero(part.allowed.any(axis=0)).tolist()
        first = next((int(kind[device]) for device in usable if not part.cluster.is_host[device]), -1)
        kinds = Counter(int(kind[device]) for device in usable)
        if not any(first == other and kinds <= more for other, more in seen):
            kept.append(part)
            seen.append((first, kinds))
    return kept


def _chained(problem: Problem, limits: Budget) -> tuple[Placement, ...]:
    """The best split of the blocks, in their order, into stages: a start for other searches."""
    if problem.objective != replace(problem.objective, kind="latency", execution="sequential"):
        return ()
    if not 1 < problem.n_blocks <= MOST_UNITS:
        return ()
    mean = np.bincount(problem.block, weights=np.arange(problem.n_ops)) / np.bincount(problem.block)
    rank = np.argsort(np.argsort(mean, kind="stable"), kind="stable").astype(np.int32)
    line = Line(rank[problem.block], np.asarray(problem.allowed.any(axis=0), np.bool_))
    found = run_placer(
        SplitPlacer("", (line,), FEW_SPLITS), problem, replace(limits, seconds=CHAIN_SHARE * limits.seconds)
    )
    return () if found.placement is None else (found.placement,)


def _bounded(result: Result, bound: Bound) -> Result:
    """The result with the better of two bounds."""
    return replace(result, bound=bound) if bound.value > result.bound.value else result


def _project(exporter: RunningExporter, problem: Problem, placement: Placement) -> Placement | None:
    """The nearest placement that the target can express; None if there is none."""
    try:
        return exporter.project(problem, placement)
    except ExportError:
        return None


def find_exporter(target: str) -> RunningExporter:
    """The exporter of a target that runs models. Raises InputError, MissingExtraError."""
    find_rule(target)
    exporter = create_exporter(target)
    require_library(exporter.info)
    assert isinstance(exporter, RunningExporter)
    return exporter


def _without_disks(problem: Problem, exporter: RunningExporter) -> Problem:
    if exporter.info.disk:
        return problem
    return keep_off(problem, [d for d, device in enumerate(problem.cluster) if device.kind == "disk"])


def _as_asked(part: Problem, problem: Problem) -> Problem:
    """A part without the pins and sets that the target added: the user's rules, the devices, execution and costs."""
    kept = replace(part.constraints, pins=problem.constraints.pins, together=problem.constraints.together)
    return part.with_(constraints=kept)


def _join(results: list[Result]) -> Result:
    """The best result, with what bounds them all."""
    best = min(results, key=lambda result: (result.value, result.status.outcome is Outcome.INFEASIBLE))
    bounds = [Bound(math.inf, "nothing fits") if r.status.outcome is Outcome.INFEASIBLE else r.bound for r in results]
    bound = min(bounds, key=lambda bound: bound.value)
    if len(results) > 1:
        bound = replace(bound, method=f"{bound.method}, the least of {len(results)} cases")
    if best.judgement is None:
        return replace(best, bound=bound)
    baselines = dict[str, tuple[Placement, Judgement]]()
    for result in results:
        for name, known in result.baselines.items():
            baselines[name] = min(baselines.get(name, known), known, key=lambda one: (not one[1].valid, one[1].value))
    optimal = gap_of(best.value, bound.value) <= OPTIMAL_GAP
    ended = [result.status.reason for result in results]
    reason = Reason.PROVED if optimal else next((known for known in ended if known != Reason.PROVED), Reason.FINISHED)
    return replace(
        best,
        bound=bound,
        baselines=baselines,
        status=Status(Outcome.OPTIMAL if optimal else Outcome.FEASIBLE, reason),
    )
