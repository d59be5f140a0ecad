"""Attention in llama.cpp's builds for GPUs: where it is fused, and what its kernels copy (ggml-cuda/fattn.cu,
ggml-metal-device.m, ggml-sycl/fattn.cpp, ggml-vulkan.cpp).

Nothing here was compared with a log: rules are those of the sources.
"""

from __future__ import annotations

from collections.abc import Sequence

from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.readers.gguf.shape import ModelShape
from placewise.readers.gguf.types import find_type

BUILDS = ("CUDA", "ROCm")
"""How the devices of the builds begin that share the kernels of CUDA."""
_METAL, _SYCL, _VULKAN = "MTL", "SYCL", "Vulkan"
_SQUARE = frozenset({40, 64, 72, 80, 96, 112, 128, 256})
"""Entries of a key, where a value has as many, for which CUDA and SYCL have a kernel."""
_GROUPED = {(192, 128): 8, (320, 256): 32, (512, 512): 1, (576, 512): 1}
"""Entries of a key and of a value for which CUDA has one where several heads share a key: a multiple of so many."""
_METAL_KEYS = frozenset({32, 40, 48, 64, 72, 80, 96, 112, 128, 192, 256, 320, 512, 576})
_SYCL_TYPES = frozenset({"f32", "f16", "bf16", "q4_0", "q8_0"})
_UNKNOWN_TYPE = "iq4_nl"
"""A type of a cache that only Vulkan's kernels read."""
_VECTOR_TYPES, _VECTOR_KEYS = frozenset({("q4_0", "q4_0"), ("q8_0", "q8_0")}), frozenset({64, 128, 256})
"""Quantized keys and values, and the entries of a key, that CUDA's kernel for a single token reads as they are
(GGML_CUDA_FA_QUANTS, ggml/CMakeLists.txt)."""
_VOLTA_SHARED = 4
_HALF = 2


def is_cuda(device: str) -> bool:
    """Whether llama.cpp's name of a device is that of a CUDA or a ROCm build."""
    return device.startswith(BUILDS)


def has_kernel(device: str, shape: ModelShape, layer: int, cache: tuple[str, str]) -> bool:
    """Whether attention of a layer, with keys and values of the types `cache`, is fused on a device of this name in
    llama.cpp: by the rules of its build. Processors and servers fuse it.
    """
    key, value = shape.key_widths[layer], shape.latent or shape.value_widths[layer]
    shared = shape.heads[layer] // max(1 if shape.latent else shape.kv_heads[layer], 1)
    if device.startswith(_VULKAN):
        return key % 8 == value % 8 == 0 and (cache[0] == "bf16") == (cache[1] == "bf16")
    if device.startswith(_METAL):
        fits = key in _METAL_KEYS and (key == value or (key > value and key != 72))
        return fits and cache[0] == cache[1] != _UNKNOWN_TYPE
    if device.startswith(_SYCL):
        fits = key == value and (key in _SQUARE or key == 512)
        return (fits or ((key, value) == (576, 512) and shared > 1)) and cache[0] == cache[1] in _SYCL_TYPES
    if not is_cuda(device):
        return True
    if _UNKNOWN_TYPE in cache:
        return False
    if key in _SQUARE:
        return key == value
    group = _GROUPED.get((key, value), 0)
    return group > 0 and shared > 1 and shared % group == 0


def converts_cache(device: str, shape: ModelShape, layer: int, cache: tuple[str, str], *, volta: bool = False) -> bool:
    """Whether a quantized cache of a layer is turned into float16, all positions, for every token: by CUDA's kernels
    that do not read it as it is. Of Volta, that are all where four heads and more share a key.
    """
    if not is_cuda(device) or all(find_type(name).block == 1 for name in cache):
        return False
    shared = shape.heads[layer] // max(shape.kv_heads[layer], 1)
    if volta and shared % _VOLTA_SHARED == 0:
        return True
    return cache not in _VECTOR_TYPES or shape.key_widths[layer] not in _VECTOR_KEYS


def is_fused(shape: ModelShape, flags: LlamaFlags, layers: Sequence[str]) -> bool:
    """Whether llama.cpp fuses attention, with layers on these devices.

    By itself only where every layer's can be, or where quantized values ask for it.
    """
    if flags.flash == "off" or not shape.fusible:
        return False
    if flags.flash == "on" or find_type(flags.cache[1]).block > 1:
        return True
    return all(has_kernel(layers[layer], shape, layer, flags.cache) for layer in range(shape.layers))


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
