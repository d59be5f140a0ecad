"""The network of GDP: neighbourhoods, attention over segments, and devices that are scored in several rounds.

Units are embedded once: GraphSAGE with max-pooling, then attention in segments with the segment before as memory
(Zhou et al. 2019, section 3). A device is scored for a unit by the embedding of the unit, features of the device and of
the pair, and the consequences of the round before: the devices of neighbours, the load of the device in total and at
the same time, and its memory. Weights are the same for all devices and rounds. The placement of a round is its
probabilities, so that all units are still placed at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from placewise.coarsen.hierarchy import hierarchy
from placewise.coarsen.scopes import scope_labels
from placewise.model.columns import Bools, Floats, Ints
from placewise.model.problem import Problem
from placewise.placers.base import Budget, run_placer
from placewise.placers.learned.features import Features, build_features
from placewise.placers.learned.gdp import GdpOptions
from placewise.placers.learned.networks.gdp_features import DEVICE, GRAPH, PAIR, GdpFeatures, gdp_facts, gdp_features
from placewise.placers.learned.networks.gdp_layers import Aggregation, Dense, SegmentAttention, set_priors
from placewise.placers.learned.networks.segments import draw_segment, move_log_p, position_ranks
from placewise.placers.learned.orders import BUCKETS
from placewise.placers.learned.policy import (
    Policy,
    Price,
    Rollout,
    best_so_far,
    draw,
    entropy_of,
    mask_logits,
    mix_exploration,
)
from placewise.placers.learned.pricing import BudgetExhausted, always_fits
from placewise.placers.learned.view import View, build_view
from placewise.placers.registry import create
from placewise.placers.shared.repair import repair
from placewise.placers.shared.rules import find_broken_rule

T = TypeVar("T")
Embedded = tuple[Tensor, Tensor | None]

SECTIONS = ("kind", "shape", "degrees", "work", "weights", "levels", "places", "backward")
BELIEF = 11
"""Per unit and device, from the round before: probability of the unit, of predecessors and of successors, and the last
two times their traffic; load with and without the unit; memory in total and above the limit; parallel load with and
without the unit."""
ROOMY, MAX_BELIEF = 0.95, 4.0
MEMORY_WORDS = ("alloc", "memory")
"""Words in torch's messages on a lack of memory."""
MIN_SEGMENT, MAX_SEGMENTS = 16, 1 << 10
"""Shortest segment when memory is short; and number of segments per step when it is not."""
ALL = slice(None)
FIRST = slice(0, 1)
REFINE_ROUNDS, MAX_IDLE, BETTER = 4, 2, 1e-6
"""Rounds of one refinement, refinements in a row without a gain before they stop, and the least relative gain."""
REFINED_OPS = 100_000
"""Largest product of ops and refinements: pricing takes longer than the refinement itself."""
MAX_NUMBERS = 1 << 24
"""Largest number of values per round that are computed for several prior sets at once."""
MANY = 100_000
"""Ops times devices above which not every number of devices is tried."""


class Gdp(Policy):
    """The policy of GDP. Its parameters fit any graph and any devices. `notes` reports a lack of memory."""

    any_devices: ClassVar[bool] = True
    version: ClassVar[int] = 2

    def __init__(self, view: View, features: Features, options: GdpOptions) -> None:
        super().__init__()
        self.view, self.options, self.segment = view, options, options.segment
        self.features = Features(features.matrix, (*features.layout, ("device", DEVICE), ("pair", PAIR)))
        self.inputs_of: dict[bytes, GdpFeatures] = {}
        self.facts, self.fits = gdp_facts(view), always_fits(view.problem)
        self.inputs = self._inputs(np.ones(view.n_devices, np.bool_))
        self.rank = position_ranks(self.facts.place)
        self.register_buffer("x", torch.from_numpy(features.matrix.clip(-MAX_BELIEF, MAX_BELIEF)), persistent=False)
        both = np.stack((view.tail, view.head)).astype(np.int64)
        self.register_buffer("edges", torch.from_numpy(both), persistent=False)
        self.register_buffer("reverse", torch.from_numpy(both[::-1].copy()), persistent=False)
        hidden = width = options.hidden
        inner = options.inner
        self.enter = nn.Linear(features.width, hidden)
        self.whole = nn.Sequential(nn.Linear(2 * hidden + GRAPH, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.layers = nn.ModuleList(Aggregation(hidden, width) for _ in range(options.layers))
        self.attentions = nn.ModuleList(
            SegmentAttention(hidden, options.heads, width, attention=options.attention)
            for _ in range(options.attentions)
        )
        self.leave = nn.LayerNorm(hidden)
        self.of_unit, self.of_device = Dense(hidden, inner, width), Dense(DEVICE, inner, width)
        self.of_pair, self.of_belief = Dense(PAIR, inner, width), nn.Linear(BELIEF, inner, bias=False)
        self.between, self.score = Dense(inner, inner, width), nn.Linear(inner, 1)
        sets = options.prior_sets
        self.lean_pair, self.lean_belief = nn.Linear(PAIR, sets, bias=False), nn.Linear(BELIEF, sets, bias=False)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)
        set_priors(self.lean_pair, self.lean_belief, options.prior)

    def _inputs(self, keep: Bools) -> GdpFeatures:
        """The features for some devices [D]. Results are cached."""
        key = keep.tobytes()
        if key not in self.inputs_of:
            options = self.options
            self.inputs_of[key] = gdp_features(
                self.view, self.facts, keep, device_features=options.device_features, advice=options.advice
            )
        return self.inputs_of[key]

    @property
    def _prior_only(self) -> bool:
        """Whether the priors alone decide, as in an untrained network, so that the rest need not be computed."""
        return not (torch.is_grad_enabled() or self.score.weight.any() or self.score.bias.any())

    def embedded(self) -> Embedded | None:
        """Embeddings of units [n, hidden] and of the graph [hidden] (None without superposition); None if unused."""
        if self._prior_only:
            return None
        x = functional.relu(self.enter(self.x))
        graph = None
        if self.options.superposition:
            graph = functional.relu(self.whole(torch.cat((x.mean(dim=0), x.amax(dim=0), self.inputs.graph))))
        for layer in self.layers:
            x = layer(x, self.edges, self.reverse, graph)
        for layer in self.attentions:
            x = layer(x, self.segment, graph, 1 if self.segment < self.options.segment else MAX_SEGMENTS)
        return self.leave(x), graph

    def scores(self, inputs: GdpFeatures, embedded: Embedded | None, sets: slice = FIRST) -> Tensor:
        """Logits [S, n, D] of the last round for some prior sets, −inf where a device is not allowed."""
        share = inputs.allowed / inputs.allowed.sum(dim=1, keepdim=True).clamp_min(1)
        return self._rounds(inputs, embedded, sets, share, self.options.rounds)[-1]

    def _rounds(
        self, inputs: GdpFeatures, embedded: Embedded | None, sets: slice, share: Tensor, count: int
    ) -> list[Tensor]:
        """Logits [S, n, D] of `count` rounds, the first of which starts from the probabilities `share` [n, D]."""
        pieces, rounds = self._pieces(), []
        fixed = self._fixed_part(inputs, embedded, sets) if len(pieces) == 1 else None
        share = share.expand(len(self.lean_pair.weight[sets]), -1, -1)
        for _ in range(count):
            seen = belief(inputs, share)
            parts = []
            for piece in pieces:
                part = fixed or self._fixed_part(inputs, embedded, sets, piece)
                parts.append(self._score_belief(part, seen[:, piece], embedded, sets))
            logits = mask_logits(torch.cat(parts, dim=1), inputs.allowed)
            rounds.append(logits)
            share = torch.softmax(logits, dim=-1)
        return rounds

    def _fixed_part(
        self, inputs: GdpFeatures, embedded: Embedded | None, sets: slice, piece: slice = ALL
    ) -> tuple[Tensor | None, Tensor]:
        """The part that is equal in all rounds, for a piece of the units: [n, D, inner], and priors [S, n, D]."""
        pair = inputs.pair[piece]
        prior = (pair @ self.lean_pair.weight[sets].T).movedim(-1, 0)
        if embedded is None:
            return None, prior
        units, graph = embedded
        common = self.of_unit(units[piece], graph)[:, None] + self.of_device(inputs.device, graph)
        return common + self.of_pair(pair, graph), prior

    def _score_belief(
        self, fixed: tuple[Tensor | None, Tensor], seen: Tensor, embedded: Embedded | None, sets: slice
    ) -> Tensor:
        """Scores [S, n, D] from the fixed part and the belief of the round before."""
        common, prior = fixed
        prior = torch.einsum("wndb,wb->wnd", seen, self.lean_belief.weight[sets]) + prior
        if common is None or embedded is None:
            return prior
        graph = embedded[1]
        inner = functional.relu(self.between(functional.relu(common + self.of_belief(seen)), graph))
        scores: Tensor = self.score(inner).squeeze(-1) + prior
        return scores

    def _pieces(self) -> list[slice]:
        """All units at once; segment by segment once memory was short."""
        if self.segment == self.options.segment or torch.is_grad_enabled():
            return [ALL]
        return [slice(first, first + self.segment) for first in range(0, max(self.view.n, 1), self.segment)]

    def logits(self) -> Tensor:
        """Log p [n, D] of every unit's device."""
        scores = self._retry_in_less_memory(lambda: self.scores(self.inputs, self.embedded())[0])
        share = self.exploration_share(self.options.explore, self.view.n)
        return mix_exploration(scores, self.inputs.allowed, share)

    def rollout(self, count: int, generator: torch.Generator, price: Price) -> Rollout:
        """Draw `count` whole placements; or, in a share `moving` of calls, moves of regions."""
        with torch.no_grad():
            logits = self.logits()
            if float(torch.rand((), generator=generator)) < self.options.moving:
                return self._moves(logits, count, generator, price)
            device = draw(logits.expand(count, -1, -1), generator)
        return Rollout({"device": device}, price(self.view.placements(device.numpy())))

    def _moves(self, logits: Tensor, count: int, generator: torch.Generator, price: Price) -> Rollout:
        """Draw episodes that move regions of the best placement so far, or of the likeliest one if there is none."""
        likeliest = logits.argmax(dim=1)
        masks, moves, path = [], [], []
        for _ in range(count):
            best = best_so_far(self.view, price)
            start = likeliest if best is None else best
            mask = torch.stack([draw_segment(self.rank, generator) for _ in range(self.options.regions)])
            move = draw(self._move_log_p(logits, mask), generator)
            row = start
            for region, device in zip(mask, move, strict=True):
                row = torch.where(region & self.inputs.allowed[:, device], device, row)
            masks.append(mask)
            moves.append(move)
            path.append(price(self.view.placements(torch.stack((start, row)).numpy())))
        seconds = np.stack(path)
        return Rollout({"region": torch.stack(masks), "move": torch.stack(moves)}, seconds[:, -1], seconds)

    def _move_log_p(self, logits: Tensor, mask: Tensor) -> Tensor:
        """Log p [..., D] of the target device of regions [..., n]."""
        share = self.exploration_share(self.options.explore, self.options.regions)
        return move_log_p(logits, mask, self.inputs.allowed, share)

    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Log p and entropy [K, n] of every unit's device, or [K, regions] of every region's."""
        if "move" in choices:
            log_p, device = self._move_log_p(self.logits(), choices["region"]), choices["move"]
            return log_p.gather(-1, device.unsqueeze(-1)).squeeze(-1), entropy_of(log_p)
        log_p, device = self.logits(), choices["device"]
        log_prob = log_p[torch.arange(self.view.n), device]
        return log_prob, entropy_of(log_p).expand_as(log_prob)

    @torch.no_grad()
    def probabilities(self) -> Floats:
        """The probabilities of devices for each op [n_ops, n_devices]; 0 where one is not allowed."""
        scores = self._retry_in_less_memory(lambda: self.scores(self.inputs, self.embedded())[0])
        probabilities: Floats = torch.softmax(scores.double(), dim=1).numpy()[self.view.unit]
        return probabilities

    def greedy(self, price: Price) -> Ints:
        """The likeliest placements by each prior set, on all devices and on ever fewer fast ones; then refinements.

        They are repaired until they fit. The first is that of the first set, from which samples are drawn, on all
        devices.
        """
        embedded = self._embed_once()
        rows = self._repair_rows(np.concatenate(self._likeliest(embedded)))
        return np.concatenate((rows, *self._refine(rows, price, embedded)))

    def suggestions(self) -> Ints:
        """The placement of METIS, if `advice` is on and it fits."""
        metis = run_placer(create("metis"), self.view.problem, Budget()).placement if self.options.advice else None
        return super().suggestions() if metis is None else metis.device[None]

    @torch.no_grad()
    def _embed_once(self) -> Embedded | None:
        """The embeddings without gradients."""
        return self._retry_in_less_memory(self.embedded)

    @torch.no_grad()
    def _refine(self, rows: Ints, price: Price, embedded: Embedded | None) -> list[Ints]:
        """Run more rounds from the best priced placements, as if these were certain; return the gains [1, n_ops]."""
        better, most = list[Ints](), min(self.options.refinements, REFINED_OPS // max(self.view.problem.n_ops, 1))
        open_rows: list[tuple[float, int, Ints]] = []
        known, value, idle = set[bytes](), np.inf, 0
        with suppress(BudgetExhausted):
            for _ in range(most + 1):
                seconds = price(rows)
                for row, spent in zip(rows, seconds.tolist(), strict=True):
                    if math.isfinite(spent) and row.tobytes() not in known:
                        known.add(row.tobytes())
                        heappush(open_rows, (spent, len(known), row))
                idle += 1
                if open_rows and open_rows[0][0] < value * (1 - BETTER):
                    value, idle = open_rows[0][0], 0
                    better.append(open_rows[0][2][None])
                if idle == MAX_IDLE or not open_rows:
                    break
                rows = np.unique(self.view.placements(self._run_rounds_from(heappop(open_rows)[2], embedded)), axis=0)
        return better[1:]

    def _run_rounds_from(self, best: Ints, embedded: Embedded | None) -> Ints:
        """The likeliest devices [K, n_units] by each prior set in a few rounds from a placement [n_ops]."""
        sure = torch.from_numpy(self.view.devices(best[None])[0]).long()
        share = functional.one_hot(sure, self.view.n_devices).float()
        rows = [
            self._retry_in_less_memory(partial(self._rounds, self.inputs, embedded, sets, share, REFINE_ROUNDS))
            for sets in self._batch_priors(embedded)
        ]
        return torch.cat([logits.argmax(dim=-1) for row in rows for logits in row]).numpy()

    def _batch_priors(self, embedded: Embedded | None) -> list[slice]:
        """All prior sets, in batches that are small enough for one round."""
        size = self.view.n * self.view.n_devices * (BELIEF if embedded is None else self.options.inner)
        step = max(MAX_NUMBERS // size, 1)
        return [slice(first, first + step) for first in range(0, len(self.lean_pair.weight), step)]

    @torch.no_grad()
    def _likeliest(self, embedded: Embedded | None) -> list[Ints]:
        """The likeliest placements [S, n_ops] by each prior set, for every number of devices."""
        n_devices = self.view.n_devices
        order = np.lexsort((np.arange(n_devices), -self.facts.speed))
        placements = []
        for count in _device_counts(n_devices, many=self.view.problem.n_ops * n_devices > MANY):
            inputs = self._inputs(np.isin(np.arange(n_devices), order[:count]))
            rows = [
                self._retry_in_less_memory(partial(self.scores, inputs, embedded, sets)).argmax(dim=-1).numpy()
                for sets in self._batch_priors(embedded)
            ]
            placements.append(self.view.placements(np.concatenate(rows)))
        return placements

    def _repair_rows(self, rows: Ints) -> Ints:
        """Remove duplicates among placements [K, n_ops], and repair each until it fits."""
        first = np.unique(rows, axis=0, return_index=True)[1]
        return np.stack([self._repair(row) for row in rows[np.sort(first)]])

    def decisions(self, placements: Ints) -> Mapping[str, Tensor]:
        return {"device": torch.from_numpy(self.view.devices(placements)).long()}

    def _repair(self, row: Ints) -> Ints:
        """Change a placement [n_ops] as little as possible until it fits; return it unchanged if that fails."""
        problem = self.view.problem
        if self.fits or not find_broken_rule(problem, row):
            return row
        repaired = repair(problem, row, measured=False)
        return row if repaired is None else repaired

    def _retry_in_less_memory(self, compute: Callable[[], T]) -> T:
        """Run `compute`. While memory is short, halve the segments and run it again."""
        while True:
            try:
                return compute()
            except (MemoryError, RuntimeError) as error:
                short = isinstance(error, MemoryError) or any(word in str(error).lower() for word in MEMORY_WORDS)
                if not short or self.segment // 2 < MIN_SEGMENT:
                    raise
            self.segment //= 2
            self.notes = (f"memory is short: attention in segments of {self.segment} ops, not {self.options.segment}",)


def belief(inputs: GdpFeatures, share: Tensor) -> Tensor:
    """The consequences of probabilities [S, n, D] for every unit on every device [S, n, D, BELIEF]."""
    before = _sum_rows(share[:, inputs.tail] * inputs.into[:, None], inputs.head, inputs.n)
    after = _sum_rows(share[:, inputs.head] * inputs.out[:, None], inputs.tail, inputs.n)
    busy, full = share * inputs.load, share * inputs.held
    load, memory = busy.sum(dim=1, keepdim=True), full.sum(dim=1, keepdim=True)
    parallel = _sum_rows(busy, inputs.bucket, BUCKETS)
    whole = parallel.sum(dim=2, keepdim=True).clamp_min(1e-9)
    there, all_there = parallel[:, inputs.bucket], whole[:, inputs.bucket]
    columns = (
        share, before, after, before * inputs.arrives[:, None], after * inputs.leaves[:, None],
        load.expand_as(share), load - busy, memory.expand_as(share),
        functional.relu(memory - full + inputs.held - ROOMY), there / all_there, (there - busy) / all_there,
    )  # fmt: skip
    return torch.stack(columns, dim=3).clamp(-MAX_BELIEF, MAX_BELIEF)


def _device_counts(n_devices: int, *, many: bool) -> list[int]:
    """The numbers of devices to try: from all down to one; on large graphs all, and 1, 2, 4, … fewer."""
    if not many:
        return list(range(n_devices, 0, -1))
    return [n_devices, *(n_devices - (1 << k) for k in range(n_devices.bit_length()) if 1 << k < n_devices)]


def _sum_rows(values: Tensor, row: Tensor, n: int) -> Tensor:
    return values.new_zeros(len(values), n, values.shape[2]).index_add(1, row, values)


def gdp(problem: Problem, options: GdpOptions, seed: int) -> Gdp:
    """Create an untrained policy with weights drawn from `seed`."""
    view = build_view(problem, _unit_labels(problem, options))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Gdp(view, build_features(view, SECTIONS, hashed=True), options)


def _unit_labels(problem: Problem, options: GdpOptions) -> Ints:
    """Labels [n_ops] of units: blocks, or groups of them if there are too many."""
    if options.units == "all" or problem.n_blocks <= options.most_units:
        return problem.block
    return [problem.block, *hierarchy(problem, wanted=options.most_units, start=scope_labels(problem))][-1]
