"""What ColocRL and HDP share: an LSTM encoder, an LSTM decoder with attention, and moves of segments.

The decoder starts from the encoder's last state, is fed its last device, and attends to all states (Mirhoseini et al.,
ICML 2017 and ICLR 2018). Attention is multiplicative (Luong et al., EMNLP 2015), where the papers' is additive: a
softmax over [K, n, n] products costs one matrix multiplication. Logits are linear in the result of attention, so its
values are the contributions of states to the logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placewise.errors import PlacerError
from placewise.placers.learned.options import PLAIN, LearningOptions, require_at_least
from placewise.placers.learned.policy import (
    Policy,
    Price,
    Rollout,
    draw,
    draw_gumbel,
    draw_segment,
    mask_logits,
    mix_exploration,
    open_moves,
    paths_of,
    score_choices,
)

PAPER: Mapping[str, Any] = {
    **PLAIN, "failure_penalty": 1e4, "hidden": 512, "aligned": False, "moving": 0.0, "rate": 1e-3,
}  # fmt: skip
"""What the papers of ColocRL and HDP share. A failure counts as √10,000 = 100."""
MAX_WEIGHTS = 1 << 24
"""Largest number of attention weights that are kept for the gradient; more are computed again."""


@dataclass(frozen=True)
class SequenceOptions(LearningOptions):
    """Options of a sequence-to-sequence policy.

    `hidden` is the width of encoder and decoder, `device_width` that of the device that the decoder is fed. `aligned`:
    the decoder is also fed the encoder's state at the group that it decides. `both_ways`: the encoder is bidirectional.
    A share `moving` of updates starts from the best placement so far: a segment of groups moves to one device, and the
    reward is the gain (0: none, as in the paper). Logits are divided by `temperature`, then bounded by `tanh_constant`
    · tanh (0: not bounded).

    The defaults of `entropy`, `rate`, `aligned` and the algorithm were chosen on random graphs of 14 to 48 ops.
    """

    hidden: int = 64
    device_width: int = 16
    aligned: bool = True
    both_ways: bool = False
    temperature: float = 1.0
    tanh_constant: float = 5.0
    moving: float = 0.9
    rate: float = 3e-3
    entropy: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, hidden=1, device_width=1)
        if self.both_ways and self.hidden % 2:
            raise PlacerError(f"hidden is {self.hidden}", remedy="give an even number for a bidirectional encoder")
        self.require_shares("moving")
        self.require_numbers("temperature", above_zero=True)
        self.require_numbers("tanh_constant")


class SequencePolicy(Policy):
    """A policy that may draw moves of segments, by logits [n_units, D] of the devices of units.

    `rank` are the ranks of units in the orders of segments, `allowed` [n_units, D] the devices of units.
    """

    options: SequenceOptions
    rank: Tensor
    allowed: Tensor

    def draw_start(self, price: Price, generator: torch.Generator) -> Tensor | None:
        """The devices [n_units] from which this update moves segments; None if it draws whole placements."""
        start = self.best_so_far(price)
        moves = start is not None and float(torch.rand((), generator=generator)) < self.options.moving
        return start if moves else None

    def draw_segments(
        self, logits: Tensor, start: Tensor, count: int, generator: torch.Generator, price: Price
    ) -> Rollout:
        """Draw and price `count` moves from the devices `start` [n_units]."""
        segments = torch.stack([draw_segment(self.rank, generator) for _ in range(count)])
        device = draw(self.move_log_p(logits, segments, open_moves(self.allowed, start), 1), generator)
        moved = torch.where(segments & self.allowed[:, device].T, device[:, None], start)
        path = paths_of(price(self.view.placements(torch.cat((start[None], moved)).numpy())))
        choices = {"segment": segments, "move": device, "start": start.expand(count, -1)}
        return Rollout(choices, path[:, 1], path)

    def score_segments(self, logits: Tensor, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Log p and entropy [K, 1] of moves."""
        useful = open_moves(self.allowed, choices["start"][0])
        log_p = self.move_log_p(logits, choices["segment"], useful, 1)
        return score_choices(log_p[:, None], choices["move"][:, None])


class EncoderMemory(NamedTuple):
    """The output of the encoder for B sequences (1 if all K are the same one)."""

    states: Tensor
    """[B, n, hidden]"""
    start: tuple[Tensor, Tensor]
    """The decoder's first state and cell, [B, hidden] both."""
    exploration: float
    """The share of decisions that is uniformly random."""


class Sequencer(nn.Module):
    """Logits of `n_devices` for each of n groups with `width` features, which are decided in their order."""

    def __init__(self, width: int, n_devices: int, options: SequenceOptions) -> None:
        super().__init__()
        hidden, ways = options.hidden, 1 + options.both_ways
        self.options, self.n_devices = options, n_devices
        self.encoder = nn.LSTM(width, hidden // ways, batch_first=True, bidirectional=options.both_ways)
        self.decoder = nn.LSTM(options.device_width + hidden * options.aligned, hidden, batch_first=True)
        self.device = nn.Embedding(n_devices + 1, options.device_width)
        self.out = nn.Linear(hidden, n_devices)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.value = nn.Linear(hidden, n_devices, bias=False)
        with torch.no_grad():
            for lstm in (self.encoder, self.decoder):
                for name, bias in lstm.named_parameters():
                    if "bias_ih" in name:
                        bias[len(bias) // 4 : len(bias) // 2] += 1.0

    def encode(self, groups: Tensor, exploration: float) -> EncoderMemory:
        """Encode B sequences [B, n, width]. `exploration` is the share of uniformly random decisions."""
        states, (hidden, cell) = self.encoder(groups)
        return EncoderMemory(states, (_join_directions(hidden), _join_directions(cell)), exploration)

    def logits(self, memory: EncoderMemory, device: Tensor, allowed: Tensor) -> Tensor:
        """The logits [K, n, n_devices] of every group, given the devices [K, n] before it; −inf where not allowed.

        `allowed` [B, n, n_devices].
        """
        count, n = device.shape
        nothing = torch.full((count, 1), self.n_devices)
        fed = self.device(torch.cat((nothing, device[:, :-1]), dim=1))
        if self.options.aligned:
            fed = torch.cat((fed, memory.states.expand(count, n, -1)), dim=2)
        hidden, cell = (part.expand(count, -1).contiguous()[None] for part in memory.start)
        states, _ = self.decoder(fed, (hidden, cell))
        logits = self.out(states) + _attend(states, self._keys(memory), self.value(memory.states))
        return _explore(self._bound(logits), allowed, memory.exploration)

    @torch.no_grad()
    def decide(self, memory: EncoderMemory, allowed: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
        """Decide devices [count, n], group after group: drawn with `generator`, or the likeliest without it."""
        n = memory.states.shape[1]
        noise = None if generator is None else draw_gumbel((n, count, self.n_devices), generator)
        may = allowed.transpose(0, 1)
        keys, values = self._keys(memory).transpose(1, 2), self.value(memory.states)
        of_device, of_group = self._gates(memory)
        turn = self.decoder.all_weights[0][1].t()
        hidden, cell = (part.expand(count, -1) for part in memory.start)
        last = torch.full((count,), self.n_devices)
        devices = torch.empty((n, count), dtype=torch.int64)
        for step in range(n):
            gates = torch.addmm(of_device[last] + of_group[step], hidden, turn)
            enter, keep, fresh, leave = gates.chunk(4, dim=1)
            cell = torch.sigmoid(keep) * cell + torch.sigmoid(enter) * torch.tanh(fresh)
            hidden = torch.sigmoid(leave) * torch.tanh(cell)
            logits = self._bound(self.out(hidden) + _attend_once(hidden, keys, values))
            if noise is None:
                last = mask_logits(logits, may[step]).argmax(dim=1)
            else:
                last = (_explore(logits, may[step], memory.exploration) + noise[step]).argmax(dim=1)
            devices[step] = last
        return devices.t().contiguous()

    def _gates(self, memory: EncoderMemory) -> tuple[Tensor, Tensor]:
        """Inputs of the decoder's gates: from last devices [n_devices + 1, 4 hidden], from groups [n, B, 4 hidden]."""
        weight, _, *biases = self.decoder.all_weights[0]
        at = self.options.device_width
        of_device = self.device.weight @ weight[:, :at].t() + biases[0] + biases[1]
        if not self.options.aligned:
            return of_device, torch.zeros((memory.states.shape[1], 1, 1))
        return of_device, (memory.states @ weight[:, at:].t()).transpose(0, 1)

    def _keys(self, memory: EncoderMemory) -> Tensor:
        keys: Tensor = self.key(memory.states)
        return keys / math.sqrt(self.options.hidden)

    def _bound(self, logits: Tensor) -> Tensor:
        logits = logits / self.options.temperature
        bound = self.options.tanh_constant
        return bound * torch.tanh(logits) if bound else logits


def _explore(logits: Tensor, allowed: Tensor, share: float) -> Tensor:
    return mix_exploration(logits, allowed, share) if share else mask_logits(logits, allowed)


def _join_directions(state: Tensor) -> Tensor:
    """Concatenate the last states of the encoder's directions [d, B, hidden / d]: [B, hidden]."""
    return state.transpose(0, 1).reshape(state.shape[1], -1)


def _attend_once(hidden: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of one step: states [K, hidden], keys [B, hidden, n], values [B, n, n_devices] → [K, n_devices]."""
    if len(keys) == 1:
        return torch.softmax(hidden @ keys[0], dim=1) @ values[0]
    weights = torch.softmax(torch.bmm(hidden[:, None], keys), dim=2)
    return torch.bmm(weights, values)[:, 0]


def _attend(states: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of all steps: [K, n, hidden], [B, n, hidden], [B, n, n_devices] → [K, n, n_devices].

    Long sequences are computed some rows at a time, and again for the gradient.
    """
    count, n, _ = states.shape
    if count * n * n <= MAX_WEIGHTS:
        return _weigh(states, keys, values)
    rows = max(MAX_WEIGHTS // n, 1)
    parts = []
    for k in range(count):
        own = k if len(keys) > 1 else 0
        for first in range(0, n, rows):
            some = states[k, first : first + rows]
            parts.append(
                checkpoint(_weigh, some, keys[own], values[own], use_reentrant=False, preserve_rng_state=False)
            )
    return torch.cat(parts).reshape(count, n, -1)


def _weigh(states: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return torch.softmax(states @ keys.transpose(-1, -2), dim=-1) @ values
