"""The table of all kinds whose cost is known, and the one place where a rule is applied to an op."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from placewise.costing.case import Case, Cost, Rule
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

RULES: Mapping[str, Rule] = MappingProxyType({**_FORWARD, **gradients.assumed(_FORWARD), **gradients.RULES})
"""Kind → rule. ONNX names; kinds of other domains are ``domain::op_type``."""

_SEARCHES = ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch")
CONTROL = frozenset(("If", "Loop", "Scan", "SequenceMap", *(f"com.microsoft::{kind}" for kind in _SEARCHES)))
"""Ops that run a body an unknown number of times: only what goes in and out of them is counted."""


def cost_of(case: Case) -> Cost:
    """The cost of one op; of an unknown kind only its bytes.

    Raises ModelFileError if the op's shapes or attributes do not fit its kind, or one that is needed is unknown.
    """
    rule = RULES.get(case.kind)
    if rule is None:
        return Cost(0, case.moved, "control" if case.kind in CONTROL else "unknown", known=False)
    try:
        cost = rule(case)
        cost = cost._replace(flops=float(cost.flops), nbytes=float(cost.nbytes))
        if cost.flops < 0:
            raise ValueError("negative sizes")
        return cost
    except (LookupError, ValueError, TypeError, ArithmeticError, AttributeError):
        shapes = ", ".join("×".join(map(str, value.dims)) or "scalar" for value in case.inputs.values())
        raise ModelFileError(
            f"its arguments ({shapes or 'none'}) and attributes do not fit its kind", remedy="check the model"
        ) from None
