"""Small PyTorch models, and a worker that splits them for real: `python split_modules.py JOB RANK`.

The job is a JSON file: how many workers there are, and cases with a model, whether tokens are split, and the style of
every module. Each worker of a group (gloo, joined through a file) runs every model whole and split by
torch.distributed.tensor, and writes down what it saw.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, KV_HEADS, INNER, WORDS, BATCH, LENGTH = 32, 8, 4, 48, 96, 2, 6


class Attention(nn.Module):
    """Grouped queries; as many heads as the device has."""

    def __init__(self, bias: bool, kv_heads: int):
        super().__init__()
        head = WIDTH // HEADS
        self.q = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.k = nn.Linear(WIDTH, kv_heads * head, bias=bias)
        self.v = nn.Linear(WIDTH, kv_heads * head, bias=bias)
        self.o = nn.Linear(WIDTH, WIDTH, bias=bias)

    def forward(self, x):
        head = WIDTH // HEADS
        q, k, v = (part(x).unflatten(-1, (-1, head)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
        return self.o(mixed.transpose(1, 2).flatten(2))


class GatedFeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class LlamaLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.mlp = Attention(False, KV_HEADS), GatedFeedForward()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    """Two layers between a vocabulary's embedding and its scores."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(2))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

    @staticmethod
    def sample():
        return (torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % WORDS,)


class BertLayer(nn.Module):
    """Normalizations after the sums, biases, GELU."""

    def __init__(self):
        super().__init__()
        self.attention = Attention(True, HEADS)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH))

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))

    @staticmethod
    def sample():
        return (torch.linspace(-1, 1, BATCH * LENGTH * WIDTH, dtype=torch.float64).reshape(BATCH, LENGTH, WIDTH),)


class Reader(nn.Module):
    """Tokens beside a memory, of which half as many tokens are known."""

    def __init__(self):
        super().__init__()
        self.up, self.side = nn.Linear(WIDTH, INNER), nn.Linear(WIDTH, INNER)
        self.down = nn.Linear(INNER, WIDTH)

    def forward(self, x, memory):
        return self.down(functional.gelu(self.up(x) + self.side(memory).sum(1, keepdim=True)))


class ReadingModel(nn.Module):
    """Layers that read a memory of `tokens` tokens; what they are given by tokens has LENGTH."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.layers = nn.ModuleList(Reader() for _ in range(3))
        self.first, self.last = GatedFeedForward(), nn.Linear(WIDTH, 4)

    def forward(self, x, memory):
        x = self.first(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x), memory)
        return self.last(x)


def reading(tokens: int = LENGTH // 2):
    """The model, and its arguments."""
    torch.manual_seed(0)
    return ReadingModel(), (torch.randn(BATCH, LENGTH, WIDTH), torch.randn(BATCH, tokens, WIDTH))


MODELS = {"llama": Llama, "bert": BertLayer}


def make_model(name: str) -> nn.Module:
    """The model with the same weights in every process."""
    torch.manual_seed(0)
    return MODELS[name]().double().eval()


def _plan(job):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    between = Shard(1) if job["tokens"] else Replicate()
    plan = {}
    for path, module in job["modules"].items():
        style = module["style"]
        if style == "colwise":
            at_end = path == "head"
            plan[path] = ColwiseParallel(
                input_layouts=between if at_end else Replicate(),
                output_layouts=Replicate() if module["gathers"] else Shard(-1),
            )
        elif style == "rowwise":
            plan[path] = RowwiseParallel(output_layouts=between)
        elif style == "embedding":
            plan[path] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        elif style == "tokens" and path.rpartition(".")[2].startswith("norm"):
            plan[path] = SequenceParallel()
    for path in {path.rpartition(".")[0] for path, module in job["modules"].items() if module["style"] == "colwise"}:
        if path:
            plan[path] = PrepareModuleInput(
                input_layouts=(between,), desired_input_layouts=(Replicate(),), use_local_output=False
            )
    return plan


def _work(job, rank: int) -> list[dict]:
    import torch.distributed as dist
    from torch.distributed.tensor import init_device_mesh

    torch.set_num_threads(1)
    store = f"file://{job['folder']}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=job["degree"])
    mesh = init_device_mesh("cpu", (job["degree"],))
    seen = [_run_case(case, mesh) for case in job["cases"]]
    dist.barrier()
    return seen


def _run_case(case, mesh) -> dict:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.distributed.tensor.parallel import parallelize_module

    whole, split = make_model(case["model"]), make_model(case["model"])
    parallelize_module(split, mesh, _plan(case))
    sizes = {}
    for path in case["modules"]:
        split.get_submodule(path).register_forward_hook(
            lambda _, __, result, path=path: sizes.update({path: list(_local(result).shape)})
        )
    sample = whole.sample()
    expected = whole(*sample)
    with CommDebugMode() as forward:
        result = _local(split(*sample))
    weight = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype).reshape(expected.shape)
    with CommDebugMode() as backward:
        (result * weight).sum().backward()
    (expected * weight).sum().backward()
    gradients = {}
    for (name, one), other in zip(whole.named_parameters(), split.parameters(), strict=True):
        gradient = other.grad.full_tensor() if isinstance(other.grad, DTensor) else other.grad
        gradients[name] = float((one.grad - gradient).abs().max())
    return {
        "error": float((expected - result).abs().max()),
        "gradients": gradients,
        "sizes": sizes,
        "shards": {name: list(_local(value).shape) for name, value in split.named_parameters()},
        "forward": _count(forward),
        "backward": _count(backward),
    }


def _local(value):
    return value.to_local() if hasattr(value, "to_local") else value


_NAMES = {"all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter"}


def _count(mode) -> dict[str, int]:
    counts: dict[str, int] = {}
    for op, times in mode.get_comm_counts().items():
        kind = next(name for part, name in _NAMES.items() if part in str(op))
        counts[kind] = counts.get(kind, 0) + times
    return counts


if __name__ == "__main__":
    task = json.loads(Path(sys.argv[1]).read_text())
    seen = _work(task, int(sys.argv[2]))
    Path(task["folder"], f"seen{sys.argv[2]}.json").write_text(json.dumps(seen))
    # The threads of gloo and of autograd may outlive the interpreter, whose end then aborts the process.
    os._exit(0)
