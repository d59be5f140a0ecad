"""Op specs: the kind, arguments and attributes of the op for a call, and helpers for the conversion tables."""

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
    """The op for a call. `arguments` are value names by position, None if omitted.

    `view`: the results share memory with argument 0.
    """

    kind: str
    arguments: tuple[str | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    view: bool = False


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call and the metadata of its values."""

    call: TracedCall
    metas: Mapping[str, TensorMeta]

    def get(self, name: str, default: Any = None) -> Any:
        """The argument `name` of the schema; `default` if it is missing or None."""
        value = self.call.arguments.get(name)
        return default if value is None else value

    def meta(self, name: str) -> TensorMeta | None:
        """The metadata of the first tensor in the argument `name`."""
        value = next(refs_in(self.call.arguments.get(name)), None)
        return None if value is None else self.metas.get(value)

    @property
    def result(self) -> TensorMeta | None:
        """The metadata of the first result."""
        return self.metas.get(self.call.results[0]) if self.call.results else None


Converter = Callable[[CallSite], OpSpec]


def make_spec(site: CallSite, kind: str, *names: str, view: bool = False, **attributes: Any) -> OpSpec:
    """An op of `kind` with the arguments `names` first, in this order, then all other values of the call."""
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
    """Numbers and strings among the arguments, as attributes with the schema's names."""
    return {name: _plain(value) for name, value in call.arguments.items() if name not in _IGNORED and _is_scalar(value)}


def convert_to(kind: str, *names: str, view: bool = False, **attributes: Any) -> Converter:
    """A converter for calls that always become `kind`."""
    return lambda site: make_spec(site, kind, *names, view=view, **attributes)


def expand_sizes(value: Any, length: int) -> tuple[int, ...]:
    """Sizes of `length` dimensions from a number, a list of one, or a complete list."""
    sizes = [value] if isinstance(value, int) else [item for item in value or () if isinstance(item, int)]
    if len(sizes) == 1:
        sizes *= length
    return tuple(sizes)


def _is_scalar(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return 0 < len(value) <= LONGEST_LIST and all(isinstance(item, (bool, int, float, str)) for item in value)
    return isinstance(value, (bool, int, float, str))


def _plain(value: Any) -> Any:
    """The value with infinities and NaN as strings, for JSON."""
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
