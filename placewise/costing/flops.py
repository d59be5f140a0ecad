"""The table of kinds with known costs, and the function that applies a rule to an op."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from placewise.costing.op_instance import FREE, Cost, OpInstance, OpValue, Rule
from placewise.costing.rules import (
    aten,
    attention,
    contrib,
    gradients,
    linear,
    llm,
    movement,
    openvino,
    pointwise,
    recurrent,
    reduction,
    tensorflow,
)
from placewise.errors import ModelFileError
from placewise.model.dtypes import bytes_of

_FORWARD: Mapping[str, Rule] = {
    kind: rule
    for family in (
        linear,
        attention,
        recurrent,
        pointwise,
        reduction,
        movement,
        llm,
        aten,
        openvino,
        contrib,
        tensorflow,
    )
    for kind, rule in family.RULES.items()
}

RULES: Mapping[str, Rule] = MappingProxyType({**_FORWARD, **gradients.assume_gradients(_FORWARD), **gradients.RULES})
"""Kind → rule. ONNX names; kinds of other domains are ``domain::op_type``."""

_SEARCHES = ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch")
CONTROL = frozenset(("If", "Loop", "Scan", "SequenceMap", *(f"com.microsoft::{kind}" for kind in _SEARCHES)))
"""Ops that run bodies, counted once per iteration; if the reader provides no body, by their arguments and results."""


def compute_cost(op: OpInstance) -> Cost:
    """Compute the cost of one op; only its bytes if the kind is unknown.

    Raises ModelFileError if shapes or attributes do not fit the kind, or if a required size is unknown.
    """
    rule = RULES.get(op.kind)
    if op.kind in CONTROL and op.attributes.get("bodies"):
        return _cost_of_bodies(op)
    if rule is None:
        return Cost(0, op.bytes_moved, "control" if op.kind in CONTROL else "unknown", known=False)
    try:
        cost = rule(op)
        cost = cost._replace(flops=float(cost.flops), nbytes=float(cost.nbytes))
        if cost.flops < 0:
            raise ValueError("negative sizes")
        return cost
    except (LookupError, ValueError, TypeError, ArithmeticError, AttributeError):
        shapes = ", ".join("×".join(map(str, value.dims)) or "scalar" for value in op.inputs.values())
        raise ModelFileError(
            f"its arguments ({shapes or 'none'}) and attributes do not fit its kind", remedy="check the model"
        ) from None


def _cost_of_bodies(op: OpInstance) -> Cost:
    """Multiply by the trip count, or count one iteration if it is unknown; of branches take the most expensive one."""
    return max(
        (_cost_of_body(op, body) for body in op.attributes["bodies"]), key=lambda cost: (cost.flops, cost.nbytes)
    )


def _cost_of_body(op: OpInstance, body: Mapping[str, Any]) -> Cost:
    """Class and element type are those of the op that computes most."""
    costs = [_cost_of_inner(op) for op in body["ops"]]
    rounds = max(int(body["rounds"]), 1) if body["rounds"] else 0
    flops = rounds * sum(times * cost.flops for times, cost in costs)
    nbytes = rounds * sum(times * cost.nbytes for times, cost in costs)
    _, most = max(costs, key=lambda pair: pair[0] * pair[1].flops, default=(0, FREE))
    op_class = most.op_class if most.flops else "control"
    known = body["rounds"] >= 0 and all(cost.known for _, cost in costs)
    return Cost(flops, max(nbytes, op.bytes_moved), op_class, most.dtype, known)


def _cost_of_inner(inner: Mapping[str, Any]) -> tuple[int, Cost]:
    """Return how often an op occurs in a body, and its cost; an unknown cost counts as zero and is marked unknown."""
    inputs = {at: _value(dims, dtype) for at, dims, dtype in inner["inputs"]}
    op = OpInstance(inner["kind"], inner["attributes"], inputs, tuple(_value(*kind) for kind in inner["outputs"]))
    try:
        cost = compute_cost(op)
    except ModelFileError:
        cost = FREE._replace(known=False)
    return int(inner["times"]), cost._replace(dtype=cost.dtype or inner["dtype"])


def _value(dims: tuple[int, ...] | None, dtype: str) -> OpValue:
    return OpValue("", dims or (), -1 if dims is None else bytes_of(dims, dtype), dtype)
