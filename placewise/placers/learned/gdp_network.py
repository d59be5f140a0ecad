"""The network of GDP: neighbourhoods, attention over segments, and devices that are scored in several rounds.

Units are embedded once: GraphSAGE with max-pooling, then attention in segments with the segment before as memory
(Zhou et al. 2019, section 3). A device is scored for a unit by the embedding of the unit, features of the device and of
the pair, and the consequences of the round before: the devices of neighbours, the load of the device in total and at
the same time, and its memory. Weights are the same for all devices and rounds. The placement of a round is its
probabilities, so that all units are still placed at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SAGEConv

from placewise.model.columns import Bools, Ints
from placewise.placers.learned.features import (
    BUCKETS,
    DEVICE,
    GRAPH,
    PAIR,
    Features,
    GdpFeatures,
    gdp_facts,
    gdp_features,
)
from placewise.placers.learned.policy import Policy, mask_logits
from placewise.placers.learned.view import View

if TYPE_CHECKING:
    from placewise.placers.learned.gdp import GdpOptions

T = TypeVar("T")
Embedded = tuple[Tensor, Tensor]

BELIEF = 11
"""Per unit and device, from the round before: probability of the unit, of predecessors and of successors, and the last
two times their traffic; load with and without the unit; memory in total and above the limit; parallel load with and
without the unit."""
ROOMY, MAX_BELIEF = 0.95, 4.0
MEMORY_WORDS = ("alloc", "memory")
"""Words in torch's messages on a lack of memory."""
MIN_SEGMENT, MAX_SEGMENTS = 16, 1 << 10
"""Shortest segment when memory is short; and number of segments per step when it is not."""
REFINE_ROUNDS = 4
"""Rounds of one refinement."""
MAX_NUMBERS = 1 << 24
"""Largest number of values per round that are computed for several prior sets at once."""
ALL = slice(None)
FIRST = slice(0, 1)
PAIR_PRIOR = {"above": (1, -4.0), "critical_path": (10, 2.0), "etf": (11, 2.0)}
BELIEF_PRIOR = {
    "own": (0, 2.0), "arrives": (3, 6.0), "leaves": (4, 6.0), "load": (6, -1.0), "full": (8, -20.0),
    "beside": (10, -2.0),
}  # fmt: skip
"""The columns with a prior weight, and that weight, in natural logarithms (docs/learning.md)."""
PRIOR_SPREAD = 0.35
"""Standard deviation of further sets around the first."""


class Dense(nn.Module):
    """A dense layer whose outputs are modulated by a graph's embedding: superposition (Zhou et al. 2019).

    The gate 1 + tanh(W g) of the embedding g [width] is initially 1.
    """

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.dense, self.gate = nn.Linear(inputs, outputs), nn.Linear(width, outputs)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        out: Tensor = self.dense(x) * (1 + torch.tanh(self.gate(graph)))
        return out


class Aggregation(nn.Module):
    """GraphSAGE with max-pooling (Hamilton et al. 2017), along the edges and against them."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.along = SAGEConv(hidden, hidden, aggr="max", project=True, root_weight=False)
        self.against = SAGEConv(hidden, hidden, aggr="max", project=True, root_weight=False)
        self.own = Dense(hidden, hidden, width)

    def forward(self, x: Tensor, edges: Tensor, reverse: Tensor, graph: Tensor) -> Tensor:
        """`x` [n, hidden]; `edges` [2, n_edges], and `reverse`, the same edges in the other direction."""
        normal = self.norm(x)
        out = self.own(normal, graph)
        if edges.shape[1]:
            out = out + self.along(normal, edges) + self.against(normal, reverse)
        return x + functional.relu(out)


class SegmentAttention(nn.Module):
    """Every unit attends to its segment and, without a gradient, to the one before (Transformer-XL, Dai et al. 2019).

    There are no positions.
    """

    def __init__(self, hidden: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(hidden)
        self.query, self.key = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden, bias=False)
        self.value, self.out = nn.Linear(hidden, hidden), Dense(hidden, hidden, width)
        self.norm_dense = nn.LayerNorm(hidden)
        self.wide, self.narrow = Dense(hidden, 2 * hidden, width), Dense(2 * hidden, hidden, width)

    def forward(self, x: Tensor, segment: int, graph: Tensor, together: int) -> Tensor:
        """`x` [n, hidden]; `segment` units per segment; without gradients, `together` segments at once."""
        x = x + self.out(self._attend(self.norm(x), segment, together), graph)
        out: Tensor = x + self.narrow(functional.relu(self.wide(self.norm_dense(x), graph)), graph)
        return out

    def _attend(self, x: Tensor, segment: int, together: int) -> Tensor:
        n, hidden = x.shape
        segment = min(segment, n)
        count = -(-n // segment)
        padded = functional.pad(x, (0, 0, 0, count * segment - n)).view(count, segment, hidden)
        seen = torch.arange(count * segment).view(count, 1, segment) < n
        sources = padded
        if count > 1:
            before = functional.pad(padded[:-1].detach(), (0, 0, 0, 0, 1, 0))
            sources = torch.cat((before, padded), dim=1)
            first = torch.zeros((1, 1, segment), dtype=torch.bool)
            seen = torch.cat((torch.cat((first, seen[:-1])), seen), dim=2)
        step = count if torch.is_grad_enabled() else together
        pieces = [slice(first, first + step) for first in range(0, count, step)]
        out = torch.cat([self._attend_pieces(padded[piece], sources[piece], seen[piece]) for piece in pieces])
        return out.reshape(count * segment, hidden)[:n]

    def _attend_pieces(self, padded: Tensor, sources: Tensor, seen: Tensor) -> Tensor:
        """Attention [segments, segment, hidden] of units to the `seen` ones of `sources` [segments, …, hidden]."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(padded), self.key(sources), self.value(sources))
        )
        mask = None if bool(seen.all()) else seen[:, None]
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return out.transpose(1, 2).flatten(2)


def set_priors(pair: nn.Linear, belief: nn.Linear, prior: float) -> None:
    """Fill the weights [W, columns] of both layers with priors times `prior`. All sets but the first vary at random."""
    generator = torch.Generator().manual_seed(0)
    for layer, weights in ((pair, PAIR_PRIOR), (belief, BELIEF_PRIOR)):
        first = torch.zeros(layer.in_features)
        for column, value in weights.values():
            first[column] = prior * value
        with torch.no_grad():
            layer.weight.copy_(_vary_priors(first.expand_as(layer.weight), prior * PRIOR_SPREAD, generator))
            layer.weight[0] = first


def _vary_priors(priors: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    """Add relative and absolute noise to priors."""
    noise = torch.randn((2, *priors.shape), generator=generator)
    return priors * (1 + spread * noise[0]) + spread * noise[1]


class GdpNetwork(Policy):
    """The scores of all devices for all units."""

    options: GdpOptions

    def __init__(self, view: View, features: Features, options: GdpOptions) -> None:
        super().__init__()
        self.view, self.options, self.segment = view, options, options.segment
        self.features = Features(features.matrix, (*features.layout, ("device", DEVICE), ("pair", PAIR)))
        self.inputs_of: dict[bytes, GdpFeatures] = {}
        self.facts = gdp_facts(view)
        self.inputs = self._inputs(np.ones(view.n_devices, np.bool_))
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
            SegmentAttention(hidden, options.heads, width) for _ in range(options.attentions)
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
        """Embeddings of units [n, hidden] and of the graph [hidden]; None if unused."""
        if self._prior_only:
            return None
        x = functional.relu(self.enter(self.x))
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

    def rounds_from(self, best: Ints, embedded: Embedded | None) -> Ints:
        """The likeliest devices [K, n_units] by each prior set in a few rounds from a placement [n_ops]."""
        sure = torch.from_numpy(self.view.devices(best[None])[0]).long()
        share = functional.one_hot(sure, self.view.n_devices).float()
        rows = [
            self._retry_in_less_memory(partial(self._rounds, self.inputs, embedded, sets, share, REFINE_ROUNDS))
            for sets in self.batch_priors(embedded)
        ]
        return torch.cat([logits.argmax(dim=-1) for row in rows for logits in row]).numpy()

    def batch_priors(self, embedded: Embedded | None) -> list[slice]:
        """All prior sets, in batches that are small enough for one round."""
        size = self.view.n * self.view.n_devices * (BELIEF if embedded is None else self.options.inner)
        step = max(MAX_NUMBERS // size, 1)
        return [slice(first, first + step) for first in range(0, len(self.lean_pair.weight), step)]

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


def _sum_rows(values: Tensor, row: Tensor, n: int) -> Tensor:
    return values.new_zeros(len(values), n, values.shape[2]).index_add(1, row, values)
