"""The leanings of GDP: what it scores before anything is learned. Of several sets, the first is the plain one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PAIR = {"above": (1, -4.0), "critical_path": (10, 2.0), "etf": (11, 2.0)}
BELIEF = {
    "own": (0, 2.0), "arrives": (3, 6.0), "leaves": (4, 6.0), "load": (6, -1.0), "full": (8, -20.0),
    "beside": (10, -2.0),
}  # fmt: skip
"""In natural logarithms: the columns that count, and how much (docs/learning.md)."""
SPREAD = 0.35
"""By how much further sets vary."""


def lean(pair: nn.Linear, belief: nn.Linear, prior: float) -> None:
    """Fill the weights [W, columns] of both with leanings times `prior`: all sets but the first vary at random."""
    dice = torch.Generator().manual_seed(0)
    for layer, leans in ((pair, PAIR), (belief, BELIEF)):
        first = torch.zeros(layer.in_features)
        for column, value in leans.values():
            first[column] = prior * value
        with torch.no_grad():
            layer.weight.copy_(_varied(first.expand_as(layer.weight), prior * SPREAD, dice))
            layer.weight[0] = first


def _varied(leanings: Tensor, spread: float, dice: torch.Generator) -> Tensor:
    """Leanings like these, each otherwise by a random share of itself, and by a random number."""
    noise = torch.randn((2, *leanings.shape), generator=dice)
    return leanings * (1 + spread * noise[0]) + spread * noise[1]
