"""Settings → a model of transformers on the meta device: shapes without weights."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import transformers
from torch import nn
from torch.nn.modules import module as nn_module
from transformers.models.auto import modeling_auto

from placewise.errors import ModelFileError
from placewise.readers.huggingface.library_errors import describe_library_error
from placewise.readers.huggingface.settings import asks_for_code

Task = Literal["decoder", "translator", "encoder"]
"""A decoder continues a prompt, a translator continues from its encoder's output, an encoder runs once."""

MAX_MODULES = 100_000
DTYPES = {name: getattr(torch, name) for name in ("bfloat16", "float16", "float32", "float64")}
_IGNORED_KEYS = (
    "quantization_config", "transformers_version", "attn_implementation", "kernel_config", "device_map", "auto_map",
    "trust_remote_code",
)  # fmt: skip
"""Keys that do not affect shapes, or refer to kernels, files and code; keys with a leading underscore count too."""
_WITH_PICTURES = "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING"
_FALLBACKS = ("MODEL_FOR_CAUSAL_LM_MAPPING", _WITH_PICTURES, "MODEL_MAPPING")
_DECODERS = _FALLBACKS[:-1]
_TRANSLATORS = (
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING", _WITH_PICTURES,
    "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING",
)  # fmt: skip
"""Tables of transformers with models that generate: those with an encoder of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """A model ready for tracing: its module (on the meta device), configuration, task and element type."""

    module: nn.Module
    config: Any
    task: Task
    dtype: str


def build_instance(values: Mapping[str, Any], dtype: str | None = None) -> Instance:
    """Build the model that a configuration describes, in `dtype` or its own element type (default: float32).

    Raises ModelFileError if transformers does not know the model or rejects the values.
    """
    known = _drop_ignored_keys(values)
    name = _dtype_name(dtype or known.pop("dtype", None) or known.pop("torch_dtype", None) or "float32")
    for key in ("dtype", "torch_dtype"):
        known.pop(key, None)
    with offline():
        config = _make_config(known, asks_for_code(values))
        model_class = _select_class(config, known.get("architectures"))
        try:
            with torch.device("meta"), _limit_modules():
                module = model_class._from_config(config, dtype=DTYPES[name]).eval()  # noqa: SLF001  by class, not by auto class
                module.tie_weights()
                if known.get("tie_word_embeddings") is False:
                    _untie(module)
        except ModelFileError:
            raise
        except Exception as error:
            raise describe_library_error("transformers cannot build the configuration", error) from None
    return Instance(module, config, _find_task(model_class, config), name)


def describe_class(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The class of transformers that `build_instance` takes, and the values of the configuration that it builds.

    Raises ModelFileError as `build_instance` does.
    """
    known = _drop_ignored_keys(values)
    for key in ("dtype", "torch_dtype"):
        known.pop(key, None)
    with offline():
        model_class = _select_class(_make_config(known, asks_for_code(values)), known.get("architectures"))
    return model_class.__name__, known


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Suppress downloads and output while a model is built and traced."""
    import huggingface_hub.constants as hub

    before, silenced = hub.HF_HUB_OFFLINE, logging.root.manager.disable
    hub.HF_HUB_OFFLINE = True
    logging.disable(logging.CRITICAL)
    try:
        quiet = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            warnings.simplefilter("ignore")
            yield
    finally:
        hub.HF_HUB_OFFLINE = before
        logging.disable(silenced)


def _drop_ignored_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop ignored keys, also in nested configurations."""
    return {
        key: _drop_ignored_keys(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if key not in _IGNORED_KEYS and not key.startswith("_")
    }


def _dtype_name(name: Any) -> str:
    plain = str(name).removeprefix("torch.")
    if plain not in DTYPES:
        raise ModelFileError(
            f"its element type is {plain[:30]!r}", remedy="give another with --precision, such as --precision bf16"
        )
    return plain


def _make_config(values: dict[str, Any], needs_code: bool) -> Any:
    kind = values["model_type"]
    if kind not in transformers.CONFIG_MAPPING:
        code = ", and Placewise never runs the code that the configuration asks for" if needs_code else ""
        raise ModelFileError(
            f"transformers {transformers.__version__} knows no model_type {kind[:60]!r}{code}",
            remedy="update transformers, or give another model",
        )
    try:
        config = transformers.AutoConfig.for_model(**values)
    except Exception as error:
        raise describe_library_error("transformers rejects the configuration", error) from None
    return config


def _untie(module: nn.Module) -> None:
    """Give the head its own weights, even if transformers always ties them (T5)."""
    model: Any = module
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and table is not None and head.weight is table.weight:
        head.weight = nn.Parameter(torch.empty_like(head.weight))


def _select_class(config: Any, architectures: Any) -> Any:
    """The class that the configuration names, if transformers has it for this configuration; else the usual one."""
    requested = architectures[0] if isinstance(architectures, list) and architectures else None
    tables = [table for name, table in sorted(vars(modeling_auto).items()) if name.startswith("MODEL_") and
              name.endswith("_MAPPING")]  # fmt: skip
    candidates = [candidate for table in tables for candidate in _list_classes(table, config)]
    for candidate in candidates:
        if candidate.__name__ == requested:
            return candidate
    if requested is None and getattr(config, "is_encoder_decoder", False):
        candidates = _find_listed_classes(_TRANSLATORS, config) or candidates
        return candidates[0] if candidates else _no_class(config)
    usual = _find_listed_classes(_FALLBACKS if not _reads_both_ways(config) else _FALLBACKS[::-1], config)
    return usual[0] if usual else _no_class(config)


def _find_listed_classes(names: Sequence[str], config: Any) -> list[Any]:
    """The classes that these tables hold for a configuration."""
    return [model_class for name in names for model_class in _list_classes(getattr(modeling_auto, name, {}), config)]


def _list_classes(table: Any, config: Any) -> list[Any]:
    if type(config) not in table:
        return []
    entry = table[type(config)]
    return list(entry) if isinstance(entry, (tuple, list)) else [entry]


def _reads_both_ways(config: Any) -> bool:
    return type(config) in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING


def _no_class(config: Any) -> Any:
    raise ModelFileError(
        f"transformers has no model for the model_type {config.model_type!r}", remedy="give another model"
    )


def _find_task(model_class: Any, config: Any) -> Task:
    if getattr(config, "is_encoder_decoder", False) and model_class in _find_listed_classes(_TRANSLATORS, config):
        return "translator"
    return "decoder" if model_class in _find_listed_classes(_DECODERS, config) else "encoder"


@contextlib.contextmanager
def _limit_modules() -> Iterator[None]:
    """Stop building before too many modules exhaust memory."""
    count = 0

    def counted(module: nn.Module, name: str, child: nn.Module | None) -> None:
        del module, name, child
        nonlocal count
        count += 1
        if count > MAX_MODULES:
            raise ModelFileError(
                f"it has more than {MAX_MODULES:,} modules, which no model has", remedy="check the configuration"
            )

    handle = nn_module.register_module_module_registration_hook(counted)
    try:
        yield
    finally:
        handle.remove()
