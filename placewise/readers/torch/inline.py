"""Inline bodies that run exactly once (autocast, no_grad, checkpoint)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from placewise.readers.torch.traced_program import TensorMeta, TracedCall, TracedProgram, ValueRef, refs_in

_ONCE = """wrap wrap_with_set_grad_enabled wrap_with_autocast wrap_activation_checkpoint tag_activation_checkpoint
    invoke_subgraph hints_wrapper strict_mode"""
ONCE = frozenset(f"higher_order::{name}" for name in _ONCE.split())
"""Operators that run a body once; the arguments after the body are its inputs."""
MAX_DEPTH = 32


def inline_bodies(listing: TracedProgram) -> TracedProgram:
    """The program with bodies that run once inlined; inner names get the name of the outer call as prefix."""
    inliner = _Inliner(dict(listing.metas))
    inliner.splice(_InlineFrame(listing))
    return replace(
        listing,
        metas=inliner.metas,
        calls=tuple(inliner.calls),
        outputs=tuple(inliner.alias.get(name, name) for name in listing.outputs),
        written=tuple(inliner.alias.get(name, name) for name in listing.written),
    )


@dataclass(frozen=True, slots=True)
class _InlineFrame:
    """A program being inlined.

    `outside` maps its inputs to names outside, `prefix` precedes its other names, `around` is its call.
    """

    listing: TracedProgram
    outside: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    around: TracedCall | None = None
    depth: int = 0


@dataclass(slots=True)
class _Inliner:
    """The calls so far; `alias` maps results of inlined calls to the inner values."""

    metas: dict[str, TensorMeta]
    calls: list[TracedCall] = field(default_factory=list)
    alias: dict[str, str] = field(default_factory=dict)

    def splice(self, frame: _InlineFrame) -> None:
        """Append the calls of a body."""
        for call in frame.listing.calls:
            outer = self._renamed(call, frame)
            for name, result in zip(call.results, outer.results, strict=True):
                if name in frame.listing.metas:
                    self.metas[result] = frame.listing.metas[name]
            inner = next((value for value in outer.arguments.values() if isinstance(value, TracedProgram)), None)
            if inner is None or outer.op not in ONCE or frame.depth >= MAX_DEPTH:
                self.calls.append(outer)
            else:
                self._splice_inner(inner, outer, frame.depth)

    def _splice_inner(self, inner: TracedProgram, outer: TracedCall, depth: int) -> None:
        values = list(outer.arguments.values())
        place = next(place for place, value in enumerate(values) if value is inner)
        outside = dict(zip(inner.inputs, refs_in(values[place + 1 :]), strict=False))
        frame = _InlineFrame(inner, outside, f"{outer.name}.", outer, depth + 1)
        self.splice(frame)
        for result, output in zip(outer.results, inner.outputs, strict=False):
            self.alias[result] = self._outside(output, frame)

    def _renamed(self, call: TracedCall, frame: _InlineFrame) -> TracedCall:
        around = frame.around
        return replace(
            call,
            name=frame.prefix + call.name,
            arguments={name: self._argument(value, frame) for name, value in call.arguments.items()},
            results=tuple(frame.prefix + name for name in call.results),
            mutates=tuple(self._outside(name, frame) for name in call.mutates),
            scope=call.scope or (around.scope if around else ""),
            origin=around.origin if around else call.origin,
        )

    def _argument(self, value: Any, frame: _InlineFrame) -> Any:
        if isinstance(value, ValueRef):
            return ValueRef(self._outside(value.name, frame))
        if isinstance(value, (list, tuple)):
            return [self._argument(item, frame) for item in value]
        return value

    def _outside(self, name: str, frame: _InlineFrame) -> str:
        outside = frame.outside.get(name, frame.prefix + name)
        return self.alias.get(outside, outside)
