"""ResNet-50 and Inception-V3 in plain torch, written from the architecture tables of their papers.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016, table 1 (the 50-layer column, projection
shortcuts); with the stride of a stage's first block on its 3×3 convolution, as torch models have it. Szegedy et al.,
Rethinking the Inception Architecture for Computer Vision, CVPR 2016, table 1 and figures 5–7, with the widths of the
published checkpoint.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """1×1 → 3×3 → 1×1 with four times the width behind, added to its input."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class ResNet50(nn.Module):
    """Images [batch, 3, 224, 224] → scores [batch, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.relu, self.maxpool = nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        self.layer1 = self._stage(64, width=64, blocks=3, stride=1)
        self.layer2 = self._stage(256, width=128, blocks=4, stride=2)
        self.layer3 = self._stage(512, width=256, blocks=6, stride=2)
        self.layer4 = self._stage(1024, width=512, blocks=3, stride=2)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(2048, 1000)

    @staticmethod
    def _stage(inputs: int, *, width: int, blocks: int, stride: int) -> nn.Sequential:
        rest = (Bottleneck(4 * width, width, 1) for _ in range(blocks - 1))
        return nn.Sequential(Bottleneck(inputs, width, stride), *rest)

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Conv(nn.Sequential):
    """Convolution without bias, batch normalization, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int = 1, padding=0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn, self.relu = nn.BatchNorm2d(outputs, eps=0.001), nn.ReLU()


def _wide(inputs: int, outputs: int, n: int = 7) -> Conv:
    return Conv(inputs, outputs, (1, n), padding=(0, n // 2))


def _tall(inputs: int, outputs: int, n: int = 7) -> Conv:
    return Conv(inputs, outputs, (n, 1), padding=(n // 2, 0))


class Branches(nn.Module):
    """Runs every branch on the input and joins the results along the channels."""

    def __init__(self, **branches: nn.Module) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.children()], 1)


def _pooled(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), Conv(inputs, outputs, 1))


def _block_a(inputs: int, pool: int) -> Branches:
    """Figure 5: 5×5 as one convolution and as two of 3×3, on 35×35."""
    return Branches(
        branch1x1=Conv(inputs, 64, 1),
        branch5x5=nn.Sequential(Conv(inputs, 48, 1), Conv(48, 64, 5, padding=2)),
        branch3x3dbl=nn.Sequential(Conv(inputs, 64, 1), Conv(64, 96, 3, padding=1), Conv(96, 96, 3, padding=1)),
        branch_pool=_pooled(inputs, pool),
    )


def _reduce_a(inputs: int) -> Branches:
    """35×35 → 17×17."""
    return Branches(
        branch3x3=Conv(inputs, 384, 3, 2),
        branch3x3dbl=nn.Sequential(Conv(inputs, 64, 1), Conv(64, 96, 3, padding=1), Conv(96, 96, 3, 2)),
        branch_pool=nn.MaxPool2d(3, 2),
    )


def _block_b(mid: int) -> Branches:
    """Figure 6: 7×7 as 1×7 and 7×1, on 17×17 with 768 channels."""
    return Branches(
        branch1x1=Conv(768, 192, 1),
        branch7x7=nn.Sequential(Conv(768, mid, 1), _wide(mid, mid), _tall(mid, 192)),
        branch7x7dbl=nn.Sequential(
            Conv(768, mid, 1), _tall(mid, mid), _wide(mid, mid), _tall(mid, mid), _wide(mid, 192)
        ),
        branch_pool=_pooled(768, 192),
    )


def _reduce_b() -> Branches:
    """17×17 → 8×8."""
    return Branches(
        branch3x3=nn.Sequential(Conv(768, 192, 1), Conv(192, 320, 3, 2)),
        branch7x7x3=nn.Sequential(Conv(768, 192, 1), _wide(192, 192), _tall(192, 192), Conv(192, 192, 3, 2)),
        branch_pool=nn.MaxPool2d(3, 2),
    )


def _block_c(inputs: int) -> Branches:
    """Figure 7: 3×3 as 1×3 beside 3×1, on 8×8."""
    return Branches(
        branch1x1=Conv(inputs, 320, 1),
        branch3x3=nn.Sequential(Conv(inputs, 384, 1), Branches(wide=_wide(384, 384, 3), tall=_tall(384, 384, 3))),
        branch3x3dbl=nn.Sequential(
            Conv(inputs, 448, 1), Conv(448, 384, 3, padding=1),
            Branches(wide=_wide(384, 384, 3), tall=_tall(384, 384, 3)),
        ),
        branch_pool=_pooled(inputs, 192),
    )  # fmt: skip


class InceptionV3(nn.Module):
    """Images [batch, 3, 299, 299] → scores [batch, 1000]; in training also those of the auxiliary head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            Conv(3, 32, 3, 2), Conv(32, 32, 3), Conv(32, 64, 3, padding=1), nn.MaxPool2d(3, 2),
            Conv(64, 80, 1), Conv(80, 192, 3), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.blocks_a = nn.Sequential(_block_a(192, 32), _block_a(256, 64), _block_a(288, 64))
        self.reduce_a = _reduce_a(288)
        self.blocks_b = nn.Sequential(_block_b(128), _block_b(160), _block_b(160), _block_b(192))
        self.auxiliary = nn.Sequential(
            nn.AvgPool2d(5, 3), Conv(768, 128, 1), Conv(128, 768, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(768, 1000),
        )  # fmt: skip
        self.reduce_b = _reduce_b()
        self.blocks_c = nn.Sequential(_block_c(1280), _block_c(2048))
        self.avgpool, self.dropout, self.fc = nn.AdaptiveAvgPool2d(1), nn.Dropout(), nn.Linear(2048, 1000)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        middle = self.blocks_b(self.reduce_a(self.blocks_a(self.stem(images))))
        last = self.blocks_c(self.reduce_b(middle))
        scores = self.fc(self.dropout(torch.flatten(self.avgpool(last), 1)))
        return (scores, self.auxiliary(middle)) if self.training else scores
