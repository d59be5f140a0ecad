"""The methods of the tables, and what a run of one leaves behind.

`alone` puts everything on one device; `placer` is any placer of the registry for so many seconds; `chains` the optimum
of a sequential problem whose chains are units, as HSDAG's paper has it; `search` is one that may price so many distinct
placements; `policy` one that learns from as many.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from placewise.core.place import place
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Reason
from placewise.placers import registry
from placewise.placers.base import NO_HINTS, Budget, Hints, run_placer
from placewise.placers.learned.options import RENAMED
from placewise.placers.learned.placer import build_proposal
from placewise.placers.learned.pricing import Pricing
from placewise.placers.learned.view import chain_labels
from placewise.simulate import Evaluator, judge_placement, lower_bound

LEARNED = ("hsdag", "colocrl", "hdp", "placeto")
MAX_SECONDS = 300.0
"""A row that takes longer ends with what it has, and says so."""
FRESH, MIN_UPDATES = 8, 3000
"""A policy has one update for every so many placements, and never fewer than the second: it may draw known ones too.

Unless its options say how many updates it makes.
"""
LATER = {"elite": 1.0, "restless": 0.0, "renewed": 40, "preset": "default", "greedy_every": 10}
"""Options that came when rows were saved already, and the value at which everything is as it was: no row knows them."""
FIRST_NAMES = {name: old for old, name in RENAMED.items()}
DELETED: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "colocrl": {"device_width": {"attention": True}, "both_ways": {"adjacency": True, "costs": False}},
    "hdp": {"device_width": {"attention": True}, "both_ways": {"adjacency": True, "costs": False}},
    "gdp": {
        "regions": {"start": "best", "attention": True, "superposition": True},
        "advice": {"pretrained": False},
    },
    "hsdag": {
        "jitter": {"encoder": "gcn"},
        "chains": dict.fromkeys(("shape", "degrees", "fractal", "position", "identity"), True),
    },
    "placeto": {"start": {"rewarded": "moves"}, "hidden": {"pooled": True}},
}
"""Options that rows were saved with, by policy and by the option before them: digests of saved rows know them."""
REPEATED = 50
"""A search may ask for so many times its distinct placements, so that one that asks again and again ends."""

Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Method:
    """How a row finds its placement; `evaluations` bind searches and policies, `seconds` placers."""

    name: str
    kind: Literal["alone", "placer", "chains", "search", "policy"]
    placer: str = ""
    device: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    evaluations: int = 0
    seconds: float = MAX_SECONDS

    def starts(self, problem: Problem) -> Hints:
        """What a search is shown: nothing, unless a kind of method says otherwise."""
        return NO_HINTS

    def run(self, problem: Problem, seed: int) -> Found:
        """Value (None if nothing was found), bound, evaluations, wall seconds, and how the best came about."""
        Evaluator(problem)(np.zeros((1, problem.n_ops), np.int32))  # compiled before the clock runs
        started = time.perf_counter()
        made = {"alone": _alone, "placer": _placed, "chains": _chained, "search": _searched, "policy": _learned}[
            self.kind
        ]
        placement, found = made(self, problem, seed)
        found["seconds"] = round(time.perf_counter() - started, 3)
        found["value"] = judged(problem, placement)
        return found


def settings_of(method: Method) -> Mapping[str, Any]:
    """Everything that a method is told, its defaults too, and the weights that it begins with."""
    told = asdict(method)
    if method.kind == "policy":
        placer: Any = registry.create(method.placer, method.options)
        settings = recorded(asdict(placer.options), method.placer)
        options = recorded(method.options)
        told["settings"] = {name: value for name, value in settings.items() if LATER.get(name) != value}
        told["options"] = {name: value for name, value in options.items() if LATER.get(name) != value}
        if placer.trained is not None:
            told["settings"]["weights"] = weights_of(placer.trained)
    return told


def recorded(options: Mapping[str, Any], policy: str = "") -> dict[str, Any]:
    """Options by the names that they had when rows were saved, with those of a policy that are deleted since."""
    names: dict[str, Any] = {}
    for name, value in options.items():
        names[FIRST_NAMES.get(name, name)] = value
        names.update(DELETED.get(policy, {}).get(name, {}))
    return names


def weights_of(trained: Any) -> str:
    """A digest of the weights of a checkpoint: two files of the same weights are the same policy."""
    state = hashlib.blake2b(digest_size=8)
    for name, array in sorted(trained.arrays.items()):
        if name.startswith("policy/"):
            state.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def policies(evaluations: int, names: tuple[str, ...] = LEARNED) -> list[Method]:
    """The learned placers with their defaults."""
    return [Method(name, "policy", name, evaluations=evaluations) for name in names]


def judged(problem: Problem, placement: Placement | None) -> float | None:
    """The judge's value of a placement that keeps the rules, else None."""
    if placement is None:
        return None
    judgement = judge_placement(problem, placement)
    return judgement.value if judgement.valid and math.isfinite(judgement.value) else None


def _alone(method: Method, problem: Problem, seed: int) -> tuple[Placement | None, Found]:
    device = problem.cluster.index(method.device)
    bound = lower_bound(problem)
    found = {"bound": bound.value, "bound_by": bound.method}
    if not problem.allowed[:, device].all():
        return None, {"status": "unsupported", **found}
    placement = Placement.on(device, problem.n_ops)
    broken = sorted({violation.kind for violation in judge_placement(problem, placement).violations})
    return placement, {"status": f"breaks {', '.join(broken)}" if broken else "one device", **found}


def _placed(method: Method, problem: Problem, seed: int) -> tuple[Placement | None, Found]:
    result = place(problem, method.placer, Budget(method.seconds, seed=seed), options=method.options)
    found = {"status": str(result.status), "bound": result.lower_bound, "bound_by": result.bound.method}
    return result.placement, found | {"limit": method.seconds, "notes": list(result.notes)}


def _chained(method: Method, problem: Problem, seed: int) -> tuple[Placement | None, Found]:
    sets: dict[int, list[str]] = {}
    for name, unit in zip(problem.graph.ops.name, chain_labels(problem).tolist(), strict=True):
        sets.setdefault(unit, []).append(name)
    together = (*problem.constraints.together, *(tuple(names) for names in sets.values() if len(names) > 1))
    joined = problem.with_(constraints=replace(problem.constraints, together=together))
    result = place(joined, "two_way", Budget(method.seconds))
    return result.placement, {"status": str(result.status), "units": joined.n_blocks}


def _searched(method: Method, problem: Problem, seed: int) -> tuple[Placement | None, Found]:
    """The best of as many distinct placements; a search that asks for more is told that its time is up."""
    price, started, curve = Pricing(problem), time.perf_counter(), []

    def evaluate(placements: Ints) -> Floats:
        if price.evaluations >= method.evaluations:
            raise KeyboardInterrupt
        seconds = price(placements[: method.evaluations - price.evaluations])
        if price.best is not None and (not curve or price.value < curve[-1][2]):
            curve.append((price.evaluations, round(time.perf_counter() - started, 3), price.value))
        return np.concatenate((seconds, np.full(len(placements) - len(seconds), np.nan)))

    budget = Budget(method.seconds, evaluations=REPEATED * method.evaluations, seed=seed)
    search, starts = registry.create(method.placer, method.options), method.starts(problem)
    proposal = run_placer(search, problem, budget, hints=starts, evaluate=evaluate)
    placement = None if price.best is None else Placement(price.best)
    return placement, {"status": str(proposal.reason), "evaluations": price.evaluations, "curve": curve}


def _learned(method: Method, problem: Problem, seed: int) -> tuple[Placement | None, Found]:
    """Trained from nothing; `begun`: the best start, `greedy`: what the policy itself chooses at the end.

    `drawn`: by the preset `paper`, the best that the policy drew, whatever else was priced.
    """
    placer: Any = registry.create(method.placer, method.options)
    trainer = placer.trainer(problem, None, seed)
    trainer.begin(placer.starts(problem, method.starts(problem)))
    begun, paper = trainer.pricing.value, placer.options.preset == "paper"
    if paper:
        trainer.pricing.reset_base()
    most = method.options.get("updates", max(method.evaluations // FRESH, MIN_UPDATES))
    reason = trainer.run(Budget(method.seconds, iterations=most, evaluations=method.evaluations, seed=seed))
    count, drawn = trainer.pricing.evaluations, trainer.pricing.base_value
    proposal = build_proposal(problem, trainer, method.placer, reason)
    values = trainer.pricing(trainer.policy.greedy(trainer.pricing))
    greedy = float(np.nanmin(values)) if np.isfinite(values).any() else None
    status = "diverged" if trainer.diverged else "out of time" if reason is Reason.TIME_LIMIT else str(reason)
    return proposal.placement, {
        "status": status,
        "evaluations": count,
        "asked": trainer.pricing.asked,
        "updates": trainer.learner.updates,
        "units": trainer.policy.view.n,
        "begun": begun if math.isfinite(begun) else None,
        "greedy": greedy,
        **({"drawn": drawn if math.isfinite(drawn) else None} if paper else {}),
        "curve": [(count, round(seconds, 3), value) for count, seconds, value in trainer.curve],
    }
