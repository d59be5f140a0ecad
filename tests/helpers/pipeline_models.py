"""Nine small PyTorch models with all that a stage may hand on, and what the tests of pipelines do with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from placewise._util.cores import pinnable_cores
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.runtimes.base import Job
from placewise.runtimes.binding import Place


class Transposed(nn.Module):
    """Hands on transposed, permuted and sliced values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 16), nn.Linear(6, 10)

    def forward(self, x: Any) -> Any:
        y = self.first(x).transpose(1, 2)
        z = self.second(torch.relu(y)).permute(2, 0, 1)
        return z[:, :, ::3].sum(dim=0), y.sum()


class Splits(nn.Module):
    """Splits, chunks and sorts, whose results go different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.tail = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        a, b, c = self.wide(x).split([8, 4, 12], dim=-1)
        low, high = c.chunk(2, dim=-1)
        best, place = self.tail(a).sort(dim=-1)
        mean, most = torch.var_mean(low, dim=-1)
        return best * mean[..., None], place, (high.sum(-1) + most) * b.mean(-1), a


class Residuals(nn.Module):
    """Sums with values of long ago, which skip stages."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Any) -> Any:
        kept = [x]
        for block in self.blocks:
            kept.append(torch.tanh(block(kept[-1])) + kept[0])
        return self.norm(kept[-1] + kept[1] + kept[3]), kept[2]


class Attention(nn.Module):
    """Two layers of masked attention: heads in permuted memory, a mask of bools for all of them, an expanded bias."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.bias = nn.Parameter(torch.randn(1, 4, 1, 1))

    def forward(self, x: Any, keep: Any) -> Any:
        batch, length, _ = x.shape
        hidden = ~(keep.bool()[:, None, None, :] | torch.eye(length, dtype=torch.bool))
        bias = self.bias.expand(batch, 4, length, length)
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = qkv(x).view(batch, length, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
            scores = (q @ k.transpose(-1, -2) / 2 + bias).masked_fill(hidden, float("-inf"))
            x = x + out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, 16))
        return x, hidden


class Convolutions(nn.Module):
    """Convolutions, pools and norms, one of them in channels-last memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.deep, self.wide = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 16, 1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.first(x))).contiguous(memory_format=torch.channels_last)
        x = nn.functional.max_pool2d(self.wide(torch.relu(self.deep(x))), 2)
        return self.head(x.mean((2, 3))).log_softmax(-1)


class Words(nn.Module):
    """Embeddings of two inputs of integers, which are read again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(30, 12), nn.Embedding(2, 12)
        self.blocks = nn.Sequential(nn.Linear(12, 12), nn.GELU(), nn.Linear(12, 12), nn.Tanh())

    def forward(self, ids: Any, kinds: Any) -> Any:
        x = self.blocks(self.words(ids) + self.kinds(kinds)) * (ids > 0)[..., None]
        return x @ self.words.weight.t(), ids.float().mean() + x.sum(), kinds + ids


class Recurrent(nn.Module):
    """A cell of a GRU, unrolled: every step reads a slice of the input and the state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(6, 8), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        state = x.new_zeros(x.shape[0], 8)
        states = []
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            states.append(state)
        return self.head(torch.stack(states, 1)), state


class Mixture(nn.Module):
    """A mixture of experts with the index ops around it: top-k, one-hot, gather, scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(8, 4), nn.Linear(8, 8)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Any) -> Any:
        weight, chosen = self.gate(x).softmax(-1).topk(2, -1)
        every = torch.stack([torch.relu(expert(x)) for expert in self.experts], 1)
        taken = every.gather(1, chosen[..., None].expand(-1, -1, 8))
        mixed = self.head((taken * weight[..., None]).sum(1))
        counts = torch.zeros(4, dtype=torch.int64).scatter_add(0, chosen.flatten(), torch.ones_like(chosen.flatten()))
        return mixed.index_select(0, chosen[:, 0]), counts, nn.functional.one_hot(chosen, 4)


class Skips(nn.Module):
    """A U-Net: what goes down is read on the way up, the first values last."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in ((3, 6), (6, 8), (8, 8)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in ((8, 8), (16, 6), (12, 4)))
        self.last = nn.Conv2d(7, 2, 1)

    def forward(self, x: Any) -> Any:
        kept = [x]
        for layer in self.down:
            kept.append(torch.relu(layer(kept[-1])))
        y = kept.pop()
        for layer in self.up:
            y = torch.cat([torch.relu(layer(y)), kept.pop()], 1)
        return self.last(y)


class HandedOn(nn.Module):
    """Between its first and its last op, one value of every kind that may go from stage to stage; it reads only `x`."""

    def forward(self, unread: Any = None, x: Any = None) -> Any:
        y = x + 1
        transposed, sliced, expanded = y.t(), y[:, ::2], y[:1].expand(5, -1, 6)
        flags, numbers, places = y > 0, (y * 10).to(torch.int16), y.argsort(-1)
        empty, scalar, half = y[:0], y.sum(), y.to(torch.bfloat16)
        spectrum = torch.complex(y, -y).conj()
        view = transposed.reshape(-1)[3:]
        top, place = y.max(0)
        z = torch.tanh(y * scalar)
        return (
            z, transposed, sliced + z.sum(), expanded, flags, numbers + 1, places, empty, scalar, half * 2,
            torch.view_as_real(spectrum.resolve_conj()), view, top, place, y, y, empty.t(), z + x,
        )  # fmt: skip


class Picks(nn.Module):
    """Reads the row of a table that an input names; there are four rows."""

    def forward(self, x: Any, row: Any) -> Any:
        return torch.tanh(torch.index_select(torch.relu(x), 0, row.reshape(1))).exp()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, torch.Tensor]]]] = {
    "transposed": (Transposed, lambda: {"x": torch.randn(2, 6, 12)}),
    "splits": (Splits, lambda: {"x": torch.randn(4, 8)}),
    "residuals": (Residuals, lambda: {"x": torch.randn(3, 16)}),
    "attention": (Attention, lambda: {"x": torch.randn(2, 5, 16), "keep": torch.ones(2, 5, dtype=torch.int64)}),
    "convolutions": (Convolutions, lambda: {"x": torch.randn(2, 3, 8, 8)}),
    "words": (Words, lambda: {name: torch.ones(2, 7, dtype=torch.int64) for name in ("ids", "kinds")}),
    "recurrent": (Recurrent, lambda: {"x": torch.randn(2, 5, 6)}),
    "mixture": (Mixture, lambda: {"x": torch.randn(6, 8)}),
    "skips": (Skips, lambda: {"x": torch.randn(1, 3, 16, 16)}),
}
"""The nine models with example inputs, by name."""


@dataclass(frozen=True)
class ExportedModel:
    """A model, its example inputs, and its program in a file."""

    module: nn.Module
    example: dict[str, torch.Tensor]
    path: Path

    def outputs(self, arrays: dict[str, Any]) -> list[Any]:
        """What the module itself gives, in one process: its distinct outputs in order."""
        with torch.no_grad():
            made = self.module(**{name: torch.from_numpy(array) for name, array in arrays.items()})
        values = list(made) if isinstance(made, tuple) else [made]
        return [value for n, value in enumerate(values) if not any(value is other for other in values[:n])]


def export_model(module: nn.Module, example: dict[str, torch.Tensor], path: Path) -> ExportedModel:
    """The program of a module in a file."""
    module = module.eval()
    torch.export.save(torch.export.export(module, (), example), path)
    return ExportedModel(module, example, path)


def export_named(name: str, path: Path) -> ExportedModel:
    """One of the nine models; its weights are always the same."""
    make, example = MODELS[name]
    torch.manual_seed(0)
    return export_model(make(), example(), path)


def job_here(problem: Problem, device: Sequence[int]) -> Job:
    """A placement on the cores of this machine, in turns if there are fewer than devices."""
    cores = pinnable_cores()
    places = [Place(n, "cores", cores=(cores[at % len(cores)],)) for at, n in enumerate(problem.cluster.names)]
    return Job(problem, Placement(np.array(device, np.int32)), tuple(places), seconds=60.0)


def even_cut(problem: Problem, stages: int) -> list[int]:
    """Every op's stage, where the ops in their order are cut into equally many; a call stays in one."""
    calls = [origin[0] if origin else 0 for origin in problem.graph.ops.origin]
    order = sorted(set(calls))
    return [order.index(call) * stages // len(order) for call in calls]
