"""The policy of ColocRL (Mirhoseini et al., ICML 2017): groups of ops in topological order, one device after the other.

Features of a group are its ops' kinds (learned vectors, averaged), the shapes of their outputs, and its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.placers.learned.colocrl import ColocRLOptions
from placewise.placers.learned.features import Features, Singles, build_features
from placewise.placers.learned.networks.segments import draw_moves, move_log_p, open_moves, paths_of, position_ranks
from placewise.placers.learned.networks.sequence import EncoderMemory, Sequencer
from placewise.placers.learned.orders import order_positions
from placewise.placers.learned.policy import Policy, Price, Rollout, best_so_far, score_choices
from placewise.placers.learned.units import colocation_labels
from placewise.placers.learned.view import View, build_view


def colocrl(problem: Problem, options: ColocRLOptions, seed: int) -> ColocRLPolicy:
    """Create an untrained policy with weights drawn from `seed`."""
    label = colocation_labels(problem) if problem.n_blocks > options.colocate_over else problem.block
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ColocRLPolicy(build_view(problem, label), options)


class ColocRLPolicy(Policy):
    """Every unit is a step of a sequence, and each decision is the input of the next."""

    def __init__(self, view: View, options: ColocRLOptions) -> None:
        super().__init__()
        self.view, self.options, self.features = view, options, _features(view, options)
        self.rank = position_ranks(order_positions(view))
        columns = torch.from_numpy(self.features.matrix)
        n_kinds = self.features.layout[0][1]
        self.kind = nn.Linear(n_kinds, options.kind_width, bias=False)
        self.sequencer = Sequencer(columns.shape[1] - n_kinds + options.kind_width, view.n_devices, options)
        self.register_buffer("kinds", columns[:, :n_kinds].contiguous(), persistent=False)
        self.register_buffer("others", columns[:, n_kinds:].contiguous(), persistent=False)
        self.register_buffer("allowed", torch.from_numpy(view.allowed.copy())[None], persistent=False)

    @torch.no_grad()
    def rollout(self, count: int, generator: torch.Generator, price: Price) -> Rollout:
        start = best_so_far(self.view, price)
        if start is not None and float(torch.rand((), generator=generator)) < self.options.moving:
            return self._draw_moves(start, count, generator, price)
        device = self.sequencer.decide(self._encode(), self.get_buffer("allowed"), count, generator)
        return Rollout({"device": device}, price(self.view.placements(device.numpy())))

    def _draw_moves(self, start: Tensor, count: int, generator: torch.Generator, price: Price) -> Rollout:
        share, allowed = self.exploration_share(self.options.explore, 1), self.get_buffer("allowed")[0]
        moves = draw_moves(self._logits_at(start), allowed, start, self.rank, share, count, generator)
        path = paths_of(price(self.view.placements(moves.placements.numpy())))
        choices = {"segment": moves.segment, "move": moves.device, "start": start.expand(count, -1)}
        return Rollout(choices, path[:, 1], path)

    def _logits_at(self, start: Tensor) -> Tensor:
        """Logits [n, D] of every unit's device, while the units before it are on the devices `start` [n]."""
        return self.sequencer.logits(self._encode(explore=False), start[None], self.get_buffer("allowed"))[0]

    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        allowed = self.get_buffer("allowed")
        if "move" in choices:
            start, share = choices["start"][0], self.exploration_share(self.options.explore, 1)
            log_p = move_log_p(self._logits_at(start), choices["segment"], open_moves(allowed[0], start), share)
            return score_choices(log_p[:, None], choices["move"][:, None])
        logits = self.sequencer.logits(self._encode(), choices["device"], allowed)
        return score_choices(logits, choices["device"])

    @torch.no_grad()
    def greedy(self, price: Price) -> Ints:
        device = self.sequencer.decide(self._encode(), self.get_buffer("allowed"), 1, None)
        return self.view.placements(device.numpy())

    def _encode(self, *, explore: bool = True) -> EncoderMemory:
        """Encode the groups, with or without exploration."""
        groups = torch.cat((self.kind(self.get_buffer("kinds")), self.get_buffer("others")), dim=1)[None]
        share = self.exploration_share(self.options.explore, self.view.n) if explore else 0.0
        return self.sequencer.encode(groups, share)


def _features(view: View, options: ColocRLOptions) -> Features:
    """Kinds and shapes, and ones in the columns of a unit's neighbours."""
    basic = build_features(view, ("kind", "shape"))
    near = _adjacency(view, options.neighbours)
    return Features(np.concatenate((basic.matrix, near), axis=1), (*basic.layout, ("adjacency", near.shape[1])))


def _adjacency(view: View, most: int) -> Singles:
    width = min(view.n, most)
    column = np.arange(view.n) * width // max(view.n, 1)
    near = np.zeros((view.n, width), np.float32)
    near[view.tail, column[view.head]] = 1.0
    near[view.head, column[view.tail]] = 1.0
    return near
