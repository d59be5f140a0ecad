"""profile_llama(): rates of the real llama.cpp by type of weights, on this machine's processor and on RPC servers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np

from placewise._util.llama_defaults import MICRO_BATCH
from placewise.core.compute_buffer import find_cache_types
from placewise.costing.llama_rates import (
    RUN,
    WEIGHTS,
    LlamaRates,
    Terms,
    add_seconds,
    count_prompt_work,
    count_token_work,
    list_op_seconds,
    scale_rates,
)
from placewise.costing.work import work_of
from placewise.errors import InputError, MissingExtraError, RunError
from placewise.files.cluster_record import cluster_record
from placewise.files.graph_file import source_record
from placewise.files.plan_file import ToolRecord
from placewise.files.profile_file import BorderFigures, DeviceProfile, Figures, LlamaRecord, ProfileFile
from placewise.model.columns import Floats
from placewise.model.dtypes import DTYPES
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.processes.scratch import scratch_folder
from placewise.processes.worker import read_schedule
from placewise.profiling.llama_probes import list_probes, write_probe
from placewise.readers.gguf.header import read_header
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.readers.gguf.reader import read_gguf
from placewise.readers.run_dims import find_run_dims
from placewise.runtimes.binding import Place
from placewise.runtimes.llama_cpp.program import SERVER, LlamaProgram, find_program, read_version, write_flags
from placewise.runtimes.llama_cpp.runtime import LlamaProcess, LlamaTiming, open_llama, summarize_rounds, time_round

RUNTIME, PACKAGE = "llama.cpp", "xllamacpp"
OWN_PROMPTS = (64, 256)
"""Lengths of the prompts of the model itself, beside that of the problem."""
TOKENS = 16
"""Generated tokens that are timed together."""
ROUNDS, SECONDS, AGREE = 3, 20.0, 0.05
"""The fewest rounds of a model; more follow until its two best agree within this share, or these seconds are over."""
CACHED = "cached"
"""Bytes of weights, by type, of models that fit in caches: their rate is another one, which nothing else has."""
BUSY = 0.1
"""The share of time in which threads that could run waited for a processor, from which on a profile has a note."""
FASTEST = 1e12
"""Bytes per second of a connection whose bytes take no time that is seen."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Work by term, and the seconds that it took."""

    work: Terms
    seconds: float


Observations = tuple[list[Observation], list[Observation]]
"""Those of prompts, and those of tokens."""


@dataclass(frozen=True, slots=True)
class LlamaDevice:
    """What was measured of a device: its rates, and of an RPC server the seconds of a hop and of a byte sent to it.

    `own` are the factors by which prompts and tokens of the profiled file take longer than its rates say. `note` says
    what disturbed the measurement, if anything did.
    """

    rates: LlamaRates
    own: tuple[float, float] = (1.0, 1.0)
    hop: float = 0.0
    byte: float = 0.0
    whole: float | None = None
    spread: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Rounds:
    """The least times of every size; whether the two best rounds agree; and seconds of running and of waiting."""

    timings: list[LlamaTiming]
    agree: bool
    ran: float
    waited: float


def profile_llama(problem: Problem, places: Sequence[Place], repeats: int, processor: str) -> ProfileFile:
    """The profile of a GGUF model on a processor and RPC servers: rates, and by them the seconds of every op.

    Raises InputError for another model or other devices, MissingExtraError, and RunError where nothing runs.
    """
    graph, source = problem.graph, problem.graph.source
    dims = find_run_dims(source)
    if source is None or dims is None or source.format != "gguf":
        raise InputError(f"{RUNTIME} cannot profile this model", remedy="give a GGUF file")
    if sum(place.kind == "cores" for place in places) > 1 or any(
        place.kind not in ("cores", "rpc") for place in places
    ):
        remedy = "give -d cpu, or -d core for one thread, and rpc:HOST:PORT for every RPC server"
        raise InputError(f"{RUNTIME} is profiled on one processor and on RPC servers", remedy=remedy)
    if dims.streams > 1:
        raise InputError(f"{RUNTIME} is profiled with one sequence", remedy="leave out batch and sequences")
    if dims.ubatch != MICRO_BATCH:
        remedy = "leave out ubatch: its rates serve every micro-batch"
        raise InputError(f"{RUNTIME} is profiled with micro-batches of {MICRO_BATCH}", remedy=remedy)
    kinds = {device.name: device.kind for device in problem.cluster}
    places = [replace(each, cores=each.cores[:1]) if kinds[each.device] == "core" else each for each in places]
    program = uses_program(places)
    release = find_release(program=program)
    cache = find_cache_types(problem)
    measured = measure_devices(Path(source.path), places, cache, repeats, program=program)
    if len(places) == 1 and places[0].kind == "cores":
        sizes = (dims.prompt, dims.tokens)
        try:
            measured = [add_own(measured[0], Path(source.path), places[0], cache, repeats, sizes, program=program)]
        except RunError as error:
            unloaded = f"the rates are those of its types, since the file itself was not timed: {error}"
            measured = [replace(measured[0], note="; ".join(filter(None, (measured[0].note, unloaded))))]
    work = work_of(graph)
    devices, borders = list[DeviceProfile](), list[BorderFigures]()
    host = next((place.device for place in places if place.kind == "cores"), "")
    for place, found in zip(places, measured, strict=True):
        seconds = list_op_seconds(graph, scale_rates(found.rates, found.own))
        figures = Figures(
            whole=found.whole, spread=found.spread, runs=repeats, kernels=float(seconds.sum()), outside=0.0,
            dispatch=0.0, slowdown=1.0, ops=tuple(seconds.tolist()),
        )  # fmt: skip
        record = LlamaRecord(prompt=dict(found.rates.prompt), token=dict(found.rates.token), own=found.own)
        devices.append(DeviceProfile(
            name=place.device, place=str(place), processor=processor if place.kind == "cores" else place.name,
            call_overhead=0.0, measured=datetime.now(UTC).isoformat(timespec="seconds"), cached=False, fused=(),
            idle=figures, loaded=None, llama=record,
        ))  # fmt: skip
        if place.kind == "rpc" and host:
            bandwidth = min(1 / found.byte if found.byte else FASTEST, FASTEST)
            borders.append(
                BorderFigures(source=host, target=place.device, latency=found.hop / 2, bandwidth=bandwidth, spread=0.0)
            )
    notes = tuple(f"{place.device}: {found.note}" for place, found in zip(places, measured, strict=True) if found.note)
    return ProfileFile(
        runtime=RUNTIME, runtime_version=release, source=source_record(source), graph_hash=graph.digest(),
        ops=graph.ops.name, kinds=tuple(graph.ops.kind), flops=tuple(work.flops.tolist()),
        bytes=tuple(work.bytes.tolist()), classes=tuple(work.op_class),
        dtypes=tuple(DTYPES[code] for code in work.dtype.tolist()), cluster=cluster_record(problem.cluster),
        devices=tuple(devices), borders=tuple(borders), runs=None, notes=notes,
        tool=ToolRecord(name="placewise", version=version("placewise")),
    )  # fmt: skip


def uses_program(places: Sequence[Place]) -> bool:
    """Whether llama-server is timed, and not the package: where it is on PATH, which commands of plans start, where the
    package is missing, and for RPC servers.
    """
    servers = any(place.kind == "rpc" for place in places)
    return servers or bool(shutil.which(SERVER)) or find_spec(PACKAGE) is None


def find_release(*, program: bool) -> str:
    """What is timed: the version of the package, or llama-server and its own. Raises MissingExtraError, RunError."""
    if not program:
        return version(PACKAGE)
    if not find_program(SERVER) and find_spec(PACKAGE) is None:
        raise MissingExtraError(f"profiling with {RUNTIME}", "llama-cpp")
    return f"{SERVER} {read_version()}".strip()


def measure_devices(
    path: Path, places: Sequence[Place], cache: tuple[str, str], repeats: int, *, program: bool
) -> list[LlamaDevice]:
    """The rates of every place, from probes of the types of a model's matrices, which all places time in turns."""
    probes, places_in_order = list_probes(read_header(path)), sorted(places, key=lambda place: place.kind == "rpc")
    loads: dict[str, list[float]] = {place.device: [] for place in places}
    rounds: dict[str, list[Rounds]] = {place.device: [] for place in places}
    observed: dict[str, Observations] = {place.device: ([], []) for place in places}
    sizes = list[int]()
    with scratch_folder() as folder:
        for number, probe in enumerate(probes):
            file = write_probe(Path(folder) / f"{number}.gguf", probe)
            sizes.append(file.stat().st_size)
            with ExitStack() as stack:
                processes = list[LlamaProcess]()
                for place in places_in_order:
                    begun = time.monotonic()
                    opened = open_on(place, file, set_flags(place, probe.prompts, cache), program=program)
                    processes.append(stack.enter_context(opened))
                    loads[place.device].append(time.monotonic() - begun)
                lengths = [(length, TOKENS + 1) for length in probe.prompts]
                for place, one in zip(places_in_order, time_rounds(processes, lengths, repeats), strict=True):
                    rounds[place.device].append(one)
                    for all_of, more in zip(
                        observed[place.device],
                        observe(file, ",".join(cache), one.timings, fits_caches=probe.fits_caches),
                        strict=True,
                    ):
                        all_of += more
            file.unlink()
    host = next((place.device for place in places if place.kind == "cores"), "")
    base = fit_device(*observed[host]) if host else LlamaDevice(LlamaRates({}, {}))
    found = list[LlamaDevice]()
    for place in places:
        name, device = place.device, base
        if place.kind == "rpc":
            longer = [ours - theirs for ours, theirs in zip(loads[name], loads.get(host, loads[name]), strict=True)]
            device = replace(fit_device(*observed[name], base), byte=fit_slope(sizes, longer))
        found.append(replace(device, note=describe_disturbance(rounds[name])))
    return found


def fit_slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Seconds per byte, not negative: the median slope over pairs, one at least twice the size of the other (Theil)."""
    pairs = list(zip(sizes, seconds, strict=True))
    slopes = [(b - a) / (large - small) for small, a in pairs for large, b in pairs if large >= 2 * small > 0]
    return max(median(slopes), 0.0) if slopes else 0.0


def describe_disturbance(rounds: Sequence[Rounds]) -> str:
    """What the profile says of a device whose measurement was disturbed; "" for none."""
    ran, waited = sum(one.ran for one in rounds), sum(one.waited for one in rounds)
    unsettled = sum(not one.agree for one in rounds)
    reasons = []
    if waited > BUSY * (ran + waited):
        reasons.append(f"llama.cpp waited for a processor in {waited / (ran + waited):.0%} of its time")
    if unsettled:
        reasons.append(f"of {unsettled} of {len(rounds)} models, no two rounds agree within {AGREE:.0%}")
    if not reasons:
        return ""
    return f"{'; '.join(reasons)}: something else used the machine, or a quota limits it; measure again when it is idle"


def set_flags(place: Place, prompts: Sequence[int], cache: tuple[str, str]) -> LlamaFlags:
    """The flags under which a place is measured: as many threads as it has cores."""
    return LlamaFlags(context=max(prompts) + TOKENS + 1, cache=cache, threads=len(place.cores))


def fit_device(
    prompts: Sequence[Observation], tokens: Sequence[Observation], host: LlamaDevice | None = None
) -> LlamaDevice:
    """Rates from observations. Of an RPC server, what the `host` spends on each token is no part of a hop."""
    rates = fit_rates(prompts, tokens)
    if host is None:
        return LlamaDevice(rates)
    drawn = host.rates.token.get(RUN, 0.0)
    hop = max(rates.token.get(RUN, 0.0) - drawn, 0.0)
    return LlamaDevice(LlamaRates({**rates.prompt, RUN: 0.0}, {**rates.token, RUN: drawn}), hop=hop)


def add_own(
    device: LlamaDevice,
    path: Path,
    place: Place,
    cache: tuple[str, str],
    repeats: int,
    sizes: tuple[int, int],
    *,
    program: bool,
) -> LlamaDevice:
    """The device with the factors of a model itself, and the seconds of a run of `sizes` (prompt, tokens)."""
    lengths = sorted({*OWN_PROMPTS, sizes[0]})
    with open_on(place, path, set_flags(place, lengths, cache), program=program) as process:
        (rounds,) = time_rounds([process], [(length, TOKENS + 1) for length in lengths], repeats)
    timings = rounds.timings
    observed = observe(path, ",".join(cache), timings)
    own = [
        median(one.seconds / float(add_seconds(one.work, rates).sum()) for one in each)
        for each, rates in zip(observed, (device.rates.prompt, device.rates.token), strict=True)
    ]
    run = next(timing for timing in timings if timing.prompt == sizes[0])
    whole = run.prompt_seconds + sizes[1] * run.token_seconds
    note = device.note or describe_disturbance([rounds])
    return replace(device, own=(own[0], own[1]), whole=whole, spread=run.spread, note=note)


def open_on(place: Place, path: Path, flags: LlamaFlags, *, program: bool) -> AbstractContextManager[LlamaProcess]:
    """llama.cpp with a model on one place: llama-server with `program`, else the package."""
    if not program:
        return open_llama(path, flags)
    where = ["--device", "none"] if place.kind == "cores" else ["--rpc", place.name, "--device", "RPC0", "-ngl", "999"]
    return LlamaProgram(path, [*write_flags(flags), *where, "--fit", "off"], mapped=False)


def time_rounds(processes: Sequence[LlamaProcess], sizes: Sequence[tuple[int, int]], repeats: int) -> list[Rounds]:
    """The least times of every process, all in turns, after a round that does not count.

    Other work only ever adds time. At most `repeats` rounds, at least `ROUNDS`; see `AGREE`.
    """
    for process in processes:
        time_round(process, sizes)
    before, started = [read_schedule(process.pid) for process in processes], time.monotonic()
    rounds: list[list[list[tuple[float, float]]]] = [[] for _ in processes]
    for number in range(1, repeats + 1):
        for process, kept in zip(processes, rounds, strict=True):
            kept.append(time_round(process, sizes))
        late = time.monotonic() - started > SECONDS * len(processes)
        if number >= ROUNDS and (late or all(map(is_settled, rounds))):
            break
    after = [read_schedule(process.pid) for process in processes]
    return [
        Rounds(summarize_rounds(kept, sizes, min), is_settled(kept), now[0] - then[0], now[1] - then[1])
        for kept, now, then in zip(rounds, after, before, strict=True)
    ]


def is_settled(rounds: Sequence[Sequence[tuple[float, float]]]) -> bool:
    """Whether the two least times of every prompt and of its tokens agree; a single round says nothing else."""
    for times in zip(*rounds, strict=True):
        for part in zip(*times, strict=True):
            least = sorted(part)[:2]
            if least[-1] > (1 + AGREE) * least[0]:
                return False
    return True


def observe(path: Path, cache_type: str, timings: Sequence[LlamaTiming], *, fits_caches: bool = False) -> Observations:
    """What prompts and tokens did, by the terms of their models of time, and how long they took.

    Weights of a model that `fits_caches` are `CACHED` ones.
    """
    prompts, tokens = [], []
    for timing in timings:
        graph = read_size(path, timing.prompt, timing.tokens, cache_type)
        prompts.append(Observation(_add_up(count_prompt_work(graph), fits_caches), timing.prompt_seconds))
        tokens.append(Observation(_add_up(count_token_work(graph), fits_caches), timing.token_seconds))
    return prompts, tokens


def _add_up(work: Terms, fits_caches: bool) -> Terms:
    """The work of all ops together."""
    prefix = f"{WEIGHTS} "
    return {
        term.replace(prefix, f"{CACHED} ") if fits_caches else term: amount.sum(keepdims=True)
        for term, amount in work.items()
    }


def read_size(path: Path, prompt: int, tokens: int, cache_type: str = "") -> Graph:
    """The graph of a model for a prompt and so many tokens after its first one."""
    return read_gguf(path, dims={"prompt": prompt, "tokens": tokens}, cache_type=cache_type or None).graph


def fit_rates(prompts: Sequence[Observation], tokens: Sequence[Observation]) -> LlamaRates:
    """The rates with the least relative error over all observations, none of them negative, without `CACHED` ones."""
    return LlamaRates(_fit(prompts), _fit(tokens))


def _fit(observations: Sequence[Observation]) -> dict[str, float]:
    terms = sorted({term for one in observations for term in one.work})
    seconds = np.array([one.seconds for one in observations])
    work = np.array(
        [[float(one.work[term].sum()) if term in one.work else 0.0 for term in terms] for one in observations]
    )
    work /= seconds[:, None]
    scale = np.maximum(work.max(axis=0), np.finfo(float).tiny)
    found = solve_nonnegative(work / scale, np.ones(len(seconds))) / scale
    return {term: rate for term, rate in zip(terms, found.tolist(), strict=True) if not term.startswith(f"{CACHED} ")}


def solve_nonnegative(matrix: Floats, target: Floats) -> Floats:
    """The x ≥ 0 [columns] with the least |matrix x − target|.

    By active sets: Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23.
    """
    columns = matrix.shape[1]
    found, passive = np.zeros(columns), np.zeros(columns, np.bool_)
    for _ in range(3 * columns):
        gradient = np.where(passive, -np.inf, matrix.T @ (target - matrix @ found))
        if gradient.max(initial=-np.inf) <= 1e-9:
            break
        passive[int(np.argmax(gradient))] = True
        while True:
            trial = np.zeros(columns)
            trial[passive] = np.linalg.lstsq(matrix[:, passive], target, rcond=None)[0]
            if trial[passive].min(initial=1.0) > 0:
                break
            falling = passive & (trial <= 0)
            step = np.min(found[falling] / (found[falling] - trial[falling] + np.finfo(float).tiny))
            found += step * (trial - found)
            passive &= found > 1e-12
        found = trial
    return found
