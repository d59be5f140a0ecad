"""Compares placers: several on one problem, each with the same budget."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from placewise.core.place import place
from placewise.core.place_stages import refuse_stages
from placewise.core.place_step import refuse_step
from placewise.errors import MissingExtraError, PlacerError
from placewise.files.plan_file import PlanFile, RankRecord, plan_of
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Outcome, Reason, Result, gap_of
from placewise.placers import registry
from placewise.placers.base import NO_HINTS, Budget, Hints, OnProgress, Placer, Progress, ignore
from placewise.reporting.leaderboard import LeaderboardRow, LeaderboardTable, finite

STOPPED = "not done: interrupted"
EXPERT = "expert"
"""The placer that takes a human's split."""
LAST = "auto"
"""This placer runs last: it uses many others, and loading their code must not count against its budget."""


@dataclass(frozen=True, slots=True, eq=False)
class LeaderboardEntry:
    """The result of one placer, or the reason why there is none; `source` says where its method is from."""

    placer: str
    result: Result | None
    refusal: str = ""
    source: str = ""

    @property
    def value(self) -> float:
        """Seconds; inf without a placement."""
        return self.result.value if self.result else float("inf")

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C interrupted this placer."""
        return self.refusal == STOPPED or (self.result is not None and self.result.status.reason is Reason.INTERRUPTED)


def compare(
    problem: Problem,
    placers: Sequence[str] = (),
    budget: Budget | None = None,
    *,
    expert: Placement | None = None,
    on_progress: OnProgress = ignore,
) -> tuple[LeaderboardEntry, ...]:
    """Run each placer (default: all) with the same budget. Entries are sorted, best value first, without one last.

    The budget covers everything that a placer does, its set-up and bounds included. `expert` is a human's placement;
    only the placer `expert` takes it. Ctrl-C stops the comparison: finished entries are kept, the others say that they
    were interrupted. Raises PlacerError.
    """
    names = tuple(placers) or registry.known_names()
    if expert is not None and EXPERT not in names:
        remedy = f"compare the placer {EXPERT!r} as well, or leave it out"
        raise PlacerError("no placer of this comparison takes the human's placement", remedy=remedy)
    names = tuple(sorted(names, key=LAST.__eq__))
    _load_placers(names)
    entries: list[LeaderboardEntry] = []
    for number, name in enumerate(names, 1):
        if entries and entries[-1].interrupted:
            entries.append(LeaderboardEntry(name, None, STOPPED))
            continue
        hints = Hints((expert,)) if expert is not None and name == EXPERT else NO_HINTS
        listener = _number_progress(on_progress, name, f"{number} of {len(names)}")
        entries.append(_run_placer(problem, name, budget, hints, listener))
    return tuple(sorted(entries, key=lambda entry: (entry.result is None, entry.value)))


def _load_placers(names: Sequence[str]) -> None:
    """Import the placers before any clock starts, so that shared libraries count against no budget."""
    for name in names:
        with suppress(MissingExtraError):
            registry.placer_class(name)


def _run_placer(
    problem: Problem, name: str, budget: Budget | None, hints: Hints, on_progress: OnProgress
) -> LeaderboardEntry:
    try:
        placer = registry.create(name)
        source, refusal = placer.info.source, _refuse(problem, placer)
        if refusal:
            return LeaderboardEntry(name, None, refusal, source)
        return LeaderboardEntry(name, place(problem, name, budget, hints=hints, on_progress=on_progress), "", source)
    except MissingExtraError as error:
        return LeaderboardEntry(name, None, str(error))
    except KeyboardInterrupt:
        return LeaderboardEntry(name, None, STOPPED)


def _refuse(problem: Problem, placer: Placer) -> str:
    """Why a placer cannot take a problem; "" if it can."""
    if problem.objective.kind == "step":
        return refuse_step(problem, placer)
    if problem.ways is None:
        return placer.supports(problem) or ""
    return "" if placer.info.name == LAST else refuse_stages(problem, placer)


def _number_progress(on_progress: OnProgress, name: str, number: str) -> OnProgress:
    """A listener that adds the number of the placer, and the name of the placer that it calls, if any."""

    def listen(state: Progress) -> None:
        helper = "" if state.placer == name else f": {state.placer}"
        on_progress(replace(state, placer=f"{name} ({number}){helper}"))

    return listen


def best_bound(entries: Sequence[LeaderboardEntry]) -> float:
    """The highest lower bound, in seconds, that any entry proved."""
    return max((entry.result.lower_bound for entry in entries if entry.result), default=0.0)


def tabulate_entries(entries: Sequence[LeaderboardEntry]) -> LeaderboardTable:
    """The entries as ranked rows, with the best bound and the best value of all."""
    bound = best_bound(entries)
    proved = [entry for entry in entries if entry.result is not None and entry.result.lower_bound == bound]
    ran = [entry for entry in entries if entry.result is not None]
    by = "every placer" if len(proved) == len(ran) > 1 else ", ".join(entry.placer for entry in proved)
    method = next((entry.result.bound.method for entry in proved if entry.result is not None), "")
    best = min((entry.value for entry in entries), default=float("inf"))
    return LeaderboardTable(
        rows=tuple(_make_row(entry, entries, bound, best, by) for entry in entries),
        lower_bound=finite(bound) if ran else None,
        best_bound_by=by,
        bound_method=method,
        best_value=finite(best),
    )


def _make_row(
    entry: LeaderboardEntry, entries: Sequence[LeaderboardEntry], bound: float, best: float, by: str
) -> LeaderboardRow:
    result = entry.result
    if result is None:
        return LeaderboardRow(placer=entry.placer, best_bound_by=by, source=entry.source, refusal=entry.refusal)
    row = LeaderboardRow(
        placer=entry.placer,
        own_lower_bound=finite(result.lower_bound),
        bound_method=result.bound.method,
        status=str(result.status.outcome),
        reason=str(result.status.reason),
        seconds=result.seconds,
        best_bound_by=by,
        source=entry.source,
        seed=result.seed,
        notes=result.notes,
        unmet=result.unmet,
    )
    if result.judgement is None:
        return row
    return replace(
        row,
        rank=1 + sum(other.value < result.value for other in entries),
        value=result.value,
        gap=gap_of(result.value, bound),
        ratio=result.value / best if best > 0 else finite(1.0 if result.value == best else float("inf")),
        devices=sum(1 for use in result.judgement.devices if use.ops),
    )


def best_plan(entries: Sequence[LeaderboardEntry]) -> PlanFile | None:
    """The plan of the best entry, with the best bound of all and the leaderboard; None without any placement."""
    first = next((entry.result for entry in entries if entry.result and entry.result.placement is not None), None)
    if first is None:
        return None
    board = tabulate_entries(entries)
    bound = best_bound(entries)
    optimal = first.status.outcome is Outcome.OPTIMAL or any(
        entry.result is not None and entry.result.status.outcome is Outcome.OPTIMAL
        for entry in entries
        if entry.value == first.value
    )
    changes = {
        "lower_bound": bound,
        "bound_method": board.bound_method,
        "gap": gap_of(first.value, bound),
        "status": str(Outcome.OPTIMAL if optimal else first.status.outcome),
        "leaderboard": tuple(_rank_record(row) for row in board.rows),
    }
    return plan_of(first).model_copy(update=changes)


def _rank_record(row: LeaderboardRow) -> RankRecord:
    return RankRecord(
        placer=row.placer,
        value=float("inf") if row.value is None else row.value,
        lower_bound=row.own_lower_bound or 0.0,
        status=row.status,
        seconds=row.seconds or 0.0,
        devices=row.devices or 0,
        remark=row.refusal or row.unmet or ("; ".join(row.notes) if row.value is None else ""),
    )


def parse_placers(given: str | Sequence[str]) -> tuple[str, ...]:
    """``"dp,etf"``, or names → names; ``"all"`` → every placer. Raises PlacerError for an unknown name."""
    if not isinstance(given, str) and not (
        isinstance(given, (list, tuple)) and all(isinstance(name, str) for name in given)
    ):
        raise PlacerError(f"the placers are {reprlib.repr(given)}", remedy="give names, like 'dp,etf' or ['dp', 'etf']")
    text = given if isinstance(given, str) else ",".join(given)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if names in ((), ("all",)):
        return registry.known_names()
    for name in names:
        if name not in registry.known_names():
            raise PlacerError(f"there is no placer {name!r}", remedy=f"choose from {', '.join(registry.known_names())}")
    return names
