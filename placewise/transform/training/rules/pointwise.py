"""Gradients of elementwise arithmetic with several arguments, as ONNX ops, and of ops that pass values on."""

from __future__ import annotations

from placewise.transform.training.rules.fused import SavedValues, gradient_op
from placewise.transform.training.values import ForwardOp, Gradients, GraphValue, sum_to


def pass_through(op: ForwardOp) -> Gradients:
    """Sums and identities: the gradient itself, summed if an argument was broadcast."""
    return {at: sum_to(op, op.gradient, op.inputs[at]) for at in op.wants}


def sub(op: ForwardOp) -> Gradients:
    gradients: dict[int, GraphValue] = {}
    for at in op.wants:
        summed = sum_to(op, op.gradient, op.inputs[at])
        gradients[at] = op.make("Neg", summed, like=summed) if at else summed
    return gradients


def mul(op: ForwardOp) -> Gradients:
    """The gradient of a factor is the gradient times the other factor; that of a square is twice that."""
    g, gradients = op.gradient, dict[int, GraphValue]()
    for at in op.wants:
        factors = [value for position, value in sorted(op.inputs.items()) if position != at]
        gradients[at] = sum_to(op, op.make("Mul", g, *factors, like=g), op.inputs[at])
    return gradients


def div(op: ForwardOp) -> Gradients:
    """Of a / b = y: g / b for a, −(g / b) · y for b; some formats hold b as an attribute."""
    g, y = op.gradient, op.outputs[0]
    quotient = op.make("Div", g, *(op.inputs[at] for at in (1,) if at in op.inputs), like=g)
    gradients: dict[int, GraphValue] = {}
    for at in op.wants:
        if at == 0:
            gradients[0] = sum_to(op, quotient, op.inputs[0])
        else:
            product = sum_to(op, op.make("Mul", quotient, y, like=g), op.inputs[1])
            gradients[1] = op.make("Neg", product, like=product)
    return gradients


def negate(op: ForwardOp) -> Gradients:
    return {at: op.make("Neg", op.gradient, like=op.inputs[at]) for at in op.wants}


def power(op: ForwardOp) -> Gradients:
    """Of a ^ b = y: one fused op for a, g · y · ln(a) for b."""
    g, base, gradients = op.gradient, op.inputs[0], dict[int, GraphValue]()
    for at in op.wants:
        if at == 0:
            gradients[0] = gradient_op(op, SavedValues(inputs=(0, 1)), (0,))[0]
        else:
            product = op.make("Mul", g, op.outputs[0], op.make("Log", base, like=base), like=g)
            gradients[1] = sum_to(op, product, op.inputs[1])
    return gradients


def where(op: ForwardOp) -> Gradients:
    """Each branch receives the gradient where it was selected: a fused op that reads the condition."""
    return {at: gradient_op(op, SavedValues(inputs=(0,)), (at,))[0] for at in op.wants}
