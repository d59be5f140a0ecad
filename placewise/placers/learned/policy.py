"""The policy contract: problem features → a distribution over placements that can be sampled, scored and learned."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from placewise.model.columns import Floats, Ints, firsts_of
from placewise.placers.learned.features import Features
from placewise.placers.learned.view import View

NEVER = -100.0
"""The log p of what has no chance at all, where it must be a number: much lower, and its gradients are not."""
Price = Callable[[Ints], Floats]
"""Placements [K, n_ops] → seconds [K], NaN where one breaks a rule or fails."""


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """K episodes: what was decided, and what it is worth.

    `choices`: tensors [K, …] from which the policy can score its decisions again; plain data, so that it can be sent
    between processes. `seconds` [K] is what each episode ended with. A policy that is rewarded on its way fills
    `path` [K, D + 1]: the seconds before its first decision and after each. `weight` [K], where given, is how much
    each episode counts for in an update.
    """

    choices: Mapping[str, Tensor]
    seconds: Floats
    path: Floats | None = None
    weight: Floats | None = None


class Policy(nn.Module):
    """A network over one view. Its parameters fit every view with the same `layout` of features and `n_devices`.

    `any_devices` says that they mean the same whatever the devices are called, and however many there are. `version`
    tells networks apart whose parameters are alike in name and shape, and mean something else. `notes` are what a user
    should know of how it went; `unrest` is how many decisions more than `explore` are left to chance now.
    """

    view: View
    features: Features
    any_devices: ClassVar[bool] = False
    version: ClassVar[int] = 1
    notes: tuple[str, ...] = ()
    unrest: float = 0.0

    def chance(self, explore: float, n: int) -> float:
        """The share of n decisions that is left to chance: `explore` of them, and more while nothing new is drawn."""
        return (explore + self.unrest) / max(n, 1)

    @abstractmethod
    def rollout(self, count: int, dice: torch.Generator, price: Price) -> Rollout:
        """`count` episodes, drawn with `dice` alone (no gradients), each priced."""

    @abstractmethod
    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Log p and entropy of every decision of every episode, both [K, D], with gradients; 0 where there was none."""

    @abstractmethod
    def greedy(self, price: Price) -> Ints:
        """The placements [n, n_ops] that the policy itself thinks best, most likely first; without chance."""

    def favourites(self, price: Price) -> list[Ints]:
        """What `greedy` gives [n, n_ops], for every way of scoring by itself where a policy has several."""
        return [self.greedy(price)]

    def advised(self) -> Ints:
        """Placements of others [n, n_ops], which may be the answer, and at which no move begins."""
        return np.zeros((0, self.view.problem.n_ops), np.int32)

    def decisions(self, placements: Ints) -> Mapping[str, Tensor] | None:
        """The decisions, as in `Rollout.choices`, that lead to placements [K, n_ops], for a policy that can be told."""
        return None


def draw(logits: Tensor, dice: torch.Generator) -> Tensor:
    """One index per row of logits [..., n], by the Gumbel trick: no other source of chance than `dice`."""
    waits = (-torch.log(torch.rand(logits.shape, generator=dice))).clamp_min(1e-20)
    return (logits - torch.log(waits)).argmax(dim=-1)


def scored(logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Log p of the index [...] chosen from each row of logits [..., n], and the entropy [...] of the row.

    Logits may be −inf where a choice is barred.
    """
    every = torch.log_softmax(logits, dim=-1)
    chosen = every.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    entropy = -(every.exp() * every.clamp_min(NEVER)).sum(dim=-1)
    return chosen, entropy


def masked(logits: Tensor, allowed: Tensor) -> Tensor:
    """Logits with −inf where `allowed` is false."""
    return logits.masked_fill(~allowed, -torch.inf)


def explored(logits: Tensor, allowed: Tensor, share: float) -> Tensor:
    """Log p [..., devices] where a `share`, half at most, of the decisions goes anywhere allowed, each as likely.

    So no policy is ever so sure of itself that it learns nothing more: a placement differs from its favourite.
    """
    share = min(share, 0.5)
    anywhere = allowed / allowed.sum(dim=-1, keepdim=True).clamp_min(1)
    mixed = (1 - share) * torch.softmax(masked(logits, allowed), dim=-1) + share * anywhere
    return torch.where(allowed, mixed.clamp_min(1e-30).log(), -torch.inf)


def parameters_of(policy: Policy) -> dict[str, Tensor]:
    """A copy of the parameters as they are."""
    return {name: value.detach().clone() for name, value in policy.state_dict().items()}


def best_so_far(view: View, price: Price) -> Tensor | None:
    """The device [n_units] of every unit in the best placement so far: that of its first op, where it may be there.

    So far means since the policy last began anew (`Pricing.base`).
    """
    base = getattr(price, "base", None)
    if base is None:
        return None
    device = base[firsts_of(view.unit)].astype(np.int64)
    fastest = view.seconds.argmin(axis=1)
    return torch.from_numpy(np.where(view.allowed[np.arange(view.n), device], device, fastest))
