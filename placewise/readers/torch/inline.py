"""Bodies that run exactly once (autocast, no_grad, checkpoint) are spliced into the calls around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from placewise.readers.torch.listing import Call, Listing, Meta, Ref, refs_in

_ONCE = """wrap wrap_with_set_grad_enabled wrap_with_autocast wrap_activation_checkpoint tag_activation_checkpoint
    invoke_subgraph hints_wrapper strict_mode"""
ONCE = frozenset(f"higher_order::{name}" for name in _ONCE.split())
"""Operators that run their one body once, with the values behind it as its inputs."""
DEEPEST = 32


def inlined(listing: Listing) -> Listing:
    """The listing without bodies that run once; values inside get the name of the call around them in front."""
    flat = _Flat(dict(listing.metas))
    flat.splice(_Body(listing))
    return replace(
        listing,
        metas=flat.metas,
        calls=tuple(flat.calls),
        outputs=tuple(flat.alias.get(name, name) for name in listing.outputs),
        written=tuple(flat.alias.get(name, name) for name in listing.written),
    )


@dataclass(frozen=True, slots=True)
class _Body:
    """A listing somewhere inside.

    `given` is what its inputs are called outside, `prefix` stands before its other names, `around` is its call.
    """

    listing: Listing
    given: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    around: Call | None = None
    depth: int = 0


@dataclass(slots=True)
class _Flat:
    """The calls so far; `alias` says what results of calls with bodies are called inside."""

    metas: dict[str, Meta]
    calls: list[Call] = field(default_factory=list)
    alias: dict[str, str] = field(default_factory=dict)

    def splice(self, body: _Body) -> None:
        """Append the calls of a body."""
        for call in body.listing.calls:
            outer = self._renamed(call, body)
            for name, result in zip(call.results, outer.results, strict=True):
                if name in body.listing.metas:
                    self.metas[result] = body.listing.metas[name]
            inner = next((value for value in outer.arguments.values() if isinstance(value, Listing)), None)
            if inner is None or outer.op not in ONCE or body.depth >= DEEPEST:
                self.calls.append(outer)
            else:
                self._splice_inner(inner, outer, body.depth)

    def _splice_inner(self, inner: Listing, outer: Call, depth: int) -> None:
        values = list(outer.arguments.values())
        place = next(place for place, value in enumerate(values) if value is inner)
        given = dict(zip(inner.inputs, refs_in(values[place + 1 :]), strict=False))
        body = _Body(inner, given, f"{outer.name}.", outer, depth + 1)
        self.splice(body)
        for result, output in zip(outer.results, inner.outputs, strict=False):
            self.alias[result] = self._outside(output, body)

    def _renamed(self, call: Call, body: _Body) -> Call:
        around = body.around
        return replace(
            call,
            name=body.prefix + call.name,
            arguments={name: self._argument(value, body) for name, value in call.arguments.items()},
            results=tuple(body.prefix + name for name in call.results),
            mutates=tuple(self._outside(name, body) for name in call.mutates),
            scope=call.scope or (around.scope if around else ""),
            origin=around.origin if around else call.origin,
        )

    def _argument(self, value: Any, body: _Body) -> Any:
        if isinstance(value, Ref):
            return Ref(self._outside(value.name, body))
        if isinstance(value, (list, tuple)):
            return [self._argument(item, body) for item in value]
        return value

    def _outside(self, name: str, body: _Body) -> str:
        outside = body.given.get(name, body.prefix + name)
        return self.alias.get(outside, outside)
