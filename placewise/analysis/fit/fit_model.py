"""fit_model(): the command that runs a language model on given devices, its speed, and what would make it faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from placewise._util.llama_defaults import UBATCH
from placewise.analysis.fit.limits import find_departure, find_limit
from placewise.analysis.fit.measure import find_default_command, measure_fit
from placewise.catalog.read import drop_count, read_cluster
from placewise.core.build import Devices, build
from placewise.core.compute_buffer import describe_unknown, kept_bytes
from placewise.core.host_weights import LARGE_MICRO_BATCH, count_prompt_copies, find_accelerators
from placewise.core.open_model import Model
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.core.target_rules import check_options
from placewise.errors import InputError, PlacewiseError
from placewise.exporters.registry import create_exporter
from placewise.exporters.writing import export_placement
from placewise.model.problem import Problem
from placewise.model.result import CORE, DECODE, Outcome, Reason, Result
from placewise.placers.base import Budget, OnProgress, Progress, Stopwatch, ignore
from placewise.readers.run_dims import find_run_dims
from placewise.reporting.fitted import Change, Fitted
from placewise.targets.place_for import place_for

TARGETS = ("llama.cpp", "vllm")
"""The targets whose export is a command."""
NARROWER = ("int8", "int4")
"""The precisions that are tried where none is asked for, beside the model's own."""
FAST_ENOUGH = 10.0
"""Tokens per second, about as fast as people read: the widest precision that reaches it is chosen."""
MICRO_BATCHES = (1024, 2048, LARGE_MICRO_BATCH)
"""Those that are tried beside llama.cpp's own, of 512 tokens."""
CHANGE_SECONDS = 5.0
"""For the search that follows a change."""


def fit_model(
    model: Model,
    devices: Devices | None,
    options: ProblemOptions,
    *,
    target: str = TARGETS[0],
    measure: bool = False,
    budget: Budget | None = None,
    on_progress: OnProgress = ignore,
) -> Fitted:
    """How to run a model that generates text on `devices`, which default to this machine.

    Each precision is placed for `target` on its own, under the whole `budget`. With `measure`, the command of the plan
    runs here, in turns with the target's own placement, and the faster one is the answer. Raises InputError for a
    target without a command and for a model that generates nothing, RunError where nothing runs, and what reading and
    placing raise.
    """
    if target not in TARGETS:
        raise InputError(f"{target!r} is started by no command", remedy=f"choose {' or '.join(TARGETS)}")
    check_options(target, options)
    limits = budget or Budget()
    watch = Stopwatch(limits)

    def solve(where: Devices, asked: ProblemOptions, seconds: float, words: str) -> Result:
        on_progress(Progress("fit", watch.elapsed, words))
        problem = build(model, where, asked)
        _require_text(problem)
        return _place(problem, target, replace(limits, seconds=min(limits.seconds, seconds)))

    cluster = "this" if devices is None else devices
    default = find_default_command(build(model, cluster, options), target) if measure else ""
    found = _solve_precisions(solve, cluster, options, target, limits.seconds)
    precision = _choose_precision(found)
    result = found[precision]
    others = {name: other for name, other in found.items() if name != precision}
    narrower = options if not precision else replace(options, precision=precision)
    micro_batches = _solve_micro_batches(solve, cluster, narrower, target, result)
    narrower, result = min(micro_batches, key=lambda tried: tried[1].value)
    command, notes, buffers = _write_command(result)
    answer = Fitted(
        result,
        result.target,
        command,
        precision,
        tuple(_change(_name_precision(name), other, result)
              for name, other in others.items()),
        kept_bytes(options.spare or (), result.problem),
        notes=notes,
        sizes=buffers,
    )  # fmt: skip
    changes = []
    for words, where in _more_devices(cluster):
        with suppress(PlacewiseError):
            changes.append(_change(words, solve(where, narrower, CHANGE_SECONDS, words), result))
    changes.sort(key=lambda change: -change.faster)
    if result.placement is None:
        return replace(answer, changes=tuple(changes))
    limit = find_limit(result.problem, result.placement)
    departure = None if limit is None else find_departure(result.problem, result.placement, limit)
    answer = replace(answer, limit=limit, departure=departure, changes=tuple(changes))
    if not measure:
        return answer
    return measure_fit(answer, default, lambda words: on_progress(Progress("fit", watch.elapsed, words)))


def _solve_precisions(
    solve: Callable[[Devices, ProblemOptions, float, str], Result],
    devices: Devices,
    options: ProblemOptions,
    target: str,
    seconds: float,
) -> dict[str, Result]:
    """The result of every precision that is tried: the one that is asked for, or the model's own and narrower ones."""
    own = options.precision or ""
    found = {own: solve(devices, options, seconds, _name_precision(own))}
    if own:
        return found
    for name in NARROWER:
        if name in create_exporter(target).info.precisions:
            with suppress(PlacewiseError):  # the model is quantized already
                found[name] = solve(devices, replace(options, precision=name), seconds, _name_precision(name))
    return found


def _solve_micro_batches(
    solve: Callable[[Devices, ProblemOptions, float, str], Result],
    devices: Devices,
    options: ProblemOptions,
    target: str,
    result: Result,
) -> list[tuple[ProblemOptions, Result]]:
    """Options and result of every micro-batch that is tried, the given one first: larger ones where llama.cpp copies
    weights for each of several micro-batches of a prompt, and the user names none.
    """
    tried, dims = [(options, result)], find_run_dims(result.problem.graph.source)
    if target != TARGETS[0] or result.placement is None or dims is None or UBATCH in options.dims:
        return tried
    if count_prompt_copies(result.problem, result.placement) > 1:
        for size in (size for size in MICRO_BATCHES if size < 2 * dims.prompt_tokens):
            asked = replace(options, dims={**options.dims, UBATCH: size})
            with suppress(PlacewiseError):  # the model is a graph that is read already
                tried.append((asked, solve(devices, asked, CHANGE_SECONDS, f"micro-batches of {size}")))
    return tried


def _choose_precision(found: dict[str, Result]) -> str:
    """The widest precision that is fast enough, else the fastest; the narrowest where none fits."""
    speed = {name: result.tokens_per_second or 0.0 for name, result in found.items()}
    fastest = max(reversed(found), key=lambda name: speed[name])
    return next((name for name in found if speed[name] >= FAST_ENOUGH), fastest)


def _place(problem: Problem, target: str, budget: Budget) -> Result:
    """The best placement for the target; on hosts alone, that of a program that runs layer by layer."""
    if target == TARGETS[0] or _has_accelerators(problem):
        return place_for(problem, target, budget=budget, advise=False)
    return place(problem.with_(objective=replace(problem.objective, execution="sequential")), "single", budget)


def _has_accelerators(problem: Problem) -> bool:
    return bool(find_accelerators(problem).any())


def _require_text(problem: Problem) -> None:
    dims = find_run_dims(problem.graph.source)
    if dims is not None and not dims.tokens:
        raise InputError("no tokens are generated with tokens=0", remedy="give --dim tokens=128, or leave it out")
    if DECODE not in [phase.name for phase in problem.graph.phases]:
        raise InputError("this model generates no text", remedy="use placewise place --for, with any other target")
    if problem.objective.kind != "latency" or problem.graph.ops.backward.any():
        raise InputError("fit answers for the generation of text", remedy="leave out the objective and training")


def _write_command(result: Result) -> tuple[str, tuple[str, ...], Mapping[str, int]]:
    """The command of the export, its notes and its buffers; none without a placement, and for no target."""
    if result.placement is None or not result.target:
        return "", (), {}
    made = export_placement(result.problem, result.placement, result.target)
    script = str(next(iter(made.exported.files.values())))
    command = "\n".join(line for line in script.splitlines() if line and not line.startswith("#"))
    return command, (*made.exported.notes, *describe_unknown(result.problem)), made.exported.buffers


def _name_precision(name: str) -> str:
    return f"precision {name}" if name else "the model's own precision"


def _change(words: str, result: Result, before: Result) -> Change:
    now, was = result.tokens_per_second, before.tokens_per_second
    if now is None:
        impossible = result.status.outcome is Outcome.INFEASIBLE
        in_time = " in the time" if result.status.reason is Reason.TIME_LIMIT else ""
        return Change(words, None, 0.0, result.unmet if impossible else f"nothing was found{in_time}", impossible)
    return Change(words, now, now / was if was else float("inf"))


def _more_devices(devices: Devices) -> list[tuple[str, str]]:
    """One accelerator more of every model that a list of devices names, in words and as a list.

    It is the last, so that rules that name the others still mean them.
    """
    if not isinstance(devices, str) or devices == "this" or devices.endswith(".toml"):
        return []
    models = dict.fromkeys(drop_count(part.strip()) for part in devices.split(",") if not _is_host(part))
    return [(f"one {model} more", f"{devices},{model}") for model in models]


def _is_host(part: str) -> bool:
    """Whether an entry of a list of devices names no accelerator."""
    with suppress(PlacewiseError):
        return all(device.is_host or device.kind == CORE for device in read_cluster(part))
    return True
