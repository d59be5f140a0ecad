"""Language models that generate: KV caches, and mixtures of experts under uniform routing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from placewise.costing.op_instance import Cost, OpInstance, OpValue, Rule
from placewise.model.dtypes import bytes_of


def _dense(values: Iterable[OpValue]) -> int:
    """Bytes of values by shape: a view of a cache has a shape, but no bytes."""
    return sum(bytes_of(value.shape, value.dtype) for value in values)


def cache_update(op: OpInstance) -> Cost:
    """New keys and values are read and written; the visible part of the cache is read.

    The attribute `bits` has those of an entry of every result, where the cache is of another type than the graph names.
    """
    bits = op.attributes.get("bits")
    seen: float = _dense(op.outputs)
    if bits is not None:
        seen = sum(value.size * float(width) / 8 for value, width in zip(op.outputs, bits, strict=True))
    return op.cost(0, "movement", nbytes=2 * op.bytes_read + seen)


def cache_read(op: OpInstance) -> Cost:
    """The visible part of the cache is read."""
    return op.cost(0, "movement", nbytes=_dense(op.outputs))


def experts(op: OpInstance) -> Cost:
    """Hidden [tokens, width], index and scores [tokens, chosen], then weights [experts, …].

    All experts are equally likely: a token uses `chosen` of them, and of E experts E · (1 − (1 − chosen/E)^tokens) are
    expected to be used and read.
    """
    tokens, width = op.shape(0)
    chosen, count = op.shape(1)[1], op.number("experts", 1)
    weights = _weights(op, 3)
    flops, inner = _per_token([value.shape[1:] for value in weights], width)
    used = share_used(chosen, count, tokens)
    rows = tokens * chosen
    traffic = rows * (4 * width + 3 * inner) * _entry(op.inputs[0])
    others = sum(op.inputs[position].nbytes for position in range(3)) + op.bytes_written
    read = sum(value.nbytes for value in weights) * used
    return op.cost(rows * (flops + 2 * width), "matmul", nbytes=traffic + others + read)


def expert(op: OpInstance) -> Cost:
    """One of several experts: hidden [rows, width], then its weights; attributes `experts`, `tokens` and `chosen`."""
    tokens, chosen, count = (op.number(name, 1) for name in ("tokens", "chosen", "experts"))
    width, weights = op.shape(0)[-1], _weights(op, 1)
    flops, inner = _per_token([value.shape for value in weights], width)
    rows = tokens * chosen / count
    read = sum(value.nbytes for value in weights) * share_used(chosen, count, tokens)
    return op.cost(rows * flops, "matmul", nbytes=rows * (2 * width + 3 * inner) * _entry(op.inputs[0]) + read)


def dispatch(op: OpInstance) -> Cost:
    """Rows of hidden [tokens, width], copied once per expert that receives them: index [tokens, chosen]."""
    rows = op.inputs[0].nbytes * op.shape(1)[1]
    return op.cost(0, "movement", nbytes=2 * rows + op.inputs[1].nbytes)


def combine(op: OpInstance) -> Cost:
    """The results of all experts, weighted and added to their tokens."""
    tokens, chosen, width = op.number("tokens", 1), op.number("chosen", 1), op.outputs[0].shape[-1]
    rows = tokens * chosen
    return op.cost(2 * rows * width, "elementwise", nbytes=rows * width * _entry(op.outputs[0]) + op.bytes_written)


def _weights(op: OpInstance, first: int) -> list[OpValue]:
    return [value for position, value in sorted(op.inputs.items()) if position >= first]


def _per_token(shapes: list[tuple[int, ...]], width: int) -> tuple[int, int]:
    """FLOPs of one expert per row (products, and six for every entry after the gate), and entries before it."""
    products = [shape[0] * shape[1] for shape in shapes if len(shape) == 2]
    if not products or not width:
        return 0, 0
    inner = products[-1] // width
    return 2 * sum(products) + 6 * inner, sum(products[:-1]) // width


def share_used(chosen: int, count: int, tokens: int) -> float:
    """The expected fraction of experts that at least one token uses."""
    return 1 - (1 - min(chosen / count, 1)) ** tokens


def _entry(value: OpValue) -> float:
    return bytes_of((1,), value.dtype)


RULES: Mapping[str, Rule] = {
    "CacheUpdate": cache_update,
    "CacheRead": cache_read,
    "Experts": experts,
    "Expert": expert,
    "Dispatch": dispatch,
    "Combine": combine,
}
