"""Estimates of whole models against what others measured and published: `python benchmarks/published_models.py`.

Every figure of published_models.toml is a model on one device: seconds of a batch, or of a token. The estimate is the
sum of the catalogue's times over the ops of that model in that precision; nothing is measured here. Figures with `fit`
were used when the efficiencies and overheads of the catalogue were chosen; all others were only looked at afterwards.
Writes results/published_models.md.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from placewise.catalog import read_cluster
from placewise.core.open_model import open_model
from placewise.core.options import ProblemOptions
from placewise.costing.roofline import cost_table
from placewise.model.graph import Graph

HERE = Path(__file__).parent
RESULT = HERE / "results" / "published_models.md"
sys.path.insert(0, str(HERE.parent / "examples" / "models"))
from definitions import InceptionV3, ResNet50  # noqa: E402

MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, blocks and first stride of each stage: Sandler et al., MobileNetV2, CVPR 2018, table 2."""
LLAMA_2_7B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "hidden_act": "silu",
}  # fmt: skip
"""Touvron et al., Llama 2, 2023."""


BEFORE = (
    "| figures | | median error | worst | median factor |",
    "|---|--:|--:|---|--:|",
    "| all | 45 | 25% | 646% (resnet50 on T4, batch 1) | 1.04 |",
    "| used for fitting | 10 | 21% | 179% (resnet50 on i7-12700H, batch 1) | 1.04 |",
    "| not used for fitting | 35 | 25% | 646% (resnet50 on T4, batch 1) | 1.04 |",
    "| CPUs | 6 | 148% | 227% (inception_v3 on i7-12700H, batch 1) | 0.41 |",
    "| generated tokens | 12 | 18% | 32% (llama-3-8b on M2-Ultra, token, mean of 512) | 1.18 |",
)
"""The summary with the figures that the catalogue had before."""


@dataclass(frozen=True)
class Figure:
    """A published measurement: `seconds` of a batch or a token, or `rate`, samples or tokens per second.

    A language model reads a `prompt`, or makes `tokens` one by one; BERT reads `length` tokens per sample.
    """

    model: str
    device: str
    precision: str
    source: str
    batch: int = 1
    seconds: float = 0.0
    rate: float = 0.0
    length: int = 0
    prompt: int = 0
    tokens: int = 0
    fit: bool = False

    @property
    def measured(self) -> float:
        """Seconds of a batch, of a prompt, or of a token."""
        return self.seconds or max(self.prompt, self.batch) / self.rate

    @property
    def shape(self) -> dict[str, int]:
        """The dimensions of its graph; caches are read at their mean length."""
        if self.tokens:
            return {"batch": self.batch, "prompt": 5, "tokens": self.tokens}
        if self.prompt:
            return {"batch": self.batch, "prompt": self.prompt, "tokens": 0}
        return {"batch": self.batch} | ({"length": self.length} if self.length else {})

    @property
    def words(self) -> str:
        if self.tokens:
            return f"token, mean of {self.tokens}"
        if self.prompt:
            return f"prompt of {self.prompt}"
        return f"batch {self.batch}" + (f" × {self.length} tokens" if self.length else "")


@dataclass(frozen=True)
class Row:
    """A figure and its estimate, in seconds."""

    figure: Figure
    estimate: float
    factor: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", self.estimate / self.figure.measured)

    @property
    def error(self) -> float:
        """How many times the larger of the two is the smaller one, less 1."""
        return max(self.factor, 1 / self.factor) - 1


class MobileNetV2(nn.Module):
    """Images [batch, 3, 224, 224] → scores [batch, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        layers, width = [_conv(3, 32, 3, 2)], 32
        for expansion, channels, blocks, stride in MOBILENET_V2:
            for block in range(blocks):
                layers.append(InvertedResidual(width, channels, expansion, stride if block == 0 else 1))
                width = channels
        self.features = nn.Sequential(*layers, _conv(width, 1280, 1))
        self.classifier = nn.Linear(1280, 1000)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).mean((2, 3)))


class InvertedResidual(nn.Module):
    """1×1 to more channels, 3×3 on each channel, 1×1 to fewer, added to its input where sizes allow."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = inputs * expansion
        first = [_conv(inputs, wide, 1)] if expansion > 1 else []
        last = nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.body = nn.Sequential(*first, _conv(wide, wide, 3, stride, groups=wide), *last)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6())


IMAGES = {"resnet50": (ResNet50, 224), "inception_v3": (InceptionV3, 299), "mobilenet_v2": (MobileNetV2, 224)}


@functools.cache
def graph_of(model: str, precision: str, dims: tuple[tuple[str, int], ...]) -> Graph:
    """The graph that Placewise prices: images by torch on the meta device, the others by their configurations."""
    options = ProblemOptions(dims=dict(dims), dtype=precision)
    if model in IMAGES:
        build, size = IMAGES[model]
        with torch.device("meta"):
            module = build().to(getattr(torch, precision)).eval()
            images = torch.empty(dict(dims)["batch"], 3, size, size, dtype=getattr(torch, precision))
        return open_model(module, ProblemOptions(), (images,)).graph
    if model != "llama-2-7b":
        return open_model(f"hf:{model}", options).graph
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(LLAMA_2_7B))
        return open_model(path, options).graph


def estimate(figure: Figure) -> float:
    """Seconds of all ops on the device, one after the other; of a token, the phase that repeats, per repetition."""
    graph = graph_of(figure.model, figure.precision, tuple(figure.shape.items()))
    seconds = cost_table(graph, read_cluster(figure.device)).op_seconds[:, 0]
    return float(seconds[graph.ops.phase == 1].sum() / figure.tokens if figure.tokens else seconds.sum())


def rows_of(path: Path = HERE / "published_models.toml") -> tuple[list[Row], dict[str, str]]:
    """All figures with their estimates, and the sources by name."""
    table: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    figures = [Figure(**row) for row in table["figures"]]
    return [Row(figure, estimate(figure)) for figure in figures], table["sources"]


def summary(rows: list[Row]) -> str:
    """Median and worst error, and the median factor."""
    worst = max(rows, key=lambda row: row.error)
    place = f"{worst.figure.model} on {worst.figure.device}, {worst.figure.words}"
    bias = math.exp(statistics.median(math.log(row.factor) for row in rows))
    return (
        f"{len(rows)} | {statistics.median(row.error for row in rows):.0%} | {worst.error:.0%} ({place}) | {bias:.2f}"
    )


def report(rows: list[Row], sources: dict[str, str]) -> str:
    """The page."""
    groups = {
        "all": rows,
        "used for fitting": [row for row in rows if row.figure.fit],
        "not used for fitting": [row for row in rows if not row.figure.fit],
        "CPUs": [row for row in rows if row.figure.precision == "float32" and row.figure.source == "timm"],
        "generated tokens": [row for row in rows if row.figure.tokens],
    }
    pairs = len({(row.figure.model, row.figure.device) for row in rows})
    lines = [
        "# Estimates of whole models, and what others measured",
        "",
        f"`python benchmarks/published_models.py`: {len(rows)} published figures of {pairs} pairs of model and device. "
        "The estimate is the sum of the catalogue's times over all ops on that device; nothing was run here. An error "
        "is how many times the larger is the smaller, less 1: 100% is a factor of two either way. Factor: estimate / "
        "measurement. Figures marked *fit* were used to choose efficiencies and overheads; which figures there are, "
        "and which of them are marked so, was decided before.",
        "",
        "Eager PyTorch with batch 1 (the V100 and T4 rows of deeplearningexamples) waits for Python and its loader, "
        "which the catalogue does not price: it describes runtimes that launch one kernel per op.",
        "",
        "| figures | | median error | worst | median factor |",
        "|---|--:|--:|---|--:|",
        *(f"| {name} | {summary(group)} |" for name, group in groups.items() if group),
        "",
        "| model | device | precision | what | measured | estimate | factor | | source |",
        "|---|---|---|---|--:|--:|--:|---|---|",
    ]
    for row in rows:
        f = row.figure
        cells = (f.model, f.device, f.precision, f.words, _ms(f.measured), _ms(row.estimate), f"{row.factor:.2f}")
        lines.append(f"| {' | '.join((*cells, '*fit*' if f.fit else '', f.source))} |")
    lines += ["", "Before any fitting:", "", *BEFORE, ""]
    return "\n".join([*lines, *(f"- **{name}**: {text}" for name, text in sources.items()), ""])


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


if __name__ == "__main__":
    page = report(*rows_of())
    RESULT.write_text(page, "utf-8")
    print(page)
