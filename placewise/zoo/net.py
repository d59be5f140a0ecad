"""NetBuilder: a graph under construction whose values have known shapes, and whose ops are named by scope."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from placewise.errors import InputError
from placewise.model.builder import GraphBuilder
from placewise.model.dtypes import BITS, dtype_code

MAX_OPS = 1_000_000
MAX_BYTES = 1 << 43
"""Of one tensor or weight; the sum over all of them still fits a 64-bit integer."""


class NetValue(NamedTuple):
    """A tensor: its id in the builder, dimensions and element type."""

    number: int
    shape: tuple[int, ...]
    dtype: str


class Weight(NamedTuple):
    """A weight: its id in the builder and dimensions."""

    number: int
    shape: tuple[int, ...]


class NetBuilder:
    """Adds ops in topological order; with `training`, the net has dropout.

    Every method that adds an op raises InputError if the user's sizes do not fit or are excessive.
    """

    def __init__(self, dtype: str, *, training: bool = False) -> None:
        self.builder = GraphBuilder()
        self.dtype, self.training = dtype, training
        self._scope = ""
        self._times: dict[str, int] = {}
        self._constants: dict[float, Weight] = {}

    @contextmanager
    def within(self, *scope: str | int) -> Iterator[None]:
        """Prefix the names of ops and weights added inside with ``…scope`` (dotted)."""
        before = self._scope
        self._scope = ".".join((*([before] if before else []), *map(str, scope)))
        yield
        self._scope = before

    def input(self, name: str, *shape: int, dtype: str = "") -> NetValue:
        """An input of the model."""
        dtype = dtype or self.dtype
        nbytes = bytes_of_value(name, shape, dtype)
        return NetValue(self.builder.add_tensor(-1, shape=shape, dtype=dtype, nbytes=nbytes, name=name), shape, dtype)

    def weight(self, name: str, *shape: int) -> Weight:
        """A parameter of the net's element type."""
        full = f"{self._scope}.{name}" if self._scope else name
        nbytes = bytes_of_value(full, shape, self.dtype)
        return Weight(self.builder.add_weight(full, shape=shape, dtype=self.dtype, nbytes=nbytes), shape)

    def constant(self, value: float) -> Weight:
        """A number that is not a parameter: a weight without dimensions, one per number."""
        weight = self._constants.get(value)
        if weight is None:
            number = self.builder.add_weight(f"constant.{value:g}", shape=(), dtype=self.dtype, trainable=False)
            weight = self._constants[value] = Weight(number, ())
        return weight

    def op(
        self,
        kind: str,
        *arguments: NetValue | Weight,
        shape: Sequence[int],
        dtype: str = "",
        label: str = "",
        output: bool = False,
        **attributes: Any,
    ) -> NetValue:
        """Add one op with one result of `shape`; arguments take positions in order."""
        (result,) = self.add_op(kind, arguments, [tuple(shape)], attributes, dtype, label, output)
        return result

    def split(self, value: NetValue, parts: int, *, axis: int) -> list[NetValue]:
        """Equal parts along `axis`."""
        if value.shape[axis] % parts:
            raise InputError(f"{value.shape[axis]} cannot be split into {parts} equal parts", where=self._scope)
        shape = list(value.shape)
        shape[axis] //= parts
        attributes = {"axis": axis, "num_outputs": parts}
        return self.add_op("Split", (value,), [tuple(shape)] * parts, attributes, value.dtype)

    def add_op(
        self,
        kind: str,
        arguments: Sequence[NetValue | Weight],
        shapes: Sequence[tuple[int, ...]],
        attributes: Mapping[str, Any],
        dtype: str = "",
        label: str = "",
        output: bool = False,
    ) -> list[NetValue]:
        """Add one op with a result for each of `shapes`."""
        builder, name = self.builder, f"{self._scope}/{label or kind}"
        if builder.n_ops >= MAX_OPS:
            raise InputError(f"these sizes give more than {MAX_OPS:,} ops", remedy="choose fewer steps or layers")
        times = self._times.get(name, 0)
        self._times[name] = times + 1
        if times:
            name = f"{name}_{times}"
        dtype = dtype or self.dtype
        op = builder.add_op(name, kind, scope=self._scope, attributes=attributes, dtype=dtype)
        for position, argument in enumerate(arguments):
            use = builder.add_edge if isinstance(argument, NetValue) else builder.use_weight
            use(argument.number, op, position)
        results = []
        for place, shape in enumerate(shapes):
            nbytes = bytes_of_value(name, shape, dtype)
            title = name if len(shapes) == 1 else f"{name}:{place}"
            number = builder.add_tensor(op, shape=shape, dtype=dtype, nbytes=nbytes, name=title, output=output)
            results.append(NetValue(number, shape, dtype))
        return results

    # Common layers.

    def each(self, kind: str, value: NetValue, *others: NetValue | Weight, **more: Any) -> NetValue:
        """Elementwise; the other arguments are broadcast to the shape of the first one."""
        return self.op(kind, value, *others, shape=value.shape, **more)

    def matmul(self, left: NetValue, right: NetValue | Weight, **more: Any) -> NetValue:
        """[…, M, K] · […, K, N]; leading dimensions are those of `left`."""
        if left.shape[-1] != right.shape[-2]:
            problem = f"a product of {_sizes(left.shape)} and {_sizes(right.shape)}"
            raise InputError(problem, where=self._scope, remedy="choose sizes that fit each other")
        return self.op("MatMul", left, right, shape=(*left.shape[:-1], right.shape[-1]), **more)

    def dense(self, value: NetValue, outputs: int, *, bias: bool = True, name: str = "") -> NetValue:
        """A product with a new kernel and, with `bias`, an addition."""
        with self.within(name) if name else self.within():
            product = self.matmul(value, self.weight("kernel", value.shape[-1], outputs))
            return self.each("Add", product, self.weight("bias", outputs), label="BiasAdd") if bias else product

    def concat(self, values: Sequence[NetValue], *, axis: int) -> NetValue:
        shape = list(values[0].shape)
        shape[axis] = sum(value.shape[axis] for value in values)
        return self.op("Concat", *values, shape=shape, axis=axis)

    def reshape(self, value: NetValue, *shape: int) -> NetValue:
        return self.op("Reshape", value, shape=shape, dtype=value.dtype)

    def transpose(self, value: NetValue, *order: int) -> NetValue:
        return self.op("Transpose", value, shape=[value.shape[axis] for axis in order], perm=order)

    def dropout(self, value: NetValue, rate: float) -> NetValue:
        """In training, drop elements at random: a mask of 0 and 1, and x / keep · mask."""
        if not self.training or not rate:
            return value
        keep, shape = 1 - rate, value.shape
        with self.within("dropout"):
            (noise,) = self.add_op("RandomUniform", (), [shape], {"low": keep, "high": 1 + keep, "shape": shape})
            mask = self.each("Floor", noise)
            return self.each("Mul", self.each("Div", value, self.constant(keep)), mask)

    def layer_norm(self, value: NetValue) -> NetValue:
        """Over the last dimension, with a scale and a shift."""
        width = value.shape[-1]
        with self.within("norm"):
            scale, shift = self.weight("scale", width), self.weight("shift", width)
            return self.each("LayerNormalization", value, scale, shift, axis=-1, epsilon=1e-12)


def bytes_of_value(name: str, shape: Sequence[int], dtype: str) -> int:
    """Bytes of a dense value; raises InputError if a dimension is not positive or the total is excessive."""
    count = math.prod(shape)
    if count <= 0 and min(shape, default=1) <= 0:
        raise InputError(f"{name} would have the shape {_sizes(shape)}", remedy="choose larger sizes")
    nbytes = (count * int(BITS[dtype_code(dtype)]) + 7) // 8
    if nbytes > MAX_BYTES:
        raise InputError(f"{name} would have {nbytes:.3g} bytes ({_sizes(shape)})", remedy="choose smaller sizes")
    return nbytes


def _sizes(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "a scalar"
