"""The operators that stand for more than one op: their targets in a listing, and the kinds of op they become."""

from __future__ import annotations

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
"""Their results are views of state: they have a shape, and no bytes of their own."""
