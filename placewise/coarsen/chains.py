"""Chains: what has one reader only goes with it, and what reads one group only goes with that.

Merging ops with their sole child or sole parent is how Duan et al. 2024 (appendix G) and most placers before them
shorten a graph. It makes no cycles: what leaves a tree of sole children leaves it at its root.
"""

from __future__ import annotations

from placewise import _native
from placewise.coarsen.quotient import Limits, Quotient
from placewise.model.columns import Ints


def sole_children(quotient: Quotient, limits: Limits) -> Ints:
    """Labels [n]: groups join their only successor, as far as the limits allow."""
    label: Ints = _native.join_sole_successors(quotient.native(), *limits)
    return label


def sole_parents(quotient: Quotient, limits: Limits) -> Ints:
    """Labels [n]: groups join their only predecessor, as far as the limits allow."""
    return sole_children(quotient.mirrored(), limits)[::-1]
