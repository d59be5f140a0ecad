"""What a training came to: figures, and the same in sentences and for machines."""

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
    """A placement by the judge's word and by measure, in seconds."""

    placement: Placement
    value: float
    measured: float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Trained:
    """What a training came to: the judged result, and figures of the training from its very beginning.

    `asked` placements were made, `evaluations` of them priced; `seconds` is the time that training took, and `rate`
    how many placements a second were asked for. `learned` is the best that the reward said, in seconds, and `alone`
    the same of the best single device (inf: there is none). `judged`, for a measured reward, is what the judge likes
    best of all that was measured. `resumed` is the update where it went on.
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
    said = [
        f"{trained.policy}: {updates}, {trained.evaluations} placements priced of {trained.asked} made "
        f"({trained.rate:.3g} a second) in {format_seconds(trained.seconds)}{earlier}"
    ]
    if trained.reward != SIMULATED and math.isfinite(trained.learned):
        beside = f"; the best single device {format_seconds(trained.alone)}" if math.isfinite(trained.alone) else ""
        said.append(f"measured with {trained.reward}: {format_seconds(trained.learned)}{beside}")
        if trained.judged is not None and trained.judged.value < trained.result.value:
            best = trained.judged
            said.append(
                f"the judge likes another of those best: {format_seconds(best.value)} predicted, "
                f"{format_seconds(best.measured)} measured"
            )
    if trained.checkpoint:
        said.append(f"kept in {trained.checkpoint}")
    return tuple(said)


def document(trained: Trained) -> dict[str, Any]:
    """The figures for machines: what `--json` has as `training`, beside a plan."""
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
