"""The network of GDP: neighbourhoods, attention over segments, and devices scored in a few rounds of refinement.

Units are embedded once: GraphSAGE with max-pooling, then attention in segments with the segment before as memory
(Zhou et al. 2019, section 3). A device is scored for a unit by the embedding of that, what is known of the device and
of the two together, and by what the placement of the round before would mean: how near its neighbours are, how busy
the device is, all in all and at the same time, and how full. Weights are the same for all devices and all rounds; the
placement of a round is the probabilities themselves, so that all units are still placed at once.
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
from placewise.placers.learned.features import Features, features_of
from placewise.placers.learned.gdp import GdpOptions
from placewise.placers.learned.networks.gdp_features import DEVICE, GRAPH, PAIR, GdpFeatures, facts_of, scene_of
from placewise.placers.learned.networks.gdp_layers import Aggregation, Dense, Segments
from placewise.placers.learned.networks.gdp_priors import lean
from placewise.placers.learned.networks.segments import drawn, odds, ranks
from placewise.placers.learned.orders import BUCKETS
from placewise.placers.learned.policy import NEVER, Policy, Price, Rollout, best_so_far, draw, explored, masked
from placewise.placers.learned.pricing import Spent, always_fits
from placewise.placers.learned.view import View, view_of
from placewise.placers.registry import create
from placewise.placers.shared.repair import repair
from placewise.placers.shared.rules import find_broken_rule

T = TypeVar("T")
Embedded = tuple[Tensor, Tensor | None]

SECTIONS = ("kind", "shape", "degrees", "work", "weights", "levels", "places", "backward")
BELIEF = 11
"""Of a unit on a device, from the round before: its share, before it and after it, what of traffic that is, load of the
device with and without it, memory, load at the same time with and without it."""
ROOMY, MOST_BELIEF = 0.95, 4.0
SHORT = ("alloc", "memory")
"""Words of what torch says where memory is short."""
LEAST_SEGMENT, MOST_SEGMENTS = 16, 1 << 10
"""Where memory is short, segments become so short at least; so many are looked at together where it is not."""
ALL = slice(None)
FIRST = slice(0, 1)
LOOK, IDLE, BETTER = 4, 2, 1e-6
"""Rounds where the policy looks again at a placement; looks in a row that bring nothing before it stops; and by what
share better something is."""
COSTLY = 100_000
"""Ops in all the graphs that are looked at again: it takes longer to price a look than to have it."""
TOGETHER = 1 << 24
"""Numbers per round that are worked out for several sets of leanings at once, at most."""
MANY = 100_000
"""Ops times devices of problems in which not every number of devices is tried."""


class Gdp(Policy):
    """Its parameters fit any graph and any devices. `notes` says where memory was short."""

    any_devices: ClassVar[bool] = True
    version: ClassVar[int] = 2

    def __init__(self, view: View, features: Features, options: GdpOptions) -> None:
        super().__init__()
        self.view, self.options, self.segment = view, options, options.segment
        self.features = Features(features.matrix, (*features.layout, ("device", DEVICE), ("pair", PAIR)))
        self.scenes: dict[bytes, GdpFeatures] = {}
        self.facts, self.fits = facts_of(view), always_fits(view.problem)
        self.scene = self._scene(np.ones(view.n_devices, np.bool_))
        self.rank = ranks(self.facts.place)
        self.register_buffer("x", torch.from_numpy(features.matrix.clip(-MOST_BELIEF, MOST_BELIEF)), persistent=False)
        both = np.stack((view.tail, view.head)).astype(np.int64)
        self.register_buffer("edges", torch.from_numpy(both), persistent=False)
        self.register_buffer("turned", torch.from_numpy(both[::-1].copy()), persistent=False)
        hidden = width = options.hidden
        inner = options.inner
        self.enter = nn.Linear(features.width, hidden)
        self.whole = nn.Sequential(nn.Linear(2 * hidden + GRAPH, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.layers = nn.ModuleList(Aggregation(hidden, width) for _ in range(options.layers))
        self.attentions = nn.ModuleList(
            Segments(hidden, options.heads, width, attention=options.attention) for _ in range(options.attentions)
        )
        self.leave = nn.LayerNorm(hidden)
        self.of_unit, self.of_device = Dense(hidden, inner, width), Dense(DEVICE, inner, width)
        self.of_pair, self.of_belief = Dense(PAIR, inner, width), nn.Linear(BELIEF, inner, bias=False)
        self.between, self.score = Dense(inner, inner, width), nn.Linear(inner, 1)
        ways = options.leanings
        self.lean_pair, self.lean_belief = nn.Linear(PAIR, ways, bias=False), nn.Linear(BELIEF, ways, bias=False)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)
        lean(self.lean_pair, self.lean_belief, options.prior)

    def _scene(self, keep: Bools) -> GdpFeatures:
        """The scene of some devices [D], made once."""
        key = keep.tobytes()
        if key not in self.scenes:
            known, advised = self.options.device_features, self.options.advice
            self.scenes[key] = scene_of(self.view, self.facts, keep, known=known, advised=advised)
        return self.scenes[key]

    @property
    def _quiet(self) -> bool:
        """Whether leanings alone decide, as before the network learned anything: nothing else is worked out then."""
        return not (torch.is_grad_enabled() or self.score.weight.any() or self.score.bias.any())

    def embedded(self) -> Embedded | None:
        """Units [n, hidden], and the graph [hidden] with what is known of all devices; None without superposition."""
        if self._quiet:
            return None
        x = functional.relu(self.enter(self.x))
        graph = None
        if self.options.superposition:
            graph = functional.relu(self.whole(torch.cat((x.mean(dim=0), x.amax(dim=0), self.scene.graph))))
        for layer in self.layers:
            x = layer(x, self.edges, self.turned, graph)
        for layer in self.attentions:
            x = layer(x, self.segment, graph, 1 if self.segment < self.options.segment else MOST_SEGMENTS)
        return self.leave(x), graph

    def scores(self, scene: GdpFeatures, embedded: Embedded | None, ways: slice = FIRST) -> Tensor:
        """Logits [W, n, D] of the last round by some of the sets of leanings, −inf where a device is not allowed."""
        share = scene.allowed / scene.allowed.sum(dim=1, keepdim=True).clamp_min(1)
        return self._rounds(scene, embedded, ways, share, self.options.rounds)[-1]

    def _rounds(
        self, scene: GdpFeatures, embedded: Embedded | None, ways: slice, share: Tensor, count: int
    ) -> list[Tensor]:
        """Logits [W, n, D] of so many rounds, the first of which sees the probabilities `share` [n, D]."""
        pieces, every = self._pieces(), []
        known = self._known(scene, embedded, ways) if len(pieces) == 1 else None
        share = share.expand(len(self.lean_pair.weight[ways]), -1, -1)
        for _ in range(count):
            seen = belief(scene, share)
            found = [self._found(known or self._known(scene, embedded, ways, piece), seen[:, piece], embedded, ways)
                     for piece in pieces]  # fmt: skip
            logits = masked(torch.cat(found, dim=1), scene.allowed)
            every.append(logits)
            share = torch.softmax(logits, dim=-1)
        return every

    def _known(
        self, scene: GdpFeatures, embedded: Embedded | None, ways: slice, piece: slice = ALL
    ) -> tuple[Tensor | None, Tensor]:
        """What stays the same in all rounds, of a piece of the units: [n, D, inner], and leanings [W, n, D]."""
        pair = scene.pair[piece]
        lean = (pair @ self.lean_pair.weight[ways].T).movedim(-1, 0)
        if embedded is None:
            return None, lean
        units, graph = embedded
        common = self.of_unit(units[piece], graph)[:, None] + self.of_device(scene.device, graph)
        return common + self.of_pair(pair, graph), lean

    def _found(
        self, known: tuple[Tensor | None, Tensor], seen: Tensor, embedded: Embedded | None, ways: slice
    ) -> Tensor:
        """Scores [W, n, D] from what is known and what the round before would mean."""
        common, lean = known
        lean = torch.einsum("wndb,wb->wnd", seen, self.lean_belief.weight[ways]) + lean
        if common is None or embedded is None:
            return lean
        graph = embedded[1]
        inner = functional.relu(self.between(functional.relu(common + self.of_belief(seen)), graph))
        found: Tensor = self.score(inner).squeeze(-1) + lean
        return found

    def _pieces(self) -> list[slice]:
        """All units at once; so many segments at a time where memory was short."""
        if self.segment == self.options.segment or torch.is_grad_enabled():
            return [ALL]
        return [slice(first, first + self.segment) for first in range(0, max(self.view.n, 1), self.segment)]

    def logits(self) -> Tensor:
        """Log p [n, D] of every unit's device, all at once; where memory is short, in segments half as long."""
        scores = self._roomy(lambda: self.scores(self.scene, self.embedded())[0])
        return explored(scores, self.scene.allowed, self.chance(self.options.explore, self.view.n))

    def rollout(self, count: int, dice: torch.Generator, price: Price) -> Rollout:
        """`count` placements, all units of each drawn at once; or, in a share `moving` of calls, moves of regions."""
        with torch.no_grad():
            logits = self.logits()
            if float(torch.rand((), generator=dice)) < self.options.moving:
                return self._moves(logits, count, dice, price)
            device = draw(logits.expand(count, -1, -1), dice)
        return Rollout({"device": device}, price(self.view.placements(device.numpy())))

    def _moves(self, logits: Tensor, count: int, dice: torch.Generator, price: Price) -> Rollout:
        """Episodes begin with the best placement so far, with what the policy thinks best, or with both in turn."""
        own = logits.argmax(dim=1)
        masks, moves, path = [], [], []
        for number in range(count):
            wanted = self.options.start == "best" or (self.options.start == "both" and number % 2)
            best = best_so_far(self.view, price) if wanted else None
            held = own if best is None else best
            mask = torch.stack([drawn(self.rank, dice) for _ in range(self.options.regions)])
            move = draw(self._odds(logits, mask), dice)
            row = held
            for region, device in zip(mask, move, strict=True):
                row = torch.where(region & self.scene.allowed[:, device], device, row)
            masks.append(mask)
            moves.append(move)
            path.append(price(self.view.placements(torch.stack((held, row)).numpy())))
        seconds = np.stack(path)
        return Rollout({"region": torch.stack(masks), "move": torch.stack(moves)}, seconds[:, -1], seconds)

    def _odds(self, logits: Tensor, mask: Tensor) -> Tensor:
        """Log p [..., D] of the device to which a region [..., n] moves: the mean of its units', and some chance."""
        return odds(logits, mask, self.scene.allowed, self.chance(self.options.explore, self.options.regions))

    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Log p and entropy [K, n] of every unit's device, or [K, regions] of every region's."""
        if "move" in choices:
            every, device = self._odds(self.logits(), choices["region"]), choices["move"]
            log_prob = every.gather(-1, device.unsqueeze(-1)).squeeze(-1)
            return log_prob, -(every.exp() * every.clamp_min(NEVER)).sum(dim=-1)
        every, device = self.logits(), choices["device"]
        log_prob = every[torch.arange(self.view.n), device]
        entropy = -(every.exp() * every.clamp_min(NEVER)).sum(dim=1)
        return log_prob, entropy.expand_as(log_prob)

    @torch.no_grad()
    def probabilities(self) -> Floats:
        """How likely the policy thinks each device for each op [n_ops, n_devices]; 0 where one is not allowed."""
        scores = self._roomy(lambda: self.scores(self.scene, self.embedded())[0])
        found: Floats = torch.softmax(scores.double(), dim=1).numpy()[self.view.unit]
        return found

    def greedy(self, price: Price) -> Ints:
        """The likeliest placement on all devices, then on ever fewer of the fastest, by each set of leanings.

        They are made to fit. The first is by the first set, from which draws come, on all devices. Last come those that
        turned out better where the policy looked again at the best so far.
        """
        embedded = self._embedded_once()
        rows = self._mended(np.concatenate(self._favourites(embedded)))
        return np.concatenate((rows, *self._looks(rows, price, embedded)))

    def advised(self) -> Ints:
        """The parts that METIS cuts, where advice is asked and they fit."""
        found = run_placer(create("metis"), self.view.problem, Budget()).placement if self.options.advice else None
        return super().advised() if found is None else found.device[None]

    def favourites(self, price: Price) -> list[Ints]:
        return [self._mended(rows) for rows in np.stack(self._favourites(self._embedded_once()), axis=1)]

    @torch.no_grad()
    def _embedded_once(self) -> Embedded | None:
        """What all favourites share, without gradients."""
        return self._roomy(self.embedded)

    @torch.no_grad()
    def _looks(self, rows: Ints, price: Price, embedded: Embedded | None) -> list[Ints]:
        """What got ever better [1, n_ops] where rounds went on from what was priced, as if it were sure: best first."""
        found, most = list[Ints](), min(self.options.looks, COSTLY // max(self.view.problem.n_ops, 1))
        open_rows: list[tuple[float, int, Ints]] = []
        known, value, idle = set[bytes](), np.inf, 0
        with suppress(Spent):
            for _ in range(most + 1):
                seconds = price(rows)
                for row, spent in zip(rows, seconds.tolist(), strict=True):
                    if math.isfinite(spent) and row.tobytes() not in known:
                        known.add(row.tobytes())
                        heappush(open_rows, (spent, len(known), row))
                idle += 1
                if open_rows and open_rows[0][0] < value * (1 - BETTER):
                    value, idle = open_rows[0][0], 0
                    found.append(open_rows[0][2][None])
                if idle == IDLE or not open_rows:
                    break
                rows = np.unique(self.view.placements(self._seen_again(heappop(open_rows)[2], embedded)), axis=0)
        return found[1:]

    def _seen_again(self, best: Ints, embedded: Embedded | None) -> Ints:
        """What each set of leanings finds likeliest [K, n_units] in a few rounds from a placement [n_ops]."""
        sure = torch.from_numpy(self.view.devices(best[None])[0]).long()
        share = functional.one_hot(sure, self.view.n_devices).float()
        rows = [
            self._roomy(partial(self._rounds, self.scene, embedded, ways, share, LOOK)) for ways in self._ways(embedded)
        ]
        return torch.cat([logits.argmax(dim=-1) for row in rows for logits in row]).numpy()

    def _ways(self, embedded: Embedded | None) -> list[slice]:
        """All sets of leanings, as many together as are not too much for one round."""
        size = self.view.n * self.view.n_devices * (BELIEF if embedded is None else self.options.inner)
        step = max(TOGETHER // size, 1)
        return [slice(first, first + step) for first in range(0, len(self.lean_pair.weight), step)]

    @torch.no_grad()
    def _favourites(self, embedded: Embedded | None) -> list[Ints]:
        """For every number of devices, what each set of leanings finds likeliest [W, n_ops]."""
        n_devices = self.view.n_devices
        order = np.lexsort((np.arange(n_devices), -self.facts.speed))
        found = []
        for count in _counts(n_devices, many=self.view.problem.n_ops * n_devices > MANY):
            scene = self._scene(np.isin(np.arange(n_devices), order[:count]))
            rows = [
                self._roomy(partial(self.scores, scene, embedded, ways)).argmax(dim=-1).numpy()
                for ways in self._ways(embedded)
            ]
            found.append(self.view.placements(np.concatenate(rows)))
        return found

    def _mended(self, rows: Ints) -> Ints:
        """Placements [K, n_ops], each once and in their order, made to fit."""
        first = np.unique(rows, axis=0, return_index=True)[1]
        return np.stack([self._fitted(row) for row in rows[np.sort(first)]])

    def decisions(self, placements: Ints) -> Mapping[str, Tensor]:
        return {"device": torch.from_numpy(self.view.devices(placements)).long()}

    def _fitted(self, row: Ints) -> Ints:
        """A placement [n_ops] moved as little as possible until memory is enough; as it is where that cannot be."""
        problem = self.view.problem
        if self.fits or not find_broken_rule(problem, row):
            return row
        mended = repair(problem, row, measured=False)
        return row if mended is None else mended

    def _roomy(self, compute: Callable[[], T]) -> T:
        """What `compute` gives; where memory is short, in segments half as long."""
        while True:
            try:
                return compute()
            except (MemoryError, RuntimeError) as error:
                short = isinstance(error, MemoryError) or any(word in str(error).lower() for word in SHORT)
                if not short or self.segment // 2 < LEAST_SEGMENT:
                    raise
            self.segment //= 2
            self.notes = (f"memory is short: attention in segments of {self.segment} ops, not {self.options.segment}",)


def belief(scene: GdpFeatures, share: Tensor) -> Tensor:
    """What probabilities [W, n, D] would mean for every unit on every device [W, n, D, BELIEF]."""
    before = _heard(share[:, scene.tail] * scene.into[:, None], scene.head, scene.n)
    after = _heard(share[:, scene.head] * scene.out[:, None], scene.tail, scene.n)
    busy, full = share * scene.load, share * scene.held
    load, memory = busy.sum(dim=1, keepdim=True), full.sum(dim=1, keepdim=True)
    parallel = _heard(busy, scene.bucket, BUCKETS)
    whole = parallel.sum(dim=2, keepdim=True).clamp_min(1e-9)
    there, all_there = parallel[:, scene.bucket], whole[:, scene.bucket]
    columns = (
        share, before, after, before * scene.arrives[:, None], after * scene.leaves[:, None],
        load.expand_as(share), load - busy, memory.expand_as(share),
        functional.relu(memory - full + scene.held - ROOMY), there / all_there, (there - busy) / all_there,
    )  # fmt: skip
    return torch.stack(columns, dim=3).clamp(-MOST_BELIEF, MOST_BELIEF)


def _counts(n_devices: int, *, many: bool) -> list[int]:
    """How many devices are tried, from all to one; on large graphs, 1, 2, 4, … fewer than all."""
    if not many:
        return list(range(n_devices, 0, -1))
    return [n_devices, *(n_devices - (1 << k) for k in range(n_devices.bit_length()) if 1 << k < n_devices)]


def _heard(values: Tensor, row: Tensor, n: int) -> Tensor:
    return values.new_zeros(len(values), n, values.shape[2]).index_add(1, row, values)


def gdp(problem: Problem, options: GdpOptions, seed: int) -> Gdp:
    """An untrained policy; its weights are drawn from `seed`."""
    view = view_of(problem, _units(problem, options))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Gdp(view, features_of(view, SECTIONS, hashed=True), options)


def _units(problem: Problem, options: GdpOptions) -> Ints:
    """Labels [n_ops]: blocks, or where those are too many and it is wanted, groups of them."""
    if options.units == "all" or problem.n_blocks <= options.most_units:
        return problem.block
    return [problem.block, *hierarchy(problem, wanted=options.most_units, start=scope_labels(problem))][-1]
