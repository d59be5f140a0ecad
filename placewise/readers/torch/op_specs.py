"""What becomes of one call: the op's kind, its arguments by position, its attributes. Tools for the table of kinds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from placewise.readers.torch.traced_program import TensorMeta, TracedCall, refs_in

LONGEST_LIST = 64
_IGNORED = frozenset({"device", "layout", "pin_memory", "memory_format", "dtype", "non_blocking", "generator"})


@dataclass(frozen=True, slots=True)
class OpSpec:
    """A call as an op: `arguments` are names of values by position, None where one is left out.

    `view` says that its results share memory with argument 0.
    """

    kind: str
    arguments: tuple[str | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    view: bool = False


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call with what is known of its values."""

    call: TracedCall
    metas: Mapping[str, TensorMeta]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument by its name in the schema; the default also where it is None."""
        value = self.call.arguments.get(name)
        return default if value is None else value

    def meta(self, name: str) -> TensorMeta | None:
        """What is known of the tensor that the argument `name` is, or the first one in it."""
        found = next(refs_in(self.call.arguments.get(name)), None)
        return None if found is None else self.metas.get(found)

    @property
    def result(self) -> TensorMeta | None:
        """What is known of the first result."""
        return self.metas.get(self.call.results[0]) if self.call.results else None


Converter = Callable[[CallSite], OpSpec]


def make_spec(site: CallSite, kind: str, *names: str, view: bool = False, **attributes: Any) -> OpSpec:
    """An op of `kind` whose first arguments are `names`, in this order, and then all other values of the call."""
    arguments: list[str | None] = []
    for name in names:
        arguments.append(next(refs_in(site.call.arguments.get(name)), None))
    named = set(names)
    for name, value in site.call.arguments.items():
        if name not in named:
            arguments.extend(refs_in(value))
    while arguments and arguments[-1] is None:
        arguments.pop()
    return OpSpec(kind, tuple(arguments), {**scalar_attributes(site.call), **attributes, **site.call.extra}, view)


def scalar_attributes(call: TracedCall) -> dict[str, Any]:
    """The numbers and texts among the arguments, as attributes under the schema's names."""
    return {name: _plain(value) for name, value in call.arguments.items() if name not in _IGNORED and _is_scalar(value)}


def convert_to(kind: str, *names: str, view: bool = False, **attributes: Any) -> Converter:
    """A former for calls that always become the same kind."""
    return lambda site: make_spec(site, kind, *names, view=view, **attributes)


def expand_sizes(value: Any, length: int) -> tuple[int, ...]:
    """A size for each of `length` dimensions from a number, a list of one, or a list of all."""
    sizes = [value] if isinstance(value, int) else [item for item in value or () if isinstance(item, int)]
    if len(sizes) == 1:
        sizes *= length
    return tuple(sizes)


def _is_scalar(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return 0 < len(value) <= LONGEST_LIST and all(isinstance(item, (bool, int, float, str)) for item in value)
    return isinstance(value, (bool, int, float, str))


def _plain(value: Any) -> Any:
    """Infinities and NaN become texts, which JSON can hold."""
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
