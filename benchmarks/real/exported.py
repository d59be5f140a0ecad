"""Models that the benchmark of memory exports for itself: MobileNetV2 and a U-Net, with random weights."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn


class UNet(nn.Module):
    """Four levels down and up again, two convolutions each, with what went down beside what comes up (Ronneberger et
    al., MICCAI 2015), padded, for images whose sides are multiples of 16.
    """

    def __init__(self, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[-2::-1])
        self.join = nn.ModuleList(_twice(2 * w, w) for w in widths[-2::-1])
        self.pool, self.last = nn.MaxPool2d(2), nn.Conv2d(width, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        kept, x = [], images
        for level, block in enumerate(self.down):
            x = block(self.pool(x) if level else x)
            kept.append(x)
        kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.last(x)


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    first, second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


def mobilenet_v2() -> nn.Module:
    """MobileNetV2 as in its paper, padded on both sides."""
    import transformers

    settings = transformers.MobileNetV2Config(tf_padding=False)
    return transformers.MobileNetV2ForImageClassification(settings)


def export(name: str, folder: Path) -> Path:
    """The file of a model in the folder, with a symbolic batch; it is made if it is not there."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        torch.manual_seed(0)
        module = {"unet": UNet, "mobilenet_v2": mobilenet_v2}[name]().eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module, (torch.zeros(2, 3, 224, 224),), str(path), dynamo=False, do_constant_folding=False,
                input_names=["images"], output_names=["scores"],
                dynamic_axes={"images": {0: "batch"}, "scores": {0: "batch"}},
            )  # fmt: skip
    return path
