"""What the metadata of a GGUF file says of a transformer: heads, windows and experts, layer by layer.

Keys and their meaning are those of llama.cpp (src/llama-arch.cpp, `load_hparams` in src/llama-model.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from placewise._util.llama_defaults import MICRO_BATCH
from placewise.errors import ModelFileError
from placewise.readers.gguf.header import Header

MAX_LAYERS = 10_000


class Windows(NamedTuple):
    """Where an architecture has sliding windows if the file does not say it: one of `every` layers has none.

    That one is the last of them, or the first. `default` is the window if the file names none.
    """

    every: int
    default: int = 0
    first: bool = False


WINDOWS: Mapping[str, Windows] = MappingProxyType(
    {"gemma2": Windows(2, 4096), "gemma3": Windows(6), "gemma3n": Windows(5), "gpt-oss": Windows(2),
     "cohere2": Windows(4), "exaone4": Windows(4, 4096), "olmo2": Windows(4), "llama4": Windows(4, 8192),
     "smallthinker": Windows(4, first=True)}
)  # fmt: skip
LAYERS_WITH_WINDOWS: Mapping[str, int] = MappingProxyType({"exaone4": 64})
"""Architectures that have windows in models of so many layers alone."""
LAYERS_WITH_CACHE: Mapping[str, int] = MappingProxyType({"gemma3n": 20})
"""Architectures whose other layers read the caches of the first ones, where the file does not say it."""
RECURRENT = ("ssm_", "time_mix", "shortconv", "wkv")
"""Parts of names of tensors in layers whose state is no cache of keys and values."""
UNFUSED = frozenset({"grok"})
"""Architectures whose attention llama.cpp never fuses."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model; tuples have an entry per layer, a `windows` of 0 is none.

    The layers from `cached` on read the caches of earlier ones and have none.
    The `unused` layers of multi-token prediction, which follow the others, are not among the `layers`.
    `latent` is the width of the compressed keys and values that are cached (multi-head latent attention), 0 without.
    `fusible` says whether llama.cpp may fuse attention.
    """

    layers: int
    width: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    key_widths: tuple[int, ...]
    value_widths: tuple[int, ...]
    windows: tuple[int, ...]
    experts_used: int
    vocabulary: int
    positions: int
    cached: int
    latent: int = 0
    rotated: int = 0
    unused: int = 0
    fusible: bool = True


def read_shape(header: Header) -> ModelShape:
    """The sizes of the model of a header. Raises ModelFileError for sizes that are missing or make no sense."""
    blocks, width = header.number("block_count"), header.number("embedding_length")
    unused = min(header.number("nextn_predict_layers"), max(blocks - 1, 0))
    layers = blocks - unused
    if not 0 < layers <= MAX_LAYERS or not width:
        raise ModelFileError(
            f"is of the architecture {header.architecture!r}, and says neither its layers nor its width",
            remedy="give a language model",
        )
    heads = _per_layer(header, "attention.head_count", layers)
    kv_heads = _per_layer(header, "attention.head_count_kv", layers, heads)
    most = max(heads)
    if not most:
        raise ModelFileError(f"is of the architecture {header.architecture!r}, which has no heads of attention")
    key = header.number("attention.key_length", width // most)
    windows = _windows(header, layers)
    embedding = next((tensor for tensor in header.tensors if tensor.name == "token_embd.weight"), None)
    return ModelShape(
        layers,
        width,
        heads,
        kv_heads,
        _widths(header, "key", width // most, windows),
        _widths(header, "value", width // most, windows),
        windows,
        header.number("expert_used_count"),
        embedding.shape[0] if embedding and embedding.shape else header.number("vocab_size"),
        header.number("context_length"),
        _count_cached(header, layers),
        _read_latent(header),
        header.number("rope.dimension_count", key),
        unused,
        header.architecture not in UNFUSED,
    )


def _read_latent(header: Header) -> int:
    """The width of a compressed cache: older files do not say how wide its heads are, and llama.cpp expands theirs."""
    heads = [header.number(f"attention.{name}_length_mla") for name in ("key", "value")]
    return header.number("attention.kv_lora_rank") if all(heads) else 0


def _per_layer(header: Header, name: str, layers: int, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    """A number for every layer, from one for all or from an array."""
    value = header.metadata.get(f"{header.architecture}.{name}")
    if value is None and default:
        return default
    if isinstance(value, tuple):
        if len(value) < layers or not all(type(one) is int and 0 <= one < 1 << 20 for one in value):
            raise ModelFileError(f"{header.architecture}.{name} does not have a number for each of {layers} layers")
        return value[:layers]
    return (header.number(name),) * layers


def _widths(header: Header, name: str, default: int, windows: tuple[int, ...]) -> tuple[int, ...]:
    """Entries of a key or a value of a head, which those of layers with a window may have in another number."""
    whole = header.number(f"attention.{name}_length", default)
    windowed = header.number(f"attention.{name}_length_swa", whole)
    return tuple(windowed if window else whole for window in windows)


def _count_cached(header: Header, layers: int) -> int:
    """How many layers have a cache of their own, from the first on."""
    shared = header.number("attention.shared_kv_layers", layers - LAYERS_WITH_CACHE.get(header.architecture, layers))
    if shared >= layers:
        raise ModelFileError(f"{header.architecture}.attention.shared_kv_layers is {shared} of {layers} layers")
    return layers - max(shared, 0)


def _windows(header: Header, layers: int) -> tuple[int, ...]:
    """The sliding window of every layer, 0 for none."""
    known = WINDOWS.get(header.architecture, Windows(0))
    window = header.number("attention.sliding_window", known.default)
    if layers != LAYERS_WITH_WINDOWS.get(header.architecture, layers):
        return (0,) * layers
    pattern = header.metadata.get(f"{header.architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, tuple) and len(pattern) >= layers:
        return tuple(window if slides else 0 for slides in pattern[:layers])
    every = pattern if isinstance(pattern, int) and pattern > 0 else known.every
    if not window or not every:
        return (0,) * layers
    whole = 0 if known.first else every - 1
    return tuple(0 if layer % every == whole else window for layer in range(layers))


MULTIPLE = 256
"""The positions of a cache come in multiples of this."""


def count_cells(context: int, window: int = 0, micro_batch: int = MICRO_BATCH) -> int:
    """Positions of the cache of a layer, for one sequence.

    A layer with a sliding `window` (0: none) has room for it and for a micro-batch.

    >>> count_cells(8000), count_cells(8000, 1024)
    (8192, 1536)
    """
    cells = _pad(context)
    return min(cells, _pad(window + micro_batch)) if window else cells


def _pad(positions: int) -> int:
    return -(-positions // MULTIPLE) * MULTIPLE
