"""Parts of the example models as models of their own, so that their seconds can be measured: FILE:FUNCTION."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "parallel"))
import models

BUILDERS = {"llama": models.llama, "bert": models.bert, "resnet": models.resnet}


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
        if isinstance(self.model, models.ResNet):
            return self.model.maxpool(self.model.relu(self.model.bn1(self.model.conv1(ids))))
        places = torch.arange(ids.shape[1])
        return self.model.embedding_norm(self.model.word_embeddings(ids) + self.model.position_embeddings(places))


def list_parts(name: str, sizes: dict[str, Any]) -> list[str]:
    """The part that each unit of a model is: "start", "layer" or the path of a block, "end"."""
    if name == "resnet":
        blocks = [f"layer{n}.{k}" for n, count in enumerate(sizes["blocks"], 1) for k in range(count)]
        return ["start", *blocks, "end"]
    return ["start", *["layer"] * sizes["layers"], "end"]


def part(name: str, which: str, sizes: dict[str, Any]) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A part of a model as `list_parts` names it, or "nothing", and the arguments of one micro-batch."""
    model, args = BUILDERS[name](**sizes)
    if name == "resnet":
        return _part_of_resnet(model, args, which)
    if which == "start":
        model.layers = model.layer = nn.ModuleList()
        return Start(model), args
    turn = torch.arange(sizes["length"])[:, None] * model.pace if name == "llama" else None
    layers, ends = (model.layers, [model.norm, model.lm_head]) if name == "llama" else (model.layer, [model.classifier])
    chosen = {"layer": [layers[0]], "end": ends, "nothing": []}[which]
    return Part(chosen, turn), (torch.randn(sizes["batch"], sizes["length"], sizes["width"]),)


def _part_of_resnet(
    model: nn.Module, args: tuple[torch.Tensor, ...], which: str
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    if which == "start":
        return Start(model), args
    paths = [path for path, module in model.named_modules() if isinstance(module, models.Block)]
    before = paths if which == "end" else paths[: paths.index(which)] if which in paths else []
    with torch.no_grad():
        value = Start(model)(*args)
        for path in before:
            value = model.get_submodule(path)(value)
    end = [model.avgpool, nn.Flatten(1), model.fc]
    chosen = end if which == "end" else [model.get_submodule(which)] if which in paths else []
    return Part(chosen, None), (value,)
