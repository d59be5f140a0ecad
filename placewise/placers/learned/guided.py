"""guided: a search that starts from the placements and the device probabilities of a policy.

Both are hints, and each search uses those that it supports. So the answer is never worse than the policy's own best (if
its placements are hints), and the search can still reach everything that it would find alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import numpy as np

from placewise._util.units import format_seconds
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import Budget, Hints, PlacerInfo, Progress, SearchContext, run_placer
from placewise.placers.learned.options import RENAMED, require_at_least
from placewise.placers.learned.placer import LearnedPlacer, build_proposal
from placewise.placers.learned.pricing import BudgetExhausted, Pricing
from placewise.placers.learned.trainer import Trainer, one_thread
from placewise.placers.registry import create

MAX_PLACEMENTS = 4
"""Largest number of the policy's placements that become hints."""
LEARNING_SHARE = 0.5
"""Largest share of the time for training on the problem itself."""
PRIOR_COUNT = 0.5
"""Added to the count of each device, where probabilities are estimated from samples."""


@dataclass(frozen=True)
class GuidedOptions:
    """The `policy`, the `checkpoint` of its weights ("": its defaults), its number of `samples`, and the `search`.

    `updates` is the number of training updates on the problem itself (0: none). `hints` selects what the search
    receives: the policy's best `placements`, its `probabilities`, or `both`.
    """

    aliases: ClassVar[Mapping[str, str]] = RENAMED
    policy: Literal["gdp", "placeto", "doppler", "hsdag", "colocrl", "hdp"] = "gdp"
    checkpoint: str = ""
    updates: int = 0
    samples: int = 16
    search: Literal["auto", "temper", "local"] = "auto"
    hints: Literal["both", "placements", "probabilities"] = "both"

    def __post_init__(self) -> None:
        require_at_least(self, updates=0, samples=1)


class GuidedPlacer:
    """Runs a policy, then a search with its hints."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="guided",
        summary="a search that starts from the hints of a policy",
        source="a policy that guides a search: REGAL, Paliwal et al., ICLR 2020; ours: GDP and the searches here",
        extra="learn",
    )
    Options: ClassVar[type[GuidedOptions]] = GuidedOptions

    def __init__(self, options: GuidedOptions | None = None) -> None:
        self.options = options or GuidedOptions()
        self._search = create(self.options.search)
        policy_options = {"checkpoint": self.options.checkpoint, "updates": self.options.updates}
        self._policy = cast("LearnedPlacer", create(self.options.policy, policy_options))

    def supports(self, problem: Problem) -> str | None:
        return self._policy.supports(problem) or self._search.supports(problem)

    def propose(self, search: SearchContext) -> Proposal:
        """The proposal of the search, with a note on what the policy alone reached."""
        problem, watch, name = search.problem, search.watch, self._policy.info.name
        search.on_progress(Progress("guided", 0.0, f"asking {name}"))
        trainer: Trainer | None = None
        try:
            trainer = self._policy.trainer(problem, search.evaluate, search.budget.seed, search.budget.threads)
            hints = self._collect_hints(search, trainer)
        except KeyboardInterrupt:
            if trainer is None:
                return Proposal(None, reason=Reason.INTERRUPTED)
            return build_proposal(problem, trainer, name, Reason.INTERRUPTED)
        finally:
            if trainer is not None:
                trainer.close()
        start, rest, price = watch.elapsed, watch.rest(), trainer.pricing
        if rest.evaluations is not None:
            rest = replace(rest, evaluations=max(rest.evaluations - price.evaluations, 0))

        def report(state: Progress) -> None:
            search.on_progress(replace(state, seconds=start + state.seconds))

        proposal = run_placer(self._search, problem, rest, hints=hints, evaluate=search.evaluate, on_progress=report)
        history = tuple(replace(step, seconds=start + step.seconds) for step in proposal.history)
        if proposal.placement is None and not proposal.infeasible and price.best is not None:
            proposal = replace(proposal, placement=Placement(price.best))
        none = "nothing that keeps the rules" if price.evaluations else "not run: there was no time"
        alone = format_seconds(price.value) if np.isfinite(price.value) else none
        notes = (*proposal.notes, *trainer.policy.notes, f"{name} alone: {alone}")
        return replace(proposal, history=history, notes=notes)

    def _collect_hints(self, search: SearchContext, trainer: Trainer) -> Hints:
        """Put the policy's best placements before the given ones, and add its probabilities."""
        problem, watch, hints = search.problem, search.watch, search.hints
        policy, price, record = trainer.policy, trainer.pricing, _RecordedPricing(trainer.pricing)
        most, updates = watch.budget.evaluations, self._policy.options.updates
        try:
            with price.limit_to(most, watch.left):
                trainer.begin(self._policy.starts(problem))
            if updates:
                learning = replace(Budget(LEARNING_SHARE * watch.left, updates, most), threads=watch.budget.threads)
                if trainer.run(learning) is Reason.INTERRUPTED:
                    raise KeyboardInterrupt
            with price.limit_to(most, watch.left), one_thread(policy):
                record(policy.greedy(record))
                policy.rollout(self.options.samples, trainer.generator, record)
        except BudgetExhausted:
            pass
        compute: Any = getattr(policy, "probabilities", None)
        probabilities = record.frequencies(problem.n_devices) if compute is None else compute()
        rows = record.leading(MAX_PLACEMENTS)
        if price.best is not None:
            rows = [price.best, *(row for row in rows if (row != price.best).any())]
        rows = [] if self.options.hints == "probabilities" else rows
        by = (self._policy.info.name,) * len(rows)
        hints = replace(hints, placements=(*map(Placement, rows), *hints.placements), by=(*by, *hints.by))
        return hints if self.options.hints == "placements" else replace(hints, probabilities=probabilities)


class _RecordedPricing:
    """Pricing that records all placements passed in."""

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
        """The best placement [n_ops] that was ever priced."""
        return self._pricing.best

    def leading(self, most: int) -> list[Ints]:
        """The best `most` different valid placements, the best first."""
        if not self._rows:
            return []
        rows, values = np.concatenate(self._rows), np.concatenate(self._values)
        _, first = np.unique(rows, axis=0, return_index=True)
        usable = first[np.isfinite(values[first])]
        return [rows[k] for k in usable[np.argsort(values[usable], kind="stable")][:most].tolist()]

    def frequencies(self, n_devices: int) -> Floats | None:
        """The shares of devices of each op [n_ops, n_devices] in the record; None if that is empty."""
        if not self._rows:
            return None
        rows = np.concatenate(self._rows)
        counts = np.stack([(rows == device).sum(axis=0) for device in range(n_devices)], axis=1) + PRIOR_COUNT
        shares: Floats = counts / counts.sum(axis=1, keepdims=True)
        return shares
