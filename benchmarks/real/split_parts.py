"""Parts of the example models as models of their own, so that their seconds can be measured: FILE:FUNCTION."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "parallel"))
import models

BUILDERS = {"llama": models.llama, "bert": models.bert}


class Part(nn.Module):
    """Modules one after the other on hidden values that need a gradient, as inside of a model."""

    def __init__(self, modules: list[nn.Module], turn: torch.Tensor | None) -> None:
        super().__init__()
        self.steps, self.shift = nn.ModuleList(modules), nn.Parameter(torch.zeros(()))
        self.register_buffer("turn", turn)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.shift
        for step in self.steps:
            x = step(x, self.turn) if isinstance(step, models.LlamaLayer) else step(x)
        return x


class Start(nn.Module):
    """What comes before the first layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if isinstance(self.model, models.Llama):
            return self.model.embed_tokens(ids)
        places = torch.arange(ids.shape[1])
        return self.model.embedding_norm(self.model.word_embeddings(ids) + self.model.position_embeddings(places))


def part(name: str, which: str, sizes: dict[str, Any]) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The part "start", "layer", "end" or "nothing" of a model, and the arguments of one micro-batch."""
    model, args = BUILDERS[name](**sizes)
    if which == "start":
        model.layers = model.layer = nn.ModuleList()
        return Start(model), args
    turn = torch.arange(sizes["length"])[:, None] * model.pace if name == "llama" else None
    layers, ends = (model.layers, [model.norm, model.lm_head]) if name == "llama" else (model.layer, [model.classifier])
    chosen = {"layer": [layers[0]], "end": ends, "nothing": []}[which]
    return Part(chosen, turn), (torch.randn(sizes["batch"], sizes["length"], sizes["width"]),)
