"""The memory that llama.cpp takes beside weights and caches, which a plan for it keeps free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from placewise._util.units import format_bytes
from placewise.model.graph import Source
from placewise.model.problem import Headroom, Problem
from placewise.readers.gguf.header import read_header
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.readers.gguf.llama_memory import count_compute
from placewise.readers.gguf.reader import parse_cache_type
from placewise.readers.run_dims import RunDims, find_run_dims


def keep_compute_buffer(problem: Problem) -> Problem:
    """The problem with room for llama.cpp's compute buffer on every accelerator of which no headroom is given.

    Unchanged for models that are no GGUF files. Doing it twice changes nothing.
    """
    rules = problem.constraints
    room = 0 if rules.headroom or _is_of_all(rules.spare) else count_compute_buffer(problem.graph.source)
    spare = (Headroom("", bytes=room), *rules.spare)
    return problem.with_(constraints=replace(rules, spare=spare)) if room else problem


def count_compute_buffer(source: Source | None) -> int:
    """Bytes of the compute buffer of a GGUF model, on one device that has all of it; 0 for any other model."""
    dims = find_run_dims(source)
    if source is None or dims is None or source.format != "gguf":
        return 0
    return _count(source.path, source.sha256, dims, str(source.options.get("cache_type", "")))


def describe_compute_buffer(asked: Problem, problem: Problem) -> tuple[str, ...]:
    """A note of what `problem` keeps free for the compute buffer, beyond what the user asked for."""
    kept, own = kept_bytes(asked.constraints.spare, problem), asked.constraints.spare
    which = "each accelerator without a headroom of its own" if own else "each accelerator"
    return (f"{format_bytes(kept)} of {which} stay free for llama.cpp's compute buffer",) if kept else ()


def kept_bytes(asked: Sequence[Headroom], problem: Problem) -> int:
    """The bytes of each accelerator that `problem` keeps free for the compute buffer; 0 where the user `asked` for some
    headroom of every accelerator.
    """
    accelerators = {
        device.name for device, host in zip(problem.cluster, problem.cluster.is_host, strict=True) if not host
    }
    of_all = _is_of_all(asked) or accelerators <= {spare.device for spare in asked}
    room = () if of_all else problem.constraints.spare
    return max((int(spare.bytes) for spare in room if not spare.device), default=0)


def _is_of_all(spares: Sequence[Headroom]) -> bool:
    return any(not spare.device for spare in spares)


@lru_cache(maxsize=16)
def _count(path: str, _sha256: str, dims: RunDims, cache_type: str) -> int:
    flags = LlamaFlags(context=dims.cache_positions, parallel=dims.streams, cache=parse_cache_type(cache_type))
    return count_compute(read_header(Path(path)), flags)
