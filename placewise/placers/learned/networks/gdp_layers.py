"""The layers of GDP: dense layers that a graph modulates, max-pool aggregation, attention over segments."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SAGEConv


class Dense(nn.Module):
    """A dense layer of which a graph's embedding modulates every output: superposition (Zhou et al. 2019).

    The gate 1 + tanh(W g) begins as 1; without a `graph` [width] it stays so.
    """

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.dense, self.gate = nn.Linear(inputs, outputs), nn.Linear(width, outputs)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, x: Tensor, graph: Tensor | None) -> Tensor:
        found: Tensor = self.dense(x)
        return found if graph is None else found * (1 + torch.tanh(self.gate(graph)))


class Aggregation(nn.Module):
    """What neighbours say, along the edges and against them: GraphSAGE with max-pooling (Hamilton et al. 2017)."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.along = SAGEConv(hidden, hidden, aggr="max", project=True, root_weight=False)
        self.against = SAGEConv(hidden, hidden, aggr="max", project=True, root_weight=False)
        self.own = Dense(hidden, hidden, width)

    def forward(self, x: Tensor, edges: Tensor, turned: Tensor, graph: Tensor | None) -> Tensor:
        """`x` [n, hidden]; `edges` and `turned` [2, n_edges], the same ones the other way round."""
        normal = self.norm(x)
        heard = self.own(normal, graph)
        if edges.shape[1]:
            heard = heard + self.along(normal, edges) + self.against(normal, turned)
        return x + functional.relu(heard)


class Segments(nn.Module):
    """Every unit attends to its segment and, without a gradient, to the one before (Transformer-XL, Dai et al. 2019).

    No position is told. `attention` false: the feed-forward half alone.
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
        """`x` [n, hidden], segments of so many units; so many segments at once where no gradient is wanted."""
        if self.attention:
            x = x + self.out(self._attended(self.norm(x), segment, together), graph)
        found: Tensor = x + self.narrow(functional.relu(self.wide(self.norm_dense(x), graph)), graph)
        return found

    def _attended(self, x: Tensor, segment: int, together: int) -> Tensor:
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
        found = torch.cat([self._heard(padded[piece], sources[piece], seen[piece]) for piece in pieces])
        return found.reshape(count * segment, hidden)[:n]

    def _heard(self, padded: Tensor, sources: Tensor, seen: Tensor) -> Tensor:
        """[segments, segment, hidden] of what units hear from `sources` [segments, …, hidden] that are `seen`."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(padded), self.key(sources), self.value(sources))
        )
        mask = None if bool(seen.all()) else seen[:, None]
        heard = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        found: Tensor = heard.transpose(1, 2).flatten(2)
        return found
