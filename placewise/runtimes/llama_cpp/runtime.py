"""Runs a GGUF model in the real llama.cpp, in a process of its own.

Not a `Runtime`: llama.cpp runs a file under its own flags, and takes no placement of ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from placewise.errors import InputError, MissingExtraError
from placewise.processes.worker import Worker
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.runtimes.llama_cpp.log import Allocation, parse_log

_SERVED = "placewise.runtimes.llama_cpp.server:LlamaServer"
_FIRST, _TOKENS = 3, 200
"""The tokens of prompts: those after the special ones; every vocabulary has as many."""


class LlamaProcess(Protocol):
    """A process that has loaded a model: a `Worker` of the package, or the program llama-server."""

    @property
    def pid(self) -> int:
        """The process."""

    def ask(self, method: str, *args: Any) -> Any:
        """The answer of a method: ``generate`` or ``end``."""


@dataclass(frozen=True, slots=True)
class LlamaRun:
    """What llama.cpp allocated, and the median seconds of a prompt and of the tokens generated after it."""

    allocation: Allocation
    prompt: int
    tokens: int
    prompt_seconds: float
    token_seconds: float

    @property
    def prompt_speed(self) -> float:
        """Tokens of the prompt per second."""
        return self.prompt / self.prompt_seconds

    @property
    def token_speed(self) -> float:
        """Generated tokens per second."""
        return self.tokens / self.token_seconds


@dataclass(frozen=True, slots=True)
class LlamaTiming:
    """Median or least seconds of a prompt, and of each of the `tokens` that are decoded after the first one.

    `spread` is the interquartile range of the prompt's seconds, as a fraction of the median.
    """

    prompt: int
    tokens: int
    prompt_seconds: float
    token_seconds: float
    spread: float


def time_llama(
    path: Path, flags: LlamaFlags, sizes: Sequence[tuple[int, int]], *, repeats: int = 5
) -> list[LlamaTiming]:
    """Load a model once and time prompts and tokens of several sizes, in turns.

    Parameters
    ----------
    path
        A GGUF file; the first part of a split one.
    flags
        Flags of llama.cpp.
    sizes
        Pairs of tokens that are read and generated, at least 2 of the latter: the first follows from the prompt.
    repeats
        Rounds after one that does not count; medians are returned.

    Raises
    ------
    InputError
        For numbers that do not fit.
    RunError
        Where llama.cpp does not load the model, or does not answer.
    MissingExtraError
        Without the package xllamacpp.

    Examples
    --------
    ``time_llama(Path("model.gguf"), LlamaFlags(context=2048), [(64, 9), (512, 9)])``

    """
    for prompt, tokens in sizes:
        _require_room(flags, prompt, tokens, repeats, least=2)
    with open_llama(path, flags) as worker:
        rounds = [time_round(worker, sizes) for _ in range(repeats + 1)][1:]
        worker.ask("end")
    return summarize_rounds(rounds, sizes)


def open_llama(path: Path, flags: LlamaFlags) -> Worker:
    """A process that has loaded a model, for `time_round`. Raises MissingExtraError, RunError."""
    if find_spec("xllamacpp") is None:
        raise MissingExtraError("running llama.cpp", "llama-cpp")
    return Worker(_SERVED, str(path.resolve()), flags, name="llama.cpp")


def time_round(worker: LlamaProcess, sizes: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    """Seconds of a prompt and of the tokens after its first one, for every size, one after another."""
    return [worker.ask("generate", _list_prompt(prompt), tokens) for prompt, tokens in sizes]


def summarize_rounds(
    rounds: Sequence[Sequence[tuple[float, float]]],
    sizes: Sequence[tuple[int, int]],
    pick: Callable[[Iterable[float]], float] = median,
) -> list[LlamaTiming]:
    """The medians over rounds, or what else to `pick` of their seconds, for every size."""
    timings = []
    for number, (prompt, tokens) in enumerate(sizes):
        reading, writing = (sorted(one[number][part] for one in rounds) for part in (0, 1))
        middle, quarter = median(reading), len(reading) // 4
        spread = (reading[-1 - quarter] - reading[quarter]) / middle
        timings.append(LlamaTiming(prompt, tokens - 1, pick(reading), pick(writing) / (tokens - 1), spread))
    return timings


def _require_room(flags: LlamaFlags, prompt: int, tokens: int, repeats: int, *, least: int = 1) -> None:
    """Raise InputError for numbers that do not fit the context, and for fewer than `least` tokens."""
    if prompt < 1 or tokens < least or repeats < 1 or prompt + tokens > flags.context:
        raise InputError(f"a prompt of {prompt} and {tokens} tokens do not fit the context of {flags.context}")


def _list_prompt(tokens: int) -> list[int]:
    return [_FIRST + place % _TOKENS for place in range(tokens)]


def run_llama(
    path: Path, flags: LlamaFlags | None = None, *, prompt: int = 128, tokens: int = 16, repeats: int = 3
) -> LlamaRun:
    """Load a model, generate, and read from the log what was allocated.

    Parameters
    ----------
    path
        A GGUF file; the first part of a split one.
    flags
        Flags of llama.cpp; its defaults without.
    prompt, tokens
        Tokens that are read and generated. Together they must fit the context.
    repeats
        Runs after one that does not count; the medians are returned.

    Raises
    ------
    InputError
        For numbers that do not fit.
    RunError
        Where llama.cpp does not load the model, or does not answer.
    MissingExtraError
        Without the package xllamacpp.

    Examples
    --------
    ``run_llama(Path("model.gguf"), LlamaFlags(context=2048)).allocation.cache``

    """
    flags = flags or LlamaFlags()
    _require_room(flags, prompt, tokens, repeats)
    numbers = _list_prompt(prompt)
    with open_llama(path, flags) as worker:
        runs = [worker.ask("generate", numbers, tokens) for _ in range(repeats + 1)][1:]
        log = worker.ask("end")
    seconds = [median(times) for times in zip(*runs, strict=True)]
    return LlamaRun(parse_log(log), prompt, tokens, *seconds)
