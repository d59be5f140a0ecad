"""Products between DequantizeLinear and QuantizeLinear (the QDQ form), which runtimes fuse into one int8 op.

ONNX Runtime replaces them by QLinearConv, QLinearMatMul and QGemm, and by MatMulIntegerToFloat if no QuantizeLinear
follows (onnxruntime.ai, Quantize ONNX Models).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from placewise.model.cluster import Cluster, Device
from placewise.model.columns import Longs, frozen
from placewise.model.graph import Graph
from placewise.model.problem import Problem, cached_per_problem

_FROM_INT8 = ("DequantizeLinear", "com.microsoft::DequantizeLinear")
_TO_INT8 = ("QuantizeLinear", "com.microsoft::QuantizeLinear")
_PRODUCTS = ("Conv", "Gemm", "MatMul")
_ALWAYS_ROUNDED = "Conv"
"""Runs in float unless a QuantizeLinear reads its result."""
_FUSE_ALWAYS = frozenset({"cpu", "core"})
"""Kinds of devices whose runtime fuses products in QDQ form, even where they have no peak for int8."""


class QuantizedProducts(NamedTuple):
    """The products that run in int8, and the ops that are parts of them.

    `rounded` has, for each product, the QuantizeLinear that is the only reader of its result, or −1; `source_bytes`,
    for each DequantizeLinear of 8 bits, the bytes of what it reads; `parts` are those that only such products read,
    and `of_weights` those of them that read a weight.
    """

    rounded: dict[int, int]
    source_bytes: dict[int, int]
    parts: frozenset[int]
    of_weights: frozenset[int]


@lru_cache(maxsize=2)
def find_quantized_products(graph: Graph) -> QuantizedProducts:
    """The products of which both factors come from a DequantizeLinear of 8 bits."""
    sources = {op: _find_source(graph, op) for op in np.flatnonzero(graph.ops.kind.equals_any(_FROM_INT8)).tolist()}
    source_bytes = {op: size for op, (size, _) in sources.items() if size >= 0}
    rounded = dict[int, int]()
    if source_bytes:
        for op in np.flatnonzero(graph.ops.kind.equals_any(_PRODUCTS)).tolist():
            makers = {position: producer for position, producer, _ in list_arguments(graph, op)}
            quantizer = _find_quantizer(graph, op)
            always = graph.ops.kind[op] == _ALWAYS_ROUNDED
            if {makers.get(0), makers.get(1)} <= source_bytes.keys() and (quantizer >= 0 or not always):
                rounded[op] = quantizer
    parts = frozenset(op for op in source_bytes if _is_part(graph, op, rounded))
    return QuantizedProducts(rounded, source_bytes, parts, frozenset(op for op in parts if sources[op][1]))


@cached_per_problem
def held_bytes(problem: Problem) -> Longs:
    """The bytes [n_tensors] that a device holds for each tensor: those of the tensor, but of int8 where the ops around
    it run as one, which is where all devices fuse them and they are in one block (`list_fused_sets`).

    What is dequantized from a weight then takes none, beside that weight. Unknown sizes count 0.
    """
    graph, block = problem.graph, problem.block
    held = np.maximum(graph.tensors.bytes, 0).astype(np.int64)
    if not _all_fuse(problem.cluster):
        return frozen(held, np.int64)
    found = find_quantized_products(graph)
    for op in found.parts:
        made = graph.outputs_of(op).start
        if (block[graph.consumers_of(made)] == block[op]).all():
            held[made] = 0 if op in found.of_weights else found.source_bytes[op]
    for op, quantizer in found.rounded.items():
        if quantizer >= 0 and block[quantizer] == block[op]:
            held[graph.outputs_of(op).start] = held[graph.outputs_of(quantizer).start]
    return frozen(held, np.int64)


def fuses_quantized(device: Device) -> bool:
    """Whether a device's runtime fuses products in QDQ form: it has int8, or is a CPU, where all runtimes do."""
    return "int8" in device.peak_flops or device.kind in _FUSE_ALWAYS


def _all_fuse(cluster: Cluster) -> bool:
    return all(map(fuses_quantized, cluster))


def list_fused_sets(graph: Graph, cluster: Cluster) -> tuple[tuple[str, ...], ...]:
    """The names of the ops that run as one, where all devices fuse them: each such product with the parts that nothing
    else reads.
    """
    if not _all_fuse(cluster):
        return ()
    found, name = find_quantized_products(graph), graph.ops.name
    sets = list[tuple[str, ...]]()
    for op, quantizer in found.rounded.items():
        makers = {producer for _, producer, _ in list_arguments(graph, op)} & found.parts
        own = [maker for maker in makers if len(_list_readers(graph, maker)) == 1]
        rounded = [quantizer] if quantizer >= 0 else []
        if own or rounded:
            sets.append(tuple(name[member] for member in sorted((*own, op, *rounded))))
    return tuple(sets)


def list_arguments(graph: Graph, op: int) -> list[tuple[int, int, int]]:
    """Position, producer and bytes of the tensors that an op reads."""
    rows = slice(int(graph.in_offsets[op]), int(graph.in_offsets[op + 1]))
    value, position = graph.edges.value[rows], graph.edges.position[rows]
    producer, size = graph.tensors.producer[value], graph.tensors.bytes[value]
    return list(zip(position.tolist(), producer.tolist(), size.tolist(), strict=True))


def _find_source(graph: Graph, op: int) -> tuple[int, bool]:
    """Bytes of the value that an op dequantizes, −1 if that is not of 8 bits, and whether it is a weight."""
    for edges, offsets, values, is_weight in (
        (graph.edges, graph.in_offsets, graph.tensors, False),
        (graph.weight_edges, graph.weight_offsets, graph.weights, True),
    ):
        for row in range(int(offsets[op]), int(offsets[op + 1])):
            number = int(edges.value[row])
            if edges.position[row] == 0 and values.dtype_name(number) in ("int8", "uint8"):
                return int(values.bytes[number]), is_weight
    return -1, False


def _find_quantizer(graph: Graph, op: int) -> int:
    """The QuantizeLinear that is the only reader of an op's results, or −1."""
    readers = _list_readers(graph, op)
    return readers[0] if len(readers) == 1 and graph.ops.kind[readers[0]] in _TO_INT8 else -1


def _is_part(graph: Graph, op: int, products: dict[int, int]) -> bool:
    """Whether only such products read what an op makes."""
    readers = _list_readers(graph, op)
    return bool(readers) and products.keys() >= set(readers)


def _list_readers(graph: Graph, op: int) -> list[int]:
    """The ops that read what an op makes; none where the model returns it."""
    outputs = graph.outputs_of(op)
    if graph.tensors.output[outputs].any():
        return []
    return [user for tensor in outputs for user in graph.consumers_of(tensor).tolist()]
