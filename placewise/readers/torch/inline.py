"""Bodies that run exactly once (autocast, no_grad, checkpoint) are spliced into the calls around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from placewise.readers.torch.listing import Call, Listing, Meta, Ref, refs_in

ONCE = """wrap wrap_with_set_grad_enabled wrap_with_autocast wrap_activation_checkpoint tag_activation_checkpoint
    invoke_subgraph hints_wrapper strict_mode"""
"""Higher-order operators that run their one body once, with the values behind it as its inputs."""
DEEPEST = 32


def inlined(listing: Listing) -> Listing:
    """The listing without bodies that run once; values inside get the name of the call around them in front."""
    calls: list[Call] = []
    metas: dict[str, Meta] = dict(listing.metas)
    alias: dict[str, str] = {}
    _splice(listing, {}, "", calls, metas, alias, 0, None)
    return replace(
        listing,
        metas=metas,
        calls=tuple(calls),
        outputs=tuple(alias.get(name, name) for name in listing.outputs),
        written=tuple(alias.get(name, name) for name in listing.written),
    )


def _splice(
    body: Listing,
    given: Mapping[str, str],
    prefix: str,
    calls: list[Call],
    metas: dict[str, Meta],
    alias: dict[str, str],
    depth: int,
    around: Call | None,
) -> None:
    """Append the calls of `body`, whose inputs are called `given` outside; `alias` takes what results are called."""
    local = dict(given)
    for call in body.calls:
        arguments = {name: _renamed(value, local, prefix, alias) for name, value in call.arguments.items()}
        outer = replace(
            call,
            name=prefix + call.name,
            arguments=arguments,
            results=tuple(prefix + name for name in call.results),
            mutates=tuple(_name(name, local, prefix, alias) for name in call.mutates),
        )
        if around is not None:
            outer = replace(outer, origin=around.origin, scope=outer.scope or around.scope)
        metas.update({prefix + name: body.metas[name] for name in call.results if name in body.metas})
        inner = next((value for value in arguments.values() if isinstance(value, Listing)), None)
        if inner is None or call.op.removeprefix("higher_order::") not in ONCE.split() or depth >= DEEPEST:
            calls.append(outer)
            continue
        values = list(arguments.values())
        behind = values[values.index(inner) + 1 :]
        names = list(refs_in(behind))
        inside = f"{outer.name}."
        _splice(inner, dict(zip(inner.inputs, names, strict=False)), inside, calls, metas, alias, depth + 1, outer)
        bound = dict(zip(inner.inputs, names, strict=False))
        for result, output in zip(outer.results, inner.outputs, strict=False):
            alias[result] = _name(output, bound, inside, alias)


def _renamed(value: Any, local: Mapping[str, str], prefix: str, alias: Mapping[str, str]) -> Any:
    if isinstance(value, Ref):
        return Ref(_name(value.name, local, prefix, alias))
    if isinstance(value, (list, tuple)):
        return [_renamed(item, local, prefix, alias) for item in value]
    return value


def _name(name: str, local: Mapping[str, str], prefix: str, alias: Mapping[str, str]) -> str:
    outside = local.get(name, prefix + name)
    return alias.get(outside, outside)
