"""colocrl: an LSTM reads groups of ops in topological order, and another one decides their devices in sequence.

Features of a group are its ops' kinds (learned vectors, averaged), the shapes of their outputs, and its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.placers.base import PlacerInfo
from placewise.placers.learned.features import Features, Singles, build_features, order_positions
from placewise.placers.learned.options import LearningOptions, require_at_least
from placewise.placers.learned.placer import LearnedPlacer
from placewise.placers.learned.policy import Policy, Price, Rollout, position_ranks, score_choices
from placewise.placers.learned.sequence import PAPER, EncoderMemory, SequenceOptions, SequencePolicy, Sequencer
from placewise.placers.learned.view import View, build_view, colocation_labels


@dataclass(frozen=True)
class ColocRLOptions(SequenceOptions):
    """Options of a sequence policy over co-located groups.

    `colocate_over`: the paper's rules of co-location join groups in graphs with more ops (or groups) than this; shorter
    sequences do not need them (0: always). `neighbours` is the largest number of columns for the neighbours of a group;
    beyond it, groups that are close in the order share one. `kind_width` is the width of the learned vector of an op
    kind.
    """

    paper: ClassVar[Mapping[str, Any]] = {**PAPER, "samples": 8, "colocate_over": 0}
    colocate_over: int = 512
    neighbours: int = 512
    kind_width: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, colocate_over=0, neighbours=1, kind_width=1)


class ColocRLPolicy(SequencePolicy):
    """Every unit is a step of a sequence, and each decision is the input of the next."""

    def __init__(self, problem: Problem, options: ColocRLOptions) -> None:
        super().__init__()
        label = colocation_labels(problem) if problem.n_blocks > options.colocate_over else problem.block
        view = build_view(problem, label)
        self.view, self.options, self.features = view, options, _features(view, options)
        self.rank = position_ranks(order_positions(view))
        columns = torch.from_numpy(self.features.matrix)
        n_kinds = self.features.layout[0][1]
        self.kind = nn.Linear(n_kinds, options.kind_width, bias=False)
        self.sequencer = Sequencer(columns.shape[1] - n_kinds + options.kind_width, view.n_devices, options)
        self.register_buffer("kinds", columns[:, :n_kinds].contiguous(), persistent=False)
        self.register_buffer("others", columns[:, n_kinds:].contiguous(), persistent=False)
        self.register_buffer("allowed", torch.from_numpy(view.allowed.copy()), persistent=False)

    @torch.no_grad()
    def rollout(self, count: int, generator: torch.Generator, price: Price) -> Rollout:
        start = self.draw_start(price, generator)
        if start is not None:
            return self.draw_segments(self._logits_at(start), start, count, generator, price)
        device = self.sequencer.decide(self._encode(), self.allowed[None], count, generator)
        return Rollout({"device": device}, price(self.view.placements(device.numpy())))

    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        if "move" in choices:
            return self.score_segments(self._logits_at(choices["start"][0]), choices)
        logits = self.sequencer.logits(self._encode(), choices["device"], self.allowed[None])
        return score_choices(logits, choices["device"])

    @torch.no_grad()
    def greedy(self, price: Price) -> Ints:
        device = self.sequencer.decide(self._encode(), self.allowed[None], 1, None)
        return self.view.placements(device.numpy())

    def _logits_at(self, start: Tensor) -> Tensor:
        """Logits [n, D] of every unit's device, while the units before it are on the devices `start` [n]."""
        return self.sequencer.logits(self._encode(explore=False), start[None], self.allowed[None])[0]

    def _encode(self, *, explore: bool = True) -> EncoderMemory:
        """Encode the groups, with or without exploration."""
        groups = torch.cat((self.kind(self.get_buffer("kinds")), self.get_buffer("others")), dim=1)[None]
        share = self.exploration_share(self.view.n) if explore else 0.0
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


class ColocRLPlacer(LearnedPlacer):
    """Device placement by a sequence-to-sequence policy over co-located groups."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="colocrl",
        summary="a sequence-to-sequence policy over co-located groups, trained on the reward",
        source="Mirhoseini et al., Device Placement Optimization with Reinforcement Learning, ICML 2017",
        extra="learn",
    )
    Options: ClassVar[type[LearningOptions]] = ColocRLOptions
    network: ClassVar[type[Policy]] = ColocRLPolicy
