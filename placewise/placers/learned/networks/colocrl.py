"""The policy of ColocRL (Mirhoseini et al., ICML 2017): groups of ops in topological order, one device after the other.

A group is told by its ops' kinds (learned vectors, averaged), the shapes that they make, and its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.placers.learned.colocrl import ColocRLOptions
from placewise.placers.learned.features import Features, Singles, features_of
from placewise.placers.learned.networks.segments import elsewhere, gains, moved, odds, ranks
from placewise.placers.learned.networks.sequence import Memory, Sequencer
from placewise.placers.learned.orders import places
from placewise.placers.learned.policy import Policy, Price, Rollout, best_so_far, scored
from placewise.placers.learned.units import colocation
from placewise.placers.learned.view import View, view_of

COSTS = ("seconds", "sent", "weights", "levels")


def colocrl(problem: Problem, options: ColocRLOptions, seed: int) -> ColocRLPolicy:
    """An untrained policy for a problem; `seed` chooses its first parameters."""
    label = colocation(problem) if problem.n_blocks > options.colocate_over else problem.block
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ColocRLPolicy(view_of(problem, label), options)


class ColocRLPolicy(Policy):
    """Every unit is a step of a sequence; a decision is fed to the next."""

    def __init__(self, view: View, options: ColocRLOptions) -> None:
        super().__init__()
        self.view, self.options, self.features = view, options, _features(view, options)
        self.rank = ranks(places(view))
        columns = torch.from_numpy(self.features.matrix)
        n_kinds = self.features.layout[0][1]
        self.kind = nn.Linear(n_kinds, options.kind_width, bias=False)
        self.sequencer = Sequencer(columns.shape[1] - n_kinds + options.kind_width, view.n_devices, options)
        self.register_buffer("kinds", columns[:, :n_kinds].contiguous(), persistent=False)
        self.register_buffer("others", columns[:, n_kinds:].contiguous(), persistent=False)
        self.register_buffer("allowed", torch.from_numpy(view.allowed.copy())[None], persistent=False)

    @torch.no_grad()
    def rollout(self, count: int, dice: torch.Generator, price: Price) -> Rollout:
        held = best_so_far(self.view, price)
        if held is not None and float(torch.rand((), generator=dice)) < self.options.moving:
            return self._moved(held, count, dice, price)
        device = self.sequencer.decide(self._read(), self.get_buffer("allowed"), count, dice)
        return Rollout({"device": device}, price(self.view.placements(device.numpy())))

    def _moved(self, held: Tensor, count: int, dice: torch.Generator, price: Price) -> Rollout:
        chance = self.chance(self.options.explore, 1)
        moves = moved(self._again(held), self.get_buffer("allowed")[0], held, self.rank, chance, count, dice)
        path = gains(price(self.view.placements(moves.placed.numpy())))
        choices = {"stretch": moves.stretch, "move": moves.device, "held": held.expand(count, -1)}
        return Rollout(choices, path[:, 1], path)

    def _again(self, held: Tensor) -> Tensor:
        """Logits [n, D] of every unit's device where those before it are as they are `held` [n]."""
        return self.sequencer.logits(self._read(sure=True), held[None], self.get_buffer("allowed"))[0]

    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        allowed = self.get_buffer("allowed")
        if "move" in choices:
            held, chance = choices["held"][0], self.chance(self.options.explore, 1)
            every = odds(self._again(held), choices["stretch"], elsewhere(allowed[0], held), chance)
            return scored(every[:, None], choices["move"][:, None])
        logits = self.sequencer.logits(self._read(), choices["device"], allowed)
        return scored(logits, choices["device"])

    @torch.no_grad()
    def greedy(self, price: Price) -> Ints:
        device = self.sequencer.decide(self._read(), self.get_buffer("allowed"), 1, None)
        return self.view.placements(device.numpy())

    def _read(self, *, sure: bool = False) -> Memory:
        """The groups as the encoder reads them; `sure`: nothing is left to chance."""
        groups = torch.cat((self.kind(self.get_buffer("kinds")), self.get_buffer("others")), dim=1)[None]
        return self.sequencer.encode(groups, 0.0 if sure else self.chance(self.options.explore, self.view.n))


def _features(view: View, options: ColocRLOptions) -> Features:
    """Kinds and shapes, costs if wanted, and ones in the columns of a unit's neighbours."""
    known = features_of(view, ("kind", "shape", *(COSTS if options.costs else ())))
    if not options.adjacency:
        return known
    near = _neighbours(view, options.neighbours)
    return Features(np.concatenate((known.matrix, near), axis=1), (*known.layout, ("adjacency", near.shape[1])))


def _neighbours(view: View, most: int) -> Singles:
    width = min(view.n, most)
    column = np.arange(view.n) * width // max(view.n, 1)
    near = np.zeros((view.n, width), np.float32)
    near[view.tail, column[view.head]] = 1.0
    near[view.head, column[view.tail]] = 1.0
    return near
