"""Mixtures of which transformers computes all experts for all tokens: Llama 4's, which other runtimes route."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from placewise.core.compute_buffer import find_made_header
from placewise.core.llama_ops import apply_work
from placewise.costing.rules.llm import share_used
from placewise.costing.work import count_weight_bytes, work_of
from placewise.model.cost_error import DENSE
from placewise.model.problem import Problem
from placewise.readers.huggingface.llama_header import LLAMA_4

_KINDS = ("Experts", "Expert", "Combine")
"""Ops that compute experts, together or apart."""


def price_all_experts(problem: Problem) -> Problem:
    """The problem in which mixtures of Llama 4 read and compute all of their experts, as `Llama4TextMoe` does.

    Unchanged for other models, and where costs are measured. Doing it twice changes nothing.
    """
    header, graph = find_made_header(problem), problem.graph
    if header is None or header.architecture != LLAMA_4 or DENSE in problem.costs.sources:
        return problem
    work, weights = work_of(graph), count_weight_bytes(graph)
    flops, nbytes = work.flops.copy(), work.bytes.copy()
    for op in np.flatnonzero(graph.ops.kind.equals_any(_KINDS)).tolist():
        known, read = graph.ops.attributes[op], graph.inputs_of(op).tolist()
        if graph.ops.kind[op] == "Experts":
            tokens, chosen = prod(graph.tensors.shape[read[0]][:-1]), graph.tensors.shape[read[1]][-1]
        else:
            tokens, chosen = int(known["tokens"]), int(known["chosen"])
        part, used = int(known["experts"]) / chosen, share_used(chosen, int(known["experts"]), tokens)
        flops[op] *= part
        nbytes[op] = weights[op] + (nbytes[op] - weights[op] * used) * part
    return apply_work(problem, replace(work, flops=flops, bytes=nbytes), DENSE)
