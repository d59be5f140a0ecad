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


def price_all_experts(problem: Problem) -> Problem:
    """The problem in which mixtures of Llama 4 read and compute all of their experts, as `Llama4TextMoe` does.

    Unchanged for other models, and where costs are measured. Doing it twice changes nothing.
    """
    header, graph = find_made_header(problem), problem.graph
    if header is None or header.architecture != LLAMA_4 or DENSE in problem.costs.sources:
        return problem
    work, weights = work_of(graph), count_weight_bytes(graph)
    flops, nbytes = work.flops.copy(), work.bytes.copy()
    for op in np.flatnonzero(graph.ops.kind.equals("Experts")).tolist():
        hidden, index = graph.inputs_of(op)[:2].tolist()
        chosen, experts = graph.tensors.shape[index][-1], int(graph.ops.attributes[op]["experts"])
        read = weights[op] * share_used(chosen, experts, prod(graph.tensors.shape[hidden][:-1]))
        flops[op] *= experts / chosen
        nbytes[op] = weights[op] + (nbytes[op] - read) * experts / chosen
    return apply_work(problem, replace(work, flops=flops, bytes=nbytes), DENSE)
