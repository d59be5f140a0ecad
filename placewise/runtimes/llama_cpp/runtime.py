"""Runs a GGUF model in the real llama.cpp, in a process of its own.

Not a `Runtime`: llama.cpp runs a file under its own flags, and takes no placement of ops.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from placewise.errors import InputError, MissingExtraError
from placewise.processes.worker import Worker
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.runtimes.llama_cpp.log import Allocation, parse_log

_SERVED = "placewise.runtimes.llama_cpp.server:LlamaServer"
_FIRST, _TOKENS = 3, 200
"""The tokens of prompts: those after the special ones; every vocabulary has as many."""


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
    if min(prompt, tokens, repeats) < 1 or prompt + tokens > flags.context:
        raise InputError(f"a prompt of {prompt} and {tokens} tokens do not fit the context of {flags.context}")
    if find_spec("xllamacpp") is None:
        raise MissingExtraError("running llama.cpp", "llama-cpp")
    numbers = [_FIRST + place % _TOKENS for place in range(prompt)]
    with Worker(_SERVED, str(path.resolve()), flags, name="llama.cpp") as worker:
        runs = [worker.ask("generate", numbers, tokens) for _ in range(repeats + 1)][1:]
        log = worker.ask("end")
    seconds = [median(times) for times in zip(*runs, strict=True)]
    return LlamaRun(parse_log(log), prompt, tokens, *seconds)
