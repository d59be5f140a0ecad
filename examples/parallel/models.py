"""Small models as functions that return a module and the example inputs of one micro-batch.

`run_parallel.py`, which `placewise export --to torch` writes, takes such a function as FILE:FUNCTION.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Grouped queries with rotated positions; as many heads as the weights of this device make."""

    def __init__(self, width: int, heads: int, kv_heads: int, *, bias: bool, causal: bool) -> None:
        super().__init__()
        self.head, self.causal = width // heads, causal
        self.q_proj = nn.Linear(width, width, bias=bias)
        self.k_proj = nn.Linear(width, kv_heads * self.head, bias=bias)
        self.v_proj = nn.Linear(width, kv_heads * self.head, bias=bias)
        self.o_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x: torch.Tensor, turn: torch.Tensor | None = None) -> torch.Tensor:
        parts = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q, k, v = (part.unflatten(-1, (-1, self.head)).transpose(1, 2) for part in parts)
        if turn is not None:
            q, k = rotate(q, turn), rotate(k, turn)
        grouped = q.shape[1] != k.shape[1]
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=grouped)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


def rotate(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Pairs of features turned by angles [length, width of a head]."""
    one, other = x.chunk(2, -1)
    return x * turn.cos() + torch.cat((-other, one), -1) * turn.sin()


class GatedFeedForward(nn.Module):
    """Gate and values, and the way back."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(self, width: int, heads: int, kv_heads: int, inner: int) -> None:
        super().__init__()
        self.input_norm, self.post_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.self_attn = Attention(width, heads, kv_heads, bias=False, causal=True)
        self.mlp = GatedFeedForward(width, inner)

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_norm(x), turn)
        return x + self.mlp(self.post_norm(x))


class Llama(nn.Module):
    """Words → scores of the next word."""

    def __init__(self, words: int, width: int, heads: int, kv_heads: int, inner: int, layers: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, kv_heads, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, words, bias=False)
        pace = 10000.0 ** -(torch.arange(0, width // heads, 2) / (width // heads))
        self.register_buffer("pace", torch.cat((pace, pace)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        turn = torch.arange(ids.shape[1])[:, None] * self.pace
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, turn)
        return self.lm_head(self.norm(x))


class BertLayer(nn.Module):
    """Norms behind the sums, biases everywhere."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, heads, bias=True, causal=False)
        self.attention_norm, self.output_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.intermediate, self.output = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention_norm(x + self.attention(x))
        return self.output_norm(x + self.output(functional.gelu(self.intermediate(x))))


class Bert(nn.Module):
    """Words → two scores per word; the words' table is not tied."""

    def __init__(self, words: int, width: int, heads: int, inner: int, layers: int, length: int) -> None:
        super().__init__()
        self.word_embeddings, self.position_embeddings = nn.Embedding(words, width), nn.Embedding(length, width)
        self.embedding_norm = nn.LayerNorm(width)
        self.layer = nn.ModuleList(BertLayer(width, heads, inner) for _ in range(layers))
        self.classifier = nn.Linear(width, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1])
        x = self.embedding_norm(self.word_embeddings(ids) + self.position_embeddings(places))
        for layer in self.layer:
            x = layer(x)
        return self.classifier(x)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.relu = nn.ReLU()
        self.downsample = nn.Identity()
        if stride > 1 or channels != width:
            self.downsample = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.downsample(x))


class ResNet(nn.Module):
    """Pictures → scores of classes."""

    def __init__(self, width: int, blocks: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1, self.relu, self.maxpool = nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        channels = width
        for number, count in enumerate(blocks, 1):
            made = []
            for place in range(count):
                made.append(Block(channels, width << (number - 1), 2 if number > 1 and place == 0 else 1))
                channels = width << (number - 1)
            self.add_module(f"layer{number}", nn.Sequential(*made))
        self.stages = len(blocks)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, self.stages + 1):
            x = getattr(self, f"layer{number}")(x)
        return self.fc(self.avgpool(x).flatten(1))


def llama(
    words: int = 96, width: int = 32, layers: int = 4, batch: int = 2, length: int = 8
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A decoder with eight heads, four of them for keys and values."""
    torch.manual_seed(0)
    made = Llama(words, width, heads=8, kv_heads=4, inner=3 * width, layers=layers)
    return made, (torch.randint(words, (batch, length)),)


def bert(
    words: int = 96, width: int = 32, layers: int = 4, batch: int = 2, length: int = 8
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """An encoder with eight heads."""
    torch.manual_seed(0)
    made = Bert(words, width, heads=8, inner=4 * width, layers=layers, length=length)
    return made, (torch.randint(words, (batch, length)),)


def resnet(
    width: int = 8, blocks: tuple[int, ...] = (2, 2), batch: int = 2, size: int = 32
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Convolutions with batch normalization, which takes its statistics from each micro-batch."""
    torch.manual_seed(0)
    return ResNet(width, blocks, classes=10), (torch.randn(batch, 3, size, size),)


def in_float64(name: str, **sizes: Any) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """One of the models above in double precision, to tell rounding from errors."""
    made, args = {"llama": llama, "bert": bert, "resnet": resnet}[name](**sizes)
    return made.double(), tuple(value.double() if value.is_floating_point() else value for value in args)
