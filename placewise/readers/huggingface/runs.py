"""The runs of a model to trace: inputs and calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from placewise.errors import ModelFileError
from placewise.readers.huggingface.cache import CacheFactory
from placewise.readers.huggingface.instance import Instance
from placewise.readers.huggingface.library_errors import EXPORT
from placewise.readers.run_dims import RunDims

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Tensors by name, and the call that maps a model and them to results."""

    inputs: Inputs
    call: Callable[[nn.Module, Inputs], Any]


def build_runs(instance: Instance, dims: RunDims) -> list[Run]:
    """The runs of all phases: one, or two if tokens are generated. Raises ModelFileError."""
    with torch.device("meta"):
        if instance.task == "decoder":
            return _build_decoder_runs(instance, dims)
        if instance.task == "translator":
            return _build_translator_runs(instance, dims)
        return [_build_encoder_run(instance, dims)]


def _build_decoder_runs(instance: Instance, dims: RunDims) -> list[Run]:
    caches = CacheFactory.of(instance.config, crossed=False)
    parameters = _parameters(instance.module)
    last = {name: 1 for name in ("logits_to_keep", "num_logits_to_keep") if name in parameters}

    def run(past: int, tokens: int) -> Run:
        inputs = {"tokens": torch.empty((dims.batch, tokens), dtype=torch.int64)}
        if "position_ids" in parameters:
            inputs["positions"] = torch.empty((dims.batch, tokens), dtype=torch.int64)

        def call(model: nn.Module, tensors: Inputs) -> Any:
            named = {"position_ids": tensors["positions"]} if "positions" in tensors else {}
            cache = caches.at(past, dims.capacity)
            outputs = model(input_ids=tensors["tokens"], past_key_values=cache, use_cache=True, **named, **last)
            return outputs.logits

        return Run(inputs, call)

    return [run(0, dims.prompt), *([run(dims.mean_position, 1)] if dims.tokens else [])]


def _build_translator_runs(instance: Instance, dims: RunDims) -> list[Run]:
    """The encoder and the decoder's first token; then one token, with the encoder's keys and values in the cache."""
    caches = CacheFactory.of(instance.config, crossed=True)
    source = str(instance.module.main_input_name)
    read = _main_input(instance, dims)
    if source not in ("input_ids", "input_features"):
        raise ModelFileError(
            f"it reads {source}, and its configuration does not say how many positions its encoder produces",
            remedy=EXPORT,
        )
    first = torch.empty((dims.batch, 1), dtype=torch.int64)
    width = int(getattr(instance.config, "d_model", None) or instance.config.hidden_size)
    hidden = torch.empty((dims.batch, _count_encoder_positions(instance, dims), width), dtype=find_dtype(instance))

    def start(model: nn.Module, inputs: Inputs) -> Any:
        cache = caches.at(0, dims.tokens + 1)
        return model(
            **{source: inputs["source"]}, decoder_input_ids=inputs["tokens"], past_key_values=cache, use_cache=True
        ).logits

    def go_on(model: nn.Module, inputs: Inputs) -> Any:
        cache = caches.at(max(dims.tokens // 2, 1), dims.tokens + 1)
        return model(
            encoder_outputs=(inputs["hidden"],),
            decoder_input_ids=inputs["tokens"],
            past_key_values=cache,
            use_cache=True,
        ).logits

    runs = [Run({"source": read, "tokens": first}, start)]
    return [*runs, *([Run({"tokens": first, "hidden": hidden}, go_on)] if dims.tokens else [])]


def _build_encoder_run(instance: Instance, dims: RunDims) -> Run:
    source = str(instance.module.main_input_name)
    parameters = _parameters(instance.module)
    no_cache = {"use_cache": False} if "use_cache" in parameters else {}
    inputs = {"source": _main_input(instance, dims)}
    if "decoder_input_ids" in parameters:
        inputs["tokens"] = torch.empty((dims.batch, _target_length(instance, dims)), dtype=torch.int64)

    def call(model: nn.Module, tensors: Inputs) -> Any:
        targets = {"decoder_input_ids": tensors["tokens"]} if "tokens" in tensors else {}
        outputs = model(**{source: tensors["source"]}, **targets, **no_cache)
        return [value for value in outputs.to_tuple() if isinstance(value, torch.Tensor)]

    return Run(inputs, call)


def _target_length(instance: Instance, dims: RunDims) -> int:
    """Tokens that a translator learns to answer with: as many as it reads, or as it can produce from a sound."""
    most = getattr(instance.config, "max_target_positions", None)
    return min(dims.prompt, most) if isinstance(most, int) and most > 0 else dims.prompt


def find_dtype(instance: Instance) -> torch.dtype:
    return getattr(torch, instance.dtype)  # type: ignore[no-any-return]


def _main_input(instance: Instance, dims: RunDims) -> torch.Tensor:
    """The model's main input: token ids, an image, or features of a sound."""
    config, name = instance.config, instance.module.main_input_name
    if name == "input_ids":
        return torch.empty((dims.batch, dims.prompt), dtype=torch.int64)
    if name == "pixel_values" and isinstance(getattr(config, "image_size", None), (int, list, tuple)):
        size = config.image_size if isinstance(config.image_size, (list, tuple)) else (config.image_size,) * 2
        return torch.empty((dims.batch, int(config.num_channels), *size), dtype=find_dtype(instance))
    if name == "pixel_values" and hasattr(config, "num_channels"):
        return torch.empty((dims.batch, int(config.num_channels), dims.prompt, dims.prompt), dtype=find_dtype(instance))
    if name == "input_values":
        return torch.empty((dims.batch, dims.prompt), dtype=find_dtype(instance))
    if name == "input_features" and hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        frames = 2 * config.max_source_positions
        return torch.empty((dims.batch, config.num_mel_bins, frames), dtype=find_dtype(instance))
    raise ModelFileError(
        f"it reads {name}, whose size does not follow from its configuration",
        remedy=EXPORT,
    )


def _count_encoder_positions(instance: Instance, dims: RunDims) -> int:
    """Positions that the encoder of a translator produces."""
    sound = instance.module.main_input_name == "input_features"
    return int(instance.config.max_source_positions) if sound else dims.prompt


def _parameters(module: nn.Module) -> frozenset[str]:
    return frozenset(inspect.signature(module.forward).parameters)
