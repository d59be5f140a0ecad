"""The layers of GDP: dense layers that a graph modulates, max-pool aggregation, segment attention; and the priors."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SAGEConv

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

    The gate 1 + tanh(W g) is initially 1. Without a `graph` [width] there is no gate.
    """

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.dense, self.gate = nn.Linear(inputs, outputs), nn.Linear(width, outputs)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, x: Tensor, graph: Tensor | None) -> Tensor:
        out: Tensor = self.dense(x)
        return out if graph is None else out * (1 + torch.tanh(self.gate(graph)))


class Aggregation(nn.Module):
    """GraphSAGE with max-pooling (Hamilton et al. 2017), along the edges and against them."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.along = SAGEConv(hidden, hidden, aggr="max", project=True, root_weight=False)
        self.against = SAGEConv(hidden, hidden, aggr="max", project=True, root_weight=False)
        self.own = Dense(hidden, hidden, width)

    def forward(self, x: Tensor, edges: Tensor, reverse: Tensor, graph: Tensor | None) -> Tensor:
        """`x` [n, hidden]; `edges` [2, n_edges], and `reverse`, the same edges in the other direction."""
        normal = self.norm(x)
        out = self.own(normal, graph)
        if edges.shape[1]:
            out = out + self.along(normal, edges) + self.against(normal, reverse)
        return x + functional.relu(out)


class SegmentAttention(nn.Module):
    """Every unit attends to its segment and, without a gradient, to the one before (Transformer-XL, Dai et al. 2019).

    There are no positions. Without `attention`, only the feed-forward half remains.
    """

    def __init__(self, hidden: int, heads: int, width: int, *, attention: bool) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm = nn.LayerNorm(hidden)
        self.query, self.key = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden, bias=False)
        self.value, self.out = nn.Linear(hidden, hidden), Dense(hidden, hidden, width)
        self.norm_dense = nn.LayerNorm(hidden)
        self.wide, self.narrow = Dense(hidden, 2 * hidden, width), Dense(2 * hidden, hidden, width)

    def forward(self, x: Tensor, segment: int, graph: Tensor | None, together: int) -> Tensor:
        """`x` [n, hidden]; `segment` units per segment; without gradients, `together` segments at once."""
        if self.attention:
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
        flat: Tensor = out.transpose(1, 2).flatten(2)
        return flat


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
