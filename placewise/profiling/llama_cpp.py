"""profile_llama(): rates of the real llama.cpp on this machine, fitted to prompts and tokens of several sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, combinations
from pathlib import Path

import numpy as np

from placewise.costing.llama_rates import LlamaRates, count_prompt_work, count_token_work, list_op_seconds
from placewise.costing.work import work_of
from placewise.errors import InputError, MissingExtraError
from placewise.files.cluster_record import cluster_record
from placewise.files.graph_file import source_record
from placewise.files.plan_file import ToolRecord
from placewise.files.profile_file import DeviceProfile, Figures, LlamaRecord, ProfileFile
from placewise.model.columns import Floats
from placewise.model.dtypes import DTYPES
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.readers.gguf.reader import parse_cache_type, read_gguf
from placewise.readers.run_dims import find_run_dims
from placewise.runtimes.binding import Place
from placewise.runtimes.llama_cpp.runtime import LlamaTiming, time_llama

RUNTIME, PACKAGE = "llama.cpp", "xllamacpp"
DEPTHS = (16, 1024)
"""Tokens in the cache before those that are timed."""
PROMPTS = (64, 256, 1024)
"""Lengths of the prompts that are timed, beside that of the problem."""
TOKENS = 16
"""Generated tokens that are timed together."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Work [terms] and the seconds that it took."""

    work: Floats
    seconds: float


def profile_llama(problem: Problem, places: Sequence[Place], repeats: int, processor: str) -> ProfileFile:
    """The profile of a GGUF model on one processor: rates, and by them the seconds of every op.

    Raises InputError for another model or other devices, MissingExtraError, and RunError where it does not run.
    """
    graph, source = problem.graph, problem.graph.source
    dims = find_run_dims(source)
    if source is None or dims is None or source.format != "gguf":
        raise InputError(f"{RUNTIME} cannot profile this model", remedy="give a GGUF file")
    if len(places) != 1 or places[0].kind != "cores":
        raise InputError(f"{RUNTIME} is profiled on one processor", remedy="give -d cpu, or -d core for one thread")
    if dims.streams > 1:
        raise InputError(f"{RUNTIME} is profiled with one sequence", remedy="leave out batch and sequences")
    try:
        release = version(PACKAGE)
    except PackageNotFoundError:
        raise MissingExtraError(f"profiling with {RUNTIME}", "llama-cpp") from None
    cache = parse_cache_type(str(source.options.get("cache_type", "")))
    lengths = sorted({*PROMPTS, *DEPTHS, dims.prompt})
    sizes = [(length, TOKENS + 1) for length in lengths]
    flags = LlamaFlags(context=max(lengths) + TOKENS + 1, cache=cache, threads=len(places[0].cores))
    timings = time_llama(Path(source.path), flags, sizes, repeats=repeats)
    rates = fit_rates(*observe(Path(source.path), ",".join(cache), timings))
    seconds = list_op_seconds(graph, rates)
    work = work_of(graph)
    own = next(timing for timing in timings if timing.prompt == dims.prompt)
    figures = Figures(
        whole=own.prompt_seconds + dims.tokens * own.token_seconds, spread=own.spread, runs=repeats,
        kernels=float(seconds.sum()), outside=0.0, dispatch=0.0, slowdown=1.0, ops=tuple(seconds.tolist()),
    )  # fmt: skip
    device = DeviceProfile(
        name=places[0].device, place=str(places[0]), processor=processor,
        call_overhead=0.0, measured=datetime.now(UTC).isoformat(timespec="seconds"), cached=False, fused=(),
        idle=figures, loaded=None,
    )  # fmt: skip
    return ProfileFile(
        runtime=RUNTIME, runtime_version=release, source=source_record(source), graph_hash=graph.digest(),
        ops=graph.ops.name, kinds=tuple(graph.ops.kind), flops=tuple(work.flops.tolist()),
        bytes=tuple(work.bytes.tolist()), classes=tuple(work.op_class),
        dtypes=tuple(DTYPES[code] for code in work.dtype.tolist()), cluster=cluster_record(problem.cluster),
        devices=(device,), borders=(), runs=None, llama=LlamaRecord.model_validate(asdict(rates)), notes=(),
        tool=ToolRecord(name="placewise", version=version("placewise")),
    )  # fmt: skip


def observe(path: Path, cache_type: str, timings: Sequence[LlamaTiming]) -> tuple[list[Observation], list[Observation]]:
    """What prompts and tokens did, by the terms of their models of time, and how long they took."""
    prompts, tokens = [], []
    for timing in timings:
        graph = read_size(path, timing.prompt, timing.tokens, cache_type)
        prompts.append(Observation(count_prompt_work(graph).sum(axis=0), timing.prompt_seconds))
        tokens.append(Observation(count_token_work(graph).sum(axis=0), timing.token_seconds))
    return prompts, tokens


def read_size(path: Path, prompt: int, tokens: int, cache_type: str = "") -> Graph:
    """The graph of a model for a prompt and so many tokens after its first one."""
    return read_gguf(path, dims={"prompt": prompt, "tokens": tokens}, cache_type=cache_type or None).graph


def fit_rates(prompts: Sequence[Observation], tokens: Sequence[Observation]) -> LlamaRates:
    """The rates with the least relative error over all observations, none of them negative."""
    return LlamaRates(_fit(prompts), _fit(tokens))


def _fit(observations: Sequence[Observation]) -> tuple[float, ...]:
    """Non-negative least squares of relative errors: the best of the solutions on every subset of terms."""
    seconds = np.array([one.seconds for one in observations])
    work = np.stack([one.work for one in observations]) / seconds[:, None]
    terms = work.shape[1]
    best, least = np.zeros(terms), float(len(observations))
    for chosen in chain.from_iterable(combinations(range(terms), size) for size in range(1, terms + 1)):
        scale = np.maximum(work[:, chosen].max(axis=0), np.finfo(float).tiny)
        found, *_ = np.linalg.lstsq(work[:, chosen] / scale, np.ones(len(seconds)), rcond=None)
        error = float(np.square(work[:, chosen] / scale @ found - 1).sum())
        if (found >= 0).all() and error < least:
            best, least = np.zeros(terms), error
            best[list(chosen)] = found / scale
    return tuple(best.tolist())
