"""The command for llama-server: that of a layout, and the one that leaves the placement to llama.cpp."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

import numpy as np

from placewise._util.llama_defaults import BATCH, MICRO_BATCH
from placewise.core.compute_buffer import count_buffers
from placewise.core.host_weights import find_accelerators
from placewise.errors import ExportError
from placewise.exporters.base import asked_precision
from placewise.exporters.commands import printable
from placewise.exporters.llama_cpp.layout import Layout, count_unused, name_accelerators
from placewise.exporters.llama_cpp.packing import GGUF_TYPES, name_packed
from placewise.exporters.llama_cpp.words import (
    BATCH_FLAG,
    CACHE_KEYS,
    CACHE_VALUES,
    CONTEXT,
    DEVICE,
    FIRST,
    FIT,
    FIT_TARGET,
    HOST,
    MARGIN,
    MICRO_BATCH_FLAG,
    NGL,
    OVERRIDE,
    PARALLEL,
    SERVERS,
    SPLIT,
    THREADS,
)
from placewise.model.cluster import RPC, is_rpc
from placewise.model.problem import Problem
from placewise.model.result import CORE
from placewise.readers.run_dims import find_run_dims

MEBIBYTE = 1 << 20
_PURE = " (llama-quantize --pure)"
"""Without it, llama-quantize gives the output more bits than Q4_0 has."""


def write_command(layout: Layout) -> str:
    """The command for a layout."""
    problem, line, host = layout.problem, layout.line.tolist(), layout.layers.host
    blocks = [*line[1:], *[line[-1]] * count_unused(problem)]
    on_gpu, named = [device for device in blocks if device != host], layout.accelerators
    words = [f"llama-server -m {_name_file(problem)}", *_write_sizes(problem), *_write_servers(problem, named)]
    words += [DEVICE, ",".join(named.values()) or "none"]
    words += [NGL, str(len(on_gpu))]
    if on_gpu:
        words += ["--split-mode layer", SPLIT, ",".join(str(on_gpu.count(gpu)) for gpu in named)]
    if layout.away:
        words += _write_experts(layout)
    return " ".join(words)


def write_heading(layout: Layout) -> list[str]:
    """Comments that say which device each name in the command means."""
    problem, layers = layout.problem, layout.layers
    source = problem.graph.source
    model = printable(source.path) if source else "a model"
    lines = [f"# {layers.stack.count} layers ({printable(layers.stack.path)}) of {model}, placed by Placewise"]
    named = [(layers.host, HOST)] if layers.host >= 0 else []
    named += layout.accelerators.items()
    return lines + [f"# {name} is {json.dumps(problem.cluster.names[device])}" for device, name in named]


def write_default_command(problem: Problem, free: Mapping[str, int]) -> str:
    """The command that leaves the placement on the same devices to llama.cpp (`--fit`).

    `free` are the free MiB of the devices that llama-server has. A device that is to hold less keeps the rest free.
    Raises ExportError for a device that it does not have.
    """
    gpus = np.flatnonzero(find_accelerators(problem)).tolist()
    if not gpus:
        return " ".join((f"llama-server -m {_name_file(problem)}", *_write_sizes(problem), DEVICE, "none", NGL, "0"))
    named = name_accelerators(problem, gpus)
    if missing := [name for name in named.values() if name not in free]:
        raise ExportError(
            f"llama-server has no {' and no '.join(missing)} here", remedy=f"it has {', '.join(free) or 'no cards'}"
        )
    words = [f"llama-server -m {_name_file(problem)}", *_write_sizes(problem), FIT, "on"]
    words += _write_servers(problem, named)
    used = {name: gpu for name in free for gpu, other in named.items() if other == name}
    words += [DEVICE, ",".join(used)] if len(used) < len(free) else []
    whole = float(problem.graph.weights.bytes.sum() + problem.graph.ops.state_bytes.sum())
    whole += count_buffers(problem).accelerator
    limits = {name: float(problem.capacity[gpu]) for name, gpu in used.items()}
    margins = [
        max(free[name] - int(limit) // MEBIBYTE, MARGIN) if limit < whole else MARGIN for name, limit in limits.items()
    ]
    words += [FIT_TARGET, ",".join(map(str, margins))] if max(margins) > MARGIN else []
    return " ".join(words)


def _name_file(problem: Problem) -> str:
    """The file of the model, for a shell; a variable that the user sets where the plan is of another format."""
    source = problem.graph.source
    if source is not None and source.format == "gguf":
        return shlex.quote(source.path)
    packed = name_packed(problem)
    kind = GGUF_TYPES.get(asked_precision(problem), "") if packed is None else packed
    pure = _PURE if kind == GGUF_TYPES["int4"] else ""
    file = f"a GGUF file of type {kind}{pure}" if kind else "a GGUF file"
    return f'"${{MODEL:?{file}}}"'


def _write_sizes(problem: Problem) -> list[str]:
    """The context of all sequences together, their number, the micro-batch and the types of the cache, as the plan has
    them.

    Without a number, llama-server serves four at a time, whose sliding windows need more cache than one's.
    """
    source = problem.graph.source
    dims = find_run_dims(source)
    if source is None or dims is None:
        return []
    words = [f"{CONTEXT} {dims.cache_positions}", f"{PARALLEL} {dims.streams}"]
    if dims.ubatch > BATCH:
        words.append(f"{BATCH_FLAG} {dims.ubatch}")
    if dims.ubatch != MICRO_BATCH:
        words.append(f"{MICRO_BATCH_FLAG} {dims.ubatch}")
    if kinds := str(source.options.get("cache_type", "")).split(",") if "cache_type" in source.options else []:
        words += [f"{CACHE_KEYS} {kinds[0]} {CACHE_VALUES} {kinds[-1]}"]
    kinds_of_devices = {device.kind for device in problem.cluster}
    return [*words, f"{THREADS} 1"] if CORE in kinds_of_devices and "cpu" not in kinds_of_devices else words


def _write_servers(problem: Problem, named: Mapping[int, str]) -> list[str]:
    """The option with the addresses of the RPC servers in use."""
    servers = [name.removeprefix(RPC) for name in map(problem.cluster.names.__getitem__, named) if is_rpc(name)]
    return [SERVERS, ",".join(servers)] if servers else []


def _write_experts(layout: Layout) -> list[str]:
    """The option that leaves the experts of some positions in host memory, beside those of layers there."""
    layers, line, away = layout.layers, layout.line, layout.away
    elsewhere = [place for place in layers.with_experts if place not in away and line[place] != layers.host]
    if max(away) < min(elsewhere, default=len(line)):
        return [FIRST, str(max(away))]
    numbers = "|".join(str(place - 1) for place in away)
    return [OVERRIDE, rf"'blk\.({numbers})\.ffn_.*_exps={HOST}'"]
