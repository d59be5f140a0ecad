"""The network of HSDAG: encoder, edge scores, graph parsing, devices of groups (Duan et al., NeurIPS 2024, section 2).

A state is an embedding Z of every unit. Parsing it gives groups; each group's embedding is the mean of its members',
weighed by the score of the edge that each kept, so that what is learned of devices also reaches the scores. The next
state is Z plus the embedding of every unit's group: states do not depend on what was drawn, so that several placements
may be drawn from each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from placewise.model.columns import Floats, Ints, Longs, distinct, firsts_of
from placewise.model.problem import Problem
from placewise.placers.learned.features import Features, features_of
from placewise.placers.learned.hsdag import HsdagOptions
from placewise.placers.learned.networks.segments import gains
from placewise.placers.learned.parsing import best_edges, edges_between, groups_of
from placewise.placers.learned.policy import Policy, Price, Rollout, best_so_far, draw, explored, masked, scored
from placewise.placers.learned.units import chains
from placewise.placers.learned.view import View, view_of

FEW = 500
"""Up to so many blocks, chains are whole in every second state only."""
AGAIN = 0.5
"""How likely each move after the first is."""
LARGEST_SEED = (1 << 62) - 1
UNPARSED: Mapping[int, Longs] = {}


Choices = dict[str, Tensor]


class Step(NamedTuple):
    """A state's groups: the edges that nodes kept [rounds, n], the group of each node [n], logits [groups, devices]."""

    kept: Longs
    group: Tensor
    logits: Tensor


def policy_of(problem: Problem, options: HsdagOptions, seed: int) -> HsdagPolicy:
    """An untrained policy for a problem."""
    chain = np.arange(problem.n_ops, dtype=np.int32) if options.chains == "never" else chains(problem)
    merged = options.chains == "always" or (options.chains == "auto" and problem.n_blocks > FEW)
    view = view_of(problem, chain if merged else np.arange(problem.n_ops))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return HsdagPolicy(view, features_of(view, options.sections), options, chain)


class HsdagPolicy(Policy):
    """Decisions are the devices of groups. Rows of a rollout stand in the order of its steps, and stay together."""

    x: Tensor
    edges: Tensor
    allowed: Tensor

    def __init__(self, view: View, features: Features, options: HsdagOptions, chain: Ints) -> None:
        super().__init__()
        first = firsts_of(view.unit)
        self.chain: Longs = np.unique(chain[first], return_inverse=True)[1].astype(np.int64)
        self.view, self.features, self.options = view, features, options
        self.tail, self.head = _candidates(view)
        self.n_edges = len(self.tail) - view.n
        both = np.stack((np.concatenate((view.tail, view.head)), np.concatenate((view.head, view.tail))))
        for name, value in {"x": features.matrix, "edges": both.astype(np.int64), "allowed": view.allowed}.items():
            self.register_buffer(name, torch.from_numpy(np.array(value)), persistent=False)
        width = options.hidden
        self.enter = _perceptron(features.width, width, width)
        layers = 2 if options.encoder == "gcn" else 0
        self.encoder = nn.ModuleList(GCNConv(width, width, cached=True) for _ in range(layers))
        self.affinity = _perceptron(width, width, 1)
        self.among = GCNConv(width, width)
        self.choose = _perceptron(width, width, view.n_devices)

    def rollout(self, count: int, dice: torch.Generator, price: Price) -> Rollout:
        """`count` placements, drawn evenly from the states of one walk."""
        steps = min(self.options.steps, count)
        seed = int(torch.randint(LARGEST_SEED, (), generator=dice))
        which = np.arange(count) * steps // count
        moves = bool(self.options.moves) and best_so_far(self.view, price) is not None
        found, kept, paths = [], [], []
        with torch.no_grad():
            for number, step in enumerate(self._walk(steps, seed=seed)):
                here = int((which == number).sum())
                drawn, path = (self._moved if moves else self._placed)(step, here, dice, price)
                found.append(drawn)
                paths.append(path)
                kept.append(torch.from_numpy(step.kept).expand(here, -1, -1))
        choices = {name: torch.cat([drawn[name] for drawn in found]) for name in found[0]} | {
            "kept": torch.cat(kept), "step": torch.from_numpy(which), "seed": torch.full((count,), seed),
        }  # fmt: skip
        weight = np.power(self.options.discount, which, dtype=np.float64)
        path = np.concatenate(paths)
        return Rollout(choices, path[:, -1], path if moves else None, weight)

    def _placed(self, step: Step, count: int, dice: torch.Generator, price: Price) -> tuple[Choices, Floats]:
        """A device for every group of a state, and the seconds [count, 1] of placements."""
        device = draw(self._explored(step).expand(count, -1, -1), dice)[:, step.group]
        return {"device": device}, price(self.view.placements(device.numpy()))[:, None]

    def _moved(self, step: Step, count: int, dice: torch.Generator, price: Price) -> tuple[Choices, Floats]:
        """What moves on from the best placement so far, and the seconds [count, 2] of that and of what comes of it."""
        held = best_so_far(self.view, price)
        assert held is not None
        odds = self._odds(step, held)
        move = draw(odds.expand(count, self.options.moves, -1), dice)
        again = torch.rand(move.shape, generator=dice) < AGAIN
        again[:, 0] = True
        move = move.where(again & torch.isfinite(odds[move]), -1)
        placed = held.repeat(count + 1, 1)
        for turn in move.T:
            group, device = turn[:, None] // self.view.n_devices, turn[:, None] % self.view.n_devices
            placed[1:] = torch.where(step.group == group, device, placed[1:])
        path = gains(price(self.view.placements(placed.numpy())))
        return {"move": move, "held": placed[:1].expand(count, -1)}, path

    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Log p and entropy [K, most groups] in the groups that were parsed for the rollout; [K, moves] of moves.

        A state of which all rows were lost is parsed afresh.
        """
        step = choices["step"].numpy()
        numbers, first = np.unique(step, return_index=True)
        parses = dict(zip(numbers.tolist(), choices["kept"][torch.from_numpy(first)].numpy(), strict=True))
        found = []
        for number, state in enumerate(self._walk(int(step.max()) + 1, seed=int(choices["seed"][0]), parses=parses)):
            if number not in parses:
                continue
            rows = torch.from_numpy(np.flatnonzero(step == number))
            if "move" in choices:
                odds, chosen = self._odds(state, choices["held"][rows[0]]), choices["move"][rows]
            else:
                leaders = torch.from_numpy(firsts_of(state.group.numpy()))
                odds, chosen = self._explored(state), choices["device"][rows][:, leaders]
            told, spread = scored(odds.expand(*chosen.shape, -1), chosen.clamp_min(0))
            found.append((told.where(chosen >= 0, 0.0), spread.where(chosen >= 0, 0.0)))
        width = max(log_prob.shape[1] for log_prob, _ in found)
        wide = [[nn.functional.pad(part, (0, width - part.shape[1])) for part in parts] for parts in found]
        return torch.cat([parts[0] for parts in wide]), torch.cat([parts[1] for parts in wide])

    def _explored(self, step: Step) -> Tensor:
        """Log p [groups, devices] where `explore` of the groups' devices are left to chance."""
        return explored(step.logits, torch.isfinite(step.logits), self.chance(self.options.explore, len(step.logits)))

    def _odds(self, step: Step, held: Tensor) -> Tensor:
        """Log p [groups · devices] of what moves next: by how much likelier a group is there than where it is `held`.

        −∞ where it may not be, and where all of it is already.
        """
        there = torch.zeros_like(step.logits).index_put((step.group, held), torch.ones(()), accumulate=True)
        share = there / there.sum(dim=1, keepdim=True)
        now = (share * step.logits.masked_fill(share == 0, 0.0)).sum(dim=1, keepdim=True)
        open_ = torch.isfinite(step.logits) & (share < 1)
        return explored(
            (step.logits - now).flatten(), open_.flatten(), self.chance(self.options.explore, self.options.moves)
        )

    def greedy(self, price: Price) -> Ints:
        """The likeliest placement of every state, the likeliest of them first."""
        with torch.no_grad():
            found = []
            for step in self._walk(self.options.steps):
                best = torch.log_softmax(step.logits, dim=-1).max(dim=-1)
                found.append((float(best.values.sum()), best.indices[step.group].numpy()))
        found.sort(key=lambda pair: -pair[0])
        return self.view.placements(np.stack([row for _, row in found]))

    def _walk(self, steps: int, *, seed: int | None = None, parses: Mapping[int, Longs] = UNPARSED) -> Iterator[Step]:
        """The states of an update; parsed as in `parses`, [rounds, n] by their numbers, where given.

        No seed: no dropout.
        """
        noise = None if seed is None else torch.Generator().manual_seed(seed)
        z = self._encoded(noise)
        for number in range(steps):
            step, grouped = self._step(z, parses.get(number), noise, number)
            yield step
            z = z + grouped[step.group]

    def _encoded(self, noise: torch.Generator | None) -> Tensor:
        """Z [n, hidden]; without noise, nothing is dropped."""
        z: Tensor = self.enter(self.x)
        for layer in self.encoder:
            z = layer(z, self.edges).relu()
        if noise is None or not self.options.dropout:
            return z
        keep = 1 - self.options.dropout
        return z * (torch.rand(z.shape, generator=noise) < keep) / keep

    def _step(self, z: Tensor, parse: Longs | None, noise: torch.Generator | None, turn: int) -> tuple[Step, Tensor]:
        """One state's groups, and their embeddings [groups, hidden]."""
        odd = turn % 2 == 1
        rounds = self.options.rounds
        if self.options.varied:
            rounds = turn // 2 % (rounds + 1)
        alone = self.options.alone == "always" or (self.options.alone == "alternate" and odd)
        group: Longs = np.arange(self.view.n) if odd else self.chain
        members = z if odd else _pooled(z, z.new_zeros(0), np.full(len(z), -1), group)
        rows = []
        for number in range(rounds):
            kept = self._kept(group, members, noise, alone=alone) if parse is None else parse[number]
            edge = distinct(kept[kept >= 0])
            kept = kept[firsts_of(group)]
            one, other = group[self.tail[edge]], group[self.head[edge]]
            best = np.where(kept >= 0, np.searchsorted(edge, kept), -1)
            score = self.affinity(members[one] * members[other]).squeeze(-1).sigmoid()
            rows.append(kept[group])
            joined = groups_of(one, other, best, len(members))
            members = _pooled(members, score, best, joined)
            group = joined[group]
        rows += [np.full(self.view.n, -1)] * (self.options.rounds - rounds)
        logits = self.choose(self.among(members, self._between(group)).relu())
        here = torch.from_numpy(group)
        leaders = torch.from_numpy(firsts_of(group))
        return Step(np.stack(rows), here, masked(logits, self.allowed[leaders])), members

    @torch.no_grad()
    def _kept(self, group: Longs, members: Tensor, noise: torch.Generator | None, *, alone: bool) -> Longs:
        """The edge of the highest score that every node's group keeps [n], −1 for none; scores are shaken by `noise`.

        What is not kept has no gradient, so that scores of kept edges alone are found again with one.
        """
        edge = self._open(group, alone=alone)
        one, other = group[self.tail[edge]], group[self.head[edge]]
        affinity = self.affinity(members[one] * members[other]).squeeze(-1)
        best = best_edges(one, other, self._shaken(affinity, noise).numpy(), len(members))[group]
        return np.where(best >= 0, edge[best], -1) if len(edge) else best

    def _shaken(self, affinity: Tensor, noise: torch.Generator | None) -> Tensor:
        """Affinities with Gumbel noise, so that an edge is also kept where others score a little better."""
        if noise is None or not self.options.jitter:
            return affinity
        uniform = torch.rand(affinity.shape, generator=noise).clamp(1e-9, 1 - 1e-7)
        return affinity - self.options.jitter * torch.log(-torch.log(uniform))

    def _open(self, group: Longs, *, alone: bool) -> Longs:
        """The edges that nodes may keep, ascending: those between groups, and where `alone` each group's own."""
        between = edges_between(group, self.tail[: self.n_edges], self.head[: self.n_edges])
        own = self.n_edges + firsts_of(group) if alone else np.zeros(0, np.int64)
        return np.concatenate((between, np.sort(own)))

    def _between(self, group: Longs) -> Tensor:
        """The edges among groups, both ways [2, …]."""
        edge = edges_between(group, self.view.tail, self.view.head)
        one, other = group[self.view.tail[edge]], group[self.view.head[edge]]
        return torch.from_numpy(np.stack((np.concatenate((one, other)), np.concatenate((other, one)))).astype(np.int64))


def _candidates(view: View) -> tuple[Longs, Longs]:
    """Edges between units of equal rights, so that no group loses a device; then one from every unit to itself."""
    same = (view.allowed[view.tail] == view.allowed[view.head]).all(axis=1)
    own = np.arange(view.n)
    return np.concatenate((view.tail[same], own)), np.concatenate((view.head[same], own))


def _pooled(z: Tensor, score: Tensor, best: Longs, group: Longs) -> Tensor:
    """The mean embedding of every group, members weighed by the score of the edge that they kept (1: none)."""
    place = torch.from_numpy(np.maximum(best, 0))
    gate = torch.ones(len(z)) if not len(score) else torch.where(torch.from_numpy(best >= 0), score[place], 1.0)
    index = torch.from_numpy(group)
    n = int(group.max(initial=-1)) + 1
    total = torch.zeros(n, z.shape[1]).index_add(0, index, z * gate[:, None])
    return total / torch.bincount(index, minlength=n)[:, None]


def _perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
