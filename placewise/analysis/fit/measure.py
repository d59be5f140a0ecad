"""measure_fit(): the command of a plan and llama.cpp's own placement, run on this machine in turns."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from placewise.errors import InputError, RunError
from placewise.exporters.llama_cpp.command import write_default_command
from placewise.exporters.llama_cpp.words import TARGET
from placewise.model.cluster import RPC, is_rpc
from placewise.model.problem import Problem
from placewise.readers.run_dims import find_run_dims
from placewise.reporting.fitted import Fitted, TimedCommand, find_middle
from placewise.runtimes.llama_cpp.log import Allocation, parse_log
from placewise.runtimes.llama_cpp.program import LlamaProgram, list_devices
from placewise.runtimes.llama_cpp.runtime import summarize_rounds, time_round

PLAN, DEFAULT = "the plan", "llama.cpp's --fit"
ROUNDS, SECONDS = 3, 60.0
"""Rounds of a turn after one that does not count, and the seconds after which no further one begins."""
VERBOSE = ("-lv", "5")
"""Then the log says where the layers are."""


def find_default_command(problem: Problem, target: str) -> str:
    """The command of llama.cpp's own placement on the devices of a problem.

    Raises InputError where nothing can be measured, RunError without llama-server or an answer of an RPC server, and
    ExportError for a device that is not on this machine.
    """
    source, dims = problem.graph.source, find_run_dims(problem.graph.source)
    if target != TARGET or source is None or source.format != "gguf" or dims is None:
        raise InputError(f"--measure runs GGUF files in {TARGET}", remedy="give such a file, or leave out --measure")
    if dims.streams > 1:
        raise InputError("--measure runs one sequence", remedy="leave out batch and sequences, or --measure")
    free = list_devices([name.removeprefix(RPC) for name in problem.cluster.names if is_rpc(name)])
    return write_default_command(problem, free)


def measure_fit(found: Fitted, default: str, on_step: Callable[[str], None]) -> Fitted:
    """The answer with what both commands measured, and the faster one as its command.

    Each has the devices to itself. The default runs before and after the plan, so that a machine that becomes slower
    meanwhile prefers neither; where both are one command, it runs alone. Raises RunError where neither runs.
    """
    source = found.result.problem.graph.source
    dims = find_run_dims(source)
    assert source is not None and dims is not None
    names = {default: DEFAULT, found.command: PLAN}
    both = ((default, ROUNDS), (found.command, 2 * ROUNDS), (default, ROUNDS))
    timed = {
        command: TimedCommand(names[command], command, dims.prompt, max(dims.tokens, 2))
        for command in (found.command, default)
    }
    for command, rounds in both if len(timed) > 1 else both[1:2]:
        if not timed[command].failure:
            on_step(f"running {names[command]}")
            timed[command] = run_turn(Path(source.path), timed[command], rounds)
    return choose_command(found, tuple(timed.values()))


def run_turn(path: Path, timed: TimedCommand, rounds: int) -> TimedCommand:
    """A command with so many further rounds, or with the reason why it does not run."""
    sizes, new = [(timed.prompt, timed.tokens)], list[tuple[float, float]]()
    try:
        with LlamaProgram(path, [*shlex.split(timed.command)[3:], *VERBOSE]) as process:
            time_round(process, sizes)
            layers = describe_layers(parse_log(process.read_log()))
            until = time.monotonic() + SECONDS
            while len(new) < rounds and (not new or time.monotonic() < until):
                (timing,) = summarize_rounds([time_round(process, sizes)], sizes)
                new.append((timing.prompt_seconds, timing.token_seconds))
    except RunError as error:
        return replace(timed, rounds=(), failure=str(error))
    return replace(timed, rounds=(*timed.rounds, *new), layers=layers)


def choose_command(found: Fitted, measured: Sequence[TimedCommand]) -> Fitted:
    """The answer with the command of the least median time; that of the plan, the first, if they are equal.

    Raises RunError where none ran.
    """
    ran = [one for one in measured if one.rounds]
    if not ran:
        raise RunError("; ".join(f"{one.name} does not run: {one.failure}" for one in measured))
    fastest = min(ran, key=lambda one: find_middle(one.seconds)[0])
    return replace(found, command=fastest.command, measured=tuple(measured))


def describe_layers(allocation: Allocation) -> str:
    """How many layers are on each device, the output counting as one."""
    parts = ", ".join(f"{count} {name}" for name, count in Counter(allocation.layers).items())
    away = len(allocation.overridden)
    return parts + (f"; {away} tensors of experts on CPU" if away else "")
