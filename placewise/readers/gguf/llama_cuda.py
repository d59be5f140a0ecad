"""Attention in llama.cpp's builds for CUDA and ROCm: where it is fused, and what its kernels copy (ggml-cuda/fattn.cu).

Nothing here was compared with a log: rules are those of the sources.
"""

from __future__ import annotations

from collections.abc import Sequence

from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.readers.gguf.shape import ModelShape
from placewise.readers.gguf.types import find_type

BUILDS = ("CUDA", "ROCm")
"""How the devices of these builds begin."""
_SQUARE = frozenset({40, 64, 72, 80, 96, 112, 128, 256})
"""Entries of a key, where a value has as many, for which there is a kernel."""
_GROUPED = {(192, 128): 8, (320, 256): 32, (512, 512): 1, (576, 512): 1}
"""Entries of a key and of a value for which there is one where several heads share a key: a multiple of so many."""
_UNKNOWN_TYPES = frozenset({"iq4_nl"})
"""Types of a cache that no kernel reads."""
_HALF = 2


def is_cuda(device: str) -> bool:
    """Whether llama.cpp's name of a device is that of a CUDA or a ROCm build."""
    return device.startswith(BUILDS)


def has_kernel(shape: ModelShape, layer: int, cache: tuple[str, str]) -> bool:
    """Whether attention of a layer, with keys and values of the types `cache`, is fused on such a device."""
    key, value = shape.key_widths[layer], shape.latent or shape.value_widths[layer]
    shared = shape.heads[layer] // max(1 if shape.latent else shape.kv_heads[layer], 1)
    if _UNKNOWN_TYPES.intersection(cache):
        return False
    if key in _SQUARE:
        return key == value
    group = _GROUPED.get((key, value), 0)
    return group > 0 and shared > 1 and shared % group == 0


def is_fused(shape: ModelShape, flags: LlamaFlags, layers: Sequence[str]) -> bool:
    """Whether llama.cpp fuses attention, with layers on these devices.

    By itself only where every layer's can be, or where quantized values ask for it.
    """
    if flags.flash == "off" or not shape.fusible:
        return False
    if flags.flash == "on" or find_type(flags.cache[1]).block > 1:
        return True
    return all(has_kernel(shape, layer, flags.cache) for layer in range(shape.layers) if is_cuda(layers[layer]))


def count_half_copies(cached: tuple[int, int], cache: tuple[str, str]) -> int:
    """Bytes of the copies in float16 that a kernel makes of a layer's keys and values, which take `cached` bytes: of
    all positions, and of each that is of another type. Those in float32 were cast before.

    >>> count_half_copies((34, 0), ("q8_0", "q8_0")), count_half_copies((64, 64), ("f16", "f16"))
    (64, 0)
    """
    copied = 0
    for nbytes, name in zip(cached, cache, strict=True):
        kind = find_type(name)
        copied += 0 if name in ("f16", "f32") else nbytes * kind.block // kind.block_bytes * _HALF
    return copied
