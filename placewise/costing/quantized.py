"""The work of products in QDQ form on a device that computes them in int8 (`model/quantized.py`)."""

from __future__ import annotations

from dataclasses import replace

from placewise.costing.op_instance import CLASSES
from placewise.costing.work import OpWork
from placewise.model.dtypes import dtype_code
from placewise.model.graph import Graph
from placewise.model.quantized import find_quantized_products, list_arguments
from placewise.model.tables import Interned


def quantize_work(graph: Graph, work: OpWork) -> OpWork:
    """Return the work of every op on a device that computes in int8: products in int8, and the ops fused into them
    free.

    Both factors come from a DequantizeLinear of 8 bits. A DequantizeLinear that only products read is part of them,
    as is a QuantizeLinear that is the only reader of a product; one with other readers keeps its cost.
    """
    found = find_quantized_products(graph)
    if not found.source_bytes:
        return work
    nbytes, dtype, op_class = work.bytes.copy(), work.dtype.copy(), work.op_class.codes.copy()
    flops, free = work.flops.copy(), CLASSES.index("free")
    for op, rounded in found.rounded.items():
        dtype[op] = dtype_code("int8")
        for position, producer, size in list_arguments(graph, op):
            nbytes[op] -= size - found.source_bytes[producer] if position < 2 else 0
        if rounded >= 0:
            nbytes[op] -= _count_output_bytes(graph, op) - _count_output_bytes(graph, rounded)
            flops[rounded], nbytes[rounded], op_class[rounded] = 0.0, 0.0, free
    for op in found.parts:
        flops[op], nbytes[op], op_class[op] = 0.0, 0.0, free
    return replace(work, flops=flops, bytes=nbytes, dtype=dtype, op_class=Interned(CLASSES, op_class))


def _count_output_bytes(graph: Graph, op: int) -> int:
    return int(graph.tensors.bytes[graph.outputs_of(op)].sum())
