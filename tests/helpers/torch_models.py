"""Small PyTorch modules, and what tests ask of graphs made from them."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.nn import functional

from placewise.costing.work import work_of
from placewise.readers.torch.program import graph_of_program


class Layered(nn.Module):
    """One of everything that a graph has to tell: a tie, a buffer, kwargs, several results, module paths."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.block = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((8,), 0.5))
        self.shift = torch.ones(8)

    def forward(self, ids, *, mask=None, twice=True):
        hidden = self.embed(ids) * self.scale + self.shift
        hidden = self.norm(hidden + self.block(hidden))
        if mask is not None:
            hidden = hidden.masked_fill(mask[..., None], 0.0)
        if twice:
            hidden = self.block(hidden)
        best, places = hidden.topk(2, -1)
        return {"logits": self.head(hidden), "best": best, "places": places}


class Stateful(nn.Module):
    """Writes in place: to a buffer, and to a view of something that is read again."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 8))
        self.register_buffer("steps", torch.zeros(1))
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        self.steps.add_(1)
        self.cache[0] = x[0]
        y = self.linear(x)
        row = y[0]
        row.mul_(2.0)
        return y + 1, self.cache.sum()


class UNet(nn.Module):
    """Strided, grouped and transposed convolutions."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.norm = nn.BatchNorm2d(16)
        self.up = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
        self.last = nn.Conv2d(16, 2, 1)

    def forward(self, x):
        first = self.first(x).relu()
        low = self.norm(self.grouped(self.down(first))).relu()
        return self.last(torch.cat([first, self.up(low)], 1))


class Sequence(nn.Module):
    """A bidirectional LSTM of two layers over embedded tokens, and a classifier."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 8)
        self.lstm = nn.LSTM(8, 12, 2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, ids):
        return self.head(self.lstm(self.embed(ids))[0].mean(1))


class Deciding(nn.Module):
    """Looks at its data, which torch.export does not allow."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count += 1
        hidden = self.left(x) if x.sum() > 0 else self.right(x)
        parts = torch.cat([hidden, self.norm(hidden)], -1)
        return functional.scaled_dot_product_attention(parts, parts, parts), self.left(hidden)


def exported(module, args=(), kwargs=None, **options):
    """The exported program, without torch's own warnings."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.export.export(module, args, kwargs, strict=False, **options)


def graph_of(module, args=(), kwargs=None, dims=None, **options):
    """The raw graph of an exported module."""
    return graph_of_program(exported(module.eval(), args, kwargs, **options), dims=dims or {})


def op(graph, name):
    """The number of the op called `name`."""
    return graph.ops.name.index(name)


def kinds(graph):
    return dict(zip(graph.ops.name, graph.ops.kind, strict=True))


def arguments(graph, name):
    """What an op reads, by position: names of tensors and weights."""
    number, found = op(graph, name), {}
    for edges, values in ((graph.edges, graph.tensors), (graph.weight_edges, graph.weights)):
        for row, consumer in enumerate(edges.consumer.tolist()):
            if consumer == number:
                found[int(edges.position[row])] = values.name[edges.value[row]]
    return found


def outputs(graph):
    """The names of the tensors that are outputs of the model."""
    return {name for name, marked in zip(graph.tensors.name, graph.tensors.output, strict=True) if marked}


def ancestors(graph, tensor):
    """Names of everything that a tensor is made from: tensors and weights."""
    found, stack = set(), [graph.tensors.name.index(tensor)]
    while stack:
        producer = int(graph.tensors.producer[stack.pop()])
        if producer < 0:
            continue
        found |= {graph.weights.name[weight] for weight in graph.weights_of(producer)}
        for before in graph.inputs_of(producer).tolist():
            if graph.tensors.name[before] not in found:
                found.add(graph.tensors.name[before])
                stack.append(before)
    return found


def products(graph):
    """FLOPs of products, convolutions and attention as torch counts them: without softmax, without LSTM cells."""
    work, total = work_of(graph), 0.0
    for number in range(graph.n_ops):
        kind = work.op_class[number]
        if kind not in ("matmul", "conv", "attention"):
            continue
        total += work.flops[number]
        shapes = [graph.tensors.shape[tensor] for tensor in graph.inputs_of(number).tolist()]
        if kind == "attention":
            batch, heads, queries, _ = shapes[0]
            total -= 5 * batch * heads * queries * shapes[1][2]
        if graph.ops.kind[number] == "aten::lstm":
            matrices = [shape for w in graph.weights_of(number) if len(shape := graph.weights.shape[int(w)]) == 2]
            total -= 7.5 * shapes[0][0] * shapes[0][1] * sum(rows for rows, _ in matrices) / 2
    return total
