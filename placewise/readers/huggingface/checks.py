"""What transformers builds, and no model is: layers that remember otherwise, windows that show nothing."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from transformers import PretrainedConfig
from transformers.cache_utils import DynamicCache
from transformers.models.auto import modeling_auto

from placewise.errors import ModelFileError
from placewise.readers.huggingface.cache import is_recurrent, unsupported_state_error
from placewise.readers.huggingface.instance import Instance

_STATES = frozenset(("state", "cache_params"))
"""What the recurrent models that have no cache of keys and values call their state (RWKV, xLSTM)."""


def check_states(instance: Instance) -> None:
    """Raise ModelFileError for a language model with recurrent layers.

    Also where it generates nothing: its scan over a text would be traced token by token.
    """
    own = _STATES & frozenset(inspect.signature(instance.module.forward).parameters)
    if own:
        raise unsupported_state_error(min(own))
    if instance.task != "encoder" or type(instance.config) in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING:
        for layer in filter(is_recurrent, _layers(instance.config)):
            raise unsupported_state_error(type(layer).__name__)


def _layers(config: Any) -> Sequence[Any]:
    """The layers of the cache that transformers would make: none where it cannot."""
    try:
        return DynamicCache(config=config).layers
    except Exception:
        return ()


def check_windows(config: Any) -> None:
    """Raise ModelFileError for a sliding window of less than one position in layers that have one.

    A configuration whose class knows of no windows may say 0 for none.
    """
    for part in _parts(config):
        window = getattr(part, "sliding_window", None)
        unused = window == 0 and not hasattr(type(part), "sliding_window")
        kinds = getattr(part, "layer_types", None)
        slides = kinds is None or any("sliding" in str(kind) for kind in kinds)
        if isinstance(window, int) and window < 1 and slides and not unused:
            raise ModelFileError(
                f"its sliding_window is {window}, in which no token sees itself", remedy="give 1 or more, or null"
            )


def _parts(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            yield from _parts(value)
