"""KV caches that only record shapes: how many positions a layer sees, and its capacity."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, EncoderDecoderCache

from placewise.errors import ModelFileError
from placewise.readers.huggingface.operators import operators

Shapes = dict[int, tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]


class ShapeOnlyLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one layer: `past` positions before the call, at most `capacity`.

    A sliding window keeps its last `window` − 1 positions besides the new one.
    """

    def __init__(self, past: int, capacity: int, window: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.past, self.window = past, window
        self.capacity = capacity if window is None else min(capacity, window)
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kept = self.past if self.window is None else min(self.past, max(self.window - 1, 0))
        visible = kept + key_states.shape[-2]
        return operators().cache_update(key_states, value_states, visible, max(self.capacity, 0))

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        del key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.past + query_length, 0

    def get_seq_length(self) -> int:
        return self.past

    def get_max_length(self) -> int:
        return -1


class CrossAttentionLayer(ShapeOnlyLayer):  # type: ignore[no-untyped-call]
    """The encoder's keys and values of one decoder layer, computed in the first phase and read in the second."""

    def __init__(self, layer: int, shapes: Shapes) -> None:
        self._layer, self._shapes = layer, shapes
        super().__init__(0, 0, None)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self._shapes[self._layer] = (tuple(key_states.shape), tuple(value_states.shape), key_states.dtype)
        length = key_states.shape[-2]
        return operators().cache_update(key_states, value_states, length, length)

    @property
    def keys(self) -> Any:
        return self._read(0)

    @keys.setter
    def keys(self, value: Any) -> None:
        del value

    @property
    def values(self) -> Any:
        return self._read(1)

    @values.setter
    def values(self, value: Any) -> None:
        del value

    def _read(self, which: int) -> Any:
        key, value, dtype = self._shapes[self._layer]
        return operators().cache_read(list((key, value)[which]), dtype)


@dataclass(frozen=True, slots=True)
class CacheFactory:
    """Makes the caches of a model, one per call; they differ only in their fill level.

    `windows` [n_layers] are the positions that a sliding window keeps, or None. `crossed` marks models with an encoder;
    `shapes` are those of the encoder's keys and values after the first call.
    """

    windows: tuple[int | None, ...]
    crossed: bool
    shapes: Shapes = field(default_factory=dict)

    @classmethod
    def of(cls, config: Any, *, crossed: bool) -> CacheFactory:
        """Make a factory for a configuration; raises ModelFileError if layers keep anything but keys and values."""
        windows = [_window(layer) for layer in DynamicCache(config=config).layers]
        layers = max(getattr(config, name, None) or 0 for name in ("num_decoder_layers", "decoder_layers"))
        return cls((*windows, *windows[-1:] * (layers - len(windows))), crossed)

    def at(self, past: int, capacity: int) -> Cache:
        """A cache with `past` positions in use and room for `capacity`."""
        own = Cache(layers=[ShapeOnlyLayer(past, capacity, window) for window in self.windows])
        if not self.crossed:
            return own
        cross = Cache(layers=[CrossAttentionLayer(layer, self.shapes) for layer in range(len(self.windows))])
        both = EncoderDecoderCache(own, cross)
        both.is_updated = dict.fromkeys(range(len(self.windows)), past > 0)
        return both


def unsupported_state_error(state: str) -> ModelFileError:
    """The error for layers that keep anything but keys and values."""
    return ModelFileError(
        f"its layers keep a state of type {state}, whose cost is not modelled yet",
        remedy="use a model whose layers keep keys and values only",
    )


def is_recurrent(layer: Any) -> bool:
    """Whether a cache layer of transformers belongs to a scan or to linear attention."""
    return hasattr(layer, "update_conv_state")


def _window(layer: Any) -> int | None:
    if not isinstance(layer, DynamicLayer) or hasattr(layer, "update_indexer") or is_recurrent(layer):
        raise unsupported_state_error(type(layer).__name__)
    window = getattr(layer, "sliding_window", None)
    return None if window is None else int(window)
