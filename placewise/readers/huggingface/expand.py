"""Expand a listing with repeat marks: each marked layer becomes a renamed copy of the body that it repeats."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from placewise.readers.huggingface.operators import AGAIN, ENTER, LEAVE
from placewise.readers.torch.traced_program import Parameter, TensorMeta, TracedCall, TracedProgram, ValueRef

Renames = tuple[tuple[str, str], ...]
"""Module paths and their replacements, applied from first to last."""


def expand_repeats(listing: TracedProgram) -> TracedProgram:
    """Replace every mark by a copy of the body that it names, under its own scope and with its own parameters.

    Values that a body reads from outside, other than its arguments, are shared. Marks inside bodies are expanded too.
    """
    work = _Expander(listing)
    env: MutableMapping[str, str] = ChainMap({})
    work.emit(0, len(listing.calls), env, (), "")
    outputs = tuple(env.get(name, name) for name in listing.outputs)
    calls, parameters = tuple(work.calls), tuple(work.parameters)
    return replace(listing, metas=work.metas, parameters=parameters, calls=calls, outputs=outputs)


@dataclass(slots=True)
class _LayerBody:
    """The calls from `start` up to `stop` of a listing, between the marks `enter` and `leave`."""

    start: int
    stop: int
    enter: TracedCall
    leave: TracedCall


@dataclass(slots=True)
class _Expander:
    listing: TracedProgram
    calls: list[TracedCall] = field(default_factory=list)
    metas: dict[str, TensorMeta] = field(default_factory=dict)
    parameters: list[Parameter] = field(default_factory=list)
    copies: int = 0
    bodies: dict[int, _LayerBody] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metas, self.parameters = dict(self.listing.metas), list(self.listing.parameters)
        self.names = {parameter.value: parameter.name for parameter in self.listing.parameters}
        self.values = {parameter.name: parameter.value for parameter in self.listing.parameters}
        opened: dict[int, int] = {}
        for place, call in enumerate(self.listing.calls):
            if call.op == ENTER:
                opened[call.arguments["body"]] = place
            elif call.op == LEAVE:
                number = call.arguments["body"]
                start = opened[number]
                self.bodies[number] = _LayerBody(start + 1, place, self.listing.calls[start], call)

    def emit(self, start: int, stop: int, env: MutableMapping[str, str], renames: Renames, suffix: str) -> None:
        """Add the calls from `start` up to `stop`, with values renamed by `env`."""
        for call in self.listing.calls[start:stop]:
            if call.op in (ENTER, LEAVE):
                _alias(env, call.results, call.refs)
            elif call.op == AGAIN:
                self.emit_copy(call, env, renames)
            else:
                self.calls.append(self.copy_call(call, env, renames, suffix))

    def emit_copy(self, call: TracedCall, env: MutableMapping[str, str], renames: Renames) -> None:
        body = self.bodies[call.arguments["body"]]
        inner = ChainMap({}, *env.maps) if isinstance(env, ChainMap) else ChainMap({}, env)
        arguments = [ref.name for ref in call.arguments["arguments"]]
        for result, value in zip(body.enter.results, arguments, strict=True):
            inner[result] = env.get(value, value)
        self.copies += 1
        self.emit(body.start, body.stop, inner, ((body.enter.scope, call.scope), *renames), f"_copy{self.copies}")
        for result, value in zip(call.results, body.leave.refs, strict=True):
            env[result] = inner.get(value, value)

    def copy_call(self, call: TracedCall, env: MutableMapping[str, str], renames: Renames, suffix: str) -> TracedCall:
        if suffix:
            for result in call.results:
                env[result] = result + suffix
                if result in self.metas:
                    self.metas[result + suffix] = self.metas[result]
        return replace(
            call,
            name=call.name + suffix,
            arguments={key: self.map_argument(value, env, renames) for key, value in call.arguments.items()},
            results=tuple(result + suffix for result in call.results),
            scope=rename_path(call.scope, renames),
            mutates=tuple(self.value(name, env, renames) for name in call.mutates),
        )

    def map_argument(self, argument: Any, env: Mapping[str, str], renames: Renames) -> Any:
        if isinstance(argument, ValueRef):
            return ValueRef(self.value(argument.name, env, renames))
        if isinstance(argument, (list, tuple)):
            return type(argument)(self.map_argument(item, env, renames) for item in argument)
        return argument

    def value(self, name: str, env: Mapping[str, str], renames: Renames) -> str:
        """The value for `name` in this copy: its own parameter, or the entry in `env`."""
        if name not in self.names:
            return env.get(name, name)
        own = rename_path(self.names[name], renames)
        if own not in self.values:  # a constant that the trace captured
            value = self.values[own] = f"{name} of {own}"
            self.names[value], self.metas[value] = own, self.metas[name]
            self.parameters.append(Parameter(value, own, own, trainable=False))
        return self.values[own]


def _alias(env: MutableMapping[str, str], results: Sequence[str], values: Sequence[str]) -> None:
    for result, value in zip(results, values, strict=True):
        env[result] = env.get(value, value)


def rename_path(path: str, renames: Renames) -> str:
    """Rename the enclosing modules in a module path or parameter name."""
    for old, new in renames:
        if path == old or path.startswith(old + "."):
            path = new + path[len(old) :]
    return path
