"""Targets that compute on an accelerator with weights which host memory keeps, and pay for moving them.

A `device_map` moves all weights at every call (`store_on_hosts`). llama.cpp does for prompts alone (`offload_prompts`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placewise._util.llama_defaults import OFFLOADED_ROWS, UBATCH
from placewise.costing.llama_rates import find_tail, find_touched
from placewise.costing.work import count_weight_bytes, work_of
from placewise.model.cluster import Device, is_rpc
from placewise.model.columns import Bools, Floats, Ints
from placewise.model.cost_error import MOVED, OFFLOADED
from placewise.model.dtypes import bytes_of
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import CORE
from placewise.readers.run_dims import find_run_dims

CACHE_UPDATE = "CacheUpdate"
STAGED = 4
"""How often a byte is read or written that is copied to a GPU of Apple within one memory, by way of a staging buffer
(``ggml_metal_set_tensor_async``)."""
SMALL = 1e6
"""Bytes of weights whose copies are not worth a word, such as the factor of Gemma's embedding."""
LARGE_MICRO_BATCH = 4096
"""Tokens of the largest micro-batch that is advised."""


def is_apple(device: Device) -> bool:
    """Whether a device is a GPU of Apple, whatever it is called."""
    return device.name.lower().startswith("mps") or (
        device.kind == "gpu" and any(note.startswith("Apple ") for note in device.notes)
    )


def find_accelerators(problem: Problem) -> Bools:
    """The devices [n_devices] that llama.cpp runs beside the processor, of which a core is a thread."""
    cores = [device.kind == CORE for device in problem.cluster]
    found: Bools = ~problem.cluster.is_host & ~np.array(cores, np.bool_)
    return found


def find_main_accelerator(problem: Problem) -> int:
    """The first accelerator that may run ops; −1 if there is none."""
    return _first(problem.allowed.any(axis=0) & ~problem.cluster.is_host)


def find_lender(problem: Problem) -> int:
    """The accelerator on which llama.cpp computes prompts of layers in host memory: the one whose command names it
    first. Of those that may run ops and are no RPC servers, the fastest at it; −1 if there is none.
    """
    lenders = _list_lenders(problem)
    return _choose_lender(problem, lenders, _find_copies(problem) if len(lenders) > 1 else None)


def store_on_hosts(problem: Problem) -> Problem:
    """The problem in which ops on hosts take their time on the first accelerator, and the time to move their weights
    there. Doing it twice changes nothing.
    """
    main = find_main_accelerator(problem)
    if main < 0 or MOVED in problem.costs.sources:
        return problem
    weights = count_weight_bytes(problem.graph).astype(np.float64)
    copies = _Copies(np.ones(problem.n_ops, np.bool_), weights, np.where(weights > 0, 1.0, 0.0))
    return _compute_on(problem, main, problem.cluster.is_host, copies, MOVED)


def offload_prompts(problem: Problem) -> Problem:
    """The problem in which the ops of layers in host memory take their time on an accelerator where they compute many
    tokens, and the time to copy their weights and the cache there for every micro-batch: of experts, those that its
    tokens choose.

    llama.cpp does so with products for 32 tokens and more at a time, of a prompt or of many sequences (``offload_op``
    of its back ends), but not on RPC servers; what lies between such products follows them
    (``ggml_backend_sched_split_graph``). The cache is written, and embeddings are looked up, on the host, as is what
    follows the last attention of a prompt, for one token. Copies of activations, small beside weights, are left out.
    Unchanged for models that generate no text. Doing it twice changes nothing.
    """
    lenders = _list_lenders(problem)
    if not lenders or OFFLOADED in problem.costs.sources or (copies := _find_copies(problem)) is None:
        return problem
    main = _choose_lender(problem, lenders, copies)
    return _compute_on(problem, main, ~find_accelerators(problem), copies, OFFLOADED)


def count_prompt_copies(problem: Problem, placement: Placement) -> int:
    """How often llama.cpp copies weights from host memory to a card for one prompt: once for each of its micro-batches.
    0 where the plan has none to copy, or `SMALL` ones.
    """
    priced, dims = offload_prompts(problem), find_run_dims(problem.graph.source)
    if dims is None or OFFLOADED not in priced.costs.sources:
        return 0
    sources = priced.costs.op_source[np.arange(problem.n_ops), placement.device]
    copied = (sources == priced.costs.sources.index(OFFLOADED)) & (problem.graph.ops.phase == 0)
    nbytes = count_weight_bytes(problem.graph)[copied].sum()
    return -(-dims.prompt_tokens // dims.ubatch) if nbytes > SMALL else 0


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


@dataclass(frozen=True, slots=True, eq=False)
class _Copies:
    """The `ops` [n_ops] that run on an accelerator though a host has them, the bytes [n_ops] that each has copied
    there at a time, and how many `times` [n_ops].
    """

    ops: Bools
    nbytes: Floats
    times: Floats


def _list_lenders(problem: Problem) -> list[int]:
    """The accelerators that may run ops and are no RPC servers."""
    servers = np.array([is_rpc(name) for name in problem.cluster.names], np.bool_)
    found: list[int] = np.flatnonzero(problem.allowed.any(axis=0) & find_accelerators(problem) & ~servers).tolist()
    return found


def _choose_lender(problem: Problem, lenders: list[int], copies: _Copies | None) -> int:
    """The fastest of the lenders at what has copies, the first where nothing has; −1 of none."""
    if copies is None:
        return next(iter(lenders), -1)
    host = _first(problem.cluster.is_host)
    return min(lenders, key=lambda lender: float(_lend(problem, lender, host, copies)[copies.ops].sum()))


def _find_copies(problem: Problem) -> _Copies | None:
    """What llama.cpp computes on an accelerator of layers in host memory; None if nothing."""
    graph, dims = problem.graph, find_run_dims(problem.graph.source)
    if dims is None:
        return None
    together = np.where(graph.ops.phase == 0, dims.prompt_tokens, dims.batch)
    rows = np.maximum(np.minimum(count_rows(graph), together), 1.0)
    offloaded = np.minimum(rows, dims.ubatch) >= OFFLOADED_ROWS
    offloaded &= ~(graph.ops.kind.equals("Gather") | graph.ops.kind.equals(CACHE_UPDATE) | find_tail(graph))
    weights, times = count_weight_bytes(graph), np.ceil(rows / dims.ubatch)
    if not (offloaded & (weights > 0)).any():
        return None
    nbytes = weights * find_touched(graph, work_of(graph).flops, rows)
    nbytes += _count_cache_bytes(graph, together, dims.ubatch)
    return _Copies(offloaded, nbytes, np.where(nbytes > 0, times, 0.0))


def _count_cache_bytes(graph: Graph, together: Ints, micro_batch: int) -> Floats:
    """Bytes [n_ops] of keys and values that attention sees, on the mean of the micro-batches of its tokens.

    `together` [n_ops] are the tokens of all sequences for which an op is computed.
    """
    nbytes = np.zeros(graph.n_ops)
    updates = graph.ops.kind.equals(CACHE_UPDATE)
    for op in np.flatnonzero(graph.ops.kind.equals("Attention")).tolist():
        makers = {int(graph.tensors.producer[tensor]) for tensor in graph.inputs_of(op)}
        for update in (maker for maker in makers if maker >= 0 and updates[maker]):
            seen, tokens = _count_seen_bytes(graph, update), int(together[op])
            if graph.ops.phase[op] == 0:
                sequences = graph.tensors.shape[graph.outputs_of(update)[0]][0]
                most = sequences * graph.ops.attributes[update]["capacity"]
                ends = np.minimum(np.arange(micro_batch, tokens + micro_batch, micro_batch), min(most, tokens))
                seen *= float(ends.mean()) / (sequences * graph.ops.attributes[update]["visible"])
            nbytes[op] += seen
    return nbytes


def _count_seen_bytes(graph: Graph, update: int) -> float:
    """Bytes of all keys and values that are seen once an op has stored new ones."""
    tensors, bits = graph.outputs_of(update), graph.ops.attributes[update].get("bits")
    widths = [8 * bytes_of((1,), graph.tensors.dtype_name(tensor)) for tensor in tensors] if bits is None else bits
    sizes = [float(np.prod(graph.tensors.shape[tensor])) for tensor in tensors]
    return sum(size * float(width) / 8 for size, width in zip(sizes, widths, strict=True))


def _lend(problem: Problem, main: int, host: int, copies: _Copies) -> Floats:
    """Seconds [n_ops] of ops on the device `main`, after the copies from a host (−1: of any)."""
    cluster = problem.cluster
    way = cluster.link_class[len(cluster), main]
    bandwidth = float(cluster.class_bandwidth[way])
    if is_apple(cluster.devices[main]):
        bandwidth = min(bandwidth, cluster.devices[main].memory_bandwidth / STAGED)
    pace = 1 / bandwidth + (1 / cluster.devices[host].weight_bandwidth if host >= 0 else 0.0)
    moved = np.where(copies.times > 0, cluster.class_latency[way] + copies.nbytes * pace, 0.0) * copies.times
    seconds: Floats = problem.costs.op_seconds[:, main] + moved * problem.graph.op_repeats
    return seconds


def _compute_on(problem: Problem, main: int, hosts: Bools, copies: _Copies, source: str) -> Problem:
    """The problem in which ops on `hosts` [n_devices] run on the device `main`."""
    costs = problem.costs
    seconds, sources = costs.op_seconds.copy(), costs.op_source.copy()
    ops = copies.ops & np.isfinite(seconds[:, main])
    for host in np.flatnonzero(hosts).tolist():
        there = ops & np.isfinite(seconds[:, host])
        seconds[there, host] = _lend(problem, main, host, copies)[there]
        sources[there, host] = len(costs.sources)
    names = (*costs.sources, source)
    return problem.with_(costs=replace(costs, op_seconds=seconds, op_source=sources, sources=names))


def count_rows(graph: Graph) -> Floats:
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
