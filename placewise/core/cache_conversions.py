"""Quantized caches that the kernels of a card do not read: llama.cpp turns them into float16 for every token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewise.core.compute_buffer import find_cache_types, find_header
from placewise.core.llama_builds import find_build, is_volta, list_cards
from placewise.costing.roofline import SOURCES
from placewise.model.cluster import Device
from placewise.model.cost_error import REWRITTEN
from placewise.model.problem import Problem
from placewise.readers.gguf.llama_kernels import converts_cache
from placewise.readers.gguf.shape import ModelShape, read_shape
from placewise.readers.gguf.types import find_type


def price_conversions(problem: Problem) -> Problem:
    """The problem in which attention of a token takes the time to write quantized keys and values in float16, and to
    read them, on the cards that do so.

    Measured costs stay. Unchanged for models of other files than GGUF. Doing it twice changes nothing.
    """
    graph, costs, header = problem.graph, problem.costs, find_header(problem)
    if graph.source is None or graph.source.format != "gguf" or header is None or REWRITTEN in costs.sources:
        return problem
    shape, cache, build = read_shape(header), find_cache_types(problem), find_build(problem)
    seconds, sources, estimated = costs.op_seconds.copy(), costs.op_source.copy(), costs.is_from(SOURCES)
    decodes = np.flatnonzero(graph.ops.kind.equals("Attention") & (graph.ops.phase == 1)).tolist()
    for card in list_cards(problem):
        device = problem.cluster.devices[card]
        converted = {f"blk.{layer}.attn" for layer in _list_converted(shape, build, cache, device)}
        rate = device.memory_bandwidth * device.efficiency.get("memory", 1.0)
        for op in (op for op in decodes if graph.ops.scope[op] in converted and estimated[op, card]):
            stored = graph.inputs_of(op).tolist()[1 : 2 if shape.latent else 3]
            sizes = [
                float(np.prod(graph.tensors.shape[tensor])) for tensor, name in zip(stored, cache, strict=False)
                if find_type(name).block > 1
            ]  # fmt: skip
            each = 2 * 2 * sum(sizes) / rate + len(sizes) * device.op_overhead
            seconds[op, card] += each * graph.op_repeats[op]
            sources[op, card] = len(costs.sources)
    if (seconds == costs.op_seconds).all():
        return problem
    names = (*costs.sources, REWRITTEN)
    return problem.with_(costs=replace(costs, op_seconds=seconds, op_source=sources, sources=names))


def describe_conversions(problem: Problem) -> tuple[str, ...]:
    """A note where cards turn a quantized cache into float16 for every token."""
    header, cache, devices = find_header(problem), find_cache_types(problem), problem.cluster.devices
    if header is None:
        return ()
    shape, build = read_shape(header), find_build(problem)
    named = [devices[card].name for card in list_cards(problem) if _list_converted(shape, build, cache, devices[card])]
    if not named:
        return ()
    said = f"llama.cpp turns a cache of {','.join(dict.fromkeys(cache))} into f16 for every token on {', '.join(named)}"
    return (f"{said}: compare the speed with --cache-type f16",)


def _list_converted(shape: ModelShape, build: str, cache: tuple[str, str], device: Device) -> list[int]:
    """The layers whose cache a card converts for every token."""
    volta = is_volta(device)
    return [layer for layer in range(shape.layers) if converts_cache(build, shape, layer, cache, volta=volta)]
