"""Gradients of products are products, one for each factor."""

from __future__ import annotations

from dataclasses import replace

from placewise.transform.training.rules.fused import SavedValues, gradient_op
from placewise.transform.training.values import ForwardOp, Gradients, GraphValue, sum_to

_FUSED_MATMUL = "com.microsoft::FusedMatMul"
_FIRST_LETTER = ord("A")


def matmul(op: ForwardOp) -> Gradients:
    """Y = α · A' · B', batched and broadcast as in numpy; A' and B' may be transposed.

    A factor that is one matrix for the whole batch is summed over the batch inside an Einsum.
    """
    a, b = op.inputs[0], op.inputs[1]
    flip = bool(op.number("transA")), bool(op.number("transB"))
    if min(len(a.shape), len(b.shape)) < 2:
        return {at: _contract(op, at, _letters(op, (False, False))) for at in op.wants}
    return {
        at: _contract(op, at, _letters(op, flip)) if _is_shared(op, at) else _product(op, at, flip) for at in op.wants
    }


def _is_shared(op: ForwardOp, at: int) -> bool:
    return len(op.inputs[at].shape) == 2 < len(op.inputs[1 - at].shape)


def _product(op: ForwardOp, at: int, flip: tuple[bool, bool]) -> GraphValue:
    """The gradient of one factor as a product of Y's gradient and the other factor."""
    mine, other, g = op.inputs[at], op.inputs[1 - at], op.gradient
    batch = g.shape[:-2]
    like = mine.shaped((*batch, *mine.shape[-2:])) if batch != mine.shape[:-2] else mine
    gradient_first = (at == 0) != flip[at]
    if at == 0:
        left, right = (g, other) if gradient_first else (other, g)
        trans = (False, not flip[1]) if gradient_first else (flip[1], True)
    else:
        left, right = (other, g) if not gradient_first else (g, other)
        trans = (not flip[0], False) if not gradient_first else (True, flip[0])
    attributes = {"transA": int(trans[0]), "transB": int(trans[1])}
    if "alpha" in op.attributes:
        attributes["alpha"] = op.attributes["alpha"]
    return sum_to(op, op.make(_FUSED_MATMUL, left, right, like=like, **attributes), mine)


def _letters(op: ForwardOp, flip: tuple[bool, bool]) -> tuple[str, str, str]:
    """Labels of A, B and Y: the longest batch, then rows, columns and the contracted dimension."""
    a, b = op.inputs[0].shape, op.inputs[1].shape
    batch = "".join(chr(_FIRST_LETTER + k) for k in range(max(len(a), len(b), 2) - 2))
    left = "k" if len(a) == 1 else "kr" if flip[0] else "rk"
    right = "k" if len(b) == 1 else "ck" if flip[1] else "kc"
    of_a, of_b = batch[len(batch) - max(len(a) - 2, 0) :], batch[len(batch) - max(len(b) - 2, 0) :]
    return of_a + left, of_b + right, batch + "r" * (len(a) > 1) + "c" * (len(b) > 1)


def _contract(op: ForwardOp, at: int, letters: tuple[str, str, str]) -> GraphValue:
    other, equation = op.inputs[1 - at], f"{letters[2]},{letters[1 - at]}->{letters[at]}"
    product = op.make("Einsum", op.gradient, other, like=op.inputs[at], equation=equation)
    alpha = op.number("alpha", 1.0)
    return product if alpha == 1 else op.make("Mul", product, like=op.inputs[at], factor=alpha)


def gemm(op: ForwardOp) -> Gradients:
    """Y = α · A' · B' + β · C: Gemm for A and B; C's gradient is summed over what was broadcast."""
    if max(len(op.inputs[0].shape), len(op.inputs[1].shape)) > 2:
        return _batched_gemm(op)
    gradients: dict[int, GraphValue] = {}
    flip, alpha = (int(op.number("transA")), int(op.number("transB"))), op.number("alpha", 1.0)
    a, b, g = op.inputs[0], op.inputs[1], op.gradient
    for at in op.wants:
        if at == 2:
            gradients[2] = sum_to(op, _scale(op, g, op.number("beta", 1.0)), op.inputs[2])
        elif at == 0 and not flip[0]:
            gradients[0] = op.make("Gemm", g, b, like=a, alpha=alpha, transB=1 - flip[1])
        elif at == 0:
            gradients[0] = op.make("Gemm", b, g, like=a, alpha=alpha, transA=flip[1], transB=1)
        elif not flip[1]:
            gradients[1] = op.make("Gemm", a, g, like=b, alpha=alpha, transA=1 - flip[0])
        else:
            gradients[1] = op.make("Gemm", g, a, like=b, alpha=alpha, transA=1, transB=flip[0])
    return gradients


def _batched_gemm(op: ForwardOp) -> Gradients:
    """Other formats have batches of matrices, as in MatMul."""
    gradients = dict(matmul(replace(op, wants=tuple(at for at in op.wants if at < 2))))
    if 2 in op.wants:
        gradients[2] = sum_to(op, _scale(op, op.gradient, op.number("beta", 1.0)), op.inputs[2])
    return gradients


def _scale(op: ForwardOp, gradient: GraphValue, factor: float) -> GraphValue:
    return gradient if factor == 1 else op.make("Mul", gradient, like=gradient, factor=factor)


def conv(op: ForwardOp) -> Gradients:
    """One op for the input, which reads the kernel, and one for the kernel, which reads the input; they can run apart.

    The gradient of a bias is the sum over everything but the channels.
    """
    saved = {0: SavedValues(inputs=(1,)), 1: SavedValues(inputs=(0,)), 2: SavedValues()}
    return {at: gradient_op(op, saved[at], (at,))[0] for at in op.wants}


def einsum(op: ForwardOp) -> Gradients:
    """Einsum of Y's gradient and the other operands, if every label of an operand occurs elsewhere too."""
    terms, arrow, result = str(op.attributes.get("equation", "")).replace(" ", "").partition("->")
    operands = terms.split(",")
    gradients: dict[int, GraphValue] = {}
    sizes = {
        (label, size)
        for term, at in zip(operands, sorted(op.inputs), strict=False)
        for label, size in zip(term, op.inputs[at].shape, strict=False)
    }
    plain = bool(arrow) and "." not in terms and len(operands) == len(op.inputs) and len(dict(sizes)) == len(sizes)
    for at in op.wants:
        others, mine = [*operands[:at], *operands[at + 1 :]], operands[at] if plain else ""
        if not plain or len(set(mine)) < len(mine) or not set(mine) <= set(result).union(*others):
            return dict(zip(op.wants, gradient_op(op, SavedValues(inputs=None), op.wants), strict=True))
        rest = [value for position, value in sorted(op.inputs.items()) if position != at]
        equation = ",".join((result, *others)) + "->" + mine
        gradients[at] = op.make("Einsum", op.gradient, *rest, like=op.inputs[at], equation=equation)
    return gradients
