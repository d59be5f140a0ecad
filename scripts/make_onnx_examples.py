"""Write tests/data/onnx: small exported models of many families, fused and quantized ones, and their FLOPs.

    python scripts/make_onnx_examples.py [NAME …]   (needs torch, transformers, onnxscript, onnxruntime; two minutes)

The families are exported by torch's newer exporter from configurations of transformers, without weights, as
scripts/export_models.py does it; FLOPs are those that torch counts on the same modules. `bert_traced` comes from the
older exporter, and `bert_fused` is what ONNX Runtime's transformer optimizer makes of it; `resnet_qdq` and
`resnet_qoperator` are `resnet` quantized by ONNX Runtime, `resnet_blocks` optimized by its session for a CPU.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime.quantization as quantization
import torch
import transformers
from export_models import LONGEST_INLINE, TEXT, Example, exported, externalize, flops, plain, stripped
from onnxruntime.transformers.optimizer import optimize_model
from torch import nn

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "onnx"
DECODER = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2,
    "attn_implementation": "eager",
}  # fmt: skip


class UNet(nn.Module):
    """Two levels down and up again, with attention in the middle and skips across."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = self.block(3, width)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.second = self.block(2 * width, 2 * width)
        self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = self.block(2 * width, width)
        self.head = nn.Conv2d(width, 3, 1)

    @staticmethod
    def block(channels: int, width: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(4, width), nn.SiLU())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        shallow = self.first(images)
        deep = self.second(self.down(shallow))
        tokens = deep.flatten(2).transpose(1, 2)
        mixed, _ = self.attention(tokens, tokens, tokens)
        deep = deep + mixed.transpose(1, 2).reshape(deep.shape)
        found: torch.Tensor = self.head(self.last(torch.cat((self.up(deep), shallow), 1)))
        return found


class Residual(nn.Module):
    """A ResNet of two blocks."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.one = self.block(width, width, 1)
        self.two = self.block(width, 2 * width, 2)
        self.side = nn.Conv2d(width, 2 * width, 1, 2)
        self.head = nn.Linear(2 * width, 10)

    @staticmethod
    def block(channels: int, width: int, stride: int) -> nn.Module:
        convolutions = (nn.Conv2d(channels, width, 3, stride, 1), nn.Conv2d(width, width, 3, 1, 1))
        first, second = (nn.Sequential(conv, nn.BatchNorm2d(width)) for conv in convolutions)
        return nn.Sequential(first, nn.ReLU(), second)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        x = torch.relu(x + self.one(x))
        x = torch.relu(self.side(x) + self.two(x))
        found: torch.Tensor = self.head(x.mean((2, 3)))
        return found


class Encoder(nn.Module):
    """BERT as its authors wrote it down, for an exporter and an optimizer that know it in this form."""

    class Layer(nn.Module):
        """Attention and a feed-forward, each normalized after the skip."""

        def __init__(self, width: int, heads: int, inner: int) -> None:
            super().__init__()
            self.heads, self.size = heads, width // heads
            self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
            self.after, self.last = nn.LayerNorm(width), nn.LayerNorm(width)

        def split(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(*x.shape[:-1], self.heads, self.size).permute(0, 2, 1, 3)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
            scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(self.size) + mask
            mixed = torch.matmul(torch.softmax(scores, -1), value).permute(0, 2, 1, 3).contiguous()
            x = self.after(self.output(mixed.view(*mixed.shape[:-2], self.heads * self.size)) + x)
            found: torch.Tensor = self.last(self.down(nn.functional.gelu(self.up(x))) + x)
            return found

    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2, words: int = 96, places: int = 64) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(size, width) for size in (words, places, 2))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(self.Layer(width, heads, 4 * width) for _ in range(layers))
        self.register_buffer("ids", torch.arange(places)[None])

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        places = self.ids[:, : input_ids.shape[1]]
        x = self.norm(self.words(input_ids) + self.kinds(types) + self.places(places))
        mask = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * -10000.0
        for layer in self.layers:
            x = layer(x, mask)
        return x


def text(dims: Mapping[str, int], *, decoder: bool = False) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 90, (dims["batch"], dims["seq"]))
    found = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return found | ({"decoder_input_ids": ids[:, : dims["seq"]]} if decoder else {})


def speech(dims: Mapping[str, int]) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 90, (dims["batch"], 6))
    return {"input_features": torch.randn(dims["batch"], 8, 32), "decoder_input_ids": ids}


def images(dims: Mapping[str, int], *, side: int, name: str = "pixel_values") -> dict[str, torch.Tensor]:
    return {name: torch.randn(dims["batch"], 3, side, side)}


def example(build: Any, inputs: Any, *, outputs: tuple[str, ...] = ("logits",), **dims: int) -> Example:
    """A model whose inputs have the batch first and, if it reads text, the length second."""
    symbols = {name: dict(enumerate(dims)) for name in inputs({"batch": 2, "seq": 8})}
    if "input_features" in symbols:
        symbols = {name: {0: "batch"} for name in symbols}
    return Example(build=build, inputs=inputs, symbols=symbols, outputs=outputs, dims=dims, parameters=0)


def family(model: str, config: str, **sizes: Any) -> Callable[[], nn.Module]:
    """A model of transformers; its configuration, by name."""

    def build() -> nn.Module:
        module: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**sizes))
        return module

    return build


T5 = {
    "vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "use_cache": False, "attn_implementation": "eager",
}  # fmt: skip
WHISPER = {
    "vocab_size": 96, "num_mel_bins": 8, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "max_source_positions": 16, "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "use_cache": False, "attn_implementation": "eager",
}  # fmt: skip
GPT2 = {
    "vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "use_cache": False,
    "attn_implementation": "eager",
}  # fmt: skip
VIT = {**DECODER, "image_size": 32, "patch_size": 8}
FAMILIES = {
    "bert": example(family("BertForMaskedLM", "BertConfig", **DECODER), text, batch=2, seq=16),
    "gpt2": example(family("GPT2LMHeadModel", "GPT2Config", **GPT2), text, batch=2, seq=16),
    "llama": example(
        family("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2, use_cache=False, **DECODER),
        text, batch=2, seq=16,
    ),
    "t5": example(
        family("T5ForConditionalGeneration", "T5Config", **T5),
        partial(text, decoder=True), outputs=("logits", "encoded"), batch=2, seq=16,
    ),
    "whisper": example(
        family("WhisperForConditionalGeneration", "WhisperConfig", **WHISPER), speech,
        outputs=("logits", "encoded"), batch=2,
    ),
    "vit": example(family("ViTForImageClassification", "ViTConfig", **VIT), partial(images, side=32), batch=2),
    "mobilenet_v2": example(
        family("MobileNetV2ForImageClassification", "MobileNetV2Config", depth_multiplier=0.35, image_size=64),
        partial(images, side=64), batch=2,
    ),
    "efficientnet": example(
        family(
            "EfficientNetForImageClassification", "EfficientNetConfig", width_coefficient=0.25, depth_coefficient=0.35,
            image_size=64, hidden_dim=320,
        ),
        partial(images, side=64), batch=2,
    ),
    "unet": example(UNet, partial(images, side=32, name="images"), batch=2),
    "resnet": example(Residual, partial(images, side=64, name="images"), batch=2),
}  # fmt: skip


def main(names: list[str]) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.backends.mha.set_fastpath_enabled(False)  # the counter does not see it
    FOLDER.mkdir(parents=True, exist_ok=True)
    table = FOLDER / "flops.json"
    record = json.loads(table.read_text()) if table.exists() else {"models": {}}
    record["command"] = "python scripts/make_onnx_examples.py"
    record["counted_by"] = "torch.utils.flop_counter.FlopCounterMode, 2 FLOPs per multiply-add, inference"
    packages = {"torch": torch, "transformers": transformers, "onnx": onnx, "onnxruntime": onnxruntime}
    record["versions"] = {name: package.__version__ for name, package in packages.items()}
    for name, model in FAMILIES.items():
        if names and name not in names:
            continue
        torch.manual_seed(0)
        module = model.build().eval()
        save(name, stripped(exported(module, model), f"{name}.weights", set(module.state_dict())))
        record["models"][name] = {"dims": dict(model.dims), "flops": flops(module, model)}
    with tempfile.TemporaryDirectory() as folder:
        if not names or "resnet" in names:
            quantized(Path(folder))
        if not names or "bert_traced" in names:
            fused(Path(folder))
    record["models"] = {name: record["models"][name] for name in FAMILIES if name in record["models"]}
    table.write_text(json.dumps(record, indent=1) + "\n")


def save(name: str, model: onnx.ModelProto) -> None:
    path = FOLDER / f"{name}.onnx"
    path.write_bytes(model.SerializeToString(deterministic=True))
    print(name, len(model.graph.node), "nodes", path.stat().st_size, "bytes", flush=True)


def emptied(model: onnx.ModelProto, file: str) -> onnx.ModelProto:
    """A finished model without its weights, which are said to lie in `file`."""
    offset = 0
    for tensor in model.graph.initializer:
        if onnx.numpy_helper.to_array(tensor).nbytes > LONGEST_INLINE:
            values = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name)
            offset = externalize(values, file, offset)
            tensor.CopyFrom(values)
    return plain(model)


class Random(quantization.CalibrationDataReader):
    """One batch of noise: ranges do not matter to the shapes."""

    def __init__(self) -> None:
        self.left = [{"images": np.random.default_rng(0).standard_normal((2, 3, 64, 64), np.float32)}]

    def get_next(self) -> Any:
        return self.left.pop() if self.left else None


def quantized(folder: Path) -> None:
    """`resnet` in both forms of quantization, and in blocks of channels."""
    torch.manual_seed(0)
    model: Any = torch.onnx.export(
        Residual().eval(), (torch.randn(2, 3, 64, 64),), dynamo=True, verbose=False, input_names=["images"],
        dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
    )  # fmt: skip
    onnx.save(model.model_proto, folder / "resnet.onnx")
    blocks(folder / "resnet.onnx", folder / "blocks.onnx")
    for name, form in (("qdq", quantization.QuantFormat.QDQ), ("qoperator", quantization.QuantFormat.QOperator)):
        path = folder / f"{name}.onnx"
        quantization.quantize_static(folder / "resnet.onnx", path, Random(), quant_format=form)
        save(f"resnet_{name}", emptied(onnx.load(path), f"resnet_{name}.weights"))
    save("resnet_blocks", emptied(onnx.load(folder / "blocks.onnx"), "resnet_blocks.weights"))


def blocks(source: Path, target: Path) -> None:
    """What a session's optimizer makes of a model on this machine's CPU."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def fused(folder: Path) -> None:
    """BERT by the older exporter, and with its attention fused."""
    torch.manual_seed(0)
    ids = torch.randint(0, 90, (2, 16))
    names = [*TEXT, "types"]
    torch.onnx.export(
        Encoder().eval(), (ids, torch.ones_like(ids), torch.zeros_like(ids)), folder / "traced.onnx", dynamo=False,
        opset_version=14, input_names=names, output_names=["y"],
        dynamic_axes={name: {0: "batch", 1: "seq"} for name in names},
    )  # fmt: skip
    optimized = optimize_model(str(folder / "traced.onnx"), "bert", num_heads=4, hidden_size=32, opt_level=0)
    save("bert_traced", emptied(onnx.load(folder / "traced.onnx"), "bert_traced.weights"))
    save("bert_fused", emptied(optimized.model, "bert_fused.weights"))


if __name__ == "__main__":
    main(sys.argv[1:])
