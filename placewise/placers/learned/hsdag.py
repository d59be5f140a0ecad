"""hsdag: a network parses the graph into groups and chooses the device of each (Duan et al., NeurIPS 2024, section 2).

A state is an embedding Z of every unit. Parsing it gives groups. A group's embedding is the mean of its members',
weighed by the score of the edge that each kept, so that gradients of devices also reach the scores. The next state is Z
plus the embedding of every unit's group: states do not depend on the samples, so that several placements can be drawn
from each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from placewise.model.columns import Floats, Ints, Longs, distinct, firsts_of
from placewise.model.problem import Problem
from placewise.placers.base import PlacerInfo
from placewise.placers.learned.features import build_features
from placewise.placers.learned.options import LARGEST, PLAIN, Baseline, LearningOptions, require_at_least
from placewise.placers.learned.parsing import (
    best_edges,
    edges_between,
    group_edges,
    join_groups,
    pool_groups,
    unit_edges,
)
from placewise.placers.learned.placer import LearnedPlacer
from placewise.placers.learned.policy import Policy, Price, Rollout, draw, mask_logits, paths_of, score_choices
from placewise.placers.learned.view import build_view, chain_labels

SECTIONS = ("kind", "shape", "in_degree", "out_degree", "fractal", "position", "place")
OURS = ("seconds", "sent")
"""The features of the paper, and ours."""
MAX_SPLIT_BLOCKS = 500
"""Up to this number of blocks, chains are whole in every second state only."""
NEXT_MOVE = 0.5
"""The probability of each move after the first."""
LARGEST_SEED = (1 << 62) - 1
UNPARSED: Mapping[int, Longs] = {}


@dataclass(frozen=True)
class HsdagOptions(LearningOptions):
    """Options of HSDAG, besides those of training.

    Walk: an update visits `steps` states, and draws its `samples` evenly from them; rewards of state i are weighed by
    `discount` to the power i. A state has `rounds` of parsing. With `varied`, the first two states have none, the next
    two one, and so on up to `rounds`, in turn. Nodes may keep to themselves in `alone` states: never (the paper), every
    second (alternate) or always.

    Moves: with `moves` > 0, a sample is the best placement so far in which up to that many groups move (one certainly,
    each further one with probability ½), and its reward is the gain. With 0 (the paper), all groups are placed anew.

    Exploration, none of which is the paper's: `jitter` is the scale of Gumbel noise on edge scores, and `explore`
    counts groups. `dropout` is the share of the encoder's outputs that is dropped.

    Network: `hidden` is the width of all layers. `chains` merges sole children with sole parents: always (the paper),
    in states without lone nodes (alternate), or never. The default (auto) merges always in graphs of more than 500
    blocks, and else alternates: a chain that cannot be split may cost some per cent.

    Features of a unit are those of the paper and, with `seconds`, its seconds on each device and in transfers.

    In the preset `paper`, an update is one episode of 20 steps, and 25 of them are the paper's whole budget.
    """

    paper: ClassVar[Mapping[str, Any]] = {
        **PLAIN, "samples": 20, "steps": 20, "updates": 25, "baseline": "none", "discount": 0.95, "clip_norm": LARGEST,
        "rate": 1e-3, "alone": "never", "jitter": 0.0, "chains": "always", "rounds": 1, "varied": False, "moves": 0,
        "hidden": 128, "seconds": False,
    }  # fmt: skip
    samples: int = 24
    reward: Literal["root", "inverse", "negative", "log"] = "inverse"
    baseline: Baseline = "batch"
    elite: float = 0.25
    entropy: float = 0.0
    explore: float = 0.5
    steps: int = 6
    rounds: int = 2
    varied: bool = True
    alone: Literal["never", "always", "alternate"] = "alternate"
    moves: int = 2
    jitter: float = 1.0
    hidden: int = 64
    dropout: float = 0.2
    chains: Literal["auto", "always", "alternate", "never"] = "auto"
    seconds: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, steps=1, rounds=1, hidden=1, moves=0)
        self.require_shares("dropout", below_one=True)
        self.require_numbers("jitter")


class ParsedState(NamedTuple):
    """The groups of a state: edges kept by nodes [rounds, n], the group of each node [n], logits [groups, devices]."""

    kept: Longs
    group: Tensor
    logits: Tensor


class HsdagPolicy(Policy):
    """Decisions are the devices of groups. Rows of a rollout are in the order of its states."""

    options: HsdagOptions
    x: Tensor
    edges: Tensor
    allowed: Tensor

    def __init__(self, problem: Problem, options: HsdagOptions) -> None:
        super().__init__()
        apart = np.arange(problem.n_ops, dtype=np.int32)
        chain = apart if options.chains == "never" else chain_labels(problem)
        merged = options.chains == "always" or (options.chains == "auto" and problem.n_blocks > MAX_SPLIT_BLOCKS)
        view = build_view(problem, chain if merged else apart)
        features = build_features(view, SECTIONS + OURS * options.seconds)
        self.chain: Longs = np.unique(chain[firsts_of(view.unit)], return_inverse=True)[1].astype(np.int64)
        self.view, self.features, self.options = view, features, options
        self.tail, self.head = unit_edges(view)
        self.n_edges = len(self.tail) - view.n
        both = np.stack((np.concatenate((view.tail, view.head)), np.concatenate((view.head, view.tail))))
        for name, value in {"x": features.matrix, "edges": both.astype(np.int64), "allowed": view.allowed}.items():
            self.register_buffer(name, torch.from_numpy(np.array(value)), persistent=False)
        width = options.hidden
        self.enter = _perceptron(features.width, width, width)
        self.encoder = nn.ModuleList(GCNConv(width, width, cached=True) for _ in range(2))
        self.affinity = _perceptron(width, width, 1)
        self.among = GCNConv(width, width)
        self.choose = _perceptron(width, width, view.n_devices)

    def rollout(self, count: int, generator: torch.Generator, price: Price) -> Rollout:
        """Draw `count` placements, evenly from the states of one walk."""
        steps = min(self.options.steps, count)
        seed = int(torch.randint(LARGEST_SEED, (), generator=generator))
        which = np.arange(count) * steps // count
        moves = bool(self.options.moves) and self.best_so_far(price) is not None
        drawn, kept, paths = [], [], []
        with torch.no_grad():
            for number, state in enumerate(self._walk(steps, seed=seed)):
                here = int((which == number).sum())
                part, path = (self._draw_moves if moves else self._draw_placements)(state, here, generator, price)
                drawn.append(part)
                paths.append(path)
                kept.append(torch.from_numpy(state.kept).expand(here, -1, -1))
        choices = {name: torch.cat([part[name] for part in drawn]) for name in drawn[0]} | {
            "kept": torch.cat(kept), "step": torch.from_numpy(which), "seed": torch.full((count,), seed),
        }  # fmt: skip
        weight = np.power(self.options.discount, which, dtype=np.float64)
        path = np.concatenate(paths)
        return Rollout(choices, path[:, -1], path if moves else None, weight)

    def _draw_placements(
        self, state: ParsedState, count: int, generator: torch.Generator, price: Price
    ) -> tuple[dict[str, Tensor], Floats]:
        """Draw a device for every group of a state; return the seconds [count, 1] too."""
        device = draw(self._device_log_p(state).expand(count, -1, -1), generator)[:, state.group]
        return {"device": device}, price(self.view.placements(device.numpy()))[:, None]

    def _draw_moves(
        self, state: ParsedState, count: int, generator: torch.Generator, price: Price
    ) -> tuple[dict[str, Tensor], Floats]:
        """Draw moves from the best placement so far; return the seconds [count, 2] before and after them too."""
        start = self.best_so_far(price)
        assert start is not None
        log_p = self._move_log_p(state, start)
        move = draw(log_p.expand(count, self.options.moves, -1), generator)
        moves = torch.rand(move.shape, generator=generator) < NEXT_MOVE
        moves[:, 0] = True
        move = move.where(moves & torch.isfinite(log_p[move]), -1)
        devices = start.repeat(count + 1, 1)
        for turn in move.T:
            group, device = turn[:, None] // self.view.n_devices, turn[:, None] % self.view.n_devices
            devices[1:] = torch.where(state.group == group, device, devices[1:])
        path = paths_of(price(self.view.placements(devices.numpy())))
        return {"move": move, "start": devices[:1].expand(count, -1)}, path

    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Log p and entropy [K, most groups] in the groups of the rollout; [K, moves] of moves.

        A state of which all rows were lost is parsed again.
        """
        step = choices["step"].numpy()
        numbers, first = np.unique(step, return_index=True)
        parses = dict(zip(numbers.tolist(), choices["kept"][torch.from_numpy(first)].numpy(), strict=True))
        scores = []
        for number, state in enumerate(self._walk(int(step.max()) + 1, seed=int(choices["seed"][0]), parses=parses)):
            if number not in parses:
                continue
            rows = torch.from_numpy(np.flatnonzero(step == number))
            if "move" in choices:
                log_p, index = self._move_log_p(state, choices["start"][rows[0]]), choices["move"][rows]
            else:
                leaders = torch.from_numpy(firsts_of(state.group.numpy()))
                log_p, index = self._device_log_p(state), choices["device"][rows][:, leaders]
            part, entropy = score_choices(log_p.expand(*index.shape, -1), index.clamp_min(0))
            scores.append((part.where(index >= 0, 0.0), entropy.where(index >= 0, 0.0)))
        width = max(log_prob.shape[1] for log_prob, _ in scores)
        wide = [[nn.functional.pad(part, (0, width - part.shape[1])) for part in parts] for parts in scores]
        return torch.cat([parts[0] for parts in wide]), torch.cat([parts[1] for parts in wide])

    def _device_log_p(self, state: ParsedState) -> Tensor:
        """Log p [groups, devices] with exploration."""
        return self.explore(state.logits, torch.isfinite(state.logits), len(state.logits))

    def _move_log_p(self, state: ParsedState, start: Tensor) -> Tensor:
        """Log p [groups · devices] of moves, by the logits of the new device minus those of the devices `start` [n].

        −∞ for devices that are not allowed, or that already have the whole group.
        """
        there = torch.zeros_like(state.logits).index_put((state.group, start), torch.ones(()), accumulate=True)
        share = there / there.sum(dim=1, keepdim=True)
        now = (share * state.logits.masked_fill(share == 0, 0.0)).sum(dim=1, keepdim=True)
        may = torch.isfinite(state.logits) & (share < 1)
        return self.explore((state.logits - now).flatten(), may.flatten(), self.options.moves)

    def greedy(self, price: Price) -> Ints:
        """The likeliest placement of every state, the likeliest first."""
        with torch.no_grad():
            rows = []
            for state in self._walk(self.options.steps):
                best = torch.log_softmax(state.logits, dim=-1).max(dim=-1)
                rows.append((float(best.values.sum()), best.indices[state.group].numpy()))
        rows.sort(key=lambda pair: -pair[0])
        return self.view.placements(np.stack([row for _, row in rows]))

    def _walk(
        self, steps: int, *, seed: int | None = None, parses: Mapping[int, Longs] = UNPARSED
    ) -> Iterator[ParsedState]:
        """The states of an update. `parses` are the kept edges [rounds, n] of states that were parsed before.

        Without a seed there is no dropout and no noise.
        """
        noise = None if seed is None else torch.Generator().manual_seed(seed)
        z: Tensor = self.enter(self.x)
        for layer in self.encoder:
            z = layer(z, self.edges).relu()
        if noise is not None and self.options.dropout:
            keep = 1 - self.options.dropout
            z = z * (torch.rand(z.shape, generator=noise) < keep) / keep
        for number in range(steps):
            state, grouped = self._parse_state(z, parses.get(number), noise, number)
            yield state
            z = z + grouped[state.group]

    def _parse_state(
        self, z: Tensor, parse: Longs | None, noise: torch.Generator | None, turn: int
    ) -> tuple[ParsedState, Tensor]:
        """The groups of one state, and their embeddings [groups, hidden]."""
        odd = turn % 2 == 1
        rounds = self.options.rounds
        if self.options.varied:
            rounds = turn // 2 % (rounds + 1)
        alone = self.options.alone == "always" or (self.options.alone == "alternate" and odd)
        group: Longs = np.arange(self.view.n) if odd else self.chain
        members = z if odd else pool_groups(z, z.new_zeros(0), np.full(len(z), -1), group)
        rows = []
        for number in range(rounds):
            kept = self._keep_edges(group, members, noise, alone=alone) if parse is None else parse[number]
            edge = distinct(kept[kept >= 0])
            kept = kept[firsts_of(group)]
            one, other = group[self.tail[edge]], group[self.head[edge]]
            best = np.where(kept >= 0, np.searchsorted(edge, kept), -1)
            score = self.affinity(members[one] * members[other]).squeeze(-1).sigmoid()
            rows.append(kept[group])
            joined = join_groups(one, other, best, len(members))
            members = pool_groups(members, score, best, joined)
            group = joined[group]
        rows += [np.full(self.view.n, -1)] * (self.options.rounds - rounds)
        logits = self.choose(self.among(members, group_edges(group, self.view)).relu())
        leaders = torch.from_numpy(firsts_of(group))
        state = ParsedState(np.stack(rows), torch.from_numpy(group), mask_logits(logits, self.allowed[leaders]))
        return state, members

    @torch.no_grad()
    def _keep_edges(self, group: Longs, members: Tensor, noise: torch.Generator | None, *, alone: bool) -> Longs:
        """The edge of the highest score that every node's group keeps [n], −1 for none; its own loop if `alone`.

        Gumbel noise lets edges with slightly lower scores be kept sometimes. Edges that are not kept have no gradient,
        so only the scores of kept ones are computed again with one.
        """
        between = edges_between(group, self.tail[: self.n_edges], self.head[: self.n_edges])
        edge = np.concatenate((between, np.sort(self.n_edges + firsts_of(group)) if alone else between[:0]))
        one, other = group[self.tail[edge]], group[self.head[edge]]
        affinity = self.affinity(members[one] * members[other]).squeeze(-1)
        if noise is not None and self.options.jitter:
            uniform = torch.rand(affinity.shape, generator=noise).clamp(1e-9, 1 - 1e-7)
            affinity = affinity - self.options.jitter * torch.log(-torch.log(uniform))
        best = best_edges(one, other, affinity.numpy(), len(members))[group]
        return np.where(best >= 0, edge[best], -1) if len(edge) else best


def _perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


class HsdagPlacer(LearnedPlacer):
    """Features of the graph → groups by graph parsing → a device per group, learned from the time of placements."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="hsdag",
        summary="groups parsed out of the graph by a network, and a device for each, learned from rewards",
        source="Duan et al., NeurIPS 2024 (arXiv 2405.14185), HSDAG",
        extra="learn",
    )
    Options: ClassVar[type[LearningOptions]] = HsdagOptions
    network: ClassVar[type[Policy]] = HsdagPolicy
