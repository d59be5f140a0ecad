"""NASNet-A and AmoebaNet-A: image classifiers stacked from cells found by architecture search.

Zoph et al., Learning Transferable Architectures, CVPR 2018, arXiv 1707.07012: figure 4 (the cells), NASNet-A (6 @
4032), that is 3 × 6 normal cells, 168 filters in the first of them, and a stem of 96, on images of 331 × 331. Real et
al., Regularized Evolution, AAAI 2019, arXiv 1802.01548: figure 5, AmoebaNet-A with N = 6 and F = 190, the size of
table 2 that is closest to NASNet-A. Both are stacked as in figure 2 of Zoph et al.: a convolution, two reduction cells,
three rows of normal cells with a reduction cell between rows, which doubles the filters. The projection of outputs
of earlier cells follows the published checkpoints. Path dropout and auxiliary classifiers are omitted. Assumed here: a
batch of 32, and that these sizes are the ones that were placed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from placewise.zoo.conv import Window, classify, convolve, normalize, pool
from placewise.zoo.net import NetBuilder, NetValue
from placewise.zoo.workload import Sizes, Workload

EPSILON = 0.001
ROWS = 3
"""Of normal cells, with a reduction cell before the second and the third."""
STEM_CELLS = 2

Apply = Callable[[NetBuilder, NetValue, int, int], NetValue]
"""An operation on a state: (net, state, filters, stride) → state with that many filters."""


@dataclass(frozen=True, slots=True)
class Genome:
    """Five pairs of (operation, state); states 0 and 1 are the outputs of the last cell and of the one before.

    The sum of each pair is a new state. The states `loose` are concatenated as the output.
    """

    pairs: tuple[tuple[tuple[Apply, int], tuple[Apply, int]], ...]
    loose: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Design:
    """A network: its two cells, and the inputs of a cell after a reduction.

    With `skips`, the older input is that of the reduction cell's older input, not the reduction cell's own input.
    """

    normal: Genome
    reduction: Genome
    skips: bool


def _separable(kernel: int) -> Apply:
    """Twice: ReLU, a depthwise convolution, a pointwise one, batch normalization."""

    def apply(net: NetBuilder, x: NetValue, filters: int, stride: int) -> NetValue:
        for place, step in enumerate((stride, 1)):
            with net.within(f"separable{kernel}x{kernel}", place):
                x = net.each("Relu", x)
                with net.within("depthwise"):
                    x = convolve(net, x, x.shape[1], kernel, stride=step, group=x.shape[1])
                with net.within("pointwise"):
                    x = convolve(net, x, filters, 1)
                x = normalize(net, x, epsilon=EPSILON)
        return x

    return apply


def _pooling(kind: str) -> Apply:
    """3×3 pooling, and a 1×1 convolution if the number of channels changes."""

    def apply(net: NetBuilder, x: NetValue, filters: int, stride: int) -> NetValue:
        x = pool(net, x, kind, 3, stride=stride)
        return x if x.shape[1] == filters else _project(net, x, filters, active=False)

    return apply


def _identity(net: NetBuilder, x: NetValue, filters: int, stride: int) -> NetValue:
    """The identity, or a 1×1 convolution if the size changes."""
    return x if stride == 1 and x.shape[1] == filters else _project(net, x, filters, stride=stride)


def _factorized_7x7(net: NetBuilder, x: NetValue, filters: int, stride: int) -> NetValue:
    """1×7 and 7×1 on a quarter of the filters, between 1×1 convolutions."""
    narrow = max(filters // 4, 1)
    x = _project(net, x, narrow, name="narrow")
    x = _project(net, x, narrow, (1, 7), stride=(1, stride), name="1x7")
    x = _project(net, x, narrow, (7, 1), stride=(stride, 1), name="7x1")
    return _project(net, x, filters, name="wide")


def _project(
    net: NetBuilder,
    x: NetValue,
    filters: int,
    kernel: Window = 1,
    *,
    stride: Window = 1,
    name: str = "1x1",
    active: bool = True,
) -> NetValue:
    """ReLU if `active`, then a convolution and batch normalization."""
    with net.within(name):
        x = net.each("Relu", x) if active else x
        return normalize(net, convolve(net, x, filters, kernel, stride=stride), epsilon=EPSILON)


def _halve(net: NetBuilder, x: NetValue, filters: int) -> NetValue:
    """Halve the size: two pooled copies, one shifted by a pixel, each projected to half of the filters."""
    batch, channels, height, width = x.shape
    x = net.each("Relu", x)
    with net.within("even"):
        even = convolve(net, pool(net, x, "AveragePool", 1, stride=2, same=False), filters // 2, 1)
    with net.within("odd"):
        padded = net.op("Pad", x, shape=(batch, channels, height + 1, width + 1), pads=(0, 0, 0, 0, 0, 0, 1, 1))
        shifted = net.op("Slice", padded, shape=x.shape, axes=(2, 3), starts=(1, 1), ends=(height + 1, width + 1))
        odd = convolve(net, pool(net, shifted, "AveragePool", 1, stride=2, same=False), filters - filters // 2, 1)
    return normalize(net, net.concat((even, odd), axis=1), epsilon=EPSILON)


def _fit(net: NetBuilder, x: NetValue, like: NetValue, filters: int) -> NetValue:
    """Convert the older state to the size of the newer one and the filters of the cell."""
    with net.within("before"):
        if x.shape[2:] != like.shape[2:]:
            return _halve(net, x, filters)
        return x if x.shape[1] == filters else _project(net, x, filters)


def _cell(net: NetBuilder, genome: Genome, x: NetValue, before: NetValue, filters: int, *, stride: int = 1) -> NetValue:
    """The output of a cell for the outputs of the last two cells, which may be the same."""
    before = before if before is x else _fit(net, before, x, filters)
    states = [_project(net, x, filters, name="begin"), before]
    for place, pair in enumerate(genome.pairs):
        operands = []
        for side, (apply, state) in zip(("left", "right"), pair, strict=True):
            with net.within("pair", place, side):
                operands.append(apply(net, states[state], filters, stride if state < 2 else 1))
        states.append(net.each("Add", *operands, label=f"sum{place}"))
    return net.concat([states[state] for state in genome.loose], axis=1)


def _build(net: NetBuilder, sizes: Sizes, design: Design) -> None:
    """Images [batch, 3, image, image] → scores [batch, classes]."""
    x = net.input("images", sizes["batch"], 3, sizes["image"], sizes["image"])
    with net.within("stem"):
        x = convolve(net, x, sizes["stem"], 3, stride=2, same=False)
        x = normalize(net, x, epsilon=EPSILON)
    outputs, filters = [x, x], sizes["filters"]
    for cell in range(STEM_CELLS):
        with net.within("stem", cell):
            narrow = max(filters >> (STEM_CELLS - cell), 1)
            outputs.append(_cell(net, design.reduction, outputs[-1], outputs[-2], narrow, stride=2))
    for row in range(ROWS):
        for cell in range(sizes["cells"]):
            older = outputs[-2]
            if row and not cell:
                filters *= 2
                with net.within("reduction", row - 1):
                    outputs.append(_cell(net, design.reduction, outputs[-1], older, filters, stride=2))
                older = older if design.skips else outputs[-2]
            with net.within("row", row, "cell", cell):
                outputs.append(_cell(net, design.normal, outputs[-1], older, filters))
    classify(net, net.each("Relu", outputs[-1]), sizes["classes"], dropout=0.5)


def _genome(loose: Sequence[int], *pairs: tuple[tuple[Apply, int], tuple[Apply, int]]) -> Genome:
    return Genome(pairs, tuple(loose))


_MEAN, _MOST = _pooling("AveragePool"), _pooling("MaxPool")
_SEP3, _SEP5, _SEP7 = _separable(3), _separable(5), _separable(7)

NASNET_A = Design(
    _genome(
        (1, 2, 3, 4, 5, 6),
        ((_SEP5, 0), (_SEP3, 1)),
        ((_SEP5, 1), (_SEP3, 1)),
        ((_MEAN, 0), (_identity, 1)),
        ((_MEAN, 1), (_MEAN, 1)),
        ((_SEP3, 0), (_identity, 0)),
    ),
    _genome(
        (3, 4, 5, 6),
        ((_SEP5, 0), (_SEP7, 1)),
        ((_MOST, 0), (_SEP7, 1)),
        ((_MEAN, 0), (_SEP5, 1)),
        ((_identity, 3), (_MEAN, 2)),
        ((_SEP3, 2), (_MOST, 0)),
    ),
    skips=True,
)
AMOEBANET_A = Design(
    _genome(
        (1, 3, 4, 6),
        ((_MEAN, 0), (_MOST, 0)),
        ((_SEP3, 1), (_identity, 1)),
        ((_identity, 0), (_MEAN, 1)),
        ((_SEP3, 0), (_SEP5, 2)),
        ((_MEAN, 5), (_SEP3, 0)),
    ),
    _genome(
        (2, 3, 4, 5, 6),
        ((_SEP3, 1), (_MEAN, 0)),
        ((_MOST, 0), (_SEP7, 2)),
        ((_MOST, 1), (_MOST, 0)),
        ((_SEP3, 4), (_factorized_7x7, 0)),
        ((_MEAN, 1), (_SEP7, 0)),
    ),
    skips=False,
)


def nasnet(net: NetBuilder, sizes: Sizes) -> None:
    _build(net, sizes, NASNET_A)


def amoebanet(net: NetBuilder, sizes: Sizes) -> None:
    _build(net, sizes, AMOEBANET_A)


_SIZES = {"cells": 6, "batch": 32, "image": 331, "classes": 1000}
_SUMMARY = "image classifier of searched cells"
_NASNET = "Zoph et al., CVPR 2018, arXiv 1707.07012; placed by Addanki et al., NeurIPS 2019"
_AMOEBANET = "Real et al., AAAI 2019, arXiv 1802.01548; placed by Zhou et al. 2019, arXiv 1910.01578"

ENTRIES = (
    Workload("amoebanet", f"AmoebaNet-A, {_SUMMARY}", _AMOEBANET, {"filters": 190, "stem": 32, **_SIZES}, amoebanet),
    Workload("nasnet", f"NASNet-A, {_SUMMARY}", _NASNET, {"filters": 168, "stem": 96, **_SIZES}, nasnet),
)
