"""Random graphs with a seed: families of shapes with ops, sizes and weights like those of image networks.

All tensors are images [batch, channels, size, size] with 16 to 256 channels. An op with one input is a convolution, a
normalization, an activation or a pooling; two ops join several inputs: Concat and a 1×1 convolution, or Sum and Relu.
All draws are uniform doubles from PCG64, whose stream NumPy keeps fixed, so a seed gives the same graph everywhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from placewise.errors import InputError
from placewise.model.columns import Ints, Longs, Ragged
from placewise.model.dtypes import BITS, dtype_code
from placewise.model.graph import Graph
from placewise.model.tables import Edges, Interned, Ops, Tensors, Weights
from placewise.zoo.net import MAX_BYTES, MAX_OPS, bytes_of_value
from placewise.zoo.workload import MAX_SIZE, Sizes, Workload

CHANNELS = (16, 32, 64, 128, 256)
READS = 4.0
"""Mean number of blocks that the last block of an Erdős–Rényi graph reads, if every block is one op."""


class _Kind(NamedTuple):
    """What ops of a kind have in common; `weights` names the weights with one number per channel."""

    name: str
    attributes: Mapping[str, Any]
    kernel: int = 0  # width of its one weight, 0: none
    weights: tuple[str, ...] = ()


def _make_convolution(kernel: int) -> _Kind:
    half = (kernel - 1) // 2
    attributes = {"kernel_shape": (kernel, kernel), "strides": (1, 1), "pads": (half,) * 4, "group": 1}
    return _Kind("Conv", attributes, kernel, ("kernel",))


_POOLED = {"kernel_shape": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1)}
_KINDS = (
    _make_convolution(1),
    _make_convolution(3),
    _Kind("BatchNormalization", {"epsilon": 1e-5}, 0, ("scale", "shift", "running_mean", "running_var")),
    _Kind("Relu", {}),
    _Kind("Sigmoid", {}),
    _Kind("MaxPool", _POOLED),
    _Kind("AveragePool", _POOLED),
    _Kind("Sum", {}),
    _Kind("Concat", {"axis": 1}),
)
_CONV_1, _CONV_3, _NORMALIZE, _RELU, _SIGMOID, _MAX_POOL, _AVERAGE_POOL, _SUM, _CONCAT = range(len(_KINDS))


def random_graph(
    family: str, n_ops: int, seed: int = 0, *, batch: int = 32, size: int = 16, dtype: str = "float32"
) -> Graph:
    """Return a graph of exactly `n_ops` ops; tensors that no op reads are outputs.

    `family` is "layered" (rows of about eight blocks that read the previous row), "series-parallel", "branchy" (a
    chain of modules of two to six branches) or "erdos-renyi" (every block reads each earlier one with the same
    probability). Raises InputError.
    """
    if family not in FAMILIES:
        raise InputError(f"there is no family {family!r}", remedy=f"choose {', '.join(FAMILIES)}")
    for name, value, least in (("n_ops", n_ops, 1), ("seed", seed, 0), ("batch", batch, 1), ("size", size, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_SIZE:
            raise InputError(f"{name} is {value!r}", remedy=f"give a whole number from {least} to {MAX_SIZE:,}")
    if n_ops > MAX_OPS:
        raise InputError(f"{n_ops:,} ops are too many", remedy=f"choose at most {MAX_OPS:,}")
    images = _Images(batch, size, dtype)
    images.check("images", CHANNELS[0])
    grower = _GraphGrower(n_ops, seed)
    FAMILIES[family](grower, 0)
    return grower.build_graph(images)


class _Images(NamedTuple):
    """The common format of all tensors: [batch, channels, size, size] of one element type."""

    batch: int
    size: int
    dtype: str

    @property
    def bits(self) -> int:
        """Bits per channel."""
        return self.batch * self.size**2 * int(BITS[dtype_code(self.dtype)])

    def shapes(self, channels: Longs) -> Ragged:
        shape = np.full((len(channels), 4), (self.batch, 0, self.size, self.size), np.int64)
        shape[:, 1] = channels
        return Ragged(4 * np.arange(len(channels) + 1), shape.ravel())

    def check(self, name: str, channels: int) -> None:
        """Raise InputError if a tensor of that many channels is excessive."""
        bytes_of_value(name, (self.batch, channels, self.size, self.size), self.dtype)


class _GraphGrower:
    """Grows a graph to `n_ops` ops from random draws. Tensor 0 holds the images, op v produces tensor v + 1."""

    def __init__(self, n_ops: int, seed: int) -> None:
        self._n_ops, self._scope = n_ops, ""
        self._scopes, self._scope_code = list[str](), -1
        self.uniform = _uniform(seed).__next__
        self._kind, self._op_scope, self._name = array("i"), array("i"), list[str]()
        self._channels = [CHANNELS[0]]
        self._reads, self._n_reads = array("i"), array("i")
        self._times: dict[str, int] = {}

    @property
    def left(self) -> int:
        """The number of ops to add."""
        return self._n_ops - len(self._kind)

    def below(self, n: int) -> int:
        """A whole number in [0, n)."""
        return int(self.uniform() * n)

    @contextmanager
    def within(self, name: str, number: int) -> Iterator[None]:
        """Name ops added inside ``…name.number`` (dotted)."""
        before = self._scope, self._scope_code
        self._scope, self._scope_code = f"{before[0]}.{name}.{number}" if before[0] else f"{name}.{number}", -1
        yield
        self._scope, self._scope_code = before

    def block(self, inputs: Sequence[int]) -> int:
        """One op for one input, two for several; only the first input if a single op is left."""
        inputs = inputs if self.left > 1 else inputs[:1]
        return self._single(inputs[0]) if len(inputs) == 1 else self._join(inputs)

    def chain(self, x: int, length: int) -> int:
        for _ in range(length):
            x = self._single(x)
        return x

    def _single(self, x: int) -> int:
        draw = self.uniform()
        if draw < 0.4:
            return self._convolve(_CONV_1 if self.uniform() < 0.5 else _CONV_3, x)
        if draw < 0.6:
            return self._weighted(_NORMALIZE, self._channels[x], x)
        if draw < 0.9:
            return self._plain(_RELU if draw < 0.8 else _SIGMOID, self._channels[x], (x,))
        return self._plain(_MAX_POOL if draw < 0.95 else _AVERAGE_POOL, self._channels[x], (x,))

    def _join(self, inputs: Sequence[int]) -> int:
        channels = [self._channels[x] for x in inputs]
        if len(set(channels)) == 1 and self.uniform() < 0.5:
            return self._plain(_RELU, channels[0], (self._plain(_SUM, channels[0], inputs),))
        return self._convolve(_CONV_1, self._plain(_CONCAT, sum(channels), inputs))

    def _convolve(self, kind: int, x: int) -> int:
        return self._weighted(kind, CHANNELS[self.below(len(CHANNELS))], x)

    def _plain(self, kind: int, channels: int, inputs: Sequence[int]) -> int:
        """An op without weights; repeated kinds in a scope get a suffix, ``…_1``."""
        name = f"{self._scope}/{_KINDS[kind].name}"
        times = self._times[name] = self._times.get(name, -1) + 1
        self._name.append(f"{name}_{times}" if times else name)
        if self._scope_code < 0:
            self._scope_code = len(self._scopes)
            self._scopes.append(self._scope)
        self._op_scope.append(self._scope_code)
        self._reads.extend(inputs)
        self._n_reads.append(len(inputs))
        return self._add(kind, channels)

    def _weighted(self, kind: int, channels: int, x: int) -> int:
        """An op with weights, which are named after its number."""
        number = len(self._kind)
        scope = f"{self._scope}.op.{number}" if self._scope else f"op.{number}"
        self._name.append(f"{scope}/{_KINDS[kind].name}")
        self._op_scope.append(len(self._scopes))
        self._scopes.append(scope)
        self._reads.append(x)
        self._n_reads.append(1)
        return self._add(kind, channels)

    def _add(self, kind: int, channels: int) -> int:
        self._kind.append(kind)
        self._channels.append(channels)
        return len(self._kind)

    def build_graph(self, images: _Images) -> Graph:
        kind, channels = np.array(self._kind, np.int32), np.array(self._channels, np.int64)
        absurd = np.flatnonzero(channels > 8 * MAX_BYTES // max(images.bits, 1))
        for tensor in absurd[:1].tolist():
            images.check(self._name[tensor - 1], int(channels[tensor]))
        read, lengths = np.array(self._reads, np.int32), np.array(self._n_reads)
        reader = np.repeat(np.arange(len(kind), dtype=np.int32), lengths)
        n_tensors, n_ops = len(channels), len(kind)
        dtype = dtype_code(images.dtype)
        output = np.bincount(read, minlength=n_tensors) == 0
        output[0] = False
        weights, weight_edges = self._weights(images.dtype, kind, channels, read[np.cumsum(lengths) - lengths])
        return Graph(
            ops=Ops(
                name=tuple(self._name),
                kind=_interned([each.name for each in _KINDS], self._kind),
                scope=Interned(tuple(self._scopes), np.array(self._op_scope, np.int32)),
                attributes=_interned([each.attributes for each in _KINDS], self._kind),
                dtype=np.full(n_ops, dtype, np.int8),
                backward=np.zeros(n_ops, np.bool_),
                group=np.full(n_ops, -1, np.int32),
                state_bytes=np.zeros(n_ops, np.int64),
                origin=Ragged.empty(n_ops),
                phase=np.zeros(n_ops, np.int8),
            ),
            tensors=Tensors(
                name=("images", *self._name),
                producer=np.arange(-1, n_ops, dtype=np.int32),
                bytes=(channels * images.bits + 7) // 8,
                dtype=np.full(n_tensors, dtype, np.int8),
                shape=images.shapes(channels),
                output=output,
            ),
            weights=weights,
            edges=Edges(read, reader, np.arange(len(read)) - np.repeat(np.cumsum(lengths) - lengths, lengths)),
            weight_edges=weight_edges,
        )

    def _weights(self, dtype: str, kind: Ints, channels: Longs, first_read: Ints) -> tuple[Weights, Edges]:
        """Kernels [outputs, inputs, width, width], and weights with one number per channel."""
        number = np.array([len(each.weights) for each in _KINDS])[kind]
        owner = np.repeat(np.arange(len(kind), dtype=np.int32), number)
        position = 1 + np.arange(len(owner)) - np.repeat(np.cumsum(number) - number, number)
        width = np.array([each.kernel for each in _KINDS])[kind[owner]]
        full = np.stack([channels[owner + 1], channels[first_read[owner]], width, width], axis=1)
        is_kernel = width > 0
        is_dimension = np.ones(full.shape, np.bool_)
        is_dimension[~is_kernel, 1:] = False
        count = np.where(is_kernel, full.prod(axis=1), full[:, 0])
        names = [each.weights for each in _KINDS]
        scopes = map(self._scopes.__getitem__, self._op_scope)
        weights = Weights(
            name=tuple(f"{scope}.{name}" for scope, k in zip(scopes, self._kind, strict=True) for name in names[k]),
            bytes=(count * int(BITS[dtype_code(dtype)]) + 7) // 8,
            dtype=np.full(len(owner), dtype_code(dtype), np.int8),
            shape=Ragged(np.concatenate(([0], np.cumsum(is_dimension.sum(axis=1)))), full[is_dimension]),
            storage=np.arange(len(owner), dtype=np.int32),
            trainable=np.ones(len(owner), np.bool_),
        )
        return weights, Edges(np.arange(len(owner), dtype=np.int32), owner, position)


def _uniform(seed: int) -> Iterator[float]:
    """Uniform draws from [0, 1)."""
    generator = np.random.Generator(np.random.PCG64(seed))
    while True:
        yield from reversed(generator.random(4096).tolist())


def _interned(values: Sequence[Any], codes: Sequence[int]) -> Interned[Any]:
    """The column of values by code, in order of first use; equal values are merged."""
    distinct: list[Any] = []
    place = np.zeros(len(values), np.int32)
    for code in dict.fromkeys(codes):
        if values[code] not in distinct:
            distinct.append(values[code])
        place[code] = distinct.index(values[code])
    return Interned(tuple(distinct), place[np.array(codes, np.int32)])


def _layered(grower: _GraphGrower, x: int) -> None:
    row, place = [x], 0
    while grower.left:
        width = 1 + grower.below(15)
        next_row = []
        with grower.within("row", place):
            for block in range(width):
                if not grower.left:
                    break
                read = row[block::width] or [row[block % len(row)]]
                extra = row[grower.below(len(row))]
                next_row.append(grower.block(read if extra in read or grower.uniform() < 0.5 else [*read, extra]))
        row, place = next_row, place + 1


def _series_parallel(grower: _GraphGrower, x: int) -> None:
    _composed(grower, x, grower.left)


def _composed(grower: _GraphGrower, x: int, size: int) -> int:
    """`size` ops between `x` and the result: two parts in series, or branches in parallel."""
    if size < 4:
        return grower.chain(x, size)
    if grower.uniform() < 0.5:
        first = 1 + int((0.25 + grower.uniform() / 2) * (size - 2))
        return _composed(grower, _composed(grower, x, first), size - first)
    branches = min(2 + grower.below(3), size - 2)
    cuts = [round(branch * (size - 2) / branches) for branch in range(branches + 1)]
    return grower.block([_composed(grower, x, b - a) for a, b in pairwise(cuts)])


def _branchy(grower: _GraphGrower, x: int) -> None:
    place = 0
    while grower.left:
        with grower.within("module", place):
            branches = min(2 + grower.below(5), grower.left - 2)
            if branches < 2:
                x = grower.chain(x, grower.left)
                break
            spare, ends = grower.left - 2 - branches, []
            for branch in range(branches):
                more = min(grower.below(4), spare)
                spare -= more
                with grower.within("branch", branch):
                    ends.append(grower.chain(x, 1 + more))
            x = grower.block(ends)
        place += 1


def _erdos_renyi(grower: _GraphGrower, x: int) -> None:
    blocks = [x]
    share = min(READS / grower.left, 1.0)
    while grower.left:
        read, at = [], 0
        while (at := at + _gap(grower.uniform(), share)) <= len(blocks):
            read.append(blocks[at - 1])
        blocks.append(grower.block(read or blocks[:1]))


def _gap(draw: float, share: float) -> int:
    """The number of trials up to the first success of probability `share`: geometric, by inversion."""
    return 1 if share >= 1 else 1 + int(np.log1p(-draw) / np.log1p(-share))


FAMILIES: dict[str, Callable[[_GraphGrower, int], None]] = {
    "layered": _layered,
    "series-parallel": _series_parallel,
    "branchy": _branchy,
    "erdos-renyi": _erdos_renyi,
}


def _make_workload(family: str) -> Workload:
    def graph(sizes: Sizes, dtype: str) -> Graph:
        return random_graph(
            family, sizes["n_ops"], sizes["seed"], batch=sizes["batch"], size=sizes["size"], dtype=dtype
        )

    dims = {"n_ops": 1000, "seed": 0, "batch": 32, "size": 16}
    return Workload(f"random-{family}", f"random graph, {family}", "ours", dims, graph=graph, zero=("seed",))


ENTRIES = tuple(map(_make_workload, FAMILIES))
