"""The flags of llama.cpp that decide what is allocated where (common/arg.cpp, docs/multi-gpu.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import numpy as np

from placewise._util.llama_defaults import BATCH, MICRO_BATCH
from placewise.errors import InputError
from placewise.readers.gguf.types import CACHE_TYPES

FLASH = ("auto", "on", "off")
EXPERT = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""The weights of experts that --n-cpu-moe keeps in host memory."""

_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "-ngl": "ngl", "--n-gpu-layers": "ngl", "-ts": "split", "--tensor-split": "split", "-ot": "overrides",
        "--override-tensor": "overrides", "-ncmoe": "n_cpu_moe", "--n-cpu-moe": "n_cpu_moe", "-c": "context",
        "--ctx-size": "context", "-ctk": "keys", "--cache-type-k": "keys", "-ctv": "values",
        "--cache-type-v": "values", "-b": "batch", "--batch-size": "batch", "-ub": "ubatch", "--ubatch-size": "ubatch",
        "-fa": "flash", "--flash-attn": "flash", "-t": "threads", "--threads": "threads",
        "-np": "parallel", "--parallel": "parallel",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LlamaFlags:
    """Flags of llama.cpp, with its defaults.

    Parameters
    ----------
    ngl
        How many of the last layers are on GPUs; the output counts as one.
    split
        The proportions of the GPUs (``-ts``), one number each.
    overrides
        Pairs of a regular expression and a buffer type (``-ot``); the first that matches a tensor decides.
    n_cpu_moe
        The first layers whose experts stay in host memory (``-ncmoe``).
    context
        Positions of the KV cache of all sequences together (``-c``).
    parallel
        Sequences that share the context evenly (``-np``).
    cache
        Types of keys and values (``-ctk``, ``-ctv``).
    batch, ubatch
        Tokens of a batch and of a micro-batch (``-b``, ``-ub``).
    flash
        Flash attention: "auto", "on" or "off" (``-fa``).
    repack
        Whether weights in host memory may be stored in another order that the processor reads faster (the opposite of
        ``--no-repack``).
    swa_full
        Whether layers with a sliding window keep the whole context (``--swa-full``).
    threads
        Threads (``-t``); 0 leaves it to llama.cpp.

    Raises
    ------
    InputError
        For a number or a name that llama.cpp does not take.

    Examples
    --------
    >>> LlamaFlags(ngl=20, context=8192, cache=("q8_0", "q8_0")).context
    8192

    """

    ngl: int = 0
    split: tuple[float, ...] = ()
    overrides: tuple[tuple[str, str], ...] = ()
    n_cpu_moe: int = 0
    context: int = 4096
    parallel: int = 1
    cache: tuple[str, str] = ("f16", "f16")
    batch: int = BATCH
    ubatch: int = MICRO_BATCH
    flash: str = "auto"
    repack: bool = True
    swa_full: bool = False
    threads: int = 0

    def __post_init__(self) -> None:
        positive = (self.context, self.parallel, self.batch, self.ubatch)
        if min(positive) < 1 or min(self.ngl, self.n_cpu_moe, self.threads) < 0:
            raise InputError(
                "context, parallel, batch and ubatch are at least 1, ngl, n_cpu_moe and threads at least 0"
            )
        if self.split and (min(self.split) < 0 or not 0 < sum(self.split) < float("inf")):
            raise InputError(f"the proportions {self.split} are no positive numbers")
        for name in self.cache:
            if name not in CACHE_TYPES:
                raise InputError(f"a cache has no type {name!r}", remedy=f"choose from {', '.join(CACHE_TYPES)}")
        if self.flash not in FLASH:
            raise InputError(f"flash attention is not {self.flash!r}", remedy=f"choose from {', '.join(FLASH)}")
        for pattern, _ in self.overrides:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InputError(f"the override {pattern!r} is no regular expression: {error}") from None

    @property
    def all_overrides(self) -> tuple[tuple[str, str], ...]:
        """`overrides`, then those that `n_cpu_moe` stands for."""
        return self.overrides + tuple((rf"blk\.{layer}{EXPERT}", "CPU") for layer in range(self.n_cpu_moe))


def parse_flags(words: Sequence[str]) -> LlamaFlags:
    """The flags of a command, in words as a shell splits it; flags that allocate nothing are passed over.

    Raises
    ------
    InputError
        For a flag without its value, or a value that is no number.

    Examples
    --------
    >>> parse_flags(["llama-server", "-ngl", "20", "-ot", "exps=CPU"]).overrides
    (('exps', 'CPU'),)

    """
    given: dict[str, Any] = {}
    cache = list(LlamaFlags().cache)
    for word, value in zip(words, [*words[1:], ""], strict=True):
        name = _NAMES.get(word)
        try:
            if name == "overrides":
                pairs = [each.rpartition("=") for each in value.split(",")]
                given[name] = (*given.get(name, ()), *((pattern, place) for pattern, _, place in pairs))
            elif name == "split":
                given[name] = tuple(float(each) for each in value.split(","))
            elif name in ("keys", "values"):
                cache[name == "values"] = value
            elif name == "flash":
                given[name] = value
            elif name:
                given[name] = int(value)
        except ValueError:
            raise InputError(f"{word} is {value!r}, and not a number") from None
    return LlamaFlags(**given, cache=(cache[0], cache[1]))


def assign_layers(layers: int, ngl: int, split: Sequence[float], unused: int = 0) -> list[int]:
    """The GPU number of every layer and of the output, −1 for the host, as llama.cpp assigns them (`load_tensors`).

    It counts the `unused` layers of multi-token prediction, which come before the output, too.
    """
    blocks = layers + unused
    start, count = max(blocks + 1 - ngl, 0), min(ngl, blocks + 1)
    total = np.float32(sum(split))
    ends = [np.float32(end) / total for end in accumulate(split)]
    places = []
    for layer in range(blocks + 1):
        share = np.float32(layer - start) / np.float32(max(count, 1))
        places.append(-1 if layer < start else sum(bool(end <= share) for end in ends))
    return places[:layers] + places[-1:]
