"""What a graph's ops do, whatever they run on: FLOPs, bytes moved, class and element type."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from placewise.costing.flops import CONTROL, RULES, compute_cost
from placewise.costing.op_instance import CLASSES, WAITED_FOR, Cost, OpInstance, OpValue, UnknownSize
from placewise.costing.rules.gradients import PREFIX
from placewise.costing.signatures import signatures
from placewise.costing.unknown import explain_unknown
from placewise.errors import InputError, ModelFileError
from placewise.model.columns import Bools, Bytes8, Floats, firsts_of, frozen
from placewise.model.dtypes import DTYPES, dtype_code
from placewise.model.graph import Graph
from placewise.model.tables import Interned, Tensors, Weights


@dataclass(frozen=True, slots=True, eq=False)
class OpWork:
    """One row per op: `flops`, `bytes` (read and written), `op_class`, `dtype` (a code in `DTYPES`), `known`.

    Where `known` is false the kind has no rule: no FLOPs are counted and `warnings` names the kind.
    """

    flops: Floats
    bytes: Floats
    op_class: Interned[str]
    dtype: Bytes8
    known: Bools
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, dtype in (("flops", np.float64), ("bytes", np.float64), ("dtype", np.int8), ("known", np.bool_)):
            object.__setattr__(self, name, frozen(getattr(self, name), dtype))


def work_of(graph: Graph) -> OpWork:
    """The work of every op.

    Raises ModelFileError, naming file, op and tensor, where a shape is needed and unknown, for the first such op.
    """
    code = signatures(graph)
    first = firsts_of(code)
    cost = {op: _cost(graph, op) for op in np.sort(first).tolist()}
    costs = [cost[op] for op in first.tolist()]
    dtypes = [_dtype(graph, op, cost) for op, cost in zip(first.tolist(), costs, strict=True)]
    known = np.array([cost.known for cost in costs], np.bool_)[code]
    return OpWork(
        flops=np.array([cost.flops for cost in costs], np.float64)[code],
        bytes=np.array([cost.nbytes for cost in costs], np.float64)[code],
        op_class=Interned(CLASSES, np.array([CLASSES.index(cost.op_class) for cost in costs], np.int32)[code]),
        dtype=np.array(dtypes, np.int8)[code],
        known=known,
        warnings=_warnings(graph, known),
    )


def _cost(graph: Graph, op: int) -> Cost:
    kind = graph.ops.kind[op]
    inputs = {
        position: _value(values, number)
        for edges, offsets, values in (
            (graph.edges, graph.in_offsets, graph.tensors),
            (graph.weight_edges, graph.weight_offsets, graph.weights),
        )
        for row in range(int(offsets[op]), int(offsets[op + 1]))
        for number, position in ((int(edges.value[row]), int(edges.position[row])),)
        if position < WAITED_FOR
    }
    outputs = tuple(_value(graph.tensors, number, used=_is_used(graph, number)) for number in graph.outputs_of(op))
    try:
        return compute_cost(OpInstance(kind, graph.ops.attributes[op], inputs, outputs))
    except ModelFileError as error:
        raise _locate_error(graph, op, error) from None


def _locate_error(graph: Graph, op: int, error: ModelFileError) -> InputError:
    """The error with its op and its file in front, and with the cause where a size is unknown."""
    if isinstance(error, UnknownSize):
        cause, remedy = explain_unknown(graph, op, RULES.keys() | CONTROL)
        error = ModelFileError(f"{error.problem}: {cause}", remedy=remedy)
    placed = error.at(f"op {graph.ops.name[op]!r} ({graph.ops.kind[op]})")
    return placed.at(graph.source.path) if graph.source is not None and graph.source.path else placed


def _value(values: Tensors | Weights, number: int, *, used: bool = True) -> OpValue:
    return OpValue(
        values.name[number], values.shape[number], int(values.bytes[number]), values.dtype_name(number), used
    )


def _is_used(graph: Graph, tensor: int) -> bool:
    return bool(graph.tensors.output[tensor]) or len(graph.consumers_of(tensor)) > 0


def _dtype(graph: Graph, op: int, cost: Cost) -> int:
    """The rule's word, else the graph's, else the first element type among the op's values."""
    if cost.dtype or graph.ops.dtype[op]:
        return dtype_code(cost.dtype) if cost.dtype else int(graph.ops.dtype[op])
    of_tensors = [int(graph.tensors.dtype[t]) for t in (*graph.inputs_of(op).tolist(), *graph.outputs_of(op))]
    return next((code for code in of_tensors if code), DTYPES.index("unknown"))


def _warnings(graph: Graph, known: Bools) -> tuple[str, ...]:
    ops = np.flatnonzero(~known).tolist()
    count = Counter((graph.ops.kind[op], "bodies" in graph.ops.attributes[op]) for op in ops)
    return tuple(
        f"the cost of {kind} ({times} {'op' if times == 1 else 'ops'}) is assumed {_assumption(kind, has_bodies)}"
        for (kind, has_bodies), times in sorted(count.items())
    )


def _assumption(kind: str, has_bodies: bool) -> str:
    if has_bodies:
        return "from what is known of its body, and one round where their number is not"
    if kind not in RULES:
        return "from the bytes it reads and writes"
    return "to be twice that of its forward op" if kind.startswith(PREFIX) else "without what only the run will tell"
