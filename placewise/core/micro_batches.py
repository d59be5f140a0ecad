"""Prompts in micro-batches, as llama.cpp computes them: each reads all weights that its tokens use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewise.core.host_weights import count_rows
from placewise.costing.llama_rates import find_tail, find_touched
from placewise.costing.roofline import SOURCES
from placewise.costing.work import count_weight_bytes, work_of
from placewise.model.columns import Floats
from placewise.model.cost_error import REREAD, REWRITTEN
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.readers.run_dims import RunDims, find_run_dims


def read_weights_again(problem: Problem) -> Problem:
    """The problem in which ops of a prompt read their weights, and begin, once per micro-batch.

    Costs count them once, for all tokens together. Those by a roofline become max(seconds so far, memory) + (n − 1) ·
    overhead, with the traffic of all n micro-batches; measured ones stay. Unchanged for models that generate no text,
    and for prompts of one micro-batch. Doing it twice changes nothing.
    """
    graph, costs, dims = problem.graph, problem.costs, find_run_dims(problem.graph.source)
    if dims is None or dims.prompt_tokens <= dims.ubatch or REREAD in costs.sources:
        return problem
    times, nbytes = _count_reads(graph, dims)
    again = (graph.ops.phase == 0) & (times > 1)
    seconds, sources = costs.op_seconds.copy(), costs.op_source.copy()
    estimated, plain = costs.is_from((*SOURCES, REWRITTEN)), costs.is_from(SOURCES[:1])
    for number, device in enumerate(problem.cluster):
        ops = again & estimated[:, number] & (seconds[:, number] > 0)
        memory = nbytes / (device.memory_bandwidth * device.efficiency.get("memory", 1.0)) + device.op_overhead
        seconds[ops, number] = np.maximum(seconds[:, number], memory)[ops] + (times[ops] - 1) * device.op_overhead
        sources[ops & plain[:, number], number] = len(costs.sources)
    names = (*costs.sources, REREAD)
    return problem.with_(costs=replace(costs, op_seconds=seconds, op_source=sources, sources=names))


def _count_reads(graph: Graph, dims: RunDims) -> tuple[Floats, Floats]:
    """How often every op runs for a prompt [n_ops], and the bytes of memory traffic of all its runs [n_ops]."""
    work, weights = work_of(graph), count_weight_bytes(graph)
    rows = np.maximum(np.minimum(count_rows(graph), dims.prompt_tokens), 1.0)
    times = np.ceil(rows / dims.ubatch)
    once = find_tail(graph) | graph.ops.kind.equals("Gather") | work.op_class.equals("free")
    times[once] = 1.0
    together = find_touched(graph, work.flops, rows, dims.prompt_tokens)
    apart = find_touched(graph, work.flops, rows)
    return times, work.bytes + weights * (apart * times - together)
