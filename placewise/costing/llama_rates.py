"""A model of the time that llama.cpp takes on one device: rates, and what of them every op of a graph needs.

A prompt is computed in micro-batches, each of which reads all weights once; a token reads the weights that it uses, and
the cache. Every term is an amount of work over a rate, and the terms of an op add up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewise._util.llama_defaults import MICRO_BATCH
from placewise.costing.work import count_weight_bytes, work_of
from placewise.model.columns import Bools, Floats
from placewise.model.graph import Graph

PROMPT = ("flops", "attention", "batches")
"""Terms of a prompt: FLOPs of products, FLOPs of attention, and bytes of weights times micro-batches."""
TOKEN = ("bytes", "cache")
"""Terms of a token: bytes of weights and results, and bytes of keys and values."""
_ATTENTION = ("Attention", "CacheUpdate")


@dataclass(frozen=True, slots=True)
class LlamaRates:
    """Seconds per unit of each term of `PROMPT` and of `TOKEN`; 0 for a term that no measurement shows."""

    prompt: tuple[float, ...]
    token: tuple[float, ...]


def count_prompt_work(graph: Graph) -> Floats:
    """The work [n_ops, 3] of a prompt, by the terms of `PROMPT`; 0 for ops of generated tokens."""
    work, prompt = work_of(graph), graph.ops.phase == 0
    attends = _find_attention(graph)
    batches = -(-_count_rows(graph) // MICRO_BATCH)
    columns = work.flops * ~attends, work.flops * attends, count_weight_bytes(graph) * batches
    return np.stack([np.where(prompt, column, 0.0) for column in columns], axis=1)


def count_token_work(graph: Graph) -> Floats:
    """The work [n_ops, 2] of one generated token, by the terms of `TOKEN`; 0 for ops of the prompt."""
    work, token = work_of(graph), graph.ops.phase == 1
    attends = _find_attention(graph)
    return np.stack([np.where(token & ~attends, work.bytes, 0.0), np.where(token & attends, work.bytes, 0.0)], axis=1)


def list_op_seconds(graph: Graph, rates: LlamaRates) -> Floats:
    """Seconds [n_ops] of every op in a whole run: the prompt once, and every generated token."""
    prompt = count_prompt_work(graph) @ np.array(rates.prompt)
    token = count_token_work(graph) @ np.array(rates.token)
    seconds: Floats = prompt + token * graph.op_repeats
    return seconds


def _find_attention(graph: Graph) -> Bools:
    attends: Bools = np.any([graph.ops.kind.equals(kind) for kind in _ATTENTION], axis=0)
    return attends


def _count_rows(graph: Graph) -> int:
    """Tokens of the prompt, of all sequences."""
    inputs = np.flatnonzero(graph.tensors.producer < 0)
    return int(np.prod(graph.tensors.shape[int(inputs[0])])) if len(inputs) else 0
