"""Models that the benchmark of memory exports, with random weights: a U-Net, and what transformers builds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

BUILT: Mapping[str, tuple[str, dict[str, Any]]] = {
    "mobilenet_v2": ("MobileNetV2ForImageClassification", {"tf_padding": False}),
    "efficientnet": ("EfficientNetForImageClassification", {"image_size": 224, "width_coefficient": 1.0,
        "depth_coefficient": 1.0, "hidden_dim": 1280}),
    "vit": ("ViTForImageClassification", {"attn_implementation": "eager"}),
    "convnext": ("ConvNextForImageClassification", {}),
    "swin": ("SwinForImageClassification", {}),
    "segformer": ("SegformerForSemanticSegmentation", {}),
    "regnet": ("RegNetForImageClassification", {}),
    "distilbert": ("DistilBertModel", {"attn_implementation": "eager"}),
    "t5_encoder": ("T5EncoderModel", {}),
    "mobilevit": ("MobileViTForImageClassification", {"image_size": 224}),
    "poolformer": ("PoolFormerForImageClassification", {}),
    "resnet_basic": ("ResNetForImageClassification", {"layer_type": "basic", "depths": [2, 2, 2, 2],
        "hidden_sizes": [64, 128, 256, 512]}),
    "electra": ("ElectraModel", {"attn_implementation": "eager"}),
}  # fmt: skip
"""What transformers builds: its class, and how the settings differ from the usual ones."""
TEXTS = frozenset({"distilbert", "t5_encoder", "electra"})


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


class First(nn.Module):
    """The first result of a model that gives several."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: Tensor) -> Tensor:
        return self.model(given)[0]


def built(name: str) -> nn.Module:
    """The model of this name."""
    if name == "unet":
        return UNet()
    import transformers

    kind, settings = BUILT[name]
    model = getattr(transformers, kind)
    return First(model(model.config_class(**settings)))


def export(name: str, folder: Path) -> Path:
    """The file of a model in the folder, with a symbolic batch; it is made if it is not there."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        torch.manual_seed(0)
        given = torch.zeros(2, 64, dtype=torch.int64) if name in TEXTS else torch.zeros(2, 3, 224, 224)
        axes = {"given": {0: "batch", 1: "seq"} if name in TEXTS else {0: "batch"}, "result": {0: "batch"}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                built(name).eval(), (given,), str(path), dynamo=False, do_constant_folding=False,
                input_names=["given"], output_names=["result"], dynamic_axes=axes, opset_version=17,
            )  # fmt: skip
    return path
