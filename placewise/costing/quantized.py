"""Products between DequantizeLinear and QuantizeLinear (the QDQ form), which runtimes fuse into one int8 op.

ONNX Runtime replaces them by QLinearConv, QLinearMatMul and QGemm, and by MatMulIntegerToFloat if no QuantizeLinear
follows (onnxruntime.ai, Quantize ONNX Models).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewise.costing.op_instance import CLASSES
from placewise.costing.work import OpWork
from placewise.model.dtypes import dtype_code
from placewise.model.graph import Graph
from placewise.model.tables import Interned

_FROM_INT8 = ("DequantizeLinear", "com.microsoft::DequantizeLinear")
_TO_INT8 = ("QuantizeLinear", "com.microsoft::QuantizeLinear")
_PRODUCTS = ("Conv", "Gemm", "MatMul")
_ALWAYS_ROUNDED = "Conv"
"""Runs in float unless a QuantizeLinear reads its result."""


def quantize_work(graph: Graph, work: OpWork) -> OpWork:
    """Return the work of every op on a device that computes in int8: products in int8, and the ops fused into them
    free.

    Both factors come from a DequantizeLinear of 8 bits. A DequantizeLinear that only products read is part of them,
    as is a QuantizeLinear that is the only reader of a product; one with other readers keeps its cost.
    """
    of_int8 = {
        op: _count_quantized_bytes(graph, op) for op in np.flatnonzero(graph.ops.kind.equals_any(_FROM_INT8)).tolist()
    }
    of_int8 = {op: size for op, size in of_int8.items() if size >= 0}
    if not of_int8:
        return work
    nbytes, dtype, op_class = work.bytes.copy(), work.dtype.copy(), work.op_class.codes.copy()
    flops, fused = work.flops.copy(), set[int]()
    for op in np.flatnonzero(graph.ops.kind.equals_any(_PRODUCTS)).tolist():
        makers = {position: producer for position, producer, _ in _arguments(graph, op)}
        rounded = _find_quantizer(graph, op)
        if not {makers.get(0), makers.get(1)} <= of_int8.keys() or (
            graph.ops.kind[op] == _ALWAYS_ROUNDED and rounded < 0
        ):
            continue
        fused.add(op)
        dtype[op] = dtype_code("int8")
        for position, producer, size in _arguments(graph, op):
            nbytes[op] -= size - of_int8[producer] if position < 2 else 0
        if rounded >= 0:
            nbytes[op] -= _count_output_bytes(graph, op) - _count_output_bytes(graph, rounded)
            flops[rounded], nbytes[rounded], op_class[rounded] = 0.0, 0.0, CLASSES.index("free")
    for op in of_int8:
        readers = [user for tensor in graph.outputs_of(op) for user in graph.consumers_of(tensor).tolist()]
        if readers and fused.issuperset(readers) and not graph.tensors.output[graph.outputs_of(op)].any():
            flops[op], nbytes[op], op_class[op] = 0.0, 0.0, CLASSES.index("free")
    return replace(work, flops=flops, bytes=nbytes, dtype=dtype, op_class=Interned(CLASSES, op_class))


def _arguments(graph: Graph, op: int) -> list[tuple[int, int, int]]:
    """Position, producer and bytes of the tensors that an op reads."""
    rows = slice(int(graph.in_offsets[op]), int(graph.in_offsets[op + 1]))
    value, position = graph.edges.value[rows], graph.edges.position[rows]
    producer, size = graph.tensors.producer[value], graph.tensors.bytes[value]
    return list(zip(position.tolist(), producer.tolist(), size.tolist(), strict=True))


def _count_quantized_bytes(graph: Graph, op: int) -> int:
    """Bytes of the value that an op dequantizes, −1 if that is not of 8 bits."""
    for edges, offsets, values in (
        (graph.edges, graph.in_offsets, graph.tensors),
        (graph.weight_edges, graph.weight_offsets, graph.weights),
    ):
        for row in range(int(offsets[op]), int(offsets[op + 1])):
            number = int(edges.value[row])
            if edges.position[row] == 0 and values.dtype_name(number) in ("int8", "uint8"):
                return int(values.bytes[number])
    return -1


def _find_quantizer(graph: Graph, op: int) -> int:
    """The QuantizeLinear that is the only reader of an op's results, or −1."""
    outputs = graph.outputs_of(op)
    readers = [user for tensor in outputs for user in graph.consumers_of(tensor).tolist()]
    alone = len(readers) == 1 and not graph.tensors.output[outputs].any()
    return readers[0] if alone and graph.ops.kind[readers[0]] in _TO_INT8 else -1


def _count_output_bytes(graph: Graph, op: int) -> int:
    return int(graph.tensors.bytes[graph.outputs_of(op)].sum())
