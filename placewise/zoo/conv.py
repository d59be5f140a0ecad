"""Convolutions, batch normalization and pooling over images [batch, channels, height, width]."""

from __future__ import annotations

from placewise.zoo.net import NetBuilder, NetValue

Window = int | tuple[int, int]


def pair(window: Window) -> tuple[int, int]:
    return (window, window) if isinstance(window, int) else window


def convolve(
    net: NetBuilder,
    images: NetValue,
    outputs: int,
    kernel: Window,
    *,
    stride: Window = 1,
    same: bool = True,
    group: int = 1,
) -> NetValue:
    """A convolution without bias; `same` pads by half of the kernel on each side, which keeps the size at stride 1."""
    batch, channels, *size = images.shape
    window, strides = pair(kernel), pair(stride)
    pads: tuple[int, ...] = tuple((k - 1) // 2 for k in window) if same else (0, 0)
    weight = net.weight("kernel", outputs, channels // group, *window)
    shape = (batch, outputs, *_sizes(size, window, strides, pads))
    pads = (*pads, *pads)
    return net.op("Conv", images, weight, shape=shape, kernel_shape=window, strides=strides, pads=pads, group=group)


def normalize(net: NetBuilder, images: NetValue, *, epsilon: float = 1e-5) -> NetValue:
    """Batch normalization by the running mean and variance."""
    channels = images.shape[1]
    weights = [net.weight(name, channels) for name in ("scale", "shift", "running_mean", "running_var")]
    return net.each("BatchNormalization", images, *weights, epsilon=epsilon)


def pool(
    net: NetBuilder, images: NetValue, kind: str, kernel: Window, *, stride: Window = 1, same: bool = True
) -> NetValue:
    """``MaxPool`` or ``AveragePool``."""
    batch, channels, *size = images.shape
    window, strides = pair(kernel), pair(stride)
    pads: tuple[int, ...] = tuple((k - 1) // 2 for k in window) if same else (0, 0)
    shape = (batch, channels, *_sizes(size, window, strides, pads))
    return net.op(kind, images, shape=shape, kernel_shape=window, strides=strides, pads=(*pads, *pads))


def classify(net: NetBuilder, images: NetValue, classes: int, *, dropout: float = 0.0) -> NetValue:
    """Global average pooling, then a score per class."""
    batch, channels, *_ = images.shape
    with net.within("avgpool"):
        mean = net.op("ReduceMean", images, shape=(batch, channels, 1, 1), axes=(2, 3), keepdims=1)
        flat = net.dropout(net.reshape(mean, batch, channels), dropout)
    with net.within("fc"):
        weight, bias = net.weight("kernel", classes, channels), net.weight("bias", classes)
        return net.op("Gemm", flat, weight, bias, shape=(batch, classes), transB=1, output=True)


def _sizes(
    size: list[int], window: tuple[int, int], strides: tuple[int, int], pads: tuple[int, ...]
) -> tuple[int, ...]:
    return tuple((n + 2 * p - k) // s + 1 for n, p, k, s in zip(size, pads, window, strides, strict=True))
