"""The policy contract: features of a problem → a distribution over placements that can be sampled and scored.

Moves of segments, which several policies draw, are here too: adjacent units in an order go to one device, starting from
the best placement so far.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from placewise.model.columns import Floats, Ints, firsts_of
from placewise.model.problem import Problem
from placewise.placers.learned.features import Features
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.view import View

P = TypeVar("P", bound="Policy")
MIN_LOG_P = -100.0
"""Stands for log 0 where a finite number is needed. Its gradient is zero."""
LONGEST = 0.25
"""Largest share of all units in one segment."""
Price = Callable[[Ints], Floats]
"""Placements [K, n_ops] → seconds [K], NaN for one that breaks a rule or fails."""


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """K episodes: their decisions and their seconds.

    `choices` are tensors [K, …] from which the policy can score its decisions again. As plain data they can be sent to
    other processes. `seconds` [K] is the outcome of each episode. A policy with intermediate rewards
    fills `path` [K, D + 1]: the seconds before the first decision and after each one. `weight` [K] is the weight of
    each episode in an update (None: equal).
    """

    choices: Mapping[str, Tensor]
    seconds: Floats
    path: Floats | None = None
    weight: Floats | None = None


class Policy(nn.Module):
    """A network over one view. Its parameters fit every view with the same `layout` of features and `n_devices`.

    `any_devices`: parameters do not depend on the names and the number of devices. `version` distinguishes networks
    whose parameters agree in name and shape but not in meaning. `notes` are shown to the user. `extra_decisions` is the
    current number of random decisions per placement beyond `explore`; `progress` is the spent share of the budget.
    """

    view: View
    features: Features
    options: LearningOptions
    any_devices: ClassVar[bool] = False
    version: ClassVar[int] = 1
    notes: tuple[str, ...] = ()
    extra_decisions: float = 0.0
    progress: float = 0.0

    def exploration_share(self, n: int) -> float:
        """The share of n decisions that is uniformly random."""
        return (self.options.explore + self.extra_decisions) / max(n, 1)

    def explore(self, logits: Tensor, allowed: Tensor, n: int) -> Tensor:
        """Log p [..., devices] of decisions of which that share of n is uniformly random."""
        return mix_exploration(logits, allowed, self.exploration_share(n))

    def move_log_p(self, logits: Tensor, segments: Tensor, useful: Tensor, n: int) -> Tensor:
        """Log p [..., D] of the targets of n segments [..., n_units], from mean logits [n_units, D] of their units.

        `useful` [n_units, D] marks moves that change a unit. A segment may go where one of its units may.
        """
        weight = segments.to(logits.dtype)
        mean = (weight @ logits.clamp_min(MIN_LOG_P)) / weight.sum(dim=-1, keepdim=True).clamp_min(1)
        may = (weight @ useful.to(logits.dtype)) > 0
        return self.explore(mean, may | ~may.any(dim=-1, keepdim=True), n)

    def best_so_far(self, price: Price) -> Tensor | None:
        """The device [n_units] of every unit in the best placement since the last restart (`Pricing.base`).

        A unit's device is that of its first op, or its fastest one if that is not allowed.
        """
        base, view = getattr(price, "base", None), self.view
        if base is None:
            return None
        device = base[firsts_of(view.unit)].astype(np.int64)
        fastest = view.seconds.argmin(axis=1)
        return torch.from_numpy(np.where(view.allowed[np.arange(view.n), device], device, fastest))

    @abstractmethod
    def rollout(self, count: int, generator: torch.Generator, price: Price) -> Rollout:
        """Draw and price `count` episodes, without gradients. `generator` is the only source of randomness."""

    @abstractmethod
    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Log p and entropy of every decision of every episode, both [K, D], with gradients; 0 for no decision."""

    @abstractmethod
    def greedy(self, price: Price) -> Ints:
        """The policy's own choices [n, n_ops], the most likely first. Deterministic."""

    def suggestions(self) -> Ints:
        """Placements [n, n_ops] of other placers. They may be the answer, but no move starts from them."""
        return np.zeros((0, self.view.problem.n_ops), np.int32)

    def lessons(self, generator: torch.Generator) -> Iterator[Mapping[str, Tensor]]:
        """Decisions of a teacher, as in `Rollout.choices`, one step each, to imitate before the first update."""
        return iter(())

    def decisions(self, placements: Ints) -> Mapping[str, Tensor] | None:
        """The decisions, as in `Rollout.choices`, that lead to placements [K, n_ops]; None if unsupported."""
        return None


def untrained_policy(kind: Callable[[Problem, Any], P], problem: Problem, options: Any, seed: int) -> P:
    """Create an untrained policy with weights drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(problem, options)


def draw(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one index per row of logits [..., n] with the Gumbel trick."""
    return (logits + draw_gumbel(logits.shape, generator)).argmax(dim=-1)


def draw_gumbel(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Gumbel noise: the largest of logits plus noise is a sample of their distribution."""
    return -torch.log((-torch.log(torch.rand(shape, generator=generator))).clamp_min(1e-20))


def score_choices(logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Log p of the index [...] in each row of logits [..., n], and the entropy [...] of the row.

    Logits may be −inf for options that are not allowed.
    """
    log_p = torch.log_softmax(logits, dim=-1)
    return log_p.gather(-1, index.unsqueeze(-1)).squeeze(-1), entropy_of(log_p)


def entropy_of(log_p: Tensor) -> Tensor:
    """The entropy [...] of each row of log p [..., n], which may be −inf."""
    return -(log_p.exp() * log_p.clamp_min(MIN_LOG_P)).sum(dim=-1)


def mask_logits(logits: Tensor, allowed: Tensor) -> Tensor:
    """Logits with −inf where `allowed` is false."""
    return logits.masked_fill(~allowed, -torch.inf)


def mix_exploration(logits: Tensor, allowed: Tensor, share: float) -> Tensor:
    """Log p [..., devices] of a mixture: a `share` (at most half) is uniform over the allowed devices.

    The mixture keeps a policy from becoming so certain that it draws one placement only and stops learning.
    """
    share = min(share, 0.5)
    uniform = allowed / allowed.sum(dim=-1, keepdim=True).clamp_min(1)
    mixed = (1 - share) * torch.softmax(mask_logits(logits, allowed), dim=-1) + share * uniform
    return torch.where(allowed, mixed.clamp_min(1e-30).log(), -torch.inf)


def copy_parameters(policy: Policy) -> dict[str, Tensor]:
    """A copy of the parameters."""
    return {name: value.detach().clone() for name, value in policy.state_dict().items()}


def segment_of(rank: Tensor, draws: Tensor) -> Tensor:
    """A segment [n] of an order with ranks [n]. `draws` are two numbers from 0 to 1, for its length and its place."""
    n = len(rank)
    half = (n * LONGEST + 1) ** float(draws[0]) / 2
    inside: Tensor = (rank - draws[1] * n).abs() < max(half, 0.51)
    return inside


def open_moves(allowed: Tensor, current: Tensor) -> Tensor:
    """Allowed devices [n, D] of units other than their `current` ones [n]."""
    return allowed & ~functional.one_hot(current, allowed.shape[1]).bool()


def position_ranks(place: Floats) -> Tensor:
    """The ranks [n, orders] of positions [n, orders], starting at one half."""
    return torch.from_numpy(np.argsort(np.argsort(place, axis=0, kind="stable"), axis=0) + 0.5)


def draw_segment(rank: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a segment [n] of one of the orders with ranks [n, orders]."""
    draws = torch.rand(3, generator=generator)
    return segment_of(rank[:, int(draws[0] * rank.shape[1])], draws[1:])


def paths_of(seconds: Floats) -> Floats:
    """Seconds [1 + K] of the old placement and of the new ones → paths [K, 2]."""
    return np.stack((np.full(len(seconds) - 1, seconds[0]), seconds[1:]), axis=1)
