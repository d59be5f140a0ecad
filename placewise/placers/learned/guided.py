"""guided: a policy is asked what it thinks, and a search begins there and is drawn that way.

The policy gives placements, priced like any others, and probabilities of devices: both are hints, of which searches
make what they can. So the answer is never worse than the policy's own best (if the search is told its placements), nor
is anything out of reach that the search would find alone.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np

from placewise._util.units import format_seconds
from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import (
    Budget,
    Hints,
    OnProgress,
    PlacerInfo,
    Progress,
    SearchContext,
    Stopwatch,
    run_placer,
)
from placewise.placers.learned.placer import LearnedPlacer, proposal_of
from placewise.placers.learned.pricing import Pricing, Spent
from placewise.placers.registry import create

if TYPE_CHECKING:
    from placewise.placers.learned.policy import Policy
    from placewise.placers.learned.trainer import Trainer

KEPT = 4
"""So many of the policy's placements, its best, are where the search begins."""
LEARNING_SHARE = 0.5
"""Of the time, the most for learning on the problem itself where `updates` ask for it."""
UNSEEN = 0.5
"""Where a policy tells no probabilities its draws are counted, each device as if it had been drawn so often more."""


@dataclass(frozen=True)
class GuidedOptions:
    """Who is asked, `policy`, with the weights of a `checkpoint` (none: those that it comes with), for how many
    `samples`; and who searches.

    `updates`: how often the policy learns on the problem itself before it is asked (0: never). `told`: what the search
    hears of it, its best `placements`, its `probabilities`, or `both`.
    """

    policy: Literal["gdp", "placeto", "hsdag", "colocrl", "hdp"] = "gdp"
    checkpoint: str = ""
    updates: int = 0
    samples: int = 16
    search: Literal["auto", "temper", "local"] = "auto"
    told: Literal["both", "placements", "probabilities"] = "both"

    def __post_init__(self) -> None:
        if self.updates < 0:
            raise PlacerError(f"updates is {self.updates}", remedy="give zero or more")
        if self.samples < 1:
            raise PlacerError(f"samples is {self.samples}", remedy="give one or more")


class GuidedPlacer:
    """A policy's opinion, then a search that begins there."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="guided",
        summary="a search that is told what a trained policy thinks",
        source="a policy that guides a search: REGAL, Paliwal et al., ICLR 2020; ours: GDP and the searches here",
        extra="learn",
    )
    Options: ClassVar[type[GuidedOptions]] = GuidedOptions

    def __init__(self, options: GuidedOptions | None = None) -> None:
        self.options = options or GuidedOptions()
        self._search = create(self.options.search)
        chosen = {"checkpoint": self.options.checkpoint, "updates": self.options.updates}
        self._asked = cast("LearnedPlacer", create(self.options.policy, chosen))

    def supports(self, problem: Problem) -> str | None:
        return self._asked.supports(problem) or self._search.supports(problem)

    def propose(self, search: SearchContext) -> Proposal:
        """What the search finds; its notes say how far the policy alone came."""
        problem = search.problem
        watch, name = search.watch, self._asked.info.name
        search.on_progress(Progress("guided", 0.0, f"asking {name}"))
        trainer: Trainer | None = None
        try:
            trainer = self._asked.trainer(problem, search.evaluate, search.budget.seed, search.budget.threads)
            told = self._advice(problem, trainer, watch, search.hints)
        except KeyboardInterrupt:
            if trainer is None:
                return Proposal(None, reason=Reason.INTERRUPTED)
            return proposal_of(problem, trainer, name, Reason.INTERRUPTED)
        finally:
            if trainer is not None:
                trainer.close()
        begun, rest, price = watch.elapsed, watch.rest(), trainer.pricing
        if rest.evaluations is not None:
            rest = replace(rest, evaluations=max(rest.evaluations - price.evaluations, 0))
        found = run_placer(self._search,
            problem, rest, hints=told, evaluate=search.evaluate, on_progress=_later(search.on_progress, begun)
        )  # fmt: skip
        history = tuple(replace(step, seconds=begun + step.seconds) for step in found.history)
        if found.placement is None and not found.infeasible and price.best is not None:
            found = replace(found, placement=Placement(price.best))
        none = "nothing that keeps the rules" if price.evaluations else "not asked: there was no time"
        alone = format_seconds(price.value) if np.isfinite(price.value) else none
        return replace(found, history=history, notes=(*found.notes, *trainer.policy.notes, f"{name} alone: {alone}"))

    def _advice(self, problem: Problem, trainer: Trainer, watch: Stopwatch, hints: Hints) -> Hints:
        """The hints, before them the policy's best placements, and its probabilities."""
        policy, price, seen = trainer.policy, trainer.pricing, _Seen(trainer.pricing)
        most, updates = watch.budget.evaluations, self._asked.options.updates
        try:
            with price.within(most, watch.left):
                trainer.begin(self._asked.starts(problem))
            if updates:
                learning = replace(Budget(LEARNING_SHARE * watch.left, updates, most), threads=watch.budget.threads)
                if trainer.run(learning) is Reason.INTERRUPTED:
                    raise KeyboardInterrupt
            with price.within(most, watch.left), _one_thread(policy):
                seen(policy.greedy(seen))
                policy.rollout(self.options.samples, trainer.dice, seen)
        except Spent:
            pass
        ask: Any = getattr(policy, "probabilities", None)
        likely = seen.frequencies(problem.n_devices) if ask is None else ask()
        made = seen.leading(KEPT)
        if price.best is not None:
            made = [price.best, *(row for row in made if (row != price.best).any())]
        made = [] if self.options.told == "probabilities" else made
        by = (self._asked.info.name,) * len(made)
        told = replace(hints, placements=(*map(Placement, made), *hints.placements), by=(*by, *hints.by))
        return told if self.options.told == "placements" else replace(told, probabilities=likely)


class _Seen:
    """Pricing that remembers what it was asked for."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing
        self._rows: list[Ints] = []
        self._values: list[Floats] = []

    def __call__(self, placements: Ints) -> Floats:
        seconds = self._pricing(placements)
        self._rows.append(np.array(placements, np.int32))
        self._values.append(seconds)
        return seconds

    @property
    def best(self) -> Ints | None:
        """The best placement [n_ops] that was ever priced: where some policies begin."""
        return self._pricing.best

    def leading(self, most: int) -> list[Ints]:
        """The best `most` different placements that can be used, the best first."""
        if not self._rows:
            return []
        rows, values = np.concatenate(self._rows), np.concatenate(self._values)
        _, first = np.unique(rows, axis=0, return_index=True)
        usable = first[np.isfinite(values[first])]
        return [rows[k] for k in usable[np.argsort(values[usable], kind="stable")][:most].tolist()]

    def frequencies(self, n_devices: int) -> Floats | None:
        """How often each op was on each device [n_ops, n_devices], as shares; None before anything was asked."""
        if not self._rows:
            return None
        rows = np.concatenate(self._rows)
        counts = np.stack([(rows == device).sum(axis=0) for device in range(n_devices)], axis=1) + UNSEEN
        shares: Floats = counts / counts.sum(axis=1, keepdims=True)
        return shares


def _one_thread(policy: Policy) -> AbstractContextManager[None]:
    found: AbstractContextManager[None] = import_module("placewise.placers.learned.trainer").one_thread(policy)
    return found


def _later(on_progress: OnProgress, begun: float) -> OnProgress:
    """A listener that hears of the search so many seconds later, and who searches for whom."""
    return lambda state: on_progress(replace(state, seconds=begun + state.seconds))
