"""The memory that llama.cpp takes beside weights and caches, which a plan for it keeps free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from placewise._util.llama_defaults import BATCH
from placewise._util.units import format_bytes
from placewise.core.llama_builds import find_build
from placewise.errors import ModelFileError
from placewise.model.cluster import is_rpc
from placewise.model.problem import Headroom, Problem
from placewise.readers.gguf.header import Header, read_header
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.readers.gguf.llama_memory import HOST, SERVER, count_compute
from placewise.readers.gguf.reader import parse_cache_type
from placewise.readers.huggingface.llama_header import build_header
from placewise.readers.huggingface.settings import read_settings
from placewise.readers.run_dims import RunDims, find_run_dims

_Key = tuple[str, str, str, int, tuple[tuple[str, int | str], ...]]
"""A file, its hash and its format; of a configuration, the bytes of the weights and what it leaves to its class."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """Bytes of llama.cpp's compute buffers: of the accelerator that needs most, of the host, and the `least` that any
    accelerator needs in some layout.
    """

    accelerator: int = 0
    host: int = 0
    least: int = 0


def keep_compute_buffer(problem: Problem) -> Problem:
    """The problem with room for llama.cpp's compute buffer on every accelerator of which no headroom is given, and on
    the host.

    Unchanged for models that generate no text, and where some headroom of every accelerator is given. Doing it twice
    changes nothing.
    """
    rules = problem.constraints
    if rules.headroom or _is_of_all(rules.spare):
        return problem
    room = count_buffers(problem)
    if not room.accelerator:
        return problem
    kept = [Headroom(name, bytes=room.host) for name in _list_hosts_without(rules.spare, problem)]
    return problem.with_(constraints=replace(rules, spare=(Headroom("", bytes=room.accelerator), *kept, *rules.spare)))


def leave_out_activations(problem: Problem) -> Problem:
    """The problem without the memory of activations, which are in the compute buffers, a micro-batch at a time.

    Unchanged where these are not known. Doing it twice changes nothing.
    """
    if problem.objective.memory != "live" or not count_buffers(problem).accelerator:
        return problem
    return problem.with_(objective=replace(problem.objective, memory="resident"))


def keep_least_buffer(problem: Problem, asked: Problem) -> Problem:
    """The problem with the room that `keep_compute_buffer` keeps in `asked` replaced by the least that any accelerator
    needs, and none on the host: what does not fit then fits under no layout. Unchanged where none is kept.
    """
    if not kept_bytes(asked.constraints.spare, problem):
        return problem
    own, rules, room = asked.constraints.spare, problem.constraints, count_buffers(asked)
    return problem.with_(constraints=replace(rules, spare=(Headroom("", bytes=room.least), *own)))


def count_buffers(problem: Problem) -> Buffers:
    """Bytes of the compute buffers, whatever layers an accelerator has; 0 for models that generate no text.

    Where the model fits the accelerators, no layer is on the host. Else some are, and accelerators get copies of the
    weights that they multiply by. What pipeline parallelism takes is not counted: llama.cpp does without it where there
    is no memory for it.
    """
    key, dims = _find_key(problem), find_run_dims(problem.graph.source)
    if key is None or dims is None:
        return Buffers()
    weights = int(problem.graph.weights.bytes.sum())
    accelerators = [place for place, host in enumerate(problem.cluster.is_host) if not host]
    build = find_build(problem)
    gpus = tuple(
        f"{SERVER if is_rpc(problem.cluster.names[place]) else build}{number}"
        for number, place in enumerate(accelerators)
    )
    whole, shared = _count(key, dims, find_cache_types(problem), gpus)
    held = weights + float(problem.graph.ops.state_bytes.sum()) + whole.accelerator * len(gpus)
    return whole if held <= problem.capacity[accelerators].sum() else shared


def find_header(problem: Problem) -> Header | None:
    """The header of a model's GGUF file, or of the one that is made of its configuration.

    None for models that generate no text, and where it is not known.
    """
    key = _find_key(problem)
    return None if key is None else _read_header(*key)


def find_made_header(problem: Problem) -> Header | None:
    """The header that is made of a model's configuration; None for files, and where it is not known."""
    source = problem.graph.source
    return None if source is None or source.format == "gguf" else find_header(problem)


def find_cache_types(problem: Problem) -> tuple[str, str]:
    """The types of the keys and the values that the cache of a model holds."""
    source = problem.graph.source
    return parse_cache_type("" if source is None else str(source.options.get("cache_type", "")))


def make_flags(dims: RunDims, cache: tuple[str, str]) -> LlamaFlags:
    """The sizes that a command for llama.cpp asks for, with a cache of these types, and no layer on an accelerator."""
    return LlamaFlags(
        context=dims.cache_positions, parallel=dims.streams, cache=cache, batch=max(dims.ubatch, BATCH),
        ubatch=dims.ubatch,
    )  # fmt: skip


def _find_key(problem: Problem) -> _Key | None:
    """What a header is read from; None for models that generate no text, and of other formats."""
    source = problem.graph.source
    if source is None or find_run_dims(source) is None or source.format not in ("gguf", "huggingface"):
        return None
    size = int(problem.graph.weights.bytes.sum()) if source.format != "gguf" else 0
    return source.path, source.sha256, source.format, size, tuple(sorted(source.options.get("defaults", {}).items()))


def describe_compute_buffer(asked: Problem, problem: Problem) -> tuple[str, ...]:
    """A note of what `problem` keeps free for the compute buffer, beyond what the user asked for."""
    kept, own = kept_bytes(asked.constraints.spare, problem), asked.constraints.spare
    if not kept:
        return ()
    hosts = _list_hosts_without(own, problem)
    on_host = max((spare.bytes for spare in problem.constraints.spare if spare.device in hosts), default=0)
    here = f"{format_bytes(on_host)} of the host and " if on_host else ""
    which = "each accelerator without a headroom of its own" if own else "each accelerator"
    return (f"{here}{format_bytes(kept)} of {which} stay free for llama.cpp's compute buffer",)


def describe_unknown(problem: Problem) -> tuple[str, ...]:
    """A note where it is not known what llama.cpp makes of a configuration that generates text."""
    if find_run_dims(problem.graph.source) is None or find_header(problem) is not None:
        return ()
    unknown = "llama.cpp's compute buffers of this model are not known"
    return (f"{unknown}: none are kept free, and memory and times are those of transformers",)


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


def _list_hosts_without(spares: Sequence[Headroom], problem: Problem) -> list[str]:
    """The hosts of which no headroom is given."""
    given = {spare.device for spare in spares}
    return [
        name
        for name, host in zip(problem.cluster.names, problem.cluster.is_host, strict=True)
        if host and name not in given
    ]


def _is_of_all(spares: Sequence[Headroom]) -> bool:
    return any(not spare.device for spare in spares)


@lru_cache(maxsize=8)
def _read_header(
    path: str, sha256: str, kind: str, weights: int, defaults: tuple[tuple[str, int | str], ...]
) -> Header | None:
    if kind == "gguf":
        return read_header(Path(path))
    try:
        settings = read_settings(path)
        return build_header(settings.values, weights, dict(defaults)) if settings.sha256 == sha256 else None
    except ModelFileError:  # the file is gone, or what llama.cpp would make of the model is unknown
        return None


@lru_cache(maxsize=64)
def _count(key: _Key, dims: RunDims, cache: tuple[str, str], gpus: tuple[str, ...]) -> tuple[Buffers, Buffers]:
    """The buffers where the accelerators have the whole model, and where the host has a part of it."""
    header = _read_header(*key)
    return _count_both(header, dims, cache, gpus) if header else (Buffers(), Buffers())


def _count_both(
    header: Header, dims: RunDims, cache: tuple[str, str], gpus: tuple[str, ...]
) -> tuple[Buffers, Buffers]:
    layers = header.number("block_count")
    flags = replace(make_flags(dims, cache), ngl=layers + 1)
    alone = (replace(flags, split=(1.0,)), gpus[:1])
    together = (replace(flags, split=(1.0,) * len(gpus)), gpus)
    rest: list[tuple[LlamaFlags, tuple[str, ...]]] = [(replace(flags, ngl=0), ())]
    if gpus:
        rest += [(replace(one, ngl=layers), names) for one, names in (alone, together)]
        rest += [(replace(one, n_cpu_moe=layers), names) for one, names in (alone, together)]
    whole = [alone, together] if gpus else rest
    return _find_largest(header, dict.fromkeys(whole)), _find_largest(header, dict.fromkeys(rest))


def _find_largest(header: Header, cases: Iterable[tuple[LlamaFlags, tuple[str, ...]]]) -> Buffers:
    counted = [count_compute(header, flags, gpus, pipelined=False) for flags, gpus in cases]
    on_host = max(sizes[HOST] for sizes in counted)
    elsewhere = [size for sizes in counted for name, size in sizes.items() if name != HOST]
    return Buffers(max(elsewhere, default=on_host), on_host, min(elsewhere, default=0))
