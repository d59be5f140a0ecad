"""The dimensions of a run: number of sequences, their length, and the tokens to generate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from placewise.errors import ModelFileError

MOST = 1 << 30
CONTEXT = "context"
"""Another name of a text's size: all positions of a decoder, prompt and answer, or the length of a text read once."""
MAX_POSITIONS = 1 << 40
"""Of all sequences together."""
_MAY_BE_ZERO = frozenset(("tokens", "length", "experts_split"))


@dataclass(frozen=True, slots=True)
class RunDims:
    """The dimensions of a run.

    The model reads `batch` sequences of `prompt` tokens together, which gives the first token of each answer, and
    generates `tokens` more. The KV cache holds `length` positions (0: prompt and generated tokens) for `sequences`
    batches in flight. With `experts_split` = 1 every expert of a mixture is an op.
    """

    batch: int = 1
    prompt: int = 512
    tokens: int = 128
    length: int = 0
    sequences: int = 1
    experts_split: int = 0

    @property
    def capacity(self) -> int:
        """Positions in the KV cache of one sequence."""
        return self.length or self.prompt + self.tokens

    @property
    def mean_position(self) -> int:
        """Positions in the cache for the middle one of the generated tokens: the mean over all of them."""
        return self.prompt + self.tokens // 2


def parse_dims(sizes: Mapping[str, int], names: Mapping[str, str], defaults: RunDims) -> RunDims:
    """Apply the user's dimensions to `defaults`; `names` maps fields to the model's names for them.

    Raises ModelFileError for unknown names and sizes out of range.
    """
    fields = {name: field for field, name in names.items()}
    values: dict[str, int] = {}
    for name, size in sizes.items():
        if name not in fields:
            raise ModelFileError(
                f"this model has no dimension {name[:60]!r}", remedy=f"give {', '.join(fields)}, or omit it"
            )
        least = 0 if fields[name] in _MAY_BE_ZERO else 1
        if isinstance(size, bool) or not isinstance(size, int) or not least <= size <= MOST:
            raise ModelFileError(
                f"the dimension {name} is {str(size)[:40]}", remedy=f"give a whole number from {least} to {MOST}"
            )
        values[fields[name]] = size
    dims = replace(defaults, **values)
    if dims.batch * dims.sequences * dims.capacity > MAX_POSITIONS:
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


def replace_context(
    sizes: Mapping[str, int], names: Mapping[str, str], defaults: RunDims, *, decodes: bool
) -> Mapping[str, int]:
    """`sizes` with the model's own dimension in place of ``context``, for models that have one.

    A decoder's prompt is the context without the generated tokens. Raises ModelFileError if nothing is left for it.
    """
    own = names.get("prompt", "")
    if CONTEXT not in sizes or not (decodes or own == "length"):
        return sizes
    rest = {name: size for name, size in sizes.items() if name != CONTEXT}
    if own in rest:
        raise ModelFileError(f"{CONTEXT} and {own} both say how long the text is", remedy=f"leave out --dim {own}")
    tokens = rest.get("tokens", defaults.tokens) if decodes else 0
    if not isinstance(sizes[CONTEXT], int) or not isinstance(tokens, int):
        return {**rest, own: sizes[CONTEXT]}
    if sizes[CONTEXT] <= tokens:
        raise ModelFileError(
            f"a {CONTEXT} of {sizes[CONTEXT]} leaves no prompt before {tokens} generated tokens",
            remedy="give a greater context, or fewer tokens, as --dim tokens=16",
        )
    return {**rest, own: sizes[CONTEXT] - tokens}


def list_used_dims(dims: RunDims, names: Mapping[str, str]) -> dict[str, int]:
    """The dimensions that a model uses, under its own names."""
    return {name: getattr(dims, field) for field, name in names.items()}
