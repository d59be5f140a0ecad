"""The files that the commands of the documents speak of, as small as they can be."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import ir_files
import pytest
from gguf_models import tiny_model
from huggingface_configs import write_config
from locations import ROOT

DATA = ROOT / "tests" / "data"


def _copy(source: str) -> Callable[[Path], None]:
    return lambda path: path.write_bytes((DATA / source).read_bytes()) and None


def _unpacked(source: str) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(gzip.decompress((DATA / source).read_bytes())) and None


def _linked(path: Path) -> None:
    path.symlink_to(ROOT / path.name)


def _corpus(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(_fewer((ROOT / path.relative_to(path.parents[3])).read_text()))


def _fewer(text: str) -> str:
    """A corpus with fewer problems and updates, smaller models, and an expert that does not search."""
    text = text.replace("least = 60, most = 600", "least = 20, most = 40").replace("[2, 4]", "[2]")
    text = re.sub(r"^teacher = .*\n", "", text, flags=re.MULTILINE)
    text = text.replace("[training]\n", '[training]\nteacher = "etf"\n')
    return re.sub(r"^(problems|updates|validated) = \d+", r"\1 = 3", text, flags=re.MULTILINE)


def _configuration(path: Path) -> None:
    path.mkdir()
    write_config(path, "llama")


def _ir(path: Path) -> None:
    """With weights, all zero, so that it can run."""
    path.write_bytes(ir_files.small())
    path.with_suffix(".bin").write_bytes(bytes(48))


def _text_ir(path: Path) -> None:
    """Ids [open, open] → ReLU."""
    open_axes = 'shape="?,?" element_type="f32"'
    layers = [
        ir_files.layer(0, "Parameter", name="input_ids", data=open_axes, outputs=[(-1, -1)]),
        ir_files.layer(1, "ReLU", inputs=[(-1, -1)], outputs=[(-1, -1)]),
        ir_files.layer(2, "Result", inputs=[(-1, -1)]),
    ]
    path.write_bytes(ir_files.net(layers, [ir_files.edge(0, 0, 1, 0), ir_files.edge(1, 1, 2, 0)]))


def _exported(path: Path) -> None:
    """A program with the input that such a model has, open in its batch, and in the length of a text."""
    torch = pytest.importorskip("torch")

    class Images(torch.nn.Module):
        def forward(self, images):
            return torch.relu(images)

    class Text(torch.nn.Module):
        def forward(self, input_ids):
            return torch.relu(input_ids)

    model = {"images.pt2": Images, "text.pt2": Text}[path.name]()
    axes = dict.fromkeys(range({"images.pt2": 1, "text.pt2": 2}[path.name]), torch.export.Dim.AUTO)
    torch.export.save(torch.export.export(model, (torch.zeros(2, 16, 8),), dynamic_shapes=(axes,)), path)


def _gguf(path: Path) -> None:
    """A model of llama.cpp of two small layers."""
    path.write_bytes(tiny_model(head=64))


def _smaller_pictures(path: Path) -> None:
    """The example of that name for pictures of 96 pixels, a tenth of the work."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load(ROOT / "examples" / "models" / "inception_v3.onnx", load_external_data=False)
    for axis in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        axis.dim_value = 96
    path.write_bytes(model.SerializeToString())


FILES: dict[str, Callable[[Path], None]] = {
    "model.gguf": _gguf,
    "examples": _linked,
    "inception_96.onnx": _smaller_pictures,
    "benchmarks/generalize/corpora/default.toml": _corpus,
    "model.onnx": _copy("measured/small.onnx"),
    "model.pt2": _copy("measured/small.pt2"),
    "images.pt2": _exported,
    "text.pt2": _exported,
    "model.xml": _ir,
    "images.xml": _unpacked("openvino/resnet50_open.xml.gz"),
    "text.xml": _text_ir,
    "classifier.pb": _copy("tensorflow/classifier.pb"),
    "my-model": _configuration,
    "gpu_profile.json": _unpacked("measured/onnxruntime.json.gz"),
    "cpu_profile.json": _unpacked("measured/onnxruntime.json.gz"),
}
"""Name → what writes it. What a command of the same page writes is not here."""

SHOWN = re.compile(r"```(?:toml|csv)\n# ([\w.-]+)\n(.*?)```", re.DOTALL)
"""A file that a page shows: its first line is a comment with its name."""


def write_files(page: str, commands: list[str], folder: Path) -> None:
    """Whatever the commands of a page need, into an empty folder; `page` is its text."""
    words = " ".join(commands)
    for name, write in FILES.items():
        if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", words):
            write(folder / name)
    for name, text in SHOWN.findall(page):
        (folder / name).write_text(_fewer(text))
