"""Moves of segments: adjacent units in an order go to one device, starting from the best placement so far."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from placewise.model.columns import Floats
from placewise.placers.learned.policy import MIN_LOG_P, draw, mix_exploration

LONGEST = 0.25
"""Largest share of all units in one segment."""


class Moves(NamedTuple):
    """K moves from one placement: units [K, n], target devices [K], and placements [1 + K, n], the old one first."""

    segment: Tensor
    device: Tensor
    placements: Tensor


def segment_of(rank: Tensor, draws: Tensor) -> Tensor:
    """A segment [n] of an order with ranks [n]. `draws` are two numbers from 0 to 1, for its length and its place."""
    n = len(rank)
    half = (n * LONGEST + 1) ** float(draws[0]) / 2
    inside: Tensor = (rank - draws[1] * n).abs() < max(half, 0.51)
    return inside


def move_log_p(logits: Tensor, segments: Tensor, useful: Tensor, exploration: float) -> Tensor:
    """Log p [..., D] of the target device of segments [..., n]: from the mean logits of their units, and exploration.

    `logits` [n, D]; `useful` [n, D] marks moves that change a unit. A segment may go where one of its units may.
    """
    weight = segments.to(logits.dtype)
    mean = (weight @ logits.clamp_min(MIN_LOG_P)) / weight.sum(dim=-1, keepdim=True).clamp_min(1)
    may = (weight @ useful.to(logits.dtype)) > 0
    return mix_exploration(mean, may | ~may.any(dim=-1, keepdim=True), exploration)


def open_moves(allowed: Tensor, current: Tensor) -> Tensor:
    """Allowed devices [n, D] of units other than their `current` ones [n]."""
    return allowed & ~functional.one_hot(current, allowed.shape[1]).bool()


def position_ranks(place: Floats) -> Tensor:
    """The ranks [n, orders] of positions [n, orders], starting at one half."""
    return torch.from_numpy(np.argsort(np.argsort(place, axis=0, kind="stable"), axis=0) + 0.5)


def draw_segment(rank: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a segment [n] of one of the orders with ranks [n, orders]."""
    draws = torch.rand(3, generator=generator)
    return segment_of(rank[:, int(draws[0] * rank.shape[1])], draws[1:])


def draw_moves(
    logits: Tensor,
    allowed: Tensor,
    current: Tensor,
    rank: Tensor,
    exploration: float,
    count: int,
    generator: torch.Generator,
) -> Moves:
    """Draw `count` moves from the devices `current` [n], each of one segment of one of the orders."""
    segments = torch.stack([draw_segment(rank, generator) for _ in range(count)])
    device = draw(move_log_p(logits, segments, open_moves(allowed, current), exploration), generator)
    goes = segments & allowed[:, device].T
    placements = torch.cat((current[None], torch.where(goes, device[:, None], current)))
    return Moves(segments, device, placements)


def paths_of(seconds: Floats) -> Floats:
    """Seconds [1 + K] of the old placement and of the new ones → paths [K, 2]."""
    return np.stack((np.full(len(seconds) - 1, seconds[0]), seconds[1:]), axis=1)
