"""The work of a graph's ops, whatever they run on: FLOPs, bytes moved, class and element type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from placewise._util.text import dim_options
from placewise.costing.flops import CONTROL, RULES, compute_cost
from placewise.costing.op_instance import CLASSES, WAITED_FOR, Cost, OpInstance, OpValue, UnknownSize
from placewise.costing.rules.gradients import PREFIX
from placewise.costing.signatures import signatures
from placewise.errors import InputError, ModelFileError
from placewise.model.columns import Bools, Bytes8, Floats, distinct, firsts_of, frozen
from placewise.model.dtypes import DTYPES, dtype_code
from placewise.model.graph import Graph
from placewise.model.tables import Interned, Tensors, Weights


@dataclass(frozen=True, slots=True, eq=False)
class OpWork:
    """One row per op: `flops`, `bytes` (read and written), `op_class`, `dtype` (a code in `DTYPES`), `known`.

    Where `known` is false, the kind has no rule: no FLOPs are counted, and `warnings` names the kind.
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
    """Count the work of every op.

    Raises ModelFileError for the first op that requires an unknown shape, naming file, op and tensor.
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
    """Prefix an error with its op and file, and add the cause if a size is unknown."""
    if isinstance(error, UnknownSize):
        cause, remedy = explain_unknown(graph, op, RULES.keys() | CONTROL)
        error = ModelFileError(f"{error.problem}: {cause}", remedy=remedy)
    placed = error.at(f"op {graph.ops.name[op]!r} ({graph.ops.kind[op]})")
    return placed.at(graph.source.path) if graph.source is not None and graph.source.path else placed


def _value(values: Tensors | Weights, number: int, *, used: bool = True) -> OpValue:
    return OpValue(
        values.name[number], values.shape[number], int(values.bytes[number]), values.dtype_name(number), used
    )


_PRODUCTS = ("matmul", "conv", "attention")
"""Classes of ops that tensor cores compute: in float8 where a weight is of that type."""


def _is_used(graph: Graph, tensor: int) -> bool:
    return bool(graph.tensors.output[tensor]) or len(graph.consumers_of(tensor)) > 0


def _dtype(graph: Graph, op: int, cost: Cost) -> int:
    """The rule's element type, else that of float8 weights of a product, else the graph's, else that of a value."""
    if cost.op_class in _PRODUCTS:
        of_weights = {graph.weights.dtype_name(weight) for weight in graph.weights_of(op).tolist()}
        if narrow := min((name for name in of_weights if name.startswith("float8")), default=""):
            return dtype_code(cost.dtype or narrow)
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
        return "from the known part of its body, and one iteration if the trip count is unknown"
    if kind not in RULES:
        return "from the bytes it reads and writes"
    return (
        "to be twice that of its forward op" if kind.startswith(PREFIX) else "without the part that only a run reveals"
    )


BY_DATA = frozenset((
    "NonZero", "Compress", "Unique", "NonMaxSuppression", "StringSplit", "ImageDecoder", "Loop", "If", "Scan",
    "Reshape", "Expand", "Range", "Slice", "Split", "ConstantOfShape", "Resize", "Upsample", "Tile", "Pad", "TopK",
    "OneHot", "MaxUnpool", "CenterCropPad", "AffineGrid", "Squeeze",
))  # fmt: skip
"""Kinds whose result sizes may depend on values known only at run time."""


_REMEDIES = {
    "onnx": "add value_info for {what} to the model, or export it with fixed sizes",
    "tensorflow": "save the model with _output_shapes for {what}, or give its inputs fixed shapes (--dim)",
    "openvino": "fix the shapes with model.reshape and save the model again",
    "torch": "export the model again with fixed shapes",
}
"""By format, up to the first dash: how to provide the shapes of an op's outputs."""


def find_unknown_origin(graph: Graph, op: int) -> int:
    """The op, `op` itself or an earlier one, that turns inputs of known size into a result of unknown size.

    −1 if an input of the model has an unknown size.
    """
    while op >= 0:
        before = next((tensor for tensor in graph.inputs_of(op).tolist() if is_unknown(graph, tensor)), None)
        if before is None:
            break
        op = int(graph.tensors.producer[before])
    return op


def count_weight_bytes(graph: Graph) -> Floats:
    """Bytes [n_ops] of the weights that each op reads; a weight that is several of its arguments counts once."""
    n_weights = max(len(graph.weights), 1)
    uses = distinct(graph.weight_edges.consumer.astype(np.int64) * n_weights + graph.weight_edges.value)
    nbytes = graph.weights.bytes[uses % n_weights].astype(np.float64)
    return np.bincount(uses // n_weights, weights=nbytes, minlength=graph.n_ops).astype(np.float64)


def is_unknown(graph: Graph, tensor: int) -> bool:
    """Whether the size or a dimension of a tensor is unknown."""
    return bool(graph.tensors.bytes[tensor] < 0) or min(graph.tensors.shape[tensor], default=0) < 0


def explain_unknown(graph: Graph, op: int, known_kinds: Container[str]) -> tuple[str, str]:
    """Why a size that `op` requires is unknown, and the remedy; `known_kinds` are all kinds that are not foreign."""
    origin = find_unknown_origin(graph, op)
    if origin < 0:
        return "an input of the model is open", "give the model's open dimensions, or export it with fixed ones"
    name, kind = graph.ops.name[origin], graph.ops.kind[origin]
    place = "this op" if origin == op else f"op {name!r} ({kind})"
    if "::" in kind or kind not in known_kinds:
        return f"the output shapes of {place} are not known", _remedy(graph, "its outputs")
    if kind in BY_DATA:
        return f"the output size of {place} depends on its data", _remedy(graph, "its outputs") + _sizes(graph, origin)
    return f"no shape can be inferred for the outputs of {place}", _remedy(graph, "them")


def _sizes(graph: Graph, op: int) -> str:
    """How to give the sizes of an op's results without another model, if the reader has an option for it."""
    if graph.source is None or graph.source.format != "onnx":
        return ""
    tensors = graph.tensors
    open_dims = [(row, axis) for row in graph.outputs_of(op) for axis, dim in enumerate(tensors.shape[row]) if dim < 0]
    options = dim_options((f"{tensors.name[row]}:{axis}" for row, axis in open_dims), 100)
    return f", or give the sizes: {options}" if options else ""


def _remedy(graph: Graph, what: str) -> str:
    form = "" if graph.source is None else graph.source.format.partition("-")[0]
    return _REMEDIES.get(form, "give the shapes of {what}, or export the model with fixed sizes").format(what=what)
