"""Rows of searches that are shown placements, and of a policy that was trained on all problems of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from harness import Method

from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers import registry
from placewise.placers.base import Hints, run_placer
from placewise.simulate import judge_placement


@dataclass(frozen=True)
class Shown(Method):
    """A search that begins with what other placers make, which it has to price as well."""

    makers: tuple[str, ...] = ()

    def starts(self, problem: Problem) -> Hints:
        proposals = (run_placer(registry.create(maker), problem) for maker in self.makers)
        return Hints(tuple(found.placement for found in proposals if found.placement is not None))


@dataclass(frozen=True)
class Batch(Method):
    """What a policy found for a problem while it was trained on all of them: GDP-batch.

    `number` is the problem's in the corpus. The row has the best placement that the training kept for it, and
    `greedy`: what the policy itself chooses in the end. Evaluations are the samples that training made for a
    problem, seconds its share of the whole.
    """

    number: int = 0

    def run(self, problem: Problem, seed: int) -> dict[str, Any]:
        chosen = Method.run(self, problem, seed)
        placer: Any = registry.create(self.placer, self.options)
        header, arrays = placer.trained.header, placer.trained.arrays
        count = len(arrays["known/number"])
        samples = header.updates * header.corpus["training"]["problems"] * int(header.options["samples"])
        place = int(np.flatnonzero(arrays["known/number"] == self.number)[0])
        first, last = arrays["known/offsets"][place : place + 2].tolist()
        best = Placement(arrays["known/device"][first:last].astype(np.int32))
        found = judge_placement(problem, best)
        value = found.value if found.valid else None
        return {
            "status": f"{header.updates} updates", "evaluations": samples // count,
            "updates": header.updates, "units": chosen["units"], "begun": chosen["begun"],
            "greedy": chosen["greedy"], "seconds": round(header.seconds / count, 3), "value": value,
        }  # fmt: skip
