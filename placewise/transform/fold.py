"""fold: remove the ops whose results are known before the model runs.

A file holds more than what runs: constants, casts and transposes of weights, shape arithmetic, identities. Runtimes
fold these when they load a model, so placements are decided on the folded graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from placewise.errors import GraphError
from placewise.model.columns import Bytes8, Longs, Ragged, distinct
from placewise.model.dtypes import BITS, DTYPES
from placewise.model.graph import Graph
from placewise.model.tables import RESHAPES, Edges, Interned, Tensors, Weights
from placewise.transform.boundary import remove_boundary_ops
from placewise.transform.rows import make_unique, take_ops

_PURE = frozenset({"openvino::FakeQuantize", "openvino::NotEqual", "openvino::SquaredDifference"})
_PURE |= {f"aten::{name}" for name in ("ne", "rsqrt", "diff", "clone", "flip", "roll", "square", "exp2", "expm1")}
_PURE |= {f"aten::{name}" for name in ("bucketize", "complex", "polar", "_weight_norm", "_weight_norm_interface")}
_PURE |= {f"tf::{name}" for name in ("Rsqrt", "Square", "SquaredDifference", "Xlogy", "ZerosLike", "DynamicStitch")}
"""Kinds of foreign domains whose results follow from what they read."""
_UNPACKS = frozenset({"Cast", "Sub", "Mul"})
_PASS = ("Identity", "Dropout", "Constant")
_MEASURES = frozenset({"Shape", "Size"})
_NEVER = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "If", "Loop", "Scan"})
_NEVER |= {"Bernoulli", "Multinomial", "Dropout", "SequenceMap"}
_REARRANGE = frozenset({"Transpose", *RESHAPES})
_LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})
_MAX_GROWTH = 1 << 10
"""Bytes by which a known value may exceed its arguments: shape arithmetic does, slightly."""
_MAX_ROUNDS = 100
"""Rounds in the search for candidates; longer chains of results make every op a candidate."""
_TRAINING_MODE = 2  # argument position of Dropout's switch


def fold(graph: Graph) -> Graph:
    """Return the folded view of `graph`; its results stay the same, given ONNX semantics of its kinds.

    Inputs and outputs that are ops become tensors. Three groups of ops are removed: ops with known results,
    identities (also Dropout without a training switch), and ops that no output of the model needs. Results are known
    for constants, for Shape and Size of known shapes, and for ops that read only weights and other known values,
    unless they are random, quantizing, of a foreign domain, or have a body.

    Ops that would turn their arguments into larger weights (a constant expanded to the batch), or tables into what
    one input looks up in them, stay: the weights are those of the file, whatever the batch. Likewise, weights that a
    conversion marked `decompression` unpacks keep their stored size. A known value that a kept op still reads
    becomes a weight under the tensor's name. If it is one weight in another shape or order, it keeps that weight's
    storage, so that ties survive, and its name if that is free. Ops that produce an output of the model, have state,
    or are backward (and no identities) stay. `origin` of a kept op lists its own origins, then those of the removed
    ops whose first kept consumer it is. Raises GraphError, naming the file, if no op remains.
    """
    folded, before = remove_boundary_ops(graph), -1
    while folded.n_ops not in (0, before):
        before, folded = folded.n_ops, _fold_once(folded)
    source = graph.source
    if graph.n_ops and not folded.n_ops:
        where = "" if source is None else source.path
        raise GraphError("nothing in it computes a result", where=where, remedy="export the model again")
    if source is None:
        return folded
    transforms = source.transforms if source.transforms[-1:] == ("fold",) else (*source.transforms, "fold")
    return folded.with_source(replace(source, view="folded", transforms=transforms))


@dataclass(slots=True)
class _FoldPlan:
    """What happens to each op and tensor.

    `kept` [n_ops]; `known` [n_tensors]: values that exist before the model runs; `alias` [n_tensors]: the tensor
    that replaces this one (mostly itself); `weight_of` [n_tensors]: the weight that it equals, seen through
    identities, or −1; `rearranged` [n_tensors]: the weight that it holds in another shape, order or packing, or −1;
    `packed`: bytes and element type in the file, for tensors that only unpack a weight.
    """

    kept: list[bool]
    known: list[bool]
    alias: list[int]
    weight_of: list[int]
    rearranged: list[int]
    packed: dict[int, tuple[int, int]] = field(default_factory=dict)


def _fold_once(graph: Graph) -> Graph:
    plan = _plan(graph)
    _drop_unused(graph, plan)
    return graph if all(plan.kept) and _is_tidy(graph) else _rebuild(graph, plan)


def _is_tidy(graph: Graph) -> bool:
    """Whether every weight and every entry of the vocabularies is in use."""
    ops = graph.ops
    vocabularies: tuple[Interned[Any], ...] = (ops.kind, ops.scope, ops.attributes)
    columns = [(column.codes, len(column.values)) for column in vocabularies]
    columns.append((graph.weight_edges.value, len(graph.weights)))
    return all(len(distinct(codes)) == count for codes, count in columns)


def _plan(graph: Graph) -> _FoldPlan:
    """Forward over the ops: which results are known, and which ops only pass a value on."""
    n = graph.n_tensors
    plan = _FoldPlan([True] * graph.n_ops, [False] * n, list(range(n)), [-1] * n, [-1] * n)
    training = bool(graph.ops.backward.any())  # weights change then, and Dropout drops
    backward = graph.ops.backward & ~graph.ops.kind.equals("Identity")
    output, fixed = graph.tensors.output.tolist(), (backward | (graph.ops.state_bytes > 0)).tolist()
    for op in _candidates(graph):
        kind, makes = graph.ops.kind[op], graph.outputs_of(op)
        if fixed[op] or not makes or any(output[tensor] for tensor in makes):
            continue
        passed = _find_passed_value(graph, op, kind, training)
        if passed is not None:
            plan.kept[op] = False
            is_weight, value = passed
            plan.alias[makes[0]] = makes[0] if is_weight else plan.alias[value]
            plan.weight_of[makes[0]] = value if is_weight else plan.weight_of[value]
            plan.known[makes[0]] = not training if is_weight else plan.known[value]
            plan.rearranged[makes[0]] = -1 if is_weight else plan.rearranged[value]
        elif _is_known(graph, op, kind, plan, training):
            plan.kept[op] = False
            for tensor in makes:
                plan.known[tensor] = True
            if kind in _REARRANGE:
                plan.rearranged[makes[0]] = _find_rearranged_weight(graph, op, plan)
            if kind in _UNPACKS or kind in _REARRANGE:
                _unpack(graph, op, plan)
    return plan


def _candidates(graph: Graph) -> list[int]:
    """The ops that may be removed, ascending: certain kinds, and ops that read only results of such ops."""
    starts = np.diff(graph.in_offsets) == 0
    for kind in (*_PASS, *_MEASURES):
        starts |= graph.ops.kind.equals(kind)
    maker, reader = graph.tensors.producer[graph.edges.value], graph.edges.consumer
    candidates = starts
    for _ in range(_MAX_ROUNDS):
        reached = np.ones(graph.n_ops, np.bool_)
        reached[reader[(maker < 0) | ~candidates[maker]]] = False
        before, candidates = candidates, starts | reached
        if np.array_equal(before, candidates):
            return np.flatnonzero(candidates).tolist()
    return list(range(graph.n_ops))


def _find_rearranged_weight(graph: Graph, op: int, plan: _FoldPlan) -> int:
    """The weight that `op` only reshapes or reorders, or −1."""
    is_weight, value = _read_arguments(graph, op).get(0, (False, -1))
    if not is_weight and value >= 0:
        value = plan.weight_of[value] if plan.weight_of[value] >= 0 else plan.rearranged[value]
    result = graph.outputs_of(op)[0]
    return value if value >= 0 and graph.weights.bytes[value] == graph.tensors.bytes[result] else -1


def _unpack(graph: Graph, op: int, plan: _FoldPlan) -> None:
    """Record the stored form of a weight that a conversion marked `decompression` unpacks, also through the shift and
    scale that follow: programs keep the weight packed, and unpack it as they compute.
    """
    result, total, best = graph.outputs_of(op)[0], 0, (-1, 0, -1)
    marked = bool(graph.ops.attributes[op].get("decompression"))
    arguments = _read_arguments(graph, op)
    for position in arguments if graph.ops.kind[op] in ("Sub", "Mul") else (0,):
        is_weight, value = arguments.get(position, (True, -1))
        weight = value if is_weight else plan.weight_of[value]
        if not is_weight and value in plan.packed:
            nbytes, dtype, root = *plan.packed[value], plan.rearranged[value]
        elif weight >= 0:
            nbytes, dtype = int(graph.weights.bytes[weight]), int(graph.weights.dtype[weight])
            root = weight if marked else -1
        else:
            nbytes, dtype, root = int(graph.tensors.bytes[value]), 0, -1
        total += nbytes
        best = max(best, (nbytes, dtype, root)) if root >= 0 else best
    root = best[2]
    if root >= 0 and math.prod(graph.weights.shape[root]) == math.prod(graph.tensors.shape[result]):
        plan.packed[result], plan.rearranged[result] = (total, best[1]), root


def _is_known(graph: Graph, op: int, kind: str, plan: _FoldPlan, training: bool) -> bool:
    makes, reads, uses = graph.outputs_of(op), graph.inputs_of(op), graph.weights_of(op)
    if graph.tensors.bytes[makes.start : makes.stop].min() < 0:
        return False
    if kind in _MEASURES:
        return bool((graph.tensors.bytes[reads] >= 0).all())
    if kind == "Constant":
        return True
    if kind in _NEVER or kind.startswith("Random") or ("::" in kind and kind not in _PURE) or (training and len(uses)):
        return False
    known = len(reads) + len(uses) > 0 and all(plan.known[tensor] for tensor in reads.tolist())
    return known and not _changes_size(graph, op, kind)


def _changes_size(graph: Graph, op: int, kind: str) -> bool:
    """Whether results have more elements than arguments; for lookups of floats, also the reverse."""
    results = slice(graph.outputs_of(op).start, graph.outputs_of(op).stop)
    tensors, weights, reads, uses = graph.tensors, graph.weights, graph.inputs_of(op), graph.weights_of(op)
    entries_in = _count_entries(tensors.bytes[reads], tensors.dtype[reads]) + _count_entries(
        weights.bytes[uses], weights.dtype[uses]
    )
    dtype = tensors.dtype[results]
    growth = (_count_entries(tensors.bytes[results], dtype) - entries_in) * int(BITS[dtype].max(initial=0)) / 8
    is_table = kind in _LOOKUPS and "float" in DTYPES[int(dtype[0])]
    return growth > _MAX_GROWTH or (is_table and -growth > _MAX_GROWTH)


def _count_entries(nbytes: Longs, dtype: Bytes8) -> int:
    return int((nbytes * 8 // np.maximum(BITS[dtype], 1)).sum())


def _find_passed_value(graph: Graph, op: int, kind: str, training: bool) -> tuple[bool, int] | None:
    """The value that an op only passes on, as (is it a weight, its id); None if the op has any other effect."""
    if kind not in _PASS:
        return None
    arguments = _read_arguments(graph, op)
    more = _TRAINING_MODE in arguments or training if kind == "Dropout" else len(arguments) > 1
    if more or any(len(graph.consumers_of(tensor)) for tensor in graph.outputs_of(op)[1:]):
        return None
    return arguments.get(0)


def _read_arguments(graph: Graph, op: int) -> dict[int, tuple[bool, int]]:
    """The arguments of an op by position: (is it a weight, its id)."""
    arguments = {}
    tables = ((False, graph.edges, graph.in_offsets), (True, graph.weight_edges, graph.weight_offsets))
    for is_weight, edges, offsets in tables:
        for row in range(int(offsets[op]), int(offsets[op + 1])):
            arguments[int(edges.position[row])] = (is_weight, int(edges.value[row]))
    return arguments


def _drop_unused(graph: Graph, plan: _FoldPlan) -> None:
    """Backward over the ops: keep those that an output of the model needs (all, in a graph without outputs)."""
    if not graph.tensors.output.any():
        return
    if _all_used(graph, plan):
        return
    output, producer = graph.tensors.output.tolist(), graph.tensors.producer.tolist()
    needed = (graph.ops.backward | (graph.ops.state_bytes > 0)).tolist()
    for op in reversed(range(graph.n_ops)):
        makes = graph.outputs_of(op)
        plan.kept[op] &= needed[op] or not makes or any(output[tensor] for tensor in makes)
        if plan.kept[op]:
            for tensor in graph.inputs_of(op).tolist():
                source = plan.alias[tensor]
                if producer[source] >= 0:
                    needed[producer[source]] = True


def _all_used(graph: Graph, plan: _FoldPlan) -> bool:
    """Whether each kept op has a kept reader or stays for another reason."""
    kept, producer = np.array(plan.kept, np.bool_), graph.tensors.producer
    used = graph.ops.backward | (graph.ops.state_bytes > 0) | (np.diff(graph.out_offsets) == 0)
    has_producer = producer >= 0
    used[producer[has_producer & graph.tensors.output]] = True
    source = producer[np.array(plan.alias, np.int64)[graph.edges.value[kept[graph.edges.consumer]]]]
    used[source[source >= 0]] = True
    return bool(used[kept].all())


def _rebuild(graph: Graph, plan: _FoldPlan) -> Graph:
    kept, known, weight_of = np.array(plan.kept, bool), np.array(plan.known, bool), np.array(plan.weight_of, np.int64)
    rank = np.cumsum(kept) - 1
    live = kept[graph.edges.consumer]
    value = np.array(plan.alias, np.int64)[graph.edges.value[live]]
    consumer, position = rank[graph.edges.consumer[live]], graph.edges.position[live]
    fixed = known[value] | (weight_of[value] >= 0)
    fresh = np.unique(value[fixed & (weight_of[value] < 0)])
    weight_of[fresh] = len(graph.weights) + np.arange(len(fresh))

    used = kept[graph.weight_edges.consumer]
    weight = np.concatenate((graph.weight_edges.value[used], weight_of[value[fixed]]))
    user = np.concatenate((rank[graph.weight_edges.consumer[used]], consumer[fixed]))
    argument = np.concatenate((graph.weight_edges.position[used], position[fixed]))
    rows, weight = np.unique(weight, return_inverse=True)
    by_user = np.lexsort((argument, user))

    producer = graph.tensors.producer
    stays = (producer < 0) | kept[producer]
    tensor_rank = np.cumsum(stays) - 1
    return Graph(
        ops=take_ops(graph.ops, np.flatnonzero(kept), _origins(graph, plan)),
        tensors=_take_tensors(graph.tensors, np.flatnonzero(stays), rank),
        weights=_take_weights(graph, plan, fresh, rows),
        edges=Edges(tensor_rank[value[~fixed]], consumer[~fixed], position[~fixed]),
        weight_edges=Edges(weight[by_user].astype(np.int32), user[by_user], argument[by_user]),
        source=graph.source,
        phases=graph.phases,
    )


def _origins(graph: Graph, plan: _FoldPlan) -> Ragged:
    """The origins of kept ops: their own, and those of removed ops whose first kept consumer they are."""
    owner = [op if kept else -1 for op, kept in enumerate(plan.kept)]
    inherited: dict[int, list[int]] = {}
    for op in reversed(range(graph.n_ops)):
        if not plan.kept[op]:
            users = (owner[user] for tensor in graph.outputs_of(op) for user in graph.consumers_of(tensor).tolist())
            owner[op] = min((user for user in users if user >= 0), default=-1)
            if owner[op] >= 0:
                inherited.setdefault(owner[op], []).extend(graph.ops.origin[op])
    kept = (op for op, stays in enumerate(plan.kept) if stays)
    return Ragged.of((*graph.ops.origin[op], *sorted(inherited.get(op, ()))) for op in kept)


def _take_tensors(tensors: Tensors, rows: Longs, op_rank: Longs) -> Tensors:
    producer = tensors.producer[rows]
    return Tensors(
        name=tuple(tensors.name[row] for row in rows.tolist()),
        producer=np.where(producer < 0, -1, op_rank[producer]),
        bytes=tensors.bytes[rows],
        dtype=tensors.dtype[rows],
        shape=tensors.shape.take(rows),
        output=tensors.output[rows],
    )


def _take_weights(graph: Graph, plan: _FoldPlan, fresh: Longs, rows: Longs) -> Weights:
    """The old weights in `rows`, followed by the tensors `fresh`, which become weights."""
    weights, tensors = graph.weights, graph.tensors
    origin = np.array(plan.rearranged, np.int64)[fresh]
    stored = [plan.packed.get(row, (int(tensors.bytes[row]), int(tensors.dtype[row]))) for row in fresh.tolist()]
    nbytes, dtype = np.array(stored, np.int64).reshape(-1, 2).T
    kept = rows[rows < len(weights)]
    names = [*weights.name, *_fresh_names(graph, fresh, origin, kept)]
    storage = weights.storage.max(initial=-1) + 1 + np.arange(len(fresh))
    storage[origin >= 0] = weights.storage[origin[origin >= 0]]
    storage = np.concatenate((weights.storage, storage))
    shapes = Ragged.of((*weights.shape, *(tensors.shape[tensor] for tensor in fresh.tolist())))
    return Weights(
        name=tuple(names[row] for row in rows.tolist()),
        bytes=np.concatenate((weights.bytes, nbytes))[rows],
        dtype=np.concatenate((weights.dtype, dtype.astype(np.int8)))[rows],
        shape=shapes.take(rows),
        storage=storage[rows],
        trainable=np.concatenate((weights.trainable, np.where(origin >= 0, weights.trainable[origin], True)))[rows]
        if len(weights)
        else np.ones(len(rows), np.bool_),
    )


def _fresh_names(graph: Graph, fresh: Longs, origin: Longs, kept: Longs) -> list[str]:
    taken = {graph.weights.name[weight] for weight in kept.tolist()}
    names = []
    for tensor, weight in zip(fresh.tolist(), origin.tolist(), strict=True):
        own = graph.weights.name[weight] if weight >= 0 else ""
        names.append(make_unique(own if own and own not in taken else graph.tensors.name[tensor], taken))
    return names
