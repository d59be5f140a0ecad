"""The leaderboard: several placers on one problem, the same seconds for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placewise.errors import PlacerError
from placewise.model.problem import Problem
from placewise.model.result import Reason, Result
from placewise.placers import registry
from placewise.placers.base import Budget, OnProgress, ignore
from placewise.placing import place

STOPPED = "not done: interrupted"


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One line of the leaderboard: a result, or the reason why there is none."""

    placer: str
    result: Result | None
    refusal: str = ""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C came before this placer was done."""
        return self.refusal == STOPPED or (self.result is not None and self.result.status.reason is Reason.INTERRUPTED)


def compare(
    problem: Problem, placers: Sequence[str] = (), budget: Budget | None = None, *, on_progress: OnProgress = ignore
) -> tuple[Entry, ...]:
    """Run each placer (default: all) under the same budget; best value first, those without one last.

    The best bound that any of them proved holds for all: read it off the entries. Ctrl-C ends the round: what
    is finished is kept, and the others' entries say so.
    """
    entries: list[Entry] = []
    for name in placers or registry.names():
        stopped = bool(entries) and entries[-1].interrupted
        entries.append(Entry(name, None, STOPPED) if stopped else _entry(problem, name, budget, on_progress))
    return tuple(sorted(entries, key=lambda entry: (entry.result is None, entry.result.value if entry.result else 0.0)))


def _entry(problem: Problem, name: str, budget: Budget | None, on_progress: OnProgress) -> Entry:
    try:
        refusal = registry.create(name).supports(problem)
        if refusal is not None:
            return Entry(name, None, refusal)
        return Entry(name, place(problem, name, budget, on_progress=on_progress))
    except KeyboardInterrupt:
        return Entry(name, None, STOPPED)


def best_bound(entries: Sequence[Entry]) -> float:
    """The highest lower bound, in seconds, that any entry proved."""
    return max((entry.result.lower_bound for entry in entries if entry.result), default=0.0)


def parse_placers(text: str) -> tuple[str, ...]:
    """``"dp,etf"`` → names; ``"all"`` → every placer. Raises PlacerError for a name that does not exist."""
    wanted = tuple(part.strip() for part in text.split(",") if part.strip())
    if wanted in ((), ("all",)):
        return registry.names()
    for name in wanted:
        if name not in registry.names():
            raise PlacerError(f"there is no placer {name!r}", remedy=f"choose from {', '.join(registry.names())}")
    return wanted
