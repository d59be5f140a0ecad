"""placeto: a policy walks over the units of a graph and moves one at a time; it fits any graph and cluster.

Its network is an embedding of the graph and its placement, and scores of all devices for one unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from placewise.coarsen.hierarchy import hierarchy
from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.placers.base import PlacerInfo
from placewise.placers.learned.features import build_features
from placewise.placers.learned.options import PLAIN, LearningOptions, require_at_least
from placewise.placers.learned.placer import LearnedPlacer
from placewise.placers.learned.policy import Policy, Price, Rollout, draw, mask_logits, score_choices
from placewise.placers.learned.view import build_view, chain_labels, colocation_labels
from placewise.placers.learned.walk import GROUPS, WalkGraph, walk_graph

SECTIONS = ("sent", "weights", "levels")
STATE = 5
"""State of a unit: its cost on its device, the load there, whether it was moved and is current, the direction."""
SCORED = 6
"""Per unit and device: cost, cost above the least, transfers in and out, load, whether the unit is there."""
CHUNK = 1 << 22
"""Largest number of embedding values in one piece of a batch. Several pieces are computed again for their gradients, so
that memory stays bounded."""


@dataclass(frozen=True)
class PlacetoOptions(LearningOptions):
    """Training as in Addanki et al., NeurIPS 2019; docs/learning.md lists the differences.

    Units: blocks (colocation groups) if there are at most `most_units`. Otherwise `units` joins `chains` of sole
    readers, groups by the rules of `colocation`, or nothing (`blocks`), and then heavy edges join units down to
    `most_units`. Episodes `start` at a `random` placement, the best `single` device, or the `best` placement so far.
    `stay` is the initial log odds of staying against a move. The network has `rounds` of message passing and `hidden`
    numbers per unit and direction.

    The defaults of `start`, `stay`, `rate` and the moving baseline were chosen on random graphs of 40 to 60 ops with
    2,000 evaluations each.
    """

    paper: ClassVar[Mapping[str, Any]] = {
        **PLAIN, "samples": 8, "rate": 1e-3, "final_rate": 0.1, "entropy": 0.01, "start": "random", "stay": 0.0,
    }  # fmt: skip
    reward: Literal["root", "inverse", "negative", "log"] = "negative"
    rate: float = 5e-3
    explore: float = 0.0
    units: Literal["blocks", "chains", "colocation"] = "chains"
    most_units: int = 64
    start: Literal["random", "single", "best"] = "best"
    stay: float = 2.0
    rounds: int = 8
    hidden: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, most_units=1, rounds=0, hidden=1)


class Embedding(nn.Module):
    """`rounds` of messages along the edges, in both directions with the same weights: [n, B, 2 hidden]."""

    def __init__(self, known: int, hidden: int, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        self.unit = nn.Sequential(nn.Linear(known + STATE, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.message, self.edge = nn.Linear(hidden, hidden), nn.Linear(2, hidden, bias=False)
        self.heard = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))

    def forward(self, walk: WalkGraph, state: Tensor, device: Tensor) -> Tensor:
        """`state` [2n, B, known + STATE] of nodes, `device` [n, B]."""
        own = self.unit(state)
        cut = (device[walk.source % walk.n] != device[walk.target % walk.n]).to(own.dtype)
        edge = self.edge(torch.stack((cut, cut * walk.sent[:, None]), dim=-1))
        embedding = own
        for _ in range(self.rounds):
            message = functional.relu(self.message(embedding)[walk.source] + edge)
            sums = torch.zeros_like(own).index_add(0, walk.target, message)
            embedding = own + self.heard(sums * walk.mean[:, None, None]) * walk.hears[:, None, None]
        return torch.cat((embedding[: walk.n], embedding[walk.n :]), dim=-1)


class Placeto(Policy):
    """Moves one unit after the other. Its parameters fit any graph and any number of devices.

    The embedding [2 hidden] of a unit depends on its features, its device, whether it was moved, and its neighbours.
    The score of a device for the current unit depends on the embedding of the unit, on those of its ancestors,
    descendants and parallel units (their mean, and the part on the device), and on the cost of the unit there.
    """

    options: PlacetoOptions
    any_devices: ClassVar[bool] = True

    def __init__(self, problem: Problem, options: PlacetoOptions) -> None:
        super().__init__()
        view = build_view(problem, _unit_labels(problem, options))
        features = build_features(view, SECTIONS)
        self.view, self.features, self.options = view, features, options
        self.walk = walk_graph(view, features)
        hidden, wide = options.hidden, 2 * options.hidden
        self.embedding = Embedding(features.width, hidden, options.rounds)
        self.pooled = nn.Linear(wide, hidden)
        self.common = nn.Linear(wide + GROUPS * hidden, wide)
        self.apart = nn.Linear(SCORED + GROUPS * (hidden + 1), wide, bias=False)
        self.score = nn.Sequential(nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 1))

    def logits(self, device: Tensor, step: Tensor) -> Tensor:
        """Log p [B, D] of the devices for the unit of each `step` [B], while units are on `device` [B, n]."""
        walk = self.walk
        unit, row = walk.order[step], torch.arange(len(step))
        on = functional.one_hot(device, walk.n_devices).to(walk.share.dtype)
        share = (on * walk.share).sum(dim=-1)
        load = torch.einsum("bnd,bn->bd", on, share)
        embedding = self.embedding(walk, self._state(device, step, unit, load), device.T)
        own = embedding[unit, row]
        group = walk.group[unit]
        there = (group[:, :, None] * on.transpose(1, 2)[:, None]).flatten(1, 2)
        mates = torch.cat((functional.relu(self.pooled(embedding)).transpose(0, 1), share[:, :, None]), dim=-1)
        pools = (there @ mates).view(len(step), GROUPS, walk.n_devices, -1)
        means = pools[..., :-1] / group.sum(dim=-1).clamp_min(1.0)[:, :, None, None]
        common = self.common(torch.cat((own, means.sum(dim=2).flatten(1)), dim=-1))
        costs = self._costs(device, unit, on, load)
        apart = torch.cat((costs, means.transpose(1, 2).flatten(2), pools[..., -1].transpose(1, 2)), dim=-1)
        scores = self.score(common[:, None] + self.apart(apart)).squeeze(-1) + self.options.stay * costs[..., -1]
        return self.explore(scores, walk.allowed[unit], walk.n)

    def _state(self, device: Tensor, step: Tensor, unit: Tensor, load: Tensor) -> Tensor:
        """Inputs of nodes [2n, B, known + STATE]."""
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
        """[B, D, SCORED] of the unit on each device, while all others stay."""
        walk = self.walk
        cost, here = walk.cost[unit], on[torch.arange(len(unit)), unit]
        comes = torch.einsum("bn,bnd->bd", walk.flow[0][unit], on) @ walk.pace
        goes = torch.einsum("bn,bnd->bd", walk.flow[1][unit], on) @ walk.pace.T
        least = cost.masked_fill(~walk.allowed[unit], torch.inf).amin(dim=-1, keepdim=True)
        others = load - here * walk.share[unit]
        return torch.stack((cost, cost - least, torch.log1p(comes), torch.log1p(goes), others, here), dim=-1)

    @torch.no_grad()
    def rollout(self, count: int, generator: torch.Generator, price: Price) -> Rollout:
        device = start = self._starts(count, generator, price)
        path = [price(self.view.placements(device.numpy()))]
        for step in range(len(self.walk.order)):
            drawn = draw(self.logits(device, torch.full((count,), step)), generator)
            device = device.index_copy(1, self.walk.order[step : step + 1], drawn[:, None])
            path.append(price(self.view.placements(device.numpy())))
        choices = {"start": start, "moved": device[:, self.walk.order]}
        return Rollout(choices, path[-1], np.stack(path, axis=1))

    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        start, moved = choices["start"], choices["moved"]
        count, steps = moved.shape
        step = torch.arange(steps).expand(count, -1)
        end = start.index_copy(1, self.walk.order, moved)
        states = torch.where(self.walk.turn < step[:, :, None], end[:, None], start[:, None])
        states = torch.cat((states, step[:, :, None]), dim=-1).flatten(0, 1).int()
        seen, number = torch.unique(states, dim=0, return_inverse=True)
        return score_choices(self._log_p(seen)[number].view(count, steps, -1), moved)

    def _log_p(self, states: Tensor) -> Tensor:
        """Log p [B, D] in states [B, n + 1], the last column of which is the step. Large batches run in pieces."""
        size = max(1, CHUNK // (2 * self.walk.n * self.options.hidden * max(self.options.rounds, 1)))
        if len(states) <= size:
            return self._log_p_of_piece(states)
        pieces = [states[first : first + size] for first in range(0, len(states), size)]
        return torch.cat([checkpoint(self._log_p_of_piece, piece, use_reentrant=False) for piece in pieces])

    def _log_p_of_piece(self, states: Tensor) -> Tensor:
        return self.logits(states[:, :-1].long(), states[:, -1].long())

    @torch.no_grad()
    def greedy(self, price: Price) -> Ints:
        """The ends of walks with the likeliest moves, from the single device and from the best placement so far."""
        device = torch.cat((self._single(), self._best(price)))
        for step in range(len(self.walk.order)):
            likely = self.logits(device, torch.full((len(device),), step)).argmax(dim=-1)
            device = device.index_copy(1, self.walk.order[step : step + 1], likely[:, None])
        return self.view.placements(device.numpy())

    def decisions(self, placements: Ints) -> Mapping[str, Tensor]:
        """The decisions of a walk from the single device to each placement."""
        device = torch.from_numpy(self.view.devices(placements)).long()
        return {"start": self._single().expand(len(device), -1), "moved": device[:, self.walk.order]}

    def _starts(self, count: int, generator: torch.Generator, price: Price) -> Tensor:
        """The devices at which episodes start [count, n]."""
        if self.options.start == "random":
            logits = mask_logits(torch.zeros(self.walk.allowed.shape), self.walk.allowed)
            return draw(logits.expand(count, -1, -1), generator)
        start = self._best(price) if self.options.start == "best" else self._single()
        return start[:1].expand(count, -1)

    def _single(self) -> Tensor:
        """All units on the fastest device for all of them, and units that may not run there on their own fastest."""
        seconds = torch.from_numpy(np.where(self.view.allowed, self.view.seconds, np.inf))
        fastest = seconds.argmin(dim=1)
        most = self.walk.allowed.sum(dim=0)
        total = torch.where(self.walk.allowed, seconds, 0.0).sum(dim=0).masked_fill(most < most.max(), torch.inf)
        device = total.argmin()
        return torch.where(self.walk.allowed[:, device], device, fastest)[None]

    def _best(self, price: Price) -> Tensor:
        """The best placement so far, or the single device."""
        best = self.best_so_far(price)
        return self._single() if best is None else best[None]


def _unit_labels(problem: Problem, options: PlacetoOptions) -> Ints:
    """Labels [n_ops] of units: blocks, or groups of them if there are too many."""
    label = problem.block
    if problem.n_blocks > options.most_units and options.units != "blocks":
        label = chain_labels(problem) if options.units == "chains" else colocation_labels(problem)
    if build_view(problem, label).n > options.most_units:
        label = [label, *hierarchy(problem, wanted=options.most_units, start=label)][-1]
    return label


class PlacetoPlacer(LearnedPlacer):
    """Moves one unit after the other, based on an embedding of the graph and its current placement."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="placeto",
        summary="a policy that moves one unit after the other, trained on the time that each move saves",
        source="Addanki et al., NeurIPS 2019 (Placeto)",
        extra="learn",
    )
    Options: ClassVar[type[LearningOptions]] = PlacetoOptions
    network: ClassVar[type[Policy]] = Placeto
