"""The policy of HDP (Mirhoseini et al., ICLR 2018): every op draws a group, then a sequence of groups draws devices.

A grouping may put ops together that no device can all run. A group may therefore go wherever one of its ops may, and
an op that may not run there goes to the fastest device of its own. Which placement follows from groups and devices is
fixed, so that log p of those decisions is exact, and the gradient of REINFORCE unbiased; but for moves of stretches,
where of the groups those of the units that moved count alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from placewise.model.columns import Ints, offsets_of
from placewise.model.problem import Problem
from placewise.placers.learned.features import Features, Singles, features_of
from placewise.placers.learned.hdp import HDPOptions
from placewise.placers.learned.networks.segments import elsewhere, gains, moved, odds, ranks
from placewise.placers.learned.networks.sequence import Memory, Sequencer
from placewise.placers.learned.orders import places
from placewise.placers.learned.policy import Policy, Price, Rollout, best_so_far, scored
from placewise.placers.learned.view import View, view_of

WAVES = 8
COSTS = ("seconds", "sent", "weights", "levels")


def hdp(problem: Problem, options: HDPOptions, seed: int) -> HDPPolicy:
    """An untrained policy for a problem; `seed` chooses its first parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return HDPPolicy(view_of(problem, problem.block), options)


class HDPPolicy(Policy):
    """Decisions: the group of every unit, then the device of every group; a group without units decides nothing."""

    def __init__(self, view: View, options: HDPOptions) -> None:
        super().__init__()
        self.view, self.options, self.n_groups = view, options, options.n_groups(view.n, view.n_devices)
        self.rank = ranks(places(view))
        told = features_of(view, ("kind", "shape", *(COSTS if options.costs else ())))
        self.features = _features(view, told, options)
        self.adjacency = options.adjacency
        self.hidden = nn.Linear(self.features.width, options.grouper_width)
        self.choice = nn.Linear(options.grouper_width, self.n_groups)
        width = told.width + 1 + 2 * self.n_groups * options.adjacency
        self.sequencer = Sequencer(width, view.n_devices, options)
        buffers = {
            "columns": torch.from_numpy(self.features.matrix),
            "told": torch.from_numpy(told.matrix),
            "start": torch.from_numpy(_start(view.n, self.n_groups, options.nearness)),
            "allowed": torch.from_numpy(view.allowed.copy()),
            "fastest": torch.from_numpy(view.seconds.argmin(axis=1)),
            "tail": torch.from_numpy(view.tail.astype(np.int64)),
            "head": torch.from_numpy(view.head.astype(np.int64)),
        }
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)

    @torch.no_grad()
    def rollout(self, count: int, dice: torch.Generator, price: Price) -> Rollout:
        reach = torch.softmax(self._grouping(), dim=1).cumsum(dim=1)
        lot = torch.rand((self.view.n, count), generator=dice) * reach[:, -1:]
        group = torch.searchsorted(reach, lot, right=True).clamp_max(self.n_groups - 1).t().contiguous()
        held = best_so_far(self.view, price)
        if held is not None and float(torch.rand((), generator=dice)) < self.options.moving:
            return self._moved(held, group[:1], count, dice, price)
        told, allowed, _ = self._groups(group)
        device = self.sequencer.decide(self._read(told), allowed, count, dice)
        return Rollout({"group": group, "device": device}, price(self.placements(group, device)))

    def _moved(self, held: Tensor, group: Tensor, count: int, dice: torch.Generator, price: Price) -> Rollout:
        """Stretches of units move to where their groups in one grouping [1, n_units] would, on average."""
        chance = self.chance(self.options.explore, 1)
        moves = moved(self._again(held, group), self.get_buffer("allowed"), held, self.rank, chance, count, dice)
        path = gains(price(self.view.placements(moves.placed.numpy())))
        choices = {"group": group.expand(count, -1), "stretch": moves.stretch, "move": moves.device}
        return Rollout(choices | {"held": held.expand(count, -1)}, path[:, 1], path)

    def _again(self, held: Tensor, group: Tensor) -> Tensor:
        """Logits [n_units, D] of every unit's group, where those before it are where most of them are `held` now."""
        told, allowed, _ = self._groups(group)
        place = group[0] * self.view.n_devices + held
        count = torch.bincount(place, minlength=self.n_groups * self.view.n_devices).view(self.n_groups, -1)
        logits = self.sequencer.logits(self.sequencer.encode(told, 0.0), count.argmax(dim=1)[None], allowed)
        found: Tensor = logits[0][group[0]]
        return found

    def _read(self, told: Tensor) -> Memory:
        return self.sequencer.encode(told, self.chance(self.options.explore, self.n_groups))

    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        group = choices["group"]
        every = torch.log_softmax(self._grouping(), dim=1)
        chosen = every.gather(1, group.t()).t()
        spread = -(every.exp() * every).sum(dim=1).expand(len(group), -1)
        if "move" in choices:
            stretch, held, chance = choices["stretch"], choices["held"][0], self.chance(self.options.explore, 1)
            useful = elsewhere(self.get_buffer("allowed"), held)
            every = odds(self._again(held, group[:1]), stretch, useful, chance)
            log_prob, entropy = scored(every[:, None], choices["move"][:, None])
            return torch.cat((chosen * stretch, log_prob), dim=1), torch.cat((spread * stretch, entropy), dim=1)
        device = choices["device"]
        told, allowed, used = self._groups(group)
        log_prob, entropy = scored(self.sequencer.logits(self._read(told), device, allowed), device)
        return torch.cat((chosen, log_prob * used), dim=1), torch.cat((spread, entropy * used), dim=1)

    @torch.no_grad()
    def greedy(self, price: Price) -> Ints:
        group = self._grouping().argmax(dim=1)[None]
        told, allowed, _ = self._groups(group)
        return self.placements(group, self.sequencer.decide(self._read(told), allowed, 1, None))

    def placements(self, group: Tensor, device: Tensor) -> Ints:
        """Groups of units [K, n_units] and devices of groups [K, n_groups] → placements [K, n_ops]."""
        wanted = device.gather(1, group)
        may = self.get_buffer("allowed").expand(len(group), -1, -1).gather(2, wanted[:, :, None])[:, :, 0]
        return self.view.placements(torch.where(may, wanted, self.get_buffer("fastest")).numpy())

    def _grouping(self) -> Tensor:
        """The logits of groups [n_units, n_groups]."""
        logits: Tensor = self.choice(torch.relu(self.hidden(self.get_buffer("columns"))))
        return logits + self.get_buffer("start")

    @torch.no_grad()
    def _groups(self, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What groups [K, n_units] are: their columns, where one of their units may run, whether they have any.

        [K, n_groups, width], [K, n_groups, n_devices] and [K, n_groups]. Columns are means over units, log of their
        number, and how many edges lead to and from every group as shares of the most.
        """
        count, n = len(group), self.n_groups
        place = (group + n * torch.arange(count)[:, None]).reshape(-1)
        told, allowed = self.get_buffer("told"), self.get_buffer("allowed")
        size = torch.bincount(place, minlength=count * n).to(told.dtype)[:, None]
        mean = _sums(told, place, count * n) / size.clamp_min(1.0)
        columns = [mean, torch.log1p(size) / torch.log1p(torch.tensor(float(self.view.n)))]
        if self.adjacency:
            columns.append(self._adjacent(group).reshape(count * n, 2 * n))
        somewhere = (_sums(allowed.to(told.dtype), place, count * n) > 0) | (size == 0)
        found = torch.cat(columns, dim=1).reshape(count, n, -1)
        return found, somewhere.reshape(count, n, -1), (size > 0).reshape(count, n)

    def _adjacent(self, group: Tensor) -> Tensor:
        """Edges out of a group to each other, and into it, over one more than the most of its row: [K, n, 2 n]."""
        count, n = len(group), self.n_groups
        ends = group[:, self.get_buffer("tail")] * n + group[:, self.get_buffer("head")]
        place = (ends + n * n * torch.arange(count)[:, None]).reshape(-1)
        edges = torch.bincount(place, minlength=count * n * n).reshape(count, n, n).to(torch.float32)
        both = torch.cat((edges, edges.transpose(1, 2)), dim=2)
        return both / (both.amax(dim=2, keepdim=True) + 1.0)


def _sums(rows: Tensor, place: Tensor, n: int) -> Tensor:
    """Sums of rows [n_units, width], repeated for each of K groupings, by `place` [K · n_units]: [n, width]."""
    repeated = rows.repeat(len(place) // max(len(rows), 1), 1)
    return torch.zeros((n, rows.shape[1]), dtype=rows.dtype).index_add_(0, place, repeated)


def _start(n: int, n_groups: int, nearness: float) -> Singles:
    """What an untrained grouper prefers [n, n_groups]: the groups at an op's place in the order, less the farther."""
    at = (np.arange(n)[:, None] + 0.5) * n_groups / n - 0.5
    return (-nearness * np.abs(at - np.arange(n_groups))).astype(np.float32)


def _features(view: View, told: Features, options: HDPOptions) -> Features:
    """What the grouper is told of units: kind, shape, their place, and the places of the first of their neighbours."""
    share = (np.arange(view.n) + 0.5) / max(view.n, 1)
    angle = 2 * np.pi * share[:, None] * np.arange(1, WAVES + 1)
    place = np.concatenate((share[:, None], np.sin(angle), np.cos(angle)), axis=1).astype(np.float32)
    parts, layout = [told.matrix, place], [*told.layout, ("place", place.shape[1])]
    if options.adjacency and options.neighbours:
        near = np.concatenate(
            [_first(share, ends, others, view.n, options.neighbours)
             for ends, others in ((view.head, view.tail), (view.tail, view.head))], axis=1
        )  # fmt: skip
        parts.append(near)
        layout.append(("neighbours", near.shape[1]))
    return Features(np.concatenate(parts, axis=1), tuple(layout))


def _first(share: np.ndarray, ends: Ints, others: Ints, n: int, most: int) -> Singles:
    """The places of the first neighbours [n, most], less the unit's own; −1 where there is none."""
    order = np.lexsort((others, ends))
    start = offsets_of(ends[order], n)
    rank = np.arange(len(order)) - start[ends[order]]
    kept = rank < most
    unit, other = ends[order][kept], others[order][kept]
    found = np.full((n, most), -1.0, np.float32)
    found[unit, rank[kept]] = share[other] - share[unit]
    return found
