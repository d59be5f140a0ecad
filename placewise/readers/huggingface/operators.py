"""Operators that replace details in a trace: attention, the KV cache, experts, and the boundaries of layers.

They have shapes but no arithmetic: models that use them are traced on meta tensors and never run. They are defined
once per process, in torch's namespace ``placewise``. Their targets in a listing map to kinds of ops.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

ENTER = "placewise::enter"
LEAVE = "placewise::leave"
AGAIN = "placewise::again"

ATTENTION = "placewise::attention"
CACHE_UPDATE = "placewise::cache_update"
CACHE_READ = "placewise::cache_read"
EXPERTS = "placewise::experts"
DISPATCH = "placewise::dispatch"
EXPERT = "placewise::expert"
COMBINE = "placewise::combine"

KINDS = {
    ATTENTION: "Attention",
    CACHE_UPDATE: "CacheUpdate",
    CACHE_READ: "CacheRead",
    EXPERTS: "Experts",
    DISPATCH: "Dispatch",
    EXPERT: "Expert",
    COMBINE: "Combine",
}
"""Target → kind."""

CACHES = frozenset((CACHE_UPDATE, CACHE_READ))
"""Their results are views of state: they have a shape, but no bytes."""


NAMESPACE = "placewise"
_SCHEMAS = (
    "attention(Tensor query, Tensor key, Tensor value, Tensor[] more, int window) -> Tensor",
    "cache_update(Tensor key, Tensor value, int visible, int capacity) -> (Tensor, Tensor)",
    "cache_read(int[] shape, ScalarType dtype) -> Tensor",
    "experts(Tensor hidden, Tensor index, Tensor scores, Tensor[] weights, int experts) -> Tensor",
    "enter(Tensor[] arguments, int body) -> Tensor[]",
    "leave(Tensor[] results, int body) -> Tensor[]",
    "again(Tensor[] arguments, Tensor[] results, int body) -> Tensor[]",
)


@cache
def operators() -> Any:
    """Return ``torch.ops.placewise`` with the operators registered."""
    library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
    shapes: dict[str, Any] = {
        "attention": _attention, "cache_update": _cache_update, "cache_read": _cache_read, "experts": _experts,
        "enter": _like, "leave": _like, "again": _again,
    }  # fmt: skip
    for schema in _SCHEMAS:
        name = schema.partition("(")[0]
        library.define(schema)
        library.impl(name, shapes[name], "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", shapes[name], lib=library)
    _KEPT.append(library)
    return getattr(torch.ops, NAMESPACE)


_KEPT: list[Any] = []
"""A library unregisters its operators when it is freed."""


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, more: list[torch.Tensor], window: int
) -> torch.Tensor:
    """[batch, heads, queries, width] → [batch, queries, heads, value width], the order that transformers expects."""
    batch, heads, queries, _ = query.shape
    return query.new_empty((batch, queries, heads, value.shape[-1]))


def _cache_update(
    key: torch.Tensor, value: torch.Tensor, visible: int, capacity: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [batch, heads, visible, width] of the cache after the update."""
    return _resize_length(key, visible), _resize_length(value, visible)


def _resize_length(states: torch.Tensor, length: int) -> torch.Tensor:
    return states.new_empty((*states.shape[:-2], length, states.shape[-1]))


def _cache_read(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _experts(
    hidden: torch.Tensor, index: torch.Tensor, scores: torch.Tensor, weights: list[torch.Tensor], experts: int
) -> torch.Tensor:
    return torch.empty_like(hidden)


def _like(tensors: list[torch.Tensor], body: int) -> list[torch.Tensor]:
    return [torch.empty_like(tensor) for tensor in tensors]


def _again(arguments: list[torch.Tensor], results: list[torch.Tensor], body: int) -> list[torch.Tensor]:
    return [torch.empty_like(tensor) for tensor in results]
