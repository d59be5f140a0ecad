"""What llama.cpp computes otherwise than transformers, in models that are read from their configuration.

Their graphs compute all scores of a causal prompt, and expand the whole cache of latent attention
(DeepSeek-V2, arXiv 2405.04434, 2.1) for every token. llama.cpp skips scores that the mask hides, and attends to the
latents themselves (`build_attn` with ``wk_b`` and ``wv_b``, llama-graph.cpp). Positions turn queries, and keys, in
one op each (`ggml_rope_ext`), a gate acts in the op that it gates (`ggml_swiglu_split`), and a router chooses in one
(`ggml_cuda_op_topk_moe`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewise.core.compute_buffer import find_made_header
from placewise.core.host_weights import CACHE_UPDATE
from placewise.costing.flops import compute_cost
from placewise.costing.op_instance import CLASSES, Cost, OpInstance, OpValue
from placewise.costing.roofline import SOURCES, cost_table
from placewise.costing.work import OpWork, count_weight_bytes, work_of
from placewise.model.columns import Bools
from placewise.model.cost_error import REWRITTEN
from placewise.model.dtypes import bytes_of
from placewise.model.graph import Graph
from placewise.model.problem import Problem

_FREE, _KIND, _CHOICE = CLASSES.index("free"), "Attention", "TopK"
_ACTIVATIONS = ("Gelu", "Relu", "Sigmoid", "Swish")


def price_llama_ops(problem: Problem) -> Problem:
    """The problem in which ops take the time of those that llama.cpp runs for them.

    Costs by a roofline change by the ratio of its estimates; measured ones stay. Unchanged for models that are read
    from other files than configurations, and for those that generate no text. Doing it twice changes nothing.
    """
    if find_made_header(problem) is None or REWRITTEN in problem.costs.sources:
        return problem
    return apply_work(problem, _count_llama_work(problem.graph, work_of(problem.graph)), REWRITTEN)


def apply_work(problem: Problem, work: OpWork, source: str) -> Problem:
    """The problem whose estimates by a roofline are those of other `work`, under the name `source`."""
    graph, costs = problem.graph, problem.costs
    old, new = (cost_table(graph, problem.cluster, work=each).op_seconds for each in (work_of(graph), work))
    changed = costs.is_from(SOURCES) & np.isfinite(costs.op_seconds) & (old > 0) & (new != old)
    seconds, sources = costs.op_seconds.copy(), costs.op_source.copy()
    seconds[changed] *= new[changed] / old[changed]
    sources[changed & costs.is_from(SOURCES[:1])] = len(costs.sources)
    names = (*costs.sources, source)
    return problem.with_(costs=replace(costs, op_seconds=seconds, op_source=sources, sources=names))


def find_priced_work(problem: Problem) -> OpWork:
    """The work of the ops by which a problem is priced: of those of llama.cpp where it has their times."""
    work = work_of(problem.graph)
    rewritten = find_made_header(problem) is not None and REWRITTEN in problem.costs.sources
    return _count_llama_work(problem.graph, work) if rewritten else work


@dataclass(frozen=True, slots=True)
class _Latent:
    """Latent attention: the op itself, the one that stores the latents, the product that expands them, and what moves
    its result.
    """

    op: int
    update: int
    expand: int
    moves: tuple[int, ...]


def _count_llama_work(graph: Graph, work: OpWork) -> OpWork:
    """The work of every op, as llama.cpp does it."""
    flops, nbytes, classes = work.flops.copy(), work.bytes.copy(), work.op_class.codes.copy()
    attends = _list_attention(graph)
    for op in attends:
        flops[op] = _attend(graph, op, [_shape(graph, tensor) for tensor in _list_inputs(graph, op)]).flops
    weights = count_weight_bytes(graph)
    for found in _list_latent(graph, attends):
        latent, turned = (_shape(graph, tensor) for tensor in graph.outputs_of(found.update))
        batch, heads, queries, _ = _shape(graph, _list_inputs(graph, found.op)[0])
        width, share = latent[-1] + turned[-1], queries / latent[-2]
        cost = _attend(graph, found.op, [(batch, heads, queries, width), (*latent[:-1], width), latent])
        flops[found.op], nbytes[found.op] = cost.flops, cost.nbytes
        flops[found.expand] *= share
        nbytes[found.expand] = weights[found.expand] + share * (nbytes[found.expand] - weights[found.expand])
        classes[list(found.moves)] = _FREE
    classes[_find_turned(graph, work, attends) | _find_chosen(graph, work) | _find_gates(graph, work)] = _FREE
    flops[classes == _FREE] = nbytes[classes == _FREE] = 0.0
    return replace(work, flops=flops, bytes=nbytes, op_class=replace(work.op_class, codes=classes))


def _find_turned(graph: Graph, work: OpWork, attends: list[int]) -> Bools:
    """All but the last [n_ops] of the ops that turn queries, and keys, by their position."""
    scopes = graph.ops.scope.codes.astype(np.int64) * (len(graph.phases) + 1) + graph.ops.phase
    ends = dict(zip(scopes[attends].tolist(), attends, strict=True))
    small = _is_small(graph, work)
    inside = [small[op] and op < ends.get(scope, -1) for op, scope in enumerate(scopes.tolist())]
    fused = np.zeros(graph.n_ops, np.bool_)
    for op in np.flatnonzero(small | work.op_class.equals("free"))[::-1].tolist():
        readers = [reader for tensor in graph.outputs_of(op) for reader in graph.consumers_of(tensor).tolist()]
        fused[op] = bool(readers) and all(inside[reader] for reader in readers)
        inside[op] = inside[op] or bool(fused[op])
    return fused & small


def _find_chosen(graph: Graph, work: OpWork) -> Bools:
    """The ops [n_ops] by which a router chooses, but one: those between its matrix and those of the experts."""
    products, chooses = _has_matrix(graph), graph.ops.kind.equals(_CHOICE)
    run = np.cumsum(products)
    last = {int(run[op]): op for op in np.flatnonzero(chooses).tolist()}
    bare = np.diff(graph.weight_offsets) == 0
    small = _is_small(graph, work) | work.op_class.equals("elementwise") | (work.op_class.equals("reduction") & bare)
    found: Bools = np.isin(run, list(last)) & small & ~products
    found[list(last.values())] = False
    return found


def _find_gates(graph: Graph, work: OpWork) -> Bools:
    """The activations [n_ops] that gate a product of their size, in one op with it."""
    found = np.zeros(graph.n_ops, np.bool_)
    for op in np.flatnonzero(_is_small(graph, work) & graph.ops.kind.equals_any(_ACTIVATIONS)).tolist():
        outputs = graph.outputs_of(op)
        readers = graph.consumers_of(outputs[0]).tolist()
        if len(readers) == 1 and graph.ops.kind[readers[0]] == "Mul":
            shapes = [_shape(graph, tensor) for tensor in graph.inputs_of(readers[0]).tolist()]
            found[op] = len(shapes) == 2 and shapes[0] == shapes[1]
    return found


def _has_matrix(graph: Graph) -> Bools:
    """The ops [n_ops] with a weight of two dimensions or more."""
    found, edges = np.zeros(graph.n_ops, np.bool_), graph.weight_edges
    matrices = np.array([len(shape) > 1 for shape in graph.weights.shape], np.bool_)
    found[edges.consumer[matrices[edges.value]]] = True
    return found


def _is_small(graph: Graph, work: OpWork) -> Bools:
    """The ops [n_ops] without weights and state that compute value by value, or move values."""
    small = work.op_class.equals("elementwise") | work.op_class.equals("movement")
    found: Bools = small & (np.diff(graph.weight_offsets) == 0) & ~graph.ops.kind.equals(CACHE_UPDATE)
    return found


def _attend(graph: Graph, op: int, shapes: Sequence[tuple[int, ...]]) -> Cost:
    """The cost of an op of attention between queries, keys and values of these shapes [batch, heads, length, width].

    Only queries and the result are moved: the op that stores keys and values counts what is read of them.
    """
    kind = graph.tensors.dtype_name(_list_inputs(graph, op)[0])
    result = (*shapes[0][:-1], shapes[2][-1])
    query, key, value, out = (OpValue("", shape, bytes_of(shape, kind), kind) for shape in (*shapes[:3], result))
    inputs = {0: query, 1: replace(key, bytes=0), 2: replace(value, bytes=0)}
    return compute_cost(OpInstance(_KIND, {**graph.ops.attributes[op], "causal": 1}, inputs, (out,)))


def _list_attention(graph: Graph) -> list[int]:
    """Every op of attention between queries, keys and values with four dimensions."""
    found: list[int] = np.flatnonzero(graph.ops.kind.equals(_KIND)).tolist()
    return [op for op in found if all(len(_shape(graph, tensor)) == 4 for tensor in _list_inputs(graph, op))]


def _list_latent(graph: Graph, attends: list[int]) -> Iterator[_Latent]:
    """Those of some ops of attention for which a product expands what is stored."""
    updates = np.flatnonzero(graph.ops.kind.equals(CACHE_UPDATE))
    for before, op in zip([-1, *attends], attends, strict=False):
        update = int(updates[np.searchsorted(updates, op) - 1]) if len(updates) else -1
        if update <= before or len(graph.outputs_of(update)) != 2:
            continue
        after = {update}
        for between in range(update + 1, op):
            if any(int(graph.tensors.producer[tensor]) in after for tensor in graph.inputs_of(between)):
                after.add(between)
        expand = [between for between in after if len(graph.weights_of(between))]
        if len(expand) == 1:
            yield _Latent(op, update, expand[0], tuple(after - {update, *expand}))


def _list_inputs(graph: Graph, op: int) -> list[int]:
    """Queries, keys and values of an op of attention."""
    tensors: list[int] = graph.inputs_of(op).tolist()
    return tensors[:3]


def _shape(graph: Graph, tensor: int) -> tuple[int, ...]:
    return graph.tensors.shape[tensor]
