"""The result of a pre-training: its figures, as sentences and as JSON data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from placewise._util.units import format_seconds


@dataclass(frozen=True, slots=True)
class Learned:
    """One problem of a corpus: its title (first hundred problems only), its best known value and best single device."""

    number: int
    title: str
    value: float
    alone: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """The result of a training on a corpus; its figures include all earlier runs.

    `score` is the geometric mean, over validation problems, of the value of the policy's preferred placement divided by
    the best known value, at the last trial (NaN: no trial); `trials` are update, seconds and score of every trial.
    `asked` placements were evaluated. `resumed` is the update at which this run started.
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
    sentences = [
        f"{done.policy}: {updates}{earlier}; {len(done.problems)} problems searched, {done.asked} placements priced, "
        f"in {format_seconds(done.seconds)} ({done.reason})"
    ]
    if done.diverged:
        sentences.append(
            "it diverged: a figure of the next update was not finite; the parameters are those from before"
        )
    if math.isfinite(done.score):
        when, _, score = done.trials[-1]
        sentences.append(
            f"on problems that it was not trained on, its preferred placements took {score:.3f} × the best known "
            f"{_after(when)}"
        )
        when, _, best = min(done.trials, key=lambda trial: trial[2])
        if best < score:
            sentences.append(f"the last policy is saved; {_after(when)} they took {best:.3f} ×")
    if done.checkpoint:
        sentences.append(f"saved in {done.checkpoint}")
    return tuple(sentences)


def _after(update: int) -> str:
    return f"after update {update}" if update else "before the first update"


def document(done: Pretrained) -> dict[str, Any]:
    """The figures as JSON data."""
    return asdict(done) | {"score": done.score if math.isfinite(done.score) else None}
