"""The leaderboard: several placers on one problem, the same seconds for each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from placewise.core.place import place
from placewise.errors import MissingExtraError, PlacerError
from placewise.files.plan_file import PlanFile, RankRecord, plan_of
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Outcome, Reason, Result, gap_of
from placewise.placers import registry
from placewise.placers.base import NO_HINTS, Budget, Hints, OnProgress, Progress, ignore
from placewise.report.leaderboard import Board, Row, finite

STOPPED = "not done: interrupted"
EXPERT = "expert"
"""The placer that a human's split is for."""
LAST = "auto"
"""It asks many of the others: were it the first, loading all their code would be on its time."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One line of the leaderboard: a result, or the reason why there is none; and where the placer is from."""

    placer: str
    result: Result | None
    refusal: str = ""
    source: str = ""

    @property
    def value(self) -> float:
        """Seconds; inf where there is no placement."""
        return self.result.value if self.result else float("inf")

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C came before this placer was done."""
        return self.refusal == STOPPED or (self.result is not None and self.result.status.reason is Reason.INTERRUPTED)


def compare(
    problem: Problem,
    placers: Sequence[str] = (),
    budget: Budget | None = None,
    *,
    expert: Placement | None = None,
    on_progress: OnProgress = ignore,
) -> tuple[Entry, ...]:
    """Run each placer (default: all) under the same budget; best value first, those without one last.

    The budget holds for all that a placer does, its set-up and bounds included. `expert` is a human's placement, for
    the placer `expert` and no other. The best bound that any of them proved holds for all: `board_of` reads it off.
    Ctrl-C ends the round: what is finished is kept, and the others' entries say so. Raises PlacerError.
    """
    names = tuple(placers) or registry.known_names()
    if expert is not None and EXPERT not in names:
        remedy = f"compare the placer {EXPERT!r} as well, or leave it out"
        raise PlacerError("a human's placement is given, and nobody takes it", remedy=remedy)
    names = tuple(sorted(names, key=LAST.__eq__))
    _load(names)
    entries: list[Entry] = []
    for number, name in enumerate(names, 1):
        if entries and entries[-1].interrupted:
            entries.append(Entry(name, None, STOPPED))
            continue
        hints = Hints((expert,)) if expert is not None and name == EXPERT else NO_HINTS
        tell = _numbered(on_progress, name, f"{number} of {len(names)}")
        entries.append(_entry(problem, name, budget, hints, tell))
    return tuple(sorted(entries, key=lambda entry: (entry.result is None, entry.value)))


def _load(names: Sequence[str]) -> None:
    """Import the placers before any clock starts: the libraries that several of them use are on nobody's time."""
    for name in names:
        with suppress(MissingExtraError):
            registry.placer_class(name)


def _entry(problem: Problem, name: str, budget: Budget | None, hints: Hints, on_progress: OnProgress) -> Entry:
    try:
        placer = registry.create(name)
        source, refusal = placer.info.source, placer.supports(problem)
        if refusal is not None:
            return Entry(name, None, refusal, source)
        return Entry(name, place(problem, name, budget, hints=hints, on_progress=on_progress), "", source)
    except MissingExtraError as error:
        return Entry(name, None, str(error))
    except KeyboardInterrupt:
        return Entry(name, None, STOPPED)


def _numbered(on_progress: OnProgress, name: str, number: str) -> OnProgress:
    """The listener, told the placer that is compared and its number, and whom that asks for help."""

    def tell(state: Progress) -> None:
        helper = "" if state.placer == name else f": {state.placer}"
        on_progress(replace(state, placer=f"{name} ({number}){helper}"))

    return tell


def best_bound(entries: Sequence[Entry]) -> float:
    """The highest lower bound, in seconds, that any entry proved."""
    return max((entry.result.lower_bound for entry in entries if entry.result), default=0.0)


def board_of(entries: Sequence[Entry]) -> Board:
    """The entries as rows of numbers and words, ranked, beside the best bound and the best value."""
    bound = best_bound(entries)
    proved = [entry for entry in entries if entry.result is not None and entry.result.lower_bound == bound]
    ran = [entry for entry in entries if entry.result is not None]
    by = "every placer" if len(proved) == len(ran) > 1 else ", ".join(entry.placer for entry in proved)
    method = next((entry.result.bound.method for entry in proved if entry.result is not None), "")
    best = min((entry.value for entry in entries), default=float("inf"))
    rows = tuple(_row(entry, entries, bound, best, by) for entry in entries)
    return Board(
        rows=rows,
        lower_bound=finite(bound) if ran else None,
        best_bound_by=by,
        bound_method=method,
        best_value=finite(best),
    )


def _row(entry: Entry, entries: Sequence[Entry], bound: float, best: float, by: str) -> Row:
    result = entry.result
    if result is None:
        return Row(placer=entry.placer, best_bound_by=by, source=entry.source, refusal=entry.refusal)
    row = Row(
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


def best_plan(entries: Sequence[Entry]) -> PlanFile | None:
    """The plan of the best entry, with the best bound of all and the leaderboard in it; None if nobody has one."""
    first = next((entry.result for entry in entries if entry.result and entry.result.placement is not None), None)
    if first is None:
        return None
    board = board_of(entries)
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
        "leaderboard": tuple(_rank(row) for row in board.rows),
    }
    return plan_of(first).model_copy(update=changes)


def _rank(row: Row) -> RankRecord:
    return RankRecord(
        placer=row.placer,
        value=float("inf") if row.value is None else row.value,
        lower_bound=row.own_lower_bound or 0.0,
        status=row.status,
        seconds=row.seconds or 0.0,
        devices=row.devices or 0,
        remark=row.refusal or row.unmet or ("; ".join(row.notes) if row.value is None else ""),
    )


def parse_placers(text: str) -> tuple[str, ...]:
    """``"dp,etf"`` → names; ``"all"`` → every placer. Raises PlacerError for a name that does not exist."""
    wanted = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if wanted in ((), ("all",)):
        return registry.known_names()
    for name in wanted:
        if name not in registry.known_names():
            raise PlacerError(f"there is no placer {name!r}", remedy=f"choose from {', '.join(registry.known_names())}")
    return wanted
