"""What a pre-training came to: figures, and the same in sentences and for machines."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from placewise._util.units import format_seconds


@dataclass(frozen=True, slots=True)
class Learned:
    """One problem of a corpus: its title (the first hundred have one), the best value known, the best single device."""

    number: int
    title: str
    value: float
    alone: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """What a training on a corpus came to, from its very beginning.

    `score`: the policy's favourites over the best known, on problems that it was not trained on, when it was last tried
    there (geometric mean; NaN: never); `trials`: update, seconds and score of every trial. `asked` placements were
    priced. `resumed` is the update where it went on.
    """

    policy: str
    reason: str
    updates: int
    asked: int
    seconds: float
    score: float
    trials: tuple[tuple[int, float, float], ...] = ()
    problems: tuple[Learned, ...] = ()
    resumed: int = 0
    diverged: bool = False
    checkpoint: str = ""


def lines(done: Pretrained) -> tuple[str, ...]:
    """What `placewise train --corpus` prints."""
    updates = f"{done.updates} update{'s' * (done.updates != 1)}"
    earlier = f", the first {done.resumed} of them in an earlier run" if done.resumed else ""
    said = [
        f"{done.policy}: {updates}{earlier}; {len(done.problems)} problems searched, {done.asked} placements priced, "
        f"in {format_seconds(done.seconds)} ({done.reason})"
    ]
    if done.diverged:
        said.append("it diverged: a figure of the next update was not finite; the parameters are those from before")
    if math.isfinite(done.score):
        when, _, score = done.trials[-1]
        said.append(
            f"on problems that it was not trained on, its favourites took {score:.3f} × the best known {_after(when)}"
        )
        when, _, best = min(done.trials, key=lambda trial: trial[2])
        if best < score:
            said.append(f"what is kept is the last; {_after(when)} they took {best:.3f} ×")
    if done.checkpoint:
        said.append(f"kept in {done.checkpoint}")
    return tuple(said)


def _after(update: int) -> str:
    return f"after update {update}" if update else "before the first update"


def document(done: Pretrained) -> dict[str, Any]:
    """The figures for machines."""
    found = asdict(done)
    return found | {"score": done.score if math.isfinite(done.score) else None}
