"""A sequence of groups → a device for each: an LSTM that reads all of them, and an attentional LSTM that decides.

The encoder, and the decoder that starts from its last state, is fed its last device and looks back at all states, are
those of Mirhoseini et al., ICML 2017 and ICLR 2018. Attention is multiplicative (Luong et al., EMNLP 2015) where the
papers' is additive: a softmax over [K, n, n] products costs one matrix multiplication. Because a logit is linear in
what attention sees, its values are what each state adds to the logits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placewise.placers.learned.policy import explored, masked
from placewise.placers.learned.sequence import SequenceOptions

MOST_WEIGHTS = 1 << 24
"""Attention weights that are kept for the gradient at once; past them they are computed again."""


class Memory(NamedTuple):
    """What the decoder starts from and looks at, for B sequences (1 where all K are the same one)."""

    states: Tensor
    """[B, n, hidden]"""
    start: tuple[Tensor, Tensor]
    """The decoder's first state and cell, [B, hidden] both."""
    chance: float
    """The share of decisions that is left to chance."""


class Sequencer(nn.Module):
    """Logits of `n_devices` for each of n groups with `width` features, decided in their order."""

    def __init__(self, width: int, n_devices: int, options: SequenceOptions) -> None:
        super().__init__()
        hidden, ways = options.hidden, 1 + options.both_ways
        self.options, self.n_devices = options, n_devices
        self.encoder = nn.LSTM(width, hidden // ways, batch_first=True, bidirectional=options.both_ways)
        self.decoder = nn.LSTM(options.device_width + hidden * options.aligned, hidden, batch_first=True)
        self.device = nn.Embedding(n_devices + 1, options.device_width)
        self.out = nn.Linear(hidden, n_devices)
        if options.attention:
            self.key = nn.Linear(hidden, hidden, bias=False)
            self.value = nn.Linear(hidden, n_devices, bias=False)
        with torch.no_grad():
            for lstm in (self.encoder, self.decoder):
                for name, bias in lstm.named_parameters():
                    if "bias_ih" in name:
                        bias[len(bias) // 4 : len(bias) // 2] += 1.0

    def encode(self, groups: Tensor, chance: float) -> Memory:
        """Read B sequences [B, n, width]; that share of the decisions shall be left to chance."""
        states, (hidden, cell) = self.encoder(groups)
        return Memory(states, (_beside(hidden), _beside(cell)), chance)

    def logits(self, memory: Memory, device: Tensor, allowed: Tensor) -> Tensor:
        """The logits [K, n, n_devices] that every group had when `device` [K, n] was decided; −inf where not allowed.

        `allowed` [B, n, n_devices].
        """
        count, n = device.shape
        nothing = torch.full((count, 1), self.n_devices)
        fed = self.device(torch.cat((nothing, device[:, :-1]), dim=1))
        if self.options.aligned:
            fed = torch.cat((fed, memory.states.expand(count, n, -1)), dim=2)
        hidden, cell = (part.expand(count, -1).contiguous()[None] for part in memory.start)
        states, _ = self.decoder(fed, (hidden, cell))
        logits = self.out(states)
        if self.options.attention:
            logits = logits + _attended(states, self._keys(memory), self.value(memory.states))
        return _explored(self._bounded(logits), allowed, memory.chance)

    @torch.no_grad()
    def decide(self, memory: Memory, allowed: Tensor, count: int, dice: torch.Generator | None) -> Tensor:
        """Devices [count, n], group after group: drawn with `dice`, or without it the likeliest given the last ones."""
        n = memory.states.shape[1]
        noise = None if dice is None else _gumbel((n, count, self.n_devices), dice)
        may = allowed.transpose(0, 1)
        keys, values = None, None
        if self.options.attention:
            keys, values = self._keys(memory).transpose(1, 2), self.value(memory.states)
        of_device, of_group = self._gates(memory)
        turn = self.decoder.all_weights[0][1].t()
        hidden, cell = (part.expand(count, -1) for part in memory.start)
        last = torch.full((count,), self.n_devices)
        found = torch.empty((n, count), dtype=torch.int64)
        for step in range(n):
            gates = torch.addmm(of_device[last] + of_group[step], hidden, turn)
            enter, keep, fresh, leave = gates.chunk(4, dim=1)
            cell = torch.sigmoid(keep) * cell + torch.sigmoid(enter) * torch.tanh(fresh)
            hidden = torch.sigmoid(leave) * torch.tanh(cell)
            logits = self.out(hidden)
            if keys is not None and values is not None:
                logits = logits + _looked_up(hidden, keys, values)
            logits = self._bounded(logits)
            if noise is None:
                last = masked(logits, may[step]).argmax(dim=1)
            else:
                last = (_explored(logits, may[step], memory.chance) + noise[step]).argmax(dim=1)
            found[step] = last
        return found.t().contiguous()

    def _gates(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """What the last device [n_devices + 1, 4 hidden] and the group [n, B, 4 hidden] add to the decoder's gates."""
        weight, _, *biases = self.decoder.all_weights[0]
        at = self.options.device_width
        of_device = self.device.weight @ weight[:, :at].t() + biases[0] + biases[1]
        if not self.options.aligned:
            return of_device, torch.zeros((memory.states.shape[1], 1, 1))
        return of_device, (memory.states @ weight[:, at:].t()).transpose(0, 1)

    def _keys(self, memory: Memory) -> Tensor:
        keys: Tensor = self.key(memory.states)
        return keys / math.sqrt(self.options.hidden)

    def _bounded(self, logits: Tensor) -> Tensor:
        logits = logits / self.options.temperature
        bound = self.options.tanh_constant
        return bound * torch.tanh(logits) if bound else logits


def _explored(logits: Tensor, allowed: Tensor, share: float) -> Tensor:
    return explored(logits, allowed, share) if share else masked(logits, allowed)


def _beside(state: Tensor) -> Tensor:
    """The last states of the encoder's ways [ways, B, hidden / ways] side by side: [B, hidden]."""
    return state.transpose(0, 1).reshape(state.shape[1], -1)


def _gumbel(shape: tuple[int, ...], dice: torch.Generator) -> Tensor:
    """What added to logits makes the largest a draw."""
    return -torch.log((-torch.log(torch.rand(shape, generator=dice))).clamp_min(1e-20))


def _looked_up(hidden: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """What attention adds for states [K, hidden], keys [B, hidden, n] and values [B, n, n_devices]: [K, n_devices]."""
    if len(keys) == 1:
        return torch.softmax(hidden @ keys[0], dim=1) @ values[0]
    weights = torch.softmax(torch.bmm(hidden[:, None], keys), dim=2)
    return torch.bmm(weights, values)[:, 0]


def _attended(states: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """What attention adds for all states: [K, n, hidden], [B, n, hidden], [B, n, n_devices] → [K, n, n_devices].

    Where the weights would fill memory, some rows at a time, and again for the gradient.
    """
    count, n, _ = states.shape
    if count * n * n <= MOST_WEIGHTS:
        return _weighed(states, keys, values)
    rows = max(MOST_WEIGHTS // n, 1)
    parts = []
    for k in range(count):
        own = k if len(keys) > 1 else 0
        for first in range(0, n, rows):
            some = states[k, first : first + rows]
            parts.append(
                checkpoint(_weighed, some, keys[own], values[own], use_reentrant=False, preserve_rng_state=False)
            )
    return torch.cat(parts).reshape(count, n, -1)


def _weighed(states: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    seen: Tensor = torch.softmax(states @ keys.transpose(-1, -2), dim=-1) @ values
    return seen
