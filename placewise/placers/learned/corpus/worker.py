"""A pupil: learns on one problem at a time, and keeps what is costly to make of those that it had lately."""

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
from placewise.placers.learned.corpus.evolution import Ways
from placewise.placers.learned.corpus.local_moves import Neighbours, Tried, climb, gained, neighbours
from placewise.placers.learned.corpus.messages import Answer, Brief, Known, Task
from placewise.placers.learned.objectives import Learner, TrainStats, tensors
from placewise.placers.learned.policy import Policy, Price, Rollout
from placewise.placers.learned.pricing import Pricing, alone
from placewise.placers.learned.workers.messages import Drawn
from placewise.placers.registry import create
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.repair import repair
from placewise.simulate import Evaluator

KEPT = 2_000_000
"""Units times devices of the problems that a pupil keeps; what it had longest ago is made again when it is needed."""
BETTER = 1e-6
"""By what share a placement must be better to be told."""
LAST_RESORT = "auto"
FAINT = 0.02
"""Where all gains and losses together are as small as this, they count half."""
WORST = math.log(3.0)
"""No way is worth less on one problem, so that a few hopeless ones do not outweigh all others."""
SURE = 0.999
"""No decision counts as likelier."""


@dataclass(slots=True, eq=False)
class Seen:
    """One problem as a pupil keeps it."""

    policy: Policy
    judge: Evaluator
    near: Neighbours

    @property
    def pricing(self) -> Pricing:
        """A price that remembers nothing of what was priced before."""
        return Pricing(self.policy.view.problem, self.judge)

    @property
    def size(self) -> int:
        return self.policy.view.n * self.policy.view.n_devices


class BestTracker:
    """Prices placements [K, n_ops], and remembers the best since it was made, or what was the best before."""

    def __init__(self, pricing: Price, known: Known) -> None:
        self._pricing, self.best, self.value, self.asked = pricing, known.best, known.value, 0

    @property
    def base(self) -> Ints:
        """Where moves begin."""
        return self.best

    def __call__(self, placements: Ints) -> Floats:
        seconds = self._pricing(placements)
        self.asked += len(placements)
        if np.isfinite(seconds).any():
            k = int(np.nanargmin(seconds))
            if seconds[k] < self.value * (1 - BETTER):
                self.best, self.value = placements[k].astype(np.int32), float(seconds[k])
        return seconds


class CorpusWorker:
    """Does tasks, whose answers depend on the tasks alone: not on what was done before, or by whom."""

    def __init__(self, brief: Brief) -> None:
        torch.set_num_threads(1)
        self._brief = brief
        self._seen: OrderedDict[int, Seen] = OrderedDict()
        self._shared: dict[str, nn.Parameter] = {}

    def study(self, task: Task) -> Answer:
        """Do one task. Raises PlacerError where the policy cannot be told what to do."""
        seen = self._of(task.number)
        if task.parameters is not None:
            self._load(task.parameters)
        known = task.known or self._first(seen, taught=task.taught)
        match task.kind:
            case "search":
                return Answer(known)
            case "try":
                return self._tried(seen, known)
            case "compare":
                return self._compared(seen, known, task.ways or {})
        return self._learned(seen, known, task)

    def _of(self, number: int) -> Seen:
        seen = self._seen.pop(number, None)
        if seen is None:
            problem = self._brief.problem(number)
            policy = self._brief.make_policy(problem)
            if not self._shared:
                self._shared = dict(policy.named_parameters())
            # One set of parameters, and one set of gradients, whatever problem is at hand.
            policy.load_state_dict(self._shared, assign=True)
            seen = Seen(policy, Evaluator(problem, threads=1), neighbours(policy.view))
        self._seen[number] = seen
        while len(self._seen) > 1 and sum(other.size for other in self._seen.values()) > KEPT:
            self._seen.popitem(last=False)
        return seen

    def _load(self, parameters: Mapping[str, npt.NDArray[np.float32]]) -> None:
        with torch.no_grad():
            for name, value in tensors(parameters, "").items():
                self._shared[name].copy_(value)

    def _first(self, seen: Seen, *, taught: bool) -> Known:
        """What is known before anything is learned."""
        problem, shelf = seen.policy.view.problem, self._brief.shelf if taught else None
        found = None if shelf is None else shelf.find(problem)
        if found is None:
            found = self._searched(seen, self._brief.teacher if taught else "")
            if shelf is not None:
                shelf.keep(problem, found)
        return found

    def _searched(self, seen: Seen, asked: str) -> Known:
        """The best of the teacher's placement, the single devices, and whatever fits.

        A teacher that was interrupted has not searched, and Ctrl-C goes on to who trains.
        """
        problem, rows, pricing = seen.policy.view.problem, list[Ints](), seen.pricing
        single = alone(problem)
        seconds = pricing(single) if len(single) else np.zeros(0)
        if asked:
            teacher = create(asked)
            teacher = create(LAST_RESORT) if teacher.supports(problem) else teacher
            proposal = run_placer(teacher, problem, Budget())
            if proposal.reason is Reason.INTERRUPTED:
                raise KeyboardInterrupt
            found = proposal.placement
            rows += [] if found is None or found.replicas is not None else [found.device]
        if not rows and not len(single):
            fitted = repair(problem, np.zeros(problem.n_ops, np.int32))
            rows += [] if fitted is None else [fitted]
        every = np.concatenate((single, np.array(rows, np.int32).reshape(-1, problem.n_ops)))
        values = pricing(every) if len(every) else np.zeros(0)
        if not np.isfinite(values).any():
            raise PlacerError("no placement of a problem of the corpus could be found", remedy="give it more memory")
        best = int(np.nanargmin(values))
        finite = seconds[np.isfinite(seconds)]
        scale = float(finite.min()) if len(finite) else float(values[best])
        return Known(relabel(problem, every[best]), float(values[best]), scale if scale > 0 else 1.0)

    def _tried(self, seen: Seen, known: Known) -> Answer:
        watched = BestTracker(seen.pricing, known)
        rows = seen.policy.greedy(seen.pricing)  # as users get them, who know nothing to begin with
        seconds = watched(rows)
        if not np.isfinite(seconds).any():
            fitted = repair(seen.policy.view.problem, rows[0].astype(np.int32))
            seconds = seconds if fitted is None else watched(fitted[None])
        found = float(np.nanmin(seconds)) if np.isfinite(seconds).any() else math.inf
        return Answer(self._improved(seen, known, watched), asked=watched.asked, seconds=found)

    def _improved(self, seen: Seen, known: Known, watched: BestTracker) -> Known:
        if watched.value >= known.value:
            return known
        return replace(known, best=relabel(seen.policy.view.problem, watched.best), value=watched.value)

    def _learned(self, seen: Seen, known: Known, task: Task) -> Answer:
        policy = seen.policy
        policy.zero_grad(set_to_none=True)
        lesson: TrainStats | None = None
        drawn, asked = task.drawn, 0
        if task.explore:
            learner = Learner(policy, self._brief.options, known.scale, known.baseline)
            learner.updates = task.updates
            if drawn is None:
                watched = BestTracker(seen.pricing, known)
                rollout = policy.rollout(self._brief.options.samples, _dice(task.seed), watched)
                known, asked = self._improved(seen, known, watched), watched.asked
                lesson, now = learner.descend(rollout, None, task.progress)
                drawn = _plain(rollout, now) if self._brief.options.algorithm == "ppo" else None
            else:
                rollout = Rollout(tensors(drawn.choices, ""), drawn.seconds, drawn.path, drawn.weight)
                lesson, now = learner.descend(rollout, torch.from_numpy(np.array(drawn.old)), task.progress)
            _divide(policy, now.shape[1])
            learner.follow(lesson)
            known = replace(known, baseline=learner.baseline)
        distance = math.nan
        if task.climb:
            known, tried, priced = self._climbed(seen, known, task)
            distance, asked = self._led(policy, tried), asked + priced
        if task.imitate:
            far = self._imitated(policy, known.best, task.imitate)
            distance = far if math.isnan(distance) else distance
        gradients = {name: value.grad.numpy().copy() for name, value in self._learning(policy).items()
                     if value.grad is not None}  # fmt: skip
        return Answer(known, gradients, lesson, distance, drawn, asked)

    def _learning(self, policy: Policy) -> dict[str, nn.Parameter]:
        """The parameters that are learned, by their names."""
        only = self._brief.only
        return {name: value for name, value in policy.named_parameters() if not only or name in only}

    @torch.no_grad()
    def _compared(self, seen: Seen, known: Known, ways: Ways) -> Answer:
        """What the favourites take in each of several ways; the parameters stay as they are."""
        policy, watched, unknown = seen.policy, BestTracker(seen.pricing, known), seen.pricing
        values = {name: value for name, value in policy.named_parameters() if name in ways}
        held, worth = {name: value.data for name, value in values.items()}, []
        try:
            for name, value in values.items():
                value.data = torch.from_numpy(ways[name].copy())
            rows = policy.favourites(unknown)
        finally:
            for name, value in values.items():
                value.data = held[name]
        for seconds in np.split(watched(np.concatenate(rows)), np.cumsum([len(part) for part in rows])[:-1]):
            ratio = np.where(np.isfinite(seconds), seconds, np.inf).min() / known.value
            worth.append(min(math.log(ratio), WORST))
        return Answer(self._improved(seen, known, watched), asked=watched.asked, worth=np.array(worth))

    def _climbed(self, seen: Seen, known: Known, task: Task) -> tuple[Known, Tried, int]:
        """What is known now, moves that were tried from the policy's favourites, and how many placements were priced.

        The first of them leads from its first favourite to its best one.
        """
        view, watched = seen.policy.view, BestTracker(seen.pricing, known)
        own = seen.policy.greedy(watched)
        seconds = watched(own)
        best = int(np.where(np.isfinite(seconds), seconds, np.inf).argmin())
        rows = view.devices(own[[0, best]])
        tried = climb(view, seen.near, rows[1], watched, task.climb, np.random.default_rng(task.seed))
        tried = Tried(
            np.concatenate((rows[:1], tried.here)),
            np.concatenate((rows[1:], tried.there)),
            np.append(gained(float(seconds[0]), seconds[[best]]), tried.gain),
        )
        return self._improved(seen, known, watched), tried, watched.asked

    def _led(self, policy: Policy, tried: Tried) -> float:
        """Add the gradients of making likelier what helped, and less likely what hurt; −log p of what helped, mean.

        A cross-entropy weighed by gains and losses: decisions that look alike end likely if they gain on the whole.
        """
        before, after = (_decisions(policy, policy.view.placements(rows)) for rows in (tried.here, tried.there))
        there = policy.log_prob(after)[0]
        other = [after[name] != before[name] for name in after if after[name].shape == there.shape]
        changed = torch.stack(other).any(dim=0).float()
        mean = changed / changed.sum(dim=1, keepdim=True).clamp_min(1.0)
        weight = torch.from_numpy((tried.gain / (np.abs(tried.gain).sum() + FAINT)).astype(np.float32))
        helped, hurt = weight.clamp_min(0.0), (-weight).clamp_min(0.0)
        distance = -(there * mean).sum(dim=1)
        avoided = -(torch.log1p(-there.exp().clamp_max(SURE)) * mean).sum(dim=1)
        torch.autograd.backward((distance * helped + avoided * hurt).sum())
        return float((distance.detach() * helped).sum() / helped.sum().clamp_min(1e-9))

    def _imitated(self, policy: Policy, best: Ints, weight: float) -> float:
        """Add the gradients of imitating a placement [n_ops]; −log p of a decision of it, mean."""
        distance = -policy.log_prob(_decisions(policy, best[None]))[0].mean()
        torch.autograd.backward(weight * distance)
        return float(distance.detach())


def _decisions(policy: Policy, placements: Ints) -> Mapping[str, torch.Tensor]:
    """The decisions that lead to placements [K, n_ops]."""
    told = policy.decisions(placements)
    if told is None:
        raise PlacerError("this policy cannot be told what to do", remedy="set imitated, held and climbed to 0")
    return told


def _dice(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _divide(policy: Policy, decisions: int) -> None:
    """Gradients per decision, so that a large graph counts no more than a small one."""
    for value in policy.parameters():
        if value.grad is not None:
            value.grad /= max(decisions, 1)


def _plain(rollout: Rollout, now: torch.Tensor) -> Drawn:
    choices = {name: value.numpy() for name, value in rollout.choices.items()}
    return Drawn(choices, rollout.seconds, rollout.path, rollout.weight, now.numpy())
