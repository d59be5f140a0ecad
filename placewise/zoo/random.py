"""Random graphs with a seed: families of shapes with ops, sizes and weights like those of image networks.

All tensors are images [batch, channels, size, size] with 16 to 256 channels. An op that reads one of them is a
convolution, a normalization, an activation or a pooling; where several meet, two ops join them: Concat and a 1×1
convolution, or Sum and Relu. Only uniform doubles are drawn from PCG64, whose stream NumPy keeps fixed, so that a
seed gives the same graph everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from placewise.errors import InputError
from placewise.model.graph import Graph
from placewise.zoo.conv import convolve, normalize, pool
from placewise.zoo.entry import MAX_SIZE, Entry, Sizes
from placewise.zoo.net import MAX_OPS, Net, Value

CHANNELS = (16, 32, 64, 128, 256)
READS = 4.0
"""Blocks that the last block of an Erdős–Rényi graph reads, on average, if every block is one op."""


def random_graph(
    family: str, n_ops: int, seed: int = 0, *, batch: int = 32, size: int = 16, dtype: str = "float32"
) -> Graph:
    """A graph of exactly `n_ops` ops; what no op reads is an output.

    `family` is "layered" (rows of about eight blocks that read the row before), "series-parallel", "branchy" (modules
    of two to six branches, one after the other) or "erdos-renyi" (every earlier block is read with the same
    probability). Raises InputError.
    """
    if family not in FAMILIES:
        raise InputError(f"there is no family {family!r}", remedy=f"choose {', '.join(FAMILIES)}")
    for name, value, least in (("n_ops", n_ops, 1), ("seed", seed, 0), ("batch", batch, 1), ("size", size, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_SIZE:
            raise InputError(f"{name} is {value!r}", remedy=f"give a whole number from {least} to {MAX_SIZE:,}")
    if n_ops > MAX_OPS:
        raise InputError(f"{n_ops:,} ops are too many", remedy=f"choose at most {MAX_OPS:,}")
    growth = _Growth(Net(dtype), n_ops, seed)
    FAMILIES[family](growth, growth.net.input("images", batch, CHANNELS[0], size, size))
    return growth.finished()


class _Growth:
    """A net that grows to `n_ops` ops, with its draws."""

    def __init__(self, net: Net, n_ops: int, seed: int) -> None:
        self.net, self._n_ops = net, n_ops
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._drawn: list[float] = []
        self._unread: dict[int, None] = {}

    @property
    def left(self) -> int:
        """Ops that are still to come."""
        return self._n_ops - self.net.builder.n_ops

    def chance(self) -> float:
        if not self._drawn:
            self._drawn = self._generator.random(4096).tolist()
        return self._drawn.pop()

    def below(self, n: int) -> int:
        """A whole number in [0, n)."""
        return int(self.chance() * n)

    def block(self, inputs: Sequence[Value]) -> Value:
        """One op on one input, two on several; on the first of them where only one op is left."""
        inputs = inputs if self.left > 1 else inputs[:1]
        return self._single(inputs[0]) if len(inputs) == 1 else self._join(inputs)

    def chain(self, x: Value, length: int) -> Value:
        for _ in range(length):
            x = self._single(x)
        return x

    def finished(self) -> Graph:
        for number in self._unread:
            self.net.builder.set_output(number)
        return self.net.builder.build()

    def _single(self, x: Value) -> Value:
        net, draw = self.net, self.chance()
        if draw < 0.4:
            kernel = 1 if self.chance() < 0.5 else 3
            made = self._weighted(lambda: convolve(net, x, CHANNELS[self.below(len(CHANNELS))], kernel))
        elif draw < 0.6:
            made = self._weighted(lambda: normalize(net, x))
        elif draw < 0.9:
            made = net.each("Relu" if draw < 0.8 else "Sigmoid", x)
        else:
            made = pool(net, x, "MaxPool" if draw < 0.95 else "AveragePool", 3)
        return self._noted((x,), made)

    def _join(self, inputs: Sequence[Value]) -> Value:
        net = self.net
        if len({x.shape for x in inputs}) == 1 and self.chance() < 0.5:
            joined = net.op("Sum", *inputs, shape=inputs[0].shape)
            made = net.each("Relu", joined)
        else:
            joined = net.concat(inputs, axis=1)
            made = self._weighted(lambda: convolve(net, joined, CHANNELS[self.below(len(CHANNELS))], 1))
        return self._noted(inputs, made)

    def _weighted(self, make: Callable[[], Value]) -> Value:
        """An op with weights, which are named after its number."""
        with self.net.within("op", self.net.builder.n_ops):
            return make()

    def _noted(self, inputs: Sequence[Value], made: Value) -> Value:
        for x in inputs:
            self._unread.pop(x.number, None)
        self._unread[made.number] = None
        return made


def _layered(growth: _Growth, x: Value) -> None:
    row, place = [x], 0
    while growth.left:
        width = 1 + growth.below(15)
        made = []
        with growth.net.within("row", place):
            for block in range(width):
                if not growth.left:
                    break
                read = row[block::width] or [row[block % len(row)]]
                extra = row[growth.below(len(row))]
                made.append(growth.block(read if extra in read or growth.chance() < 0.5 else [*read, extra]))
        row, place = made, place + 1


def _series_parallel(growth: _Growth, x: Value) -> None:
    _composed(growth, x, growth.left)


def _composed(growth: _Growth, x: Value, size: int) -> Value:
    """`size` ops between `x` and the result: one part behind the other, or branches side by side."""
    if size < 4:
        return growth.chain(x, size)
    if growth.chance() < 0.5:
        first = 1 + int((0.25 + growth.chance() / 2) * (size - 2))
        return _composed(growth, _composed(growth, x, first), size - first)
    branches = min(2 + growth.below(3), size - 2)
    cuts = [round(branch * (size - 2) / branches) for branch in range(branches + 1)]
    return growth.block([_composed(growth, x, b - a) for a, b in pairwise(cuts)])


def _branchy(growth: _Growth, x: Value) -> None:
    place = 0
    while growth.left:
        with growth.net.within("module", place):
            branches = min(2 + growth.below(5), growth.left - 2)
            if branches < 2:
                x = growth.chain(x, growth.left)
                break
            spare, ends = growth.left - 2 - branches, []
            for branch in range(branches):
                more = min(growth.below(4), spare)
                spare -= more
                with growth.net.within("branch", branch):
                    ends.append(growth.chain(x, 1 + more))
            x = growth.block(ends)
        place += 1


def _erdos_renyi(growth: _Growth, x: Value) -> None:
    blocks = [x]
    share = min(READS / growth.left, 1.0)
    while growth.left:
        read, at = [], 0
        while (at := at + _gap(growth.chance(), share)) <= len(blocks):
            read.append(blocks[at - 1])
        blocks.append(growth.block(read or blocks[:1]))


def _gap(draw: float, share: float) -> int:
    """Tries up to and with the first success of probability `share`: geometric, by inversion."""
    return 1 if share >= 1 else 1 + int(np.log1p(-draw) / np.log1p(-share))


FAMILIES: dict[str, Callable[[_Growth, Value], None]] = {
    "layered": _layered,
    "series-parallel": _series_parallel,
    "branchy": _branchy,
    "erdos-renyi": _erdos_renyi,
}


def _entry(family: str) -> Entry:
    def graph(sizes: Sizes, dtype: str) -> Graph:
        return random_graph(
            family, sizes["n_ops"], sizes["seed"], batch=sizes["batch"], size=sizes["size"], dtype=dtype
        )

    dims = {"n_ops": 1000, "seed": 0, "batch": 32, "size": 16}
    return Entry(f"random-{family}", f"random graph, {family}", "ours", dims, graph=graph, zero=("seed",))


ENTRIES = tuple(map(_entry, FAMILIES))
