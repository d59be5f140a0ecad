"""Mixtures of experts apart: one op per expert, with its own weights, between a dispatch and a sum."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from placewise.readers.huggingface.marks import COMBINE, DISPATCH, EXPERT, EXPERTS
from placewise.readers.torch.listing import Call, Listing, Meta, Parameter, Ref


def split_experts(listing: Listing) -> Listing:
    """Every mixture of experts as a dispatch of tokens, one op per expert with its own weights, and a sum."""
    metas, parameters, calls = dict(listing.metas), {p.value: p for p in listing.parameters}, list[Call]()
    for call in listing.calls:
        if call.op == EXPERTS:
            calls.extend(_split_mixture(call, metas, parameters))
        else:
            calls.append(call)
    return replace(listing, metas=metas, parameters=tuple(parameters.values()), calls=tuple(calls))


def _split_mixture(call: Call, metas: dict[str, Meta], parameters: dict[str, Parameter]) -> Iterator[Call]:
    count = int(call.arguments["experts"])
    hidden, index, scores = (call.arguments[name] for name in ("hidden", "index", "scores"))
    tokens, chosen = metas[index.name].shape
    part = Meta((math.ceil(tokens * chosen / count), *metas[hidden.name].shape[1:]), metas[hidden.name].dtype)
    extra = {"experts": count, "tokens": tokens, "chosen": chosen}
    sent = [f"{call.name}:to{expert}" for expert in range(count)]
    made = [f"{call.name}:from{expert}" for expert in range(count)]
    metas.update(dict.fromkeys((*sent, *made), part))
    shared = {"hidden": hidden, "index": index}
    yield Call(f"{call.name}_dispatch", DISPATCH, shared, tuple(sent), call.scope, call.origin, extra=extra)
    for expert in range(count):
        own = [_slice_expert(ref.name, expert, metas, parameters) for ref in call.arguments["weights"]]
        arguments = {"hidden": Ref(sent[expert]), "weights": own}
        name, scope = f"{call.name}_expert{expert}", f"{call.scope}.{expert}"
        yield Call(name, EXPERT, arguments, (made[expert],), scope, call.origin, extra=extra)
    arguments = {"parts": [Ref(name) for name in made], "scores": scores}
    yield Call(f"{call.name}_combine", COMBINE, arguments, call.results, call.scope, call.origin, extra=extra)
    for ref in call.arguments["weights"]:
        parameters.pop(ref.name, None)


def _slice_expert(value: str, expert: int, metas: dict[str, Meta], parameters: dict[str, Parameter]) -> Ref:
    """The share of one expert in a parameter, as a parameter of its own."""
    own = f"{value}:{expert}"
    if own not in metas:
        whole = metas[value]
        all_of_them = parameters[value]
        path, _, last = all_of_them.name.rpartition(".")
        metas[own] = Meta(whole.shape[1:], whole.dtype)
        share = (all_of_them.storage, expert)
        parameters[own] = Parameter(own, f"{path}.{expert}.{last}", share, all_of_them.trainable)
    return Ref(own)
