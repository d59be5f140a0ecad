"""A model of the time that llama.cpp takes on one device: rates, and what of them every op of a graph needs.

A prompt is computed in micro-batches, each of which reads all weights once; a token reads the weights that it uses, and
the cache. Every term is an amount of work over a rate, and the terms of an op add up. Products have rates of their own
for every type of weights, and for matrices of experts, since each is computed by another kernel.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from placewise._util.llama_defaults import MICRO_BATCH, UBATCH
from placewise.costing.work import count_weight_bytes, work_of
from placewise.model.columns import Bools, Floats
from placewise.model.graph import Graph

FLOPS, WEIGHTS, ATTENTION, CACHE = "flops", "weights", "attention", "kv cache"
VALUES, OPS, RUN = "values", "ops", "run"
"""Terms of work: FLOPs of products and bytes of their weights, both by type; FLOPs of attention; of a token bytes of
the cache too, since heads that share keys compute with them one by one; bytes of other values; ops; and 1 for a
micro-batch or a token."""
EXPERTS = " experts"
"""The end of the type of matrices of experts."""
_PRODUCTS, _ROUTER = ("Gemm", "Experts"), "ffn_gate_inp"
"""Routers occur with experts only, whose rates count their time: a hundredth."""
_FEED = re.compile(r"blk\.(\d+)\.(?:ffn|experts)")
_ATTENTION = ("Attention", "CacheUpdate")
Terms = Mapping[str, Floats]
"""Work by term: of every op [n_ops], or of a run [1]."""


@dataclass(frozen=True, slots=True)
class LlamaRates:
    """Seconds per unit of each term, of a prompt and of a token. A term that no measurement shows has 0."""

    prompt: Mapping[str, float]
    token: Mapping[str, float]

    @property
    def types(self) -> frozenset[str]:
        """The types of matrices that were measured."""
        return frozenset(term.partition(" ")[2] for term in self.token if term.startswith(f"{WEIGHTS} "))


def find_types(graph: Graph) -> frozenset[str]:
    """The types of the matrices of a GGUF model, those of experts apart: "Q4_K", "Q6_K experts"."""
    return frozenset(kind for shares in map(dict, _list_shares(graph)) for kind in shares)


def count_prompt_work(graph: Graph) -> dict[str, Floats]:
    """The work of a prompt; 0 for ops of generated tokens."""
    work, prompt, rows = work_of(graph), graph.ops.phase == 0, max(_count_rows(graph), 1)
    batches, read, part = -(-rows // _find_micro_batch(graph)), count_weight_bytes(graph), np.where(prompt, 1.0, 0.0)
    values = work.bytes - np.where(graph.ops.kind.equals("Gather"), 0.0, np.minimum(read, work.bytes))
    read *= np.where(find_tail(graph), 1, batches) * find_touched(graph, work.flops, np.full(graph.n_ops, rows))
    part[find_tail(graph)] /= rows
    terms = _split_by_type(graph, {FLOPS: part * work.flops, WEIGHTS: prompt * read})
    attends, busy = graph.ops.kind.equals_any(_ATTENTION), ~work.op_class.equals("free")
    terms[ATTENTION] = np.where(attends, part * work.flops, 0.0)
    terms[VALUES] = np.where(busy & ~attends, part * values, 0.0)
    terms[RUN] = np.where(prompt & graph.ops.kind.equals("ArgMax"), float(batches), 0.0)
    return terms


def count_token_work(graph: Graph) -> dict[str, Floats]:
    """The work of one generated token; 0 for ops of the prompt."""
    work, token = work_of(graph), graph.ops.phase == 1
    attends, busy = graph.ops.kind.equals_any(_ATTENTION), ~work.op_class.equals("free")
    terms = _split_by_type(graph, {WEIGHTS: np.where(token, work.bytes, 0.0)})
    terms[ATTENTION] = np.where(token & attends, work.flops, 0.0)
    terms[CACHE] = np.where(token & attends, work.bytes, 0.0)
    terms[OPS] = np.where(token & busy, 1.0, 0.0)
    terms[RUN] = np.where(token & graph.ops.kind.equals("ArgMax"), 1.0, 0.0)
    return terms


def add_seconds(terms: Terms, rates: Mapping[str, float]) -> Floats:
    """Seconds of work by rates; terms without a rate take no time."""
    return np.asarray(sum((rates.get(term, 0.0) * amount for term, amount in terms.items()), np.zeros(1)), np.float64)


def list_op_seconds(graph: Graph, rates: LlamaRates) -> Floats:
    """Seconds [n_ops] of every op in a whole run: the prompt once, and every generated token."""
    prompt = add_seconds(count_prompt_work(graph), rates.prompt)
    token = add_seconds(count_token_work(graph), rates.token)
    seconds: Floats = prompt + token * graph.op_repeats
    return seconds


def scale_rates(rates: LlamaRates, factors: tuple[float, float]) -> LlamaRates:
    """Rates of prompts and of tokens, times a factor each."""
    prompt, token = (
        {term: factor * rate for term, rate in each.items()}
        for each, factor in zip((rates.prompt, rates.token), factors, strict=True)
    )
    return LlamaRates(prompt, token)


def _split_by_type(graph: Graph, amounts: Terms) -> dict[str, Floats]:
    """Amounts [n_ops] of products, by term and type of their matrices: "flops Q4_K"."""
    terms: defaultdict[str, Floats] = defaultdict(lambda: np.zeros(graph.n_ops))
    for op, shares in enumerate(_list_shares(graph)):
        for kind, share in shares:
            for term, amount in amounts.items():
                terms[f"{term} {kind}"][op] = share * amount[op]
    return dict(terms)


def _list_shares(graph: Graph) -> Iterable[list[tuple[str, float]]]:
    """For every op, the types of its matrices and the share of its work of each; nothing for what is no product."""
    products = graph.ops.kind.equals_any(_PRODUCTS)
    for op in range(graph.n_ops):
        products[op] &= not graph.ops.scope[op].endswith(_ROUTER)
        sizes: defaultdict[str, float] = defaultdict(float)
        types = graph.ops.attributes[op].get("types", ()) if products[op] else ()
        for weight, kind in zip(graph.weights_of(op).tolist(), types, strict=bool(types)):
            if len(graph.weights.shape[weight]) > 1:
                sizes[f"{kind}{EXPERTS}" if graph.ops.kind[op] == "Experts" else kind] += graph.weights.bytes[weight]
        yield [(kind, size / sum(sizes.values())) for kind, size in sizes.items()]


def find_tail(graph: Graph) -> Bools:
    """The ops [n_ops] of a prompt after the last layer's attention, which llama.cpp runs for the last token alone."""
    fed = [_FEED.match(scope) for scope in graph.ops.scope]
    layer = np.array([int(match[1]) if match else -1 for match in fed], np.int32)
    tail: Bools = (layer >= 0) & (layer == layer.max(initial=0)) & (graph.ops.phase == 0)
    return tail


def find_touched(graph: Graph, flops: Floats, rows: Floats, most: int = 0) -> Floats:
    """The expected share [n_ops] of the weights that a micro-batch reads: of experts, those that a token has chosen.

    `rows` [n_ops] are the tokens for which an op is computed, at `most` so many at a time (0: those of a micro-batch).
    """
    touched, tail, most = np.ones(graph.n_ops), find_tail(graph), most or _find_micro_batch(graph)
    for op in np.flatnonzero(graph.ops.kind.equals("Experts")).tolist():
        entries = sum(np.prod(graph.weights.shape[weight]) for weight in graph.weights_of(op).tolist())
        chosen = min(float(flops[op]) / (2 * rows[op] * max(float(entries), 1.0)), 1.0)
        touched[op] = 1 - (1 - chosen) ** (1 if tail[op] else min(rows[op], most))
    return touched


def _find_micro_batch(graph: Graph) -> int:
    """Tokens of a micro-batch, as the model was read for."""
    sizes = {} if graph.source is None else graph.source.options.get("dims", {})
    return int(sizes.get(UBATCH, MICRO_BATCH))


def _count_rows(graph: Graph) -> int:
    """Tokens of the prompt, of all sequences."""
    inputs = np.flatnonzero(graph.tensors.producer < 0)
    return int(np.prod(graph.tensors.shape[int(inputs[0])])) if len(inputs) else 0
