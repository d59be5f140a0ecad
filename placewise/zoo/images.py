"""ResNet-50 and Inception-V3, from the architecture tables of their papers.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016, table 1 (50 layers, projection shortcuts; the
stride of a stage is on the 3×3 convolution of its first block). The paper's batch is 256; 32 are assumed. Szegedy et
al., Rethinking the Inception Architecture for Computer Vision, CVPR 2016, table 1 and figures 5 to 8, with the widths
of the published checkpoint; Mirhoseini et al. (ICML 2017) place it with a batch of 32. In training it has an auxiliary
classifier and drops out half of the last features.
"""

from __future__ import annotations

from placewise.zoo.conv import Window, classify, convolve, normalize, pool
from placewise.zoo.net import NetBuilder, NetValue
from placewise.zoo.workload import Sizes, Workload

EPSILON = 0.001
"""Of batch normalization in Inception-V3."""


def resnet50(net: NetBuilder, sizes: Sizes) -> None:
    """Images [batch, 3, image, image] → scores [batch, classes]."""
    x = net.input("images", sizes["batch"], 3, sizes["image"], sizes["image"])
    x = _conv_bn(net, x, 64, 7, stride=2)
    x = _relu(net, x)
    with net.within("maxpool"):
        x = pool(net, x, "MaxPool", 3, stride=2)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            with net.within(f"layer{stage + 1}", block):
                x = _bottleneck(net, x, 64 << stage, stride=2 if stage and not block else 1)
    classify(net, x, sizes["classes"])


def _bottleneck(net: NetBuilder, x: NetValue, width: int, *, stride: int) -> NetValue:
    """1×1 → 3×3 → 1×1 of four times the width, added to the input."""
    y = _relu(net, _conv_bn(net, x, width, 1, place=1))
    y = _relu(net, _conv_bn(net, y, width, 3, stride=stride, place=2))
    y = _conv_bn(net, y, 4 * width, 1, place=3)
    if x.shape != y.shape:
        with net.within("shortcut"):
            x = _conv_bn(net, x, 4 * width, 1, stride=stride)
    return _relu(net, net.each("Add", y, x))


def _conv_bn(net: NetBuilder, x: NetValue, outputs: int, kernel: int, *, stride: int = 1, place: int = 1) -> NetValue:
    with net.within(f"conv{place}"):
        x = convolve(net, x, outputs, kernel, stride=stride)
    with net.within(f"bn{place}"):
        return normalize(net, x)


def _relu(net: NetBuilder, x: NetValue) -> NetValue:
    return net.each("Relu", x)


def inception_v3(net: NetBuilder, sizes: Sizes) -> None:
    """Images [batch, 3, image, image] → scores [batch, classes]; in training also those of the auxiliary head."""
    x = net.input("images", sizes["batch"], 3, sizes["image"], sizes["image"])
    with net.within("stem"):
        for place, (outputs, kernel, stride, same) in enumerate(
            ((32, 3, 2, False), (32, 3, 1, False), (64, 3, 1, True))
        ):
            x = _unit(net, x, place, outputs, kernel, stride=stride, same=same)
        x = pool(net, x, "MaxPool", 3, stride=2, same=False)
        x = _unit(net, _unit(net, x, 3, 80, 1), 4, 192, 3, same=False)
        x = pool(net, x, "MaxPool", 3, stride=2, same=False)
    for block, pooled in enumerate((32, 64, 64)):
        with net.within("a", block):
            x = _block_a(net, x, pooled)
    with net.within("reduce_a"):
        x = _reduce_a(net, x)
    for block, middle in enumerate((128, 160, 160, 192)):
        with net.within("b", block):
            x = _block_b(net, x, middle)
    if net.training:
        with net.within("auxiliary"):
            _auxiliary(net, x, sizes["classes"])
    with net.within("reduce_b"):
        x = _reduce_b(net, x)
    for block in range(2):
        with net.within("c", block):
            x = _block_c(net, x)
    classify(net, x, sizes["classes"], dropout=0.5)


def _unit(
    net: NetBuilder, x: NetValue, name: str | int, outputs: int, kernel: Window, *, stride: int = 1, same: bool = True
) -> NetValue:
    """Convolution, batch normalization, ReLU."""
    with net.within(name):
        x = convolve(net, x, outputs, kernel, stride=stride, same=same)
        return _relu(net, normalize(net, x, epsilon=EPSILON))


Step = tuple[int, Window]


def _branch(net: NetBuilder, x: NetValue, name: str, *steps: Step, stride: int = 1) -> NetValue:
    """Units in sequence; the last one has the stride, and no padding if that is not 1."""
    with net.within(name):
        for place, (outputs, kernel) in enumerate(steps):
            last = place == len(steps) - 1
            x = _unit(net, x, place, outputs, kernel, stride=stride if last else 1, same=stride == 1 or not last)
    return x


def _project_pooled(net: NetBuilder, x: NetValue, outputs: int) -> NetValue:
    with net.within("pool"):
        return _unit(net, pool(net, x, "AveragePool", 3), 0, outputs, 1)


def _block_a(net: NetBuilder, x: NetValue, pooled: int) -> NetValue:
    """Figure 5: 5×5 as one convolution and as two of 3×3, on 35×35."""
    branches = (
        _branch(net, x, "1x1", (64, 1)),
        _branch(net, x, "5x5", (48, 1), (64, 5)),
        _branch(net, x, "double3x3", (64, 1), (96, 3), (96, 3)),
        _project_pooled(net, x, pooled),
    )
    return net.concat(branches, axis=1)


def _reduce_a(net: NetBuilder, x: NetValue) -> NetValue:
    """35×35 → 17×17."""
    branches = (
        _branch(net, x, "3x3", (384, 3), stride=2),
        _branch(net, x, "double3x3", (64, 1), (96, 3), (96, 3), stride=2),
        pool(net, x, "MaxPool", 3, stride=2, same=False),
    )
    return net.concat(branches, axis=1)


def _block_b(net: NetBuilder, x: NetValue, middle: int) -> NetValue:
    """Figure 6: 7×7 as 1×7 and 7×1, on 17×17."""
    wide, tall = (1, 7), (7, 1)
    double = ((middle, tall), (middle, wide), (middle, tall))
    branches = (
        _branch(net, x, "1x1", (192, 1)),
        _branch(net, x, "7x7", (middle, 1), (middle, wide), (192, tall)),
        _branch(net, x, "double7x7", (middle, 1), *double, (192, wide)),
        _project_pooled(net, x, 192),
    )
    return net.concat(branches, axis=1)


def _reduce_b(net: NetBuilder, x: NetValue) -> NetValue:
    """17×17 → 8×8."""
    branches = (
        _branch(net, x, "3x3", (192, 1), (320, 3), stride=2),
        _branch(net, x, "7x7x3", (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3), stride=2),
        pool(net, x, "MaxPool", 3, stride=2, same=False),
    )
    return net.concat(branches, axis=1)


def _block_c(net: NetBuilder, x: NetValue) -> NetValue:
    """Figure 7: 3×3 as 1×3 next to 3×1, on 8×8."""
    single = _branch(net, x, "3x3", (384, 1))
    double = _branch(net, x, "double3x3", (448, 1), (384, 3))
    branches = (_branch(net, x, "1x1", (320, 1)), _beside(net, single, "3x3"), _beside(net, double, "double3x3"))
    return net.concat((*branches, _project_pooled(net, x, 192)), axis=1)


def _beside(net: NetBuilder, x: NetValue, name: str) -> NetValue:
    with net.within(name):
        return net.concat((_unit(net, x, "wide", 384, (1, 3)), _unit(net, x, "tall", 384, (3, 1))), axis=1)


def _auxiliary(net: NetBuilder, x: NetValue, classes: int) -> None:
    """Figure 8: a classifier on 17×17 for training only."""
    x = pool(net, x, "AveragePool", 5, stride=3, same=False)
    x = _unit(net, _unit(net, x, 0, 128, 1), 1, 768, 5, same=False)
    classify(net, x, classes)


_SIZES = {"batch": 32, "image": 224, "classes": 1000}
_RESNET = "He et al., CVPR 2016, arXiv 1512.03385"
_INCEPTION = "Szegedy et al., CVPR 2016, arXiv 1512.00567; placed by Mirhoseini et al., ICML 2017"

ENTRIES = (
    Workload("resnet-50", "image classifier of residual blocks", _RESNET, {**_SIZES, "image": 224}, resnet50),
    Workload(
        "inception-v3", "image classifier of branching blocks", _INCEPTION, {**_SIZES, "image": 299}, inception_v3
    ),
)
