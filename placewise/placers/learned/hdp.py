"""hdp: a network assigns ops to groups, and a sequence-to-sequence network places the groups; both learn jointly.

A group may contain ops that no single device can run. A group may therefore go wherever one of its ops may, and an op
that may not run there goes to its fastest device. Groups and devices determine the placement, so that log p of these
decisions is exact, and the gradient of REINFORCE unbiased. For moves of segments, only the groups of the moved units
count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from placewise.model.columns import Ints, offsets_of
from placewise.model.problem import Problem
from placewise.placers.base import PlacerInfo
from placewise.placers.learned.features import Features, Singles, build_features, order_positions
from placewise.placers.learned.options import LearningOptions, require_at_least
from placewise.placers.learned.placer import LearnedPlacer
from placewise.placers.learned.policy import Policy, Price, Rollout, position_ranks, score_choices
from placewise.placers.learned.sequence import PAPER, EncoderMemory, SequenceOptions, SequencePolicy, Sequencer
from placewise.placers.learned.view import View, build_view

WAVES = 8
PER_DEVICE, MAX_GROUPS = 20, 256
"""The number of groups follows the authors' code: TensorFlow's grappler, hierarchical_controller.py."""


@dataclass(frozen=True)
class HDPOptions(SequenceOptions):
    """Options of a grouper and a placer.

    `groups` is their number (0: 20 per device, 256 at most), never more than there are ops. `grouper_width` is the
    width of the grouper's hidden layer. `nearness` is the initial preference of the grouper for groups of ops that are
    close in topological order (0: none, as in the paper). `neighbours` is the number of inputs, and of readers, of an
    op whose places the grouper sees.
    """

    paper: ClassVar[Mapping[str, Any]] = {**PAPER, "samples": 8, "groups": MAX_GROUPS, "nearness": 0.0}
    groups: int = 0
    grouper_width: int = 64
    nearness: float = 2.0
    neighbours: int = 4
    both_ways: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, groups=0, grouper_width=1, neighbours=0)
        self.require_numbers("nearness")

    def n_groups(self, n_units: int, n_devices: int) -> int:
        """The number of groups for a problem."""
        return max(1, min(self.groups or min(MAX_GROUPS, PER_DEVICE * n_devices), n_units))


class HDPPolicy(SequencePolicy):
    """Decisions: the group of every unit, then the device of every group. An empty group has no decision."""

    def __init__(self, problem: Problem, options: HDPOptions) -> None:
        super().__init__()
        view = build_view(problem, problem.block)
        self.view, self.options, self.n_groups = view, options, options.n_groups(view.n, view.n_devices)
        self.rank = position_ranks(order_positions(view))
        basic = build_features(view, ("kind", "shape"))
        self.features = _grouper_features(view, basic, options)
        self.hidden = nn.Linear(self.features.width, options.grouper_width)
        self.choice = nn.Linear(options.grouper_width, self.n_groups)
        self.sequencer = Sequencer(basic.width + 1 + 2 * self.n_groups, view.n_devices, options)
        buffers = {
            "columns": torch.from_numpy(self.features.matrix),
            "basic": torch.from_numpy(basic.matrix),
            "bias": torch.from_numpy(_nearness_bias(view.n, self.n_groups, options.nearness)),
            "allowed": torch.from_numpy(view.allowed.copy()),
            "fastest": torch.from_numpy(view.seconds.argmin(axis=1)),
            "tail": torch.from_numpy(view.tail.astype(np.int64)),
            "head": torch.from_numpy(view.head.astype(np.int64)),
        }
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)

    @torch.no_grad()
    def rollout(self, count: int, generator: torch.Generator, price: Price) -> Rollout:
        cumulative = torch.softmax(self._group_logits(), dim=1).cumsum(dim=1)
        point = torch.rand((self.view.n, count), generator=generator) * cumulative[:, -1:]
        group = torch.searchsorted(cumulative, point, right=True).clamp_max(self.n_groups - 1).t().contiguous()
        start = self.draw_start(price, generator)
        if start is not None:
            rollout = self.draw_segments(self._logits_at(start, group[:1]), start, count, generator, price)
            return replace(rollout, choices={**rollout.choices, "group": group[:1].expand(count, -1)})
        columns, allowed, _ = self._describe_groups(group)
        device = self.sequencer.decide(self._encode(columns), allowed, count, generator)
        return Rollout({"group": group, "device": device}, price(self.placements(group, device)))

    def _logits_at(self, start: Tensor, group: Tensor) -> Tensor:
        """Logits [n_units, D] of every unit's group, while the groups before it are where most of them `start`."""
        columns, allowed, _ = self._describe_groups(group)
        place = group[0] * self.view.n_devices + start
        count = torch.bincount(place, minlength=self.n_groups * self.view.n_devices).view(self.n_groups, -1)
        logits = self.sequencer.logits(self.sequencer.encode(columns, 0.0), count.argmax(dim=1)[None], allowed)
        return logits[0][group[0]]

    def _encode(self, columns: Tensor) -> EncoderMemory:
        return self.sequencer.encode(columns, self.exploration_share(self.n_groups))

    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        group = choices["group"]
        log_p = torch.log_softmax(self._group_logits(), dim=1)
        of_groups = log_p.gather(1, group.t()).t()
        spread = -(log_p.exp() * log_p).sum(dim=1).expand(len(group), -1)
        if "move" in choices:
            segment = choices["segment"]
            log_prob, entropy = self.score_segments(self._logits_at(choices["start"][0], group[:1]), choices)
            return torch.cat((of_groups * segment, log_prob), dim=1), torch.cat((spread * segment, entropy), dim=1)
        device = choices["device"]
        columns, allowed, used = self._describe_groups(group)
        log_prob, entropy = score_choices(self.sequencer.logits(self._encode(columns), device, allowed), device)
        return torch.cat((of_groups, log_prob * used), dim=1), torch.cat((spread, entropy * used), dim=1)

    @torch.no_grad()
    def greedy(self, price: Price) -> Ints:
        group = self._group_logits().argmax(dim=1)[None]
        columns, allowed, _ = self._describe_groups(group)
        return self.placements(group, self.sequencer.decide(self._encode(columns), allowed, 1, None))

    def placements(self, group: Tensor, device: Tensor) -> Ints:
        """Groups of units [K, n_units] and devices of groups [K, n_groups] → placements [K, n_ops]."""
        wanted = device.gather(1, group)
        may = self.allowed.expand(len(group), -1, -1).gather(2, wanted[:, :, None])[:, :, 0]
        return self.view.placements(torch.where(may, wanted, self.get_buffer("fastest")).numpy())

    def _group_logits(self) -> Tensor:
        """The logits of groups [n_units, n_groups]."""
        logits: Tensor = self.choice(torch.relu(self.hidden(self.get_buffer("columns"))))
        return logits + self.get_buffer("bias")

    @torch.no_grad()
    def _describe_groups(self, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Describe groupings [K, n_units]: features of groups, their devices, and whether they have units.

        [K, n_groups, width], [K, n_groups, n_devices] and [K, n_groups]. Features are means over units, the log of
        their number, and the edges to and from every group as shares of the most.
        """
        count, n = len(group), self.n_groups
        place = (group + n * torch.arange(count)[:, None]).reshape(-1)
        basic, allowed = self.get_buffer("basic"), self.allowed
        size = torch.bincount(place, minlength=count * n).to(basic.dtype)[:, None]
        mean = _sum_by_group(basic, place, count * n) / size.clamp_min(1.0)
        log_size = torch.log1p(size) / torch.log1p(torch.tensor(float(self.view.n)))
        columns = torch.cat((mean, log_size, self._adjacency(group).reshape(count * n, 2 * n)), dim=1)
        somewhere = (_sum_by_group(allowed.to(basic.dtype), place, count * n) > 0) | (size == 0)
        return columns.reshape(count, n, -1), somewhere.reshape(count, n, -1), (size > 0).reshape(count, n)

    def _adjacency(self, group: Tensor) -> Tensor:
        """Edges from a group to each other one, and back, over one more than the largest of its row: [K, n, 2 n]."""
        count, n = len(group), self.n_groups
        ends = group[:, self.get_buffer("tail")] * n + group[:, self.get_buffer("head")]
        place = (ends + n * n * torch.arange(count)[:, None]).reshape(-1)
        edges = torch.bincount(place, minlength=count * n * n).reshape(count, n, n).to(torch.float32)
        both = torch.cat((edges, edges.transpose(1, 2)), dim=2)
        return both / (both.amax(dim=2, keepdim=True) + 1.0)


def _sum_by_group(rows: Tensor, place: Tensor, n: int) -> Tensor:
    """Sums [n, width] of rows [n_units, width], repeated for each of K groupings, by `place` [K · n_units]."""
    repeated = rows.repeat(len(place) // max(len(rows), 1), 1)
    return torch.zeros((n, rows.shape[1]), dtype=rows.dtype).index_add_(0, place, repeated)


def _nearness_bias(n: int, n_groups: int, nearness: float) -> Singles:
    """Initial logits of the grouper [n, n_groups]: they fall with the distance from an op's place in the order."""
    at = (np.arange(n)[:, None] + 0.5) * n_groups / n - 0.5
    return (-nearness * np.abs(at - np.arange(n_groups))).astype(np.float32)


def _grouper_features(view: View, basic: Features, options: HDPOptions) -> Features:
    """Features of units for the grouper: kind, shape, place, and the places of their first neighbours."""
    share = (np.arange(view.n) + 0.5) / max(view.n, 1)
    angle = 2 * np.pi * share[:, None] * np.arange(1, WAVES + 1)
    place = np.concatenate((share[:, None], np.sin(angle), np.cos(angle)), axis=1).astype(np.float32)
    near = [_neighbour_places(share, ends, others, view.n, options.neighbours)
            for ends, others in ((view.head, view.tail), (view.tail, view.head))]  # fmt: skip
    layout = (*basic.layout, ("place", place.shape[1]), ("neighbours", 2 * options.neighbours))
    return Features(np.concatenate((basic.matrix, place, *near), axis=1), layout)


def _neighbour_places(share: np.ndarray, ends: Ints, others: Ints, n: int, most: int) -> Singles:
    """The places of the first neighbours [n, most] relative to the unit's own; −1 for none."""
    order = np.lexsort((others, ends))
    start = offsets_of(ends[order], n)
    rank = np.arange(len(order)) - start[ends[order]]
    kept = rank < most
    unit, other = ends[order][kept], others[order][kept]
    places = np.full((n, most), -1.0, np.float32)
    places[unit, rank[kept]] = share[other] - share[unit]
    return places


class HDPPlacer(LearnedPlacer):
    """Hierarchical device placement: a grouper and a placer, trained jointly."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="hdp",
        summary="one network assigns ops to groups, another places the groups; both learn jointly from rewards",
        source="Mirhoseini et al., A Hierarchical Model for Device Placement, ICLR 2018",
        extra="learn",
    )
    Options: ClassVar[type[LearningOptions]] = HDPOptions
    network: ClassVar[type[Policy]] = HDPPolicy
