"""Gradients of elementwise arithmetic with several arguments, made of ONNX ops, and of ops that pass values on."""

from __future__ import annotations

from placewise.transform.training.rules.fused import Keeps, gradient_op
from placewise.transform.training.values import Call, Gradients, Value, sum_to


def passed(call: Call) -> Gradients:
    """A sum or an identity: the gradient itself, summed where an argument was broadcast."""
    return {at: sum_to(call, call.gradient, call.inputs[at]) for at in call.wants}


def sub(call: Call) -> Gradients:
    found: dict[int, Value] = {}
    for at in call.wants:
        summed = sum_to(call, call.gradient, call.inputs[at])
        found[at] = call.make("Neg", summed, like=summed) if at else summed
    return found


def mul(call: Call) -> Gradients:
    """Each factor's is the gradient times the other factor; a value times itself is twice that."""
    g, found = call.gradient, dict[int, Value]()
    for at in call.wants:
        factors = [value for position, value in sorted(call.inputs.items()) if position != at]
        found[at] = sum_to(call, call.make("Mul", g, *factors, like=g), call.inputs[at])
    return found


def div(call: Call) -> Gradients:
    """Of a / b = y: g / b for a, −(g / b) · y for b, which some formats have as a number among the attributes."""
    g, y = call.gradient, call.outputs[0]
    quotient = call.make("Div", g, *(call.inputs[at] for at in (1,) if at in call.inputs), like=g)
    found: dict[int, Value] = {}
    for at in call.wants:
        if at == 0:
            found[0] = sum_to(call, quotient, call.inputs[0])
        else:
            product = sum_to(call, call.make("Mul", quotient, y, like=g), call.inputs[1])
            found[1] = call.make("Neg", product, like=product)
    return found


def negated(call: Call) -> Gradients:
    return {at: call.make("Neg", call.gradient, like=call.inputs[at]) for at in call.wants}


def power(call: Call) -> Gradients:
    """Of a ^ b = y: one fused op for a, g · y · ln(a) for b."""
    g, base, found = call.gradient, call.inputs[0], dict[int, Value]()
    for at in call.wants:
        if at == 0:
            found[0] = gradient_op(call, Keeps(inputs=(0, 1)), (0,))[0]
        else:
            product = call.make("Mul", g, call.outputs[0], call.make("Log", base, like=base), like=g)
            found[1] = sum_to(call, product, call.inputs[1])
    return found


def where(call: Call) -> Gradients:
    """Each branch gets the gradient where it was chosen: a fused op that reads the condition."""
    found: dict[int, Value] = {}
    for at in call.wants:
        found[at] = gradient_op(call, Keeps(inputs=(0,)), (at,))[0]
    return found
