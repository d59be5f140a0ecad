"""WaveNet: stacks of dilated causal convolutions over raw audio.

van den Oord et al., WaveNet, arXiv 1609.03499: dilations that double from layer to layer and restart in every stack,
gated units, residual and skip connections, 256 µ-law levels (section 2). The paper omits widths; van den Oord et al.,
Parallel WaveNet, arXiv 1711.10433, section 2 has 512 channels, windows of 3 and clips of 7680 samples. Zhou et al.
(GDP, 2019) place 2 stacks of 18 layers in total and 4 of 36: 9 layers per stack, so dilations of 1 to 256. Assumed
here: as many skip channels as levels, a batch of 4, no conditioning on text or speaker. The residual connection of
the last layer, which has no reader, is omitted.
"""

from __future__ import annotations

from placewise.errors import InputError
from placewise.zoo.net import NetBuilder, NetValue
from placewise.zoo.workload import Sizes, Workload

MAX_STACK = 30


def build(net: NetBuilder, sizes: Sizes) -> None:
    """Levels of each sample, one-hot [batch, levels, samples] → the mean loss of predicting the next sample."""
    batch, levels, samples, width = sizes["batch"], sizes["levels"], sizes["samples"], sizes["channels"]
    if min(sizes["stack"], sizes["layers"]) > MAX_STACK:
        raise InputError(
            f"a stack of {sizes['stack']:,} layers", remedy=f"dilations double: choose at most {MAX_STACK}"
        )
    with net.within("causal"):
        x = _convolve(net, net.input("audio", batch, levels, samples), width, sizes["kernel"])
    skips = []
    for layer in range(sizes["layers"]):
        stack, place = divmod(layer, sizes["stack"])
        with net.within("stack", stack, "layer", place):
            gated = _gated(net, x, sizes, dilation=1 << place)
            with net.within("skip"):
                skips.append(_convolve(net, gated, sizes["skip"], 1))
            if layer < sizes["layers"] - 1:
                with net.within("residual"):
                    x = net.each("Add", _convolve(net, gated, width, 1), x)
    with net.within("output"):
        x = net.each("Relu", net.op("Sum", *skips, shape=skips[0].shape))
        with net.within("first"):
            x = net.each("Relu", _convolve(net, x, sizes["skip"], 1))
        with net.within("second"):
            x = _convolve(net, x, levels, 1)
        rows = net.reshape(net.transpose(x, 0, 2, 1), batch * samples, levels)
        labels = net.input("labels", batch * samples, dtype="int32")
        net.op("SoftmaxCrossEntropyLoss", rows, labels, shape=(), label="loss", output=True, reduction="mean")


def _gated(net: NetBuilder, x: NetValue, sizes: Sizes, *, dilation: int) -> NetValue:
    """tanh(filter) · σ(gate), two parallel convolutions (section 2.3)."""
    with net.within("filter"):
        signal = net.each("Tanh", _convolve(net, x, sizes["channels"], sizes["kernel"], dilation=dilation))
    with net.within("gate"):
        gate = net.each("Sigmoid", _convolve(net, x, sizes["channels"], sizes["kernel"], dilation=dilation))
    return net.each("Mul", signal, gate)


def _convolve(net: NetBuilder, x: NetValue, outputs: int, window: int, *, dilation: int = 1) -> NetValue:
    """[batch, channels, samples] → [batch, outputs, samples], causal."""
    batch, channels, samples = x.shape
    weight, bias = net.weight("kernel", outputs, channels, window), net.weight("bias", outputs, 1)
    pads, shape = ((window - 1) * dilation, 0), (batch, outputs, samples)
    product = net.op(
        "Conv", x, weight, shape=shape, kernel_shape=(window,), dilations=(dilation,), strides=(1,), pads=pads, group=1
    )
    return net.each("Add", product, bias, label="BiasAdd")


_SIZES = {
    "stack": 9, "channels": 512, "skip": 256, "kernel": 3, "levels": 256, "batch": 4, "samples": 7680,
}  # fmt: skip
_PAPER = "van den Oord et al. 2016, arXiv 1609.03499; placed by Zhou et al. 2019, arXiv 1910.01578"

ENTRIES = tuple(
    Workload(
        f"wavenet-{stacks}x{9 * stacks}",
        f"audio model of {9 * stacks} dilated convolutions in {stacks} stacks",
        _PAPER,
        {"layers": 9 * stacks, **_SIZES},
        build,
    )
    for stacks in (2, 4)
)
