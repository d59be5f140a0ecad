"""Moves of stretches: units side by side in an order go to one device, from the best placement so far."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from placewise.model.columns import Floats
from placewise.placers.learned.policy import NEVER, draw, explored

LONGEST = 0.25
"""Of all units, for one stretch."""


class Moves(NamedTuple):
    """K moves from one placement: what moved [K, n], and where to [K]; the placements [1 + K, n], the old one first."""

    stretch: Tensor
    device: Tensor
    placed: Tensor


def stretch(rank: Tensor, draws: Tensor) -> Tensor:
    """Units [n] around a place in an order, few or many: `rank` [n] their places, `draws` two numbers from 0 to 1."""
    n = len(rank)
    half = (n * LONGEST + 1) ** float(draws[0]) / 2
    inside: Tensor = (rank - draws[1] * n).abs() < max(half, 0.51)
    return inside


def odds(logits: Tensor, stretches: Tensor, useful: Tensor, chance: float) -> Tensor:
    """Log p [..., D] of the device to which a stretch [..., n] moves: the mean of its units', and some chance.

    `logits` [n, D]; `useful` [n, D]: where it matters that a unit goes; a stretch may go where one of its units may.
    """
    weight = stretches.to(logits.dtype)
    mean = (weight @ logits.clamp_min(NEVER)) / weight.sum(dim=-1, keepdim=True).clamp_min(1)
    may = (weight @ useful.to(logits.dtype)) > 0
    return explored(mean, may | ~may.any(dim=-1, keepdim=True), chance)


def elsewhere(allowed: Tensor, held: Tensor) -> Tensor:
    """Where units may go [n, D] and are not `held` [n] now."""
    return allowed & ~functional.one_hot(held, allowed.shape[1]).bool()


def ranks(place: Floats) -> Tensor:
    """The ranks [n, orders] of places [n, orders], from a half on."""
    return torch.from_numpy(np.argsort(np.argsort(place, axis=0, kind="stable"), axis=0) + 0.5)


def drawn(rank: Tensor, dice: torch.Generator) -> Tensor:
    """A stretch [n] in one of the orders of `rank` [n, orders]."""
    draws = torch.rand(3, generator=dice)
    return stretch(rank[:, int(draws[0] * rank.shape[1])], draws[1:])


def moved(
    logits: Tensor, allowed: Tensor, held: Tensor, rank: Tensor, chance: float, count: int, dice: torch.Generator
) -> Moves:
    """`count` moves, each of one stretch in one of the orders, from the devices `held` [n]."""
    stretches = torch.stack([drawn(rank, dice) for _ in range(count)])
    device = draw(odds(logits, stretches, elsewhere(allowed, held), chance), dice)
    goes = stretches & allowed[:, device].T
    placed = torch.cat((held[None], torch.where(goes, device[:, None], held)))
    return Moves(stretches, device, placed)


def gains(seconds: Floats) -> Floats:
    """Seconds of the old placement and of the new ones [1 + K] → paths [K, 2]."""
    return np.stack((np.full(len(seconds) - 1, seconds[0]), seconds[1:]), axis=1)
