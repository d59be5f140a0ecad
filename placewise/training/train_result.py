"""The result of a training: its figures, as sentences and as JSON data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from placewise._util.units import format_seconds
from placewise.model.placement import Placement
from placewise.model.result import Result

SIMULATED = "simulated"


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A placement with its predicted value (by the judge) and its measured seconds."""

    placement: Placement
    value: float
    measured: float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Trained:
    """The result of a training: the judged placement, and figures that include all earlier runs.

    `asked` placements were requested, `evaluations` of them evaluated; `seconds` is the training time, and `rate` the
    placements requested per second. `learned` is the best reward in seconds, `alone` that of the best single device
    (inf: there is none). `judged`, for a measured reward, is the placement with the best prediction among all measured
    ones. `resumed` is the update at which this run started.
    """

    result: Result
    policy: str
    reward: str = SIMULATED
    updates: int = 0
    asked: int = 0
    evaluations: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    learned: float = math.inf
    alone: float = math.inf
    resumed: int = 0
    checkpoint: str = ""
    judged: Judged | None = None


def lines(trained: Trained) -> tuple[str, ...]:
    """What `placewise train` prints besides the result."""
    updates = f"{trained.updates} update{'s' * (trained.updates != 1)}"
    earlier = f", the first {trained.resumed} of them in an earlier run" if trained.resumed else ""
    sentences = [
        f"{trained.policy}: {updates}, {trained.evaluations} placements priced of {trained.asked} made "
        f"({trained.rate:.3g} a second) in {format_seconds(trained.seconds)}{earlier}"
    ]
    if trained.reward != SIMULATED and math.isfinite(trained.learned):
        single = f"; the best single device {format_seconds(trained.alone)}" if math.isfinite(trained.alone) else ""
        sentences.append(f"measured with {trained.reward}: {format_seconds(trained.learned)}{single}")
        if trained.judged is not None and trained.judged.value < trained.result.value:
            best = trained.judged
            sentences.append(
                f"the judge prefers another of them: {format_seconds(best.value)} predicted, "
                f"{format_seconds(best.measured)} measured"
            )
    if trained.checkpoint:
        sentences.append(f"saved in {trained.checkpoint}")
    return tuple(sentences)


def document(trained: Trained) -> dict[str, Any]:
    """The figures as JSON data: the entry `training` of `--json` beside a plan."""
    names = (
        "policy", "reward", "updates", "asked", "evaluations", "seconds", "rate", "learned", "alone", "resumed",
        "checkpoint",
    )  # fmt: skip
    best, problem = trained.judged, trained.result.problem
    judged = None if best is None else {
        "value": best.value,
        "measured": best.measured,
        "assignment": best.placement.assignment(problem.graph, problem.cluster),
    }  # fmt: skip
    return {name: getattr(trained, name) for name in names} | {"judged": judged}
