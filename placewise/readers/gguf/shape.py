"""What the metadata of a GGUF file says of a transformer: heads, windows and experts, layer by layer.

Keys and their meaning are those of llama.cpp (src/llama-arch.cpp, `load_hparams` in src/llama-model.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from placewise._util.llama_defaults import MICRO_BATCH
from placewise.errors import ModelFileError
from placewise.readers.gguf.header import Header

MAX_LAYERS = 10_000
PATTERNS: Mapping[str, int] = MappingProxyType(
    {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4, "exaone4": 4, "olmo2": 4, "llama4": 4,
     "smallthinker": 4}
)  # fmt: skip
"""Architectures with sliding windows where the file does not say in which layers: all but every n-th has one."""
RECURRENT = ("ssm_", "time_mix", "shortconv", "wkv")
"""Parts of names of tensors in layers whose state is no cache of keys and values."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model; tuples have an entry per layer, a `windows` of 0 is none.

    `latent` is the width of the compressed keys and values (multi-head latent attention), 0 without.
    """

    layers: int
    width: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    key_width: int
    value_width: int
    windows: tuple[int, ...]
    experts_used: int
    vocabulary: int
    positions: int
    latent: int = 0
    rotated: int = 0


def read_shape(header: Header) -> ModelShape:
    """The sizes of the model of a header. Raises ModelFileError for sizes that are missing or make no sense."""
    layers, width = header.number("block_count"), header.number("embedding_length")
    layers -= min(header.number("nextn_predict_layers"), max(layers - 1, 0))
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
    embedding = next((tensor for tensor in header.tensors if tensor.name == "token_embd.weight"), None)
    return ModelShape(
        layers,
        width,
        heads,
        kv_heads,
        key,
        header.number("attention.value_length", width // most),
        _windows(header, layers),
        header.number("expert_used_count"),
        embedding.shape[0] if embedding and embedding.shape else header.number("vocab_size"),
        header.number("context_length"),
        header.number("attention.kv_lora_rank"),
        header.number("rope.dimension_count", key),
    )


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


def _windows(header: Header, layers: int) -> tuple[int, ...]:
    """The sliding window of every layer, 0 for none."""
    window = header.number("attention.sliding_window") or header.number("attention.chunk_size")
    pattern = header.metadata.get(f"{header.architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, tuple) and len(pattern) >= layers:
        return tuple(window if slides else 0 for slides in pattern[:layers])
    every = pattern if isinstance(pattern, int) and pattern > 0 else PATTERNS.get(header.architecture, 0)
    if not window or not every:
        return (0,) * layers
    return tuple(window if layer % every < every - 1 else 0 for layer in range(layers))


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
