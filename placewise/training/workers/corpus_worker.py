"""A worker of a training on a corpus: learns on one problem at a time, and caches what is costly to create."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from placewise.errors import PlacerError
from placewise.model.columns import Floats, Ints
from placewise.model.result import Reason
from placewise.placers.base import Budget, run_placer
from placewise.placers.learned.objectives import Learner, TrainStats, to_tensors
from placewise.placers.learned.policy import Policy, Price
from placewise.placers.learned.pricing import Pricing, single_device_rows
from placewise.placers.registry import create
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.repair import repair
from placewise.simulate import Evaluator
from placewise.training.workers.messages import BestKnown, CorpusResult, CorpusTask, CorpusWorkerSpec, RolloutArrays

CACHE_SIZE = 2_000_000
"""Units times devices of all cached problems. The least recently used ones are evicted and created again on use."""
BETTER = 1e-6
"""The share by which a placement must be faster to count as better."""
FALLBACK_EXPERT = "auto"


@dataclass(slots=True, eq=False)
class CachedProblem:
    """One problem in the cache of a worker."""

    policy: Policy
    judge: Evaluator

    @property
    def pricing(self) -> Pricing:
        """A new pricing with an empty cache."""
        return Pricing(self.policy.view.problem, self.judge)

    @property
    def size(self) -> int:
        return self.policy.view.n * self.policy.view.n_devices


class BestTracker:
    """Prices placements [K, n_ops], and tracks the best one, starting from the best known."""

    def __init__(self, pricing: Price, known: BestKnown) -> None:
        self._pricing, self._known = pricing, known
        self.best, self.value, self.asked = known.best, known.value, 0

    @property
    def base(self) -> Ints:
        """The placement from which moves start."""
        return self.best

    def __call__(self, placements: Ints) -> Floats:
        seconds = self._pricing(placements)
        self.asked += len(placements)
        if np.isfinite(seconds).any():
            k = int(np.nanargmin(seconds))
            if seconds[k] < self.value * (1 - BETTER):
                self.best, self.value = placements[k].astype(np.int32), float(seconds[k])
        return seconds

    def best_known(self, problem: CachedProblem) -> BestKnown:
        """The best known placement now."""
        if self.value >= self._known.value:
            return self._known
        return replace(self._known, best=relabel(problem.policy.view.problem, self.best), value=self.value)


class CorpusWorker:
    """Runs tasks. Results depend on the task alone, not on earlier tasks or on the worker."""

    def __init__(self, spec: CorpusWorkerSpec) -> None:
        torch.set_num_threads(1)
        self._spec = spec
        self._cache: OrderedDict[int, CachedProblem] = OrderedDict()
        self._shared: dict[str, nn.Parameter] = {}

    def run(self, task: CorpusTask) -> CorpusResult:
        """Run one task. Raises PlacerError if the policy cannot imitate."""
        problem = self._load_problem(task.number)
        if task.parameters is not None:
            self._load_parameters(task.parameters)
        known = task.known or self._first_known(problem, use_expert=task.use_expert)
        match task.kind:
            case "search":
                return CorpusResult(known=known)
            case "validate":
                return self._validate(problem, known)
        return self._learn(problem, known, task)

    def _load_problem(self, number: int) -> CachedProblem:
        cached = self._cache.pop(number, None)
        if cached is None:
            problem = self._spec.problem(number)
            policy = self._spec.make_policy(problem)
            if not self._shared:
                self._shared = dict(policy.named_parameters())
            # All policies share one set of parameters and gradients.
            policy.load_state_dict(self._shared, assign=True)
            cached = CachedProblem(policy, Evaluator(problem, threads=1))
        self._cache[number] = cached
        while len(self._cache) > 1 and sum(other.size for other in self._cache.values()) > CACHE_SIZE:
            self._cache.popitem(last=False)
        return cached

    def _load_parameters(self, parameters: Mapping[str, npt.NDArray[np.float32]]) -> None:
        with torch.no_grad():
            for name, value in to_tensors(parameters, "").items():
                self._shared[name].copy_(value)

    def _first_known(self, cached: CachedProblem, *, use_expert: bool) -> BestKnown:
        """The best known placement before training."""
        problem, cache = cached.policy.view.problem, self._spec.cache if use_expert else None
        known = None if cache is None else cache.find(problem)
        if known is None:
            known = self._search(cached, self._spec.expert if use_expert else "")
            if cache is not None:
                cache.keep(problem, known)
        return known

    def _search(self, cached: CachedProblem, expert: str) -> BestKnown:
        """The best of the expert's placement and the single devices, or else any placement that fits.

        An interrupted expert raises KeyboardInterrupt.
        """
        problem, rows, pricing = cached.policy.view.problem, list[Ints](), cached.pricing
        single = single_device_rows(problem)
        seconds = pricing(single) if len(single) else np.zeros(0)
        if expert:
            placer = create(expert)
            placer = create(FALLBACK_EXPERT) if placer.supports(problem) else placer
            proposal = run_placer(placer, problem, Budget())
            if proposal.reason is Reason.INTERRUPTED:
                raise KeyboardInterrupt
            placement = proposal.placement
            rows += [] if placement is None or placement.replicas is not None else [placement.device]
        if not rows and not len(single):
            fitted = repair(problem, np.zeros(problem.n_ops, np.int32))
            rows += [] if fitted is None else [fitted]
        candidates = np.concatenate((single, np.array(rows, np.int32).reshape(-1, problem.n_ops)))
        values = pricing(candidates) if len(candidates) else np.zeros(0)
        if not np.isfinite(values).any():
            raise PlacerError("no placement of a problem of the corpus could be found", remedy="give it more memory")
        best = int(np.nanargmin(values))
        finite = seconds[np.isfinite(seconds)]
        scale = float(finite.min()) if len(finite) else float(values[best])
        return BestKnown(relabel(problem, candidates[best]), float(values[best]), scale if scale > 0 else 1.0)

    def _validate(self, cached: CachedProblem, known: BestKnown) -> CorpusResult:
        tracker = BestTracker(cached.pricing, known)
        rows = cached.policy.greedy(cached.pricing)  # without the best known placement, as in zero-shot use
        seconds = tracker(rows)
        if not np.isfinite(seconds).any():
            fitted = repair(cached.policy.view.problem, rows[0].astype(np.int32))
            seconds = seconds if fitted is None else tracker(fitted[None])
        own = float(np.nanmin(seconds)) if np.isfinite(seconds).any() else math.inf
        return CorpusResult(known=tracker.best_known(cached), asked=tracker.asked, seconds=own)

    def _learn(self, cached: CachedProblem, known: BestKnown, task: CorpusTask) -> CorpusResult:
        policy, options = cached.policy, self._spec.options
        policy.zero_grad(set_to_none=True)
        stats: TrainStats | None = None
        packed, asked = task.rollout, 0
        if task.explore:
            learner = Learner(policy, options, known.scale, known.baseline)
            learner.updates = task.updates
            if packed is None:
                tracker = BestTracker(cached.pricing, known)
                rollout = policy.rollout(options.samples, torch.Generator().manual_seed(task.seed), tracker)
                known, asked = tracker.best_known(cached), tracker.asked
                stats, log_p = learner.compute_gradients(rollout, None, task.progress)
                packed = RolloutArrays.pack(rollout, log_p) if options.algorithm == "ppo" else None
            else:
                rollout, old = packed.unpack()
                stats, log_p = learner.compute_gradients(rollout, old, task.progress)
            _divide_gradients(policy, log_p.shape[1])
            learner.update_baseline(stats)
            known = replace(known, baseline=learner.baseline)
        distance = _imitate(policy, known.best, task.imitate) if task.imitate else math.nan
        gradients = {
            name: value.grad.numpy().copy() for name, value in policy.named_parameters() if value.grad is not None
        }
        return CorpusResult(
            known=known, gradients=gradients, stats=stats, distance=distance, rollout=packed, asked=asked
        )


def _imitate(policy: Policy, best: Ints, weight: float) -> float:
    """Add the gradients of imitating a placement [n_ops]; return the mean −log p of its decisions."""
    decisions = policy.decisions(best[None])
    if decisions is None:
        raise PlacerError("this policy cannot imitate placements", remedy="set imitated and held to 0")
    distance = -policy.log_prob(decisions)[0].mean()
    torch.autograd.backward(weight * distance)
    return float(distance.detach())


def _divide_gradients(policy: Policy, decisions: int) -> None:
    """Divide gradients by the number of decisions, so that large and small graphs count alike."""
    for value in policy.parameters():
        if value.grad is not None:
            value.grad /= max(decisions, 1)
