"""What llama.cpp allocates on each device for a model and flags: weights, KV cache, compute buffer.

Sources: `load_tensors` (src/llama-model.cpp), llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-context.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placewise.errors import InputError
from placewise.readers.gguf.header import NO_LAYER, Header, Tensor
from placewise.readers.gguf.llama_compute import size_buffers
from placewise.readers.gguf.llama_flags import LlamaFlags, assign_layers
from placewise.readers.gguf.llama_graph import Places, list_results
from placewise.readers.gguf.shape import ModelShape, count_cells, read_shape
from placewise.readers.gguf.types import REPACKED, find_type

HOST, SERVER = "CPU", "RPC"
COPIES = 4
"""Of inputs under pipeline parallelism: micro-batches that are under way at a time."""
_FIRST = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
"""Tensors of the input, which stay in host memory."""
_FIRST_LAYER = ("token_embd_norm", "per_layer_model_proj", "per_layer_proj_norm")
"""Tensors that go with the first layer."""


@dataclass(frozen=True, slots=True)
class DeviceBytes:
    """Bytes of weights and of the KV cache on a device."""

    weights: int
    cache: int


def place_tensors(header: Header, flags: LlamaFlags, gpus: Sequence[str] = ()) -> dict[str, str]:
    """The device of every tensor by name: "CPU" or one of `gpus`; layers of multi-token prediction are not loaded.

    Parameters
    ----------
    header
        A model's, from `read_header`.
    flags
        The flags of the command. Several GPUs need `LlamaFlags.split`.
    gpus
        The GPUs in llama.cpp's order, under its names; none for a build without GPUs, which ignores ``-ngl``.

    Raises
    ------
    InputError
        For proportions of another number of GPUs.

    Examples
    --------
    ``place_tensors(read_header(path), LlamaFlags(ngl=99), ["CUDA0"])["output.weight"]`` is "CUDA0".

    """
    shape = read_shape(header)
    layers = _place_layers(shape, flags, gpus)
    patterns = [(re.compile(pattern), device) for pattern, device in flags.all_overrides]
    loaded = [tensor for tensor in header.tensors if tensor.layer < shape.layers]
    return {tensor.name: _place_tensor(tensor, layers, patterns) for tensor in loaded}


def count_bytes(header: Header, flags: LlamaFlags, gpus: Sequence[str] = ()) -> Mapping[str, DeviceBytes]:
    """Bytes of weights and cache on every device; arguments and errors are those of `place_tensors`.

    An output that shares the weights of the input embedding has a copy of them where it is not in host memory, or where
    weights in host memory are stored in another order (`REPACKED`; here as on an x86 processor with AVX2).
    """
    shape = read_shape(header)
    layers, places = _place_layers(shape, flags, gpus), place_tensors(header, flags, gpus)
    weights = dict.fromkeys((HOST, *gpus), 0)
    cache = dict.fromkeys((HOST, *gpus), 0)
    for tensor in header.tensors:
        if place := places.get(tensor.name):
            weights[place] = weights.get(place, 0) + tensor.nbytes
    embedding = next((tensor for tensor in header.tensors if tensor.name == "token_embd.weight"), None)
    if (
        embedding is not None
        and "output.weight" not in places
        and (layers[-1] != places[embedding.name] or (flags.repack and embedding.type in REPACKED))
    ):
        weights[layers[-1]] += embedding.nbytes
    for layer, nbytes in enumerate(count_cache(shape, flags)):
        cache[layers[layer]] += nbytes
    return {device: DeviceBytes(weights[device], cache.get(device, 0)) for device in weights}


def count_cache(shape: ModelShape, flags: LlamaFlags) -> list[int]:
    """Bytes of the KV cache of every layer, for all sequences."""
    return [sum(sizes) for sizes in list_caches(shape, flags)]


def list_caches(shape: ModelShape, flags: LlamaFlags) -> list[tuple[int, int]]:
    """Bytes of the keys and of the values in every layer's cache, for all sequences. Latent attention has no values."""
    cells, window_cells = list_cells(shape, flags)
    keys, values = (find_type(name) for name in flags.cache)
    counted = []
    for layer, (heads, window) in enumerate(zip(shape.kv_heads, shape.windows, strict=True)):
        kept = flags.parallel * (window_cells if window else cells) if layer < shape.cached else 0
        key, value = shape.key_widths[layer], 0 if shape.latent else shape.value_widths[layer]
        kept *= 1 if shape.latent else heads
        counted.append((kept * key * keys.block_bytes // keys.block, kept * value * values.block_bytes // values.block))
    return counted


def list_cells(shape: ModelShape, flags: LlamaFlags) -> tuple[int, int]:
    """Positions of the cache of a layer without and with a sliding window, for one sequence."""
    window = 0 if flags.swa_full else max(shape.windows)
    context = flags.context // flags.parallel
    return count_cells(context), count_cells(context, window, min(flags.ubatch, flags.batch))


def count_compute(
    header: Header, flags: LlamaFlags, gpus: Sequence[str] = (), *, pipelined: bool = True
) -> dict[str, int]:
    """Bytes of the compute buffer of every device; arguments and errors are those of `place_tensors`.

    RPC servers ("RPC0") multiply by no weights of host memory; the first other GPU does, and gets copies of them.
    Layers are as in Llama, Command R or Gemma 4: benchmarks/results/real_llama_cpp.md says how far off each family is.
    Buffers that are not `pipelined` are those that llama.cpp takes where it has no memory for a pipeline.
    """
    shape = read_shape(header)
    layers, tensors, devices = _place_layers(shape, flags, gpus), place_tensors(header, flags, gpus), (*gpus, HOST)
    on_host = {one.name: one.nbytes for one in header.tensors if tensors.get(one.name) == HOST}
    borrower = next((gpu for gpu in gpus if not gpu.startswith(SERVER)), "")
    lent = on_host if borrower else {}
    places = Places(tensors, layers, devices, lent, borrower, flags.ngl > header.number("block_count"))
    results = list_results(header, shape, flags, list_cells(shape, flags), list_caches(shape, flags), places)
    return size_buffers(results, devices, count_copies(header, flags, gpus) if pipelined else 1)


def count_copies(header: Header, flags: LlamaFlags, gpus: Sequence[str]) -> int:
    """Copies of inputs: several under pipeline parallelism, which several GPUs without overrides have if no layer is on
    the host, and the output neither (GGML_SCHED_MAX_COPIES, llama-context.cpp).
    """
    return COPIES if len(gpus) > 1 and flags.ngl > header.number("block_count") and not flags.all_overrides else 1


def _place_layers(shape: ModelShape, flags: LlamaFlags, gpus: Sequence[str]) -> list[str]:
    """The device of every layer and of the output."""
    if not gpus:
        return [HOST] * (shape.layers + 1)
    split = flags.split or (1.0,)
    if len(split) != len(gpus):
        raise InputError(f"{len(split)} proportions for {len(gpus)} GPUs", remedy="give one for each")
    places = assign_layers(shape.layers, flags.ngl, split, shape.unused)
    return [gpus[gpu] if gpu >= 0 else HOST for gpu in places]


def _place_tensor(tensor: Tensor, layers: Sequence[str], patterns: Sequence[tuple[re.Pattern[str], str]]) -> str:
    for pattern, device in patterns:
        if pattern.search(tensor.name):
            return device
    if tensor.layer != NO_LAYER:
        return layers[tensor.layer]
    name = tensor.name.rpartition(".")[0]
    return HOST if name in _FIRST else layers[0] if name in _FIRST_LAYER else layers[-1]
