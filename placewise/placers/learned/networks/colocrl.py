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
from placewise.placers.learned.networks.sequence import Memory, Sequencer
from placewise.placers.learned.policy import Policy, Price, Rollout, scored
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
        self.view, self.features = view, _features(view, options)
        columns = torch.from_numpy(self.features.matrix)
        n_kinds = self.features.layout[0][1]
        self.kind = nn.Linear(n_kinds, options.kind_width, bias=False)
        self.sequencer = Sequencer(columns.shape[1] - n_kinds + options.kind_width, view.n_devices, options)
        self.register_buffer("kinds", columns[:, :n_kinds].contiguous(), persistent=False)
        self.register_buffer("others", columns[:, n_kinds:].contiguous(), persistent=False)
        self.register_buffer("allowed", torch.from_numpy(view.allowed.copy())[None], persistent=False)

    @torch.no_grad()
    def rollout(self, count: int, dice: torch.Generator, price: Price) -> Rollout:
        device = self.sequencer.decide(self._read(), self.get_buffer("allowed"), count, dice)
        return Rollout({"device": device}, price(self.view.placements(device.numpy())))

    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        memory = self._read()
        logits = self.sequencer.logits(memory, choices["device"], self.get_buffer("allowed"))
        return scored(logits, choices["device"])

    @torch.no_grad()
    def greedy(self, price: Price) -> Ints:
        device = self.sequencer.decide(self._read(), self.get_buffer("allowed"), 1, None)
        return self.view.placements(device.numpy())

    def _read(self) -> Memory:
        groups = torch.cat((self.kind(self.get_buffer("kinds")), self.get_buffer("others")), dim=1)[None]
        return self.sequencer.encode(groups, self.unrest)


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
