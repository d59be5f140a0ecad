"""Gradients of products: products again, one for each factor."""

from __future__ import annotations

from dataclasses import replace

from placewise.transform.training.rules.fused import Keeps, gradient_op
from placewise.transform.training.values import Call, Gradients, Value, sum_to

_FUSED_MATMUL = "com.microsoft::FusedMatMul"
_FIRST_LETTER = ord("A")


def matmul(call: Call) -> Gradients:
    """Y = α · A' · B', batched and broadcast as numpy does, A' and B' perhaps transposed.

    A factor that is one matrix for the whole batch is summed over the batch inside one Einsum.
    """
    a, b = call.inputs[0], call.inputs[1]
    flip = bool(call.number("transA")), bool(call.number("transB"))
    if min(len(a.shape), len(b.shape)) < 2:
        return {at: _contracted(call, at, _letters(call, (False, False))) for at in call.wants}
    return {
        at: _contracted(call, at, _letters(call, flip)) if _is_shared(call, at) else _product(call, at, flip)
        for at in call.wants
    }


def _is_shared(call: Call, at: int) -> bool:
    return len(call.inputs[at].shape) == 2 < len(call.inputs[1 - at].shape)


def _product(call: Call, at: int, flip: tuple[bool, bool]) -> Value:
    """The gradient of one factor as a product of Y's gradient and the other factor."""
    mine, other, g = call.inputs[at], call.inputs[1 - at], call.gradient
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
    if "alpha" in call.attributes:
        attributes["alpha"] = call.attributes["alpha"]
    return sum_to(call, call.make(_FUSED_MATMUL, left, right, like=like, **attributes), mine)


def _letters(call: Call, flip: tuple[bool, bool]) -> tuple[str, str, str]:
    """Labels of A, B and Y: the batch (as long as the longest), then rows, columns and the summed dimension."""
    a, b = call.inputs[0].shape, call.inputs[1].shape
    batch = "".join(chr(_FIRST_LETTER + k) for k in range(max(len(a), len(b), 2) - 2))
    left = "k" if len(a) == 1 else "kr" if flip[0] else "rk"
    right = "k" if len(b) == 1 else "ck" if flip[1] else "kc"
    of_a, of_b = batch[len(batch) - max(len(a) - 2, 0) :], batch[len(batch) - max(len(b) - 2, 0) :]
    return of_a + left, of_b + right, batch + "r" * (len(a) > 1) + "c" * (len(b) > 1)


def _contracted(call: Call, at: int, letters: tuple[str, str, str]) -> Value:
    other, equation = call.inputs[1 - at], f"{letters[2]},{letters[1 - at]}->{letters[at]}"
    made = call.make("Einsum", call.gradient, other, like=call.inputs[at], equation=equation)
    alpha = call.number("alpha", 1.0)
    return made if alpha == 1 else call.make("Mul", made, like=call.inputs[at], factor=alpha)


def gemm(call: Call) -> Gradients:
    """Y = α · A' · B' + β · C: Gemm for A and B; C's gradient is summed over what was broadcast."""
    if max(len(call.inputs[0].shape), len(call.inputs[1].shape)) > 2:
        return _batched_gemm(call)
    found: dict[int, Value] = {}
    flip, alpha = (int(call.number("transA")), int(call.number("transB"))), call.number("alpha", 1.0)
    a, b, g = call.inputs[0], call.inputs[1], call.gradient
    for at in call.wants:
        if at == 2:
            found[2] = sum_to(call, _scaled(call, g, call.number("beta", 1.0)), call.inputs[2])
        elif at == 0 and not flip[0]:
            found[0] = call.make("Gemm", g, b, like=a, alpha=alpha, transB=1 - flip[1])
        elif at == 0:
            found[0] = call.make("Gemm", b, g, like=a, alpha=alpha, transA=flip[1], transB=1)
        elif not flip[1]:
            found[1] = call.make("Gemm", a, g, like=b, alpha=alpha, transA=1 - flip[0])
        else:
            found[1] = call.make("Gemm", g, a, like=b, alpha=alpha, transA=1, transB=flip[0])
    return found


def _batched_gemm(call: Call) -> Gradients:
    """As other formats have it: a batch of matrices, as in MatMul."""
    found = dict(matmul(replace(call, wants=tuple(at for at in call.wants if at < 2))))
    if 2 in call.wants:
        found[2] = sum_to(call, _scaled(call, call.gradient, call.number("beta", 1.0)), call.inputs[2])
    return found


def _scaled(call: Call, gradient: Value, factor: float) -> Value:
    return gradient if factor == 1 else call.make("Mul", gradient, like=gradient, factor=factor)


def conv(call: Call) -> Gradients:
    """One op for the input, which reads the kernel, and one for the kernel, which reads the input: each may run alone.

    A bias has the sum over everything but the channels.
    """
    found: dict[int, Value] = {}
    for at in call.wants:
        if at < 2:
            found[at] = gradient_op(call, Keeps(inputs=(1 - at,)), (at,))[0]
        else:
            found[at] = gradient_op(call, Keeps(), (at,))[0]
    return found


def einsum(call: Call) -> Gradients:
    """Einsum of Y's gradient and the other operands, where every label of an operand stands somewhere else too."""
    terms, arrow, result = str(call.attributes.get("equation", "")).replace(" ", "").partition("->")
    operands = terms.split(",")
    found: dict[int, Value] = {}
    sizes = {
        (label, size)
        for term, at in zip(operands, sorted(call.inputs), strict=False)
        for label, size in zip(term, call.inputs[at].shape, strict=False)
    }
    plain = bool(arrow) and "." not in terms and len(operands) == len(call.inputs) and len(dict(sizes)) == len(sizes)
    for at in call.wants:
        others, mine = [*operands[:at], *operands[at + 1 :]], operands[at] if plain else ""
        if not plain or len(set(mine)) < len(mine) or not set(mine) <= set(result).union(*others):
            return dict(zip(call.wants, gradient_op(call, Keeps(inputs=None), call.wants), strict=True))
        rest = [value for position, value in sorted(call.inputs.items()) if position != at]
        equation = ",".join((result, *others)) + "->" + mine
        found[at] = call.make("Einsum", call.gradient, *rest, like=call.inputs[at], equation=equation)
    return found
