"""The dimensions of a run: number of sequences, their length, and the tokens to generate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from placewise._util.llama_defaults import MICRO_BATCH
from placewise.errors import ModelFileError
from placewise.model.graph import Source

MOST = 1 << 30
CONTEXT, LENGTH = "context", "length"
"""Two names of one size: the positions of the KV cache of a decoder, or the length of a text that is read once."""
MAX_POSITIONS = 1 << 40
"""Of all sequences together."""
_MAY_BE_ZERO = frozenset(("tokens", "length", "experts_split"))


@dataclass(frozen=True, slots=True)
class RunDims:
    """The dimensions of a run.

    The model reads `batch` sequences of `prompt` tokens together, which gives the first token of each answer, and
    generates `tokens` more. The KV cache holds `length` positions (0: prompt and generated tokens) for `sequences`
    batches in flight. With `experts_split` = 1 every expert of a mixture is an op. llama.cpp reads `ubatch` tokens of a
    prompt at a time.
    """

    batch: int = 1
    prompt: int = 512
    tokens: int = 128
    length: int = 0
    sequences: int = 1
    experts_split: int = 0
    ubatch: int = MICRO_BATCH

    @property
    def capacity(self) -> int:
        """Positions in the KV cache of one sequence."""
        return self.length or self.prompt + self.tokens

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts of a batch."""
        return self.batch * self.prompt

    @property
    def streams(self) -> int:
        """Sequences that have a cache."""
        return self.batch * self.sequences

    @property
    def cache_positions(self) -> int:
        """Positions in the KV caches of all sequences together."""
        return self.streams * self.capacity

    @property
    def mean_position(self) -> int:
        """Positions in the cache for the middle one of the generated tokens: the mean over all of them."""
        return self.prompt + self.tokens // 2


def parse_dims(sizes: Mapping[str, int], names: Mapping[str, str], defaults: RunDims) -> RunDims:
    """Apply the user's dimensions to `defaults`; `names` maps fields to the model's names for them.

    Raises ModelFileError for unknown names and sizes out of range.
    """
    known = {name: field for field, name in names.items()}
    values: dict[str, int] = {}
    for name, size in sizes.items():
        if name not in known:
            raise ModelFileError(
                f"this model has no dimension {name[:60]!r}", remedy=f"give {', '.join(known)}, or omit it"
            )
        least = 0 if known[name] in _MAY_BE_ZERO else 1
        if isinstance(size, bool) or not isinstance(size, int) or not least <= size <= MOST:
            raise ModelFileError(
                f"the dimension {name} is {str(size)[:40]}", remedy=f"give a whole number from {least} to {MOST}"
            )
        values[known[name]] = size
    dims = replace(defaults, **values)
    if dims.cache_positions > MAX_POSITIONS:
        raise ModelFileError(
            f"{dims.batch} × {dims.sequences} sequences of {dims.capacity} exceed the memory of any machine",
            remedy="give smaller dimensions",
        )
    if dims.length and dims.length < dims.prompt + dims.tokens:
        raise ModelFileError(
            f"a cache of length {dims.length} does not hold {dims.prompt} + {dims.tokens} tokens",
            remedy="give a greater length, or fewer tokens",
        )
    return dims


def replace_context(sizes: Mapping[str, int], names: Mapping[str, str]) -> Mapping[str, int]:
    """`sizes` with ``length`` in place of ``context``, for models that have a ``length``.

    Raises ModelFileError if both are given and differ.
    """
    if CONTEXT not in sizes or LENGTH not in names.values():
        return sizes
    if sizes.get(LENGTH, sizes[CONTEXT]) != sizes[CONTEXT]:
        raise ModelFileError(f"{CONTEXT} and {LENGTH} are the same size, and differ", remedy="give one of them")
    return {LENGTH if name == CONTEXT else name: size for name, size in sizes.items()}


def find_run_dims(source: Source | None) -> RunDims | None:
    """The dimensions for which a model that generates text was read; None for any other model."""
    sizes = {} if source is None else source.options.get("dims", {})
    if "prompt" not in sizes:
        return None
    known = {field.name for field in fields(RunDims)}
    return RunDims(**{name: int(size) for name, size in sizes.items() if name in known})


def list_used_dims(dims: RunDims, names: Mapping[str, str]) -> dict[str, int]:
    """The dimensions that a model uses, under its own names."""
    return {name: getattr(dims, field) for field, name in names.items()}
