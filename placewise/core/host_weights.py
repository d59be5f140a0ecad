"""Targets that compute on an accelerator with weights which host memory keeps, and pay for moving them.

A `device_map` moves all weights at every call (`store_on_hosts`). llama.cpp does for prompts alone (`offload_prompts`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewise._util.llama_defaults import OFFLOADED_ROWS, UBATCH
from placewise.costing.llama_rates import find_tail, find_touched
from placewise.costing.work import count_weight_bytes, work_of
from placewise.model.cluster import is_rpc
from placewise.model.columns import Bools, Floats
from placewise.model.cost_error import MOVED, OFFLOADED
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import CORE
from placewise.readers.run_dims import find_run_dims

LARGE_MICRO_BATCH = 4096
"""Tokens of the largest micro-batch that is advised."""


def find_accelerators(problem: Problem) -> Bools:
    """The devices [n_devices] that llama.cpp runs beside the processor, of which a core is a thread."""
    cores = [device.kind == CORE for device in problem.cluster]
    found: Bools = ~problem.cluster.is_host & ~np.array(cores, np.bool_)
    return found


def find_main_accelerator(problem: Problem) -> int:
    """The first accelerator that may run ops; −1 if there is none."""
    return _first(problem.allowed.any(axis=0) & ~problem.cluster.is_host)


def find_lender(problem: Problem) -> int:
    """The accelerator on which llama.cpp computes prompts of layers in host memory: the first that may run ops and is
    no RPC server; −1 if there is none.
    """
    servers = np.array([is_rpc(name) for name in problem.cluster.names], np.bool_)
    return _first(problem.allowed.any(axis=0) & find_accelerators(problem) & ~servers)


def store_on_hosts(problem: Problem) -> Problem:
    """The problem in which ops on hosts take their time on the first accelerator, and the time to move their weights
    there. Doing it twice changes nothing.
    """
    main = find_main_accelerator(problem)
    if main < 0 or MOVED in problem.costs.sources:
        return problem
    moves = np.where(count_weight_bytes(problem.graph) > 0, 1.0, 0.0)
    return _compute_on(problem, main, problem.cluster.is_host, np.ones(problem.n_ops, np.bool_), moves, MOVED)


def offload_prompts(problem: Problem) -> Problem:
    """The problem in which ops that read weights in host memory for many tokens take their time on an accelerator, and
    the time to copy these weights there for every micro-batch: of experts, those that its tokens choose.

    llama.cpp does so for 32 tokens and more at a time, of a prompt or of many sequences (``offload_op`` of its back
    ends), but not on RPC servers; it runs what follows the last attention of a prompt for one token. Copies of
    activations, small beside weights, are left out. Unchanged for models that generate no text. Doing it twice changes
    nothing.
    """
    main, graph, dims = find_lender(problem), problem.graph, find_run_dims(problem.graph.source)
    if main < 0 or dims is None or OFFLOADED in problem.costs.sources:
        return problem
    together = np.where(graph.ops.phase == 0, dims.prompt_tokens, dims.batch)
    rows = np.maximum(np.minimum(_count_rows(graph), together), 1.0)
    offloaded = (count_weight_bytes(graph) > 0) & (rows >= OFFLOADED_ROWS)
    offloaded &= ~(graph.ops.kind.equals("Gather") | find_tail(graph))
    if not offloaded.any():
        return problem
    moves = np.ceil(rows / dims.ubatch) * find_touched(graph, work_of(graph).flops, rows)
    return _compute_on(problem, main, ~find_accelerators(problem), offloaded, moves, OFFLOADED)


def count_prompt_copies(problem: Problem, placement: Placement) -> int:
    """How often llama.cpp copies weights from host memory to a card for one prompt: once for each of its micro-batches.
    0 where the plan has none to copy.
    """
    priced, dims = offload_prompts(problem), find_run_dims(problem.graph.source)
    if dims is None or OFFLOADED not in priced.costs.sources:
        return 0
    sources = priced.costs.op_source[np.arange(problem.n_ops), placement.device]
    copied = (sources == priced.costs.sources.index(OFFLOADED)) & (problem.graph.ops.phase == 0)
    return -(-dims.prompt_tokens // dims.ubatch) if copied.any() else 0


def describe_prompt_copies(problem: Problem, placement: Placement) -> tuple[str, ...]:
    """A note where a larger micro-batch would let llama.cpp copy the weights of a plan less often."""
    copies, dims = count_prompt_copies(problem, placement), find_run_dims(problem.graph.source)
    if dims is None or copies < 2 or dims.ubatch >= LARGE_MICRO_BATCH:
        return ()
    larger = min(1 << (dims.prompt_tokens - 1).bit_length(), LARGE_MICRO_BATCH)
    fewer = -(-dims.prompt_tokens // larger)
    often = "once" if fewer == 1 else f"{fewer} times"
    return (
        f"the weights that a prompt reads in host memory are copied for every micro-batch, {copies} times: "
        f"--dim {UBATCH}={larger} copies them {often}, with larger compute buffers",
    )


def _compute_on(problem: Problem, main: int, hosts: Bools, ops: Bools, moves: Floats, source: str) -> Problem:
    """The problem in which `ops` [n_ops] on `hosts` [n_devices] run on the device `main`, after so many `moves` [n_ops]
    of their weights there each time.
    """
    costs, cluster, nbytes = problem.costs, problem.cluster, count_weight_bytes(problem.graph)
    seconds, sources = costs.op_seconds.copy(), costs.op_source.copy()
    way = cluster.link_class[len(cluster), main]
    ops = ops & np.isfinite(seconds[:, main])
    for host in np.flatnonzero(hosts).tolist():
        pace = 1 / cluster.class_bandwidth[way] + 1 / cluster.devices[host].weight_bandwidth
        moved = np.where(moves > 0, cluster.class_latency[way] + nbytes * pace, 0.0) * moves
        there = ops & np.isfinite(seconds[:, host])
        seconds[there, host] = (costs.op_seconds[:, main] + moved * problem.graph.op_repeats)[there]
        sources[there, host] = len(costs.sources)
    names = (*costs.sources, source)
    return problem.with_(costs=replace(costs, op_seconds=seconds, op_source=sources, sources=names))


def _count_rows(graph: Graph) -> Floats:
    """The rows [n_ops] of every op's first result: at least the tokens that it is computed for at a time."""
    rows = np.zeros(graph.n_ops)
    for tensor in reversed(range(graph.n_tensors)):
        shape = graph.tensors.shape[tensor]
        if graph.tensors.producer[tensor] >= 0:
            rows[graph.tensors.producer[tensor]] = float(np.prod(shape[:-1])) if len(shape) > 1 else 1.0
    return rows


def _first(found: Bools) -> int:
    places = np.flatnonzero(found)
    return int(places[0]) if len(places) else -1
