"""The network of Placeto: an embedding of a graph as it is placed now, and a score of every device for one unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from placewise.coarsen.hierarchy import hierarchy
from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.placers.learned.features import Features, features_of
from placewise.placers.learned.networks.walk import GROUPS, Walk, walk_of
from placewise.placers.learned.placeto import PlacetoOptions
from placewise.placers.learned.policy import Policy, Price, Rollout, best_so_far, draw, explored, masked, scored
from placewise.placers.learned.units import chains, colocation
from placewise.placers.learned.view import View, view_of

SECTIONS = ("sent", "weights", "levels")
STATE = 5
"""Of a unit in its state: its cost where it is, the load there, whether it was moved, is current, and the way."""
SCORED = 6
"""Of a unit on a device: its cost and what that is above the least, what would come and go, the load, whether it
is there now."""
CHUNK = 1 << 22
"""Numbers of embeddings that one piece of a batch may have; where there are more pieces, each is computed again for
its gradient, so that memory stays bounded."""


class Embedding(nn.Module):
    """Messages along the edges, both ways, `rounds` times with the same weights: [n, B, 2 hidden]."""

    def __init__(self, known: int, hidden: int, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        self.unit = nn.Sequential(nn.Linear(known + STATE, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.message, self.edge = nn.Linear(hidden, hidden), nn.Linear(2, hidden, bias=False)
        self.heard = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))

    def forward(self, walk: Walk, state: Tensor, device: Tensor) -> Tensor:
        """`state` [2n, B, known + STATE] of nodes, `device` [n, B]."""
        own = self.unit(state)
        cut = (device[walk.source % walk.n] != device[walk.target % walk.n]).to(own.dtype)
        edge = self.edge(torch.stack((cut, cut * walk.sent[:, None]), dim=-1))
        found = own
        for _ in range(self.rounds):
            message = functional.relu(self.message(found)[walk.source] + edge)
            sums = torch.zeros_like(own).index_add(0, walk.target, message)
            found = own + self.heard(sums * walk.mean[:, None, None]) * walk.hears[:, None, None]
        return torch.cat((found[: walk.n], found[walk.n :]), dim=-1)


class Placeto(Policy):
    """Units are moved one after the other. Its parameters fit any graph and any number of devices.

    An embedding [2 hidden] of every unit is made from what is known of it, where it is and whether it was moved, and
    of its neighbours. A device is scored for the unit whose turn it is by the embedding of that, by those of the units
    that lead to it, follow from it and are parallel to it (their mean, and what of it is on the device), and by what
    the unit would cost there.
    """

    any_devices: ClassVar[bool] = True

    def __init__(self, view: View, features: Features, options: PlacetoOptions) -> None:
        super().__init__()
        self.view, self.features, self.options = view, features, options
        self.walk = walk_of(view, features)
        hidden, wide = options.hidden, 2 * options.hidden
        self.embedding = Embedding(features.width, hidden, options.rounds)
        self.pooled = nn.Linear(wide, hidden)
        self.common = nn.Linear(wide + GROUPS * hidden, wide)
        self.apart = nn.Linear(SCORED + GROUPS * (hidden + 1), wide, bias=False)
        self.score = nn.Sequential(nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 1))

    def logits(self, device: Tensor, step: Tensor) -> Tensor:
        """Scores [B, D] of the devices for the unit of each `step` [B], units being on `device` [B, n]."""
        walk = self.walk
        unit, row = walk.order[step], torch.arange(len(step))
        on = functional.one_hot(device, walk.n_devices).to(walk.share.dtype)
        share = (on * walk.share).sum(dim=-1)
        load = torch.einsum("bnd,bn->bd", on, share)
        found = self.embedding(walk, self._state(device, step, unit, load), device.T)
        own = found[unit, row]
        group = walk.group[unit]
        there = (group[:, :, None] * on.transpose(1, 2)[:, None]).flatten(1, 2)
        mates = torch.cat((functional.relu(self.pooled(found)).transpose(0, 1), share[:, :, None]), dim=-1)
        pools = (there @ mates).view(len(step), GROUPS, walk.n_devices, -1)
        pools = pools if self.options.pooled else torch.zeros_like(pools)
        means = pools[..., :-1] / group.sum(dim=-1).clamp_min(1.0)[:, :, None, None]
        common = self.common(torch.cat((own, means.sum(dim=2).flatten(1)), dim=-1))
        costs = self._costs(device, unit, on, load)
        apart = torch.cat((costs, means.transpose(1, 2).flatten(2), pools[..., -1].transpose(1, 2)), dim=-1)
        scores = self.score(common[:, None] + self.apart(apart)).squeeze(-1) + self.options.stay * costs[..., -1]
        return explored(scores, walk.allowed[unit], self.chance(self.options.explore, walk.n))

    def _state(self, device: Tensor, step: Tensor, unit: Tensor, load: Tensor) -> Tensor:
        """What nodes [2n, B, known + STATE] are in their state."""
        walk, count = self.walk, len(step)
        every = torch.arange(walk.n)[:, None]
        cost = walk.cost.gather(1, device.T)
        there = load.gather(1, device).T
        moved, current = (walk.turn[:, None] < step).to(cost.dtype), (every == unit).to(cost.dtype)
        known = walk.known[:, None].expand(-1, count, -1)
        way = torch.ones_like(cost)
        seen = [torch.cat((known, torch.stack((cost, there, moved, current, sign * way), -1)), -1) for sign in (1, -1)]
        return torch.cat(seen)

    def _costs(self, device: Tensor, unit: Tensor, on: Tensor, load: Tensor) -> Tensor:
        """[B, D, SCORED] of the unit on each device, all the others where they are."""
        walk = self.walk
        cost, here = walk.cost[unit], on[torch.arange(len(unit)), unit]
        comes = torch.einsum("bn,bnd->bd", walk.flow[0][unit], on) @ walk.pace
        goes = torch.einsum("bn,bnd->bd", walk.flow[1][unit], on) @ walk.pace.T
        least = cost.masked_fill(~walk.allowed[unit], torch.inf).amin(dim=-1, keepdim=True)
        others = load - here * walk.share[unit]
        return torch.stack((cost, cost - least, torch.log1p(comes), torch.log1p(goes), others, here), dim=-1)

    @torch.no_grad()
    def rollout(self, count: int, dice: torch.Generator, price: Price) -> Rollout:
        device = start = self._starts(count, dice, price)
        path = [self._priced(device, price)]
        for step in range(len(self.walk.order)):
            drawn = draw(self.logits(device, torch.full((count,), step)), dice)
            device = device.index_copy(1, self.walk.order[step : step + 1], drawn[:, None])
            if self.options.rewarded == "moves":
                path.append(self._priced(device, price))
        choices = {"start": start, "moved": device[:, self.walk.order]}
        if self.options.rewarded == "end":
            return Rollout(choices, self._priced(device, price))
        return Rollout(choices, path[-1], np.stack(path, axis=1))

    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        start, moved = choices["start"], choices["moved"]
        count, steps = moved.shape
        step = torch.arange(steps).expand(count, -1)
        end = start.index_copy(1, self.walk.order, moved)
        states = torch.where(self.walk.turn < step[:, :, None], end[:, None], start[:, None])
        states = torch.cat((states, step[:, :, None]), dim=-1).flatten(0, 1).int()
        seen, number = torch.unique(states, dim=0, return_inverse=True)
        return scored(self._scores(seen)[number].view(count, steps, -1), moved)

    def _scores(self, states: Tensor) -> Tensor:
        """Scores [B, D] in states [B, n + 1], the last column of which is the step: in pieces, where there are many."""
        size = max(1, CHUNK // (2 * self.walk.n * self.options.hidden * max(self.options.rounds, 1)))
        if len(states) <= size:
            return self._scored(states)
        pieces = [states[first : first + size] for first in range(0, len(states), size)]
        return torch.cat([checkpoint(self._scored, piece, use_reentrant=False) for piece in pieces])

    def _scored(self, states: Tensor) -> Tensor:
        return self.logits(states[:, :-1].long(), states[:, -1].long())

    @torch.no_grad()
    def greedy(self, price: Price) -> Ints:
        """Where the likeliest moves lead to, from the starts of episodes that need no chance."""
        device = torch.cat((self._single(), self._best(price)))
        for step in range(len(self.walk.order)):
            likely = self.logits(device, torch.full((len(device),), step)).argmax(dim=-1)
            device = device.index_copy(1, self.walk.order[step : step + 1], likely[:, None])
        return self.view.placements(device.numpy())

    def decisions(self, placements: Ints) -> Mapping[str, Tensor]:
        """Every unit moves, in its turn, from the single device to where it is in the placement."""
        device = torch.from_numpy(self.view.devices(placements)).long()
        return {"start": self._single().expand(len(device), -1), "moved": device[:, self.walk.order]}

    def _priced(self, device: Tensor, price: Price) -> np.ndarray:
        return price(self.view.placements(device.numpy()))

    def _starts(self, count: int, dice: torch.Generator, price: Price) -> Tensor:
        """Where episodes start [count, n]."""
        if self.options.start == "random":
            return draw(masked(torch.zeros(self.walk.allowed.shape), self.walk.allowed).expand(count, -1, -1), dice)
        found = self._best(price) if self.options.start == "best" else self._single()
        return found[:1].expand(count, -1)

    def _single(self) -> Tensor:
        """All units on the device that is fastest for all of them, and where one may not be, where it is fastest."""
        seconds = torch.from_numpy(np.where(self.view.allowed, self.view.seconds, np.inf))
        fastest = seconds.argmin(dim=1)
        most = self.walk.allowed.sum(dim=0)
        total = torch.where(self.walk.allowed, seconds, 0.0).sum(dim=0).masked_fill(most < most.max(), torch.inf)
        device = total.argmin()
        return torch.where(self.walk.allowed[:, device], device, fastest)[None]

    def _best(self, price: Price) -> Tensor:
        """The best placement so far, every unit where its first op is; or the single device."""
        best = best_so_far(self.view, price)
        return self._single() if best is None else best[None]


def placeto(problem: Problem, options: PlacetoOptions, seed: int) -> Placeto:
    """An untrained policy; its weights are drawn from `seed`."""
    view = view_of(problem, _units(problem, options))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Placeto(view, features_of(view, SECTIONS), options)


def _units(problem: Problem, options: PlacetoOptions) -> Ints:
    """Labels [n_ops] of the units: blocks where they are few enough, else what goes together, the more the fewer."""
    label = problem.block
    if problem.n_blocks > options.most_units and options.units != "blocks":
        label = chains(problem) if options.units == "chains" else colocation(problem)
    if view_of(problem, label).n > options.most_units:
        label = [label, *hierarchy(problem, wanted=options.most_units, start=label)][-1]
    return label
