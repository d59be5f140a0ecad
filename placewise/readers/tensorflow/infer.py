"""Types and values of an op's outputs: shape rules first, then the shapes that the file declares."""

from __future__ import annotations

from collections.abc import Mapping

from placewise.errors import ModelFileError
from placewise.readers.tensorflow import lists, shapes_arrays, shapes_layers
from placewise.readers.tensorflow.abstract_values import (
    AbstractValue,
    NodeCall,
    Rule,
    ShapeConflict,
    Type,
    Unknown,
    agree_shapes,
    broadcast,
)
from placewise.readers.tensorflow.kinds import BROADCAST, COMPARISONS, POINTWISE
from placewise.readers.tensorflow.shapes_arrays import MAX_OUTPUTS
from placewise.readers.tensorflow.types import Shape, dtype_of

_RANDOM = ("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "StatelessRandomUniform",
           "StatelessRandomUniformV2", "StatelessRandomNormal", "StatelessRandomNormalV2",
           "StatelessTruncatedNormalV2")  # fmt: skip

_TYPE_LISTS = ("Tout", "output_types", "dtypes", "component_types")
_TYPES = ("out_type", "Tout", "DstT", "dtype", "T")


def _comparison(call: NodeCall) -> list[Type]:
    """Equal and NotEqual may treat arguments of incompatible shapes as unequal."""
    if "incompatible_shape_error" in call.node.attr and not call.node.flag("incompatible_shape_error"):
        try:
            return [Type("bool", broadcast(call.dims(0), call.dims(1)))]
        except ShapeConflict:
            return [Type("bool", ())]
    return [Type("bool", broadcast(call.dims(0), call.dims(1)))]


def _known_shapes(call: NodeCall) -> list[Shape]:
    """The shapes of arguments that share one shape; each may be partly unknown."""
    shapes = [value.shape for value in call.args if value.shape is not None]
    if not shapes:
        raise Unknown
    return shapes


def _random(call: NodeCall) -> list[Type]:
    dtype = call.node.dtype("Tout", call.node.dtype("dtype", "float32"))
    return [Type(dtype, call.numbers(0))]


def _identity_n(call: NodeCall) -> list[Type]:
    return [Type(value.dtype, value.shape) for value in call.args]


def _merge(call: NodeCall) -> list[Type]:
    """Either side may arrive; the larger one counts."""
    larger = tuple(max(column) for column in zip(*_known_shapes(call), strict=True))
    return [Type(call.dtype(), larger), Type("int32", ())]


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(POINTWISE, lambda call: [Type(call.node.dtype("DstT", call.dtype()), call.args[0].shape)]),
    **dict.fromkeys(BROADCAST, lambda call: [Type(call.dtype(), broadcast(call.dims(0), call.dims(1)))]),
    **dict.fromkeys(COMPARISONS, _comparison),
    **dict.fromkeys(("IsNan", "IsInf", "IsFinite"), lambda call: [Type("bool", call.args[0].shape)]),
    **dict.fromkeys(("AddN", "AccumulateNV2"), lambda call: [Type(call.dtype(), agree_shapes(*_known_shapes(call)))]),
    **dict.fromkeys(_RANDOM, _random),
    **dict.fromkeys(("IdentityN", "ShardingNoOp"), _identity_n),
    **dict.fromkeys(("Switch", "RefSwitch"), lambda call: [Type(call.args[0].dtype, call.args[0].shape)] * 2),
    **dict.fromkeys(("Merge", "RefMerge"), _merge),
    **shapes_arrays.RULES,
    **shapes_layers.RULES,
    **lists.RULES,
}


def infer_types(call: NodeCall, n_outputs: int) -> list[Type]:
    """Infer the type of each output: `n_outputs` of them if no rule applies; −1, None or ``"unknown"`` mark unknowns.

    Raises ModelFileError if the known facts contradict each other.
    """
    if n_outputs > MAX_OUTPUTS:
        raise ModelFileError(f"node {call.node.name!r} has {n_outputs} outputs", remedy="export the model again")
    rule = RULES.get(call.node.op)
    try:
        inferred = rule(call) if rule is not None else []
    except ShapeConflict as error:
        raise _shape_error(call, error) from None
    except (Unknown, LookupError, ValueError, TypeError, ArithmeticError):
        inferred = []
    declared = _declared_types(call, len(inferred) or n_outputs)
    inferred += declared[len(inferred) :]
    return [
        Type(kind.dtype, _complete_shape(kind.shape, note.shape)) for kind, note in zip(inferred, declared, strict=True)
    ]


def _shape_error(call: NodeCall, error: ShapeConflict) -> ModelFileError:
    shapes = ", ".join(map(_format_shape, call.args[:8])) + (", …" if len(call.args) > 8 else "")
    return ModelFileError(
        f"its arguments ({shapes}) and attributes contradict each other: {error}",
        where=f"op {call.node.name!r} ({call.node.op})",
        remedy="check the model",
    )


def _format_shape(value: AbstractValue) -> str:
    if value.shape is None:
        return "of unknown rank"
    return "×".join("?" if size < 0 else str(size) for size in value.shape[:8]) or "scalar"


def _declared_types(call: NodeCall, count: int) -> list[Type]:
    """The types that the node declares for its outputs."""
    node = call.node
    shapes = node.shapes("_output_shapes") or node.shapes("output_shapes") or node.shapes("shapes")
    if not shapes and node.shape("shape") is not None:
        shapes = [node.shape("shape")]
    codes = next((types for types in map(node.types, _TYPE_LISTS) if types), [])
    own = next((dtype for dtype in map(node.dtype, _TYPES) if dtype != "unknown"), "unknown")
    return [
        Type(
            dtype_of(codes[place]) if place < len(codes) else own,
            shapes[place] if place < len(shapes) else None,
        )
        for place in range(count)
    ]


def _complete_shape(inferred: Shape | None, declared: Shape | None) -> Shape | None:
    """Fill unknown dimensions of the inferred shape from the declared one."""
    if inferred is None or declared is None or len(inferred) != len(declared):
        return declared if inferred is None else inferred
    return tuple(b if a < 0 else a for a, b in zip(inferred, declared, strict=True))
