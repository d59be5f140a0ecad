"""Sharding rules, a module per family of kinds: how the ops of a kind are split, given how their arguments are."""

from collections.abc import Mapping
from types import MappingProxyType

from placewise.costing.sharding.rules import attention, movement, pointwise, products
from placewise.costing.sharding.strategies import Rule

RULES: Mapping[str, Rule] = MappingProxyType({**pointwise.RULES, **movement.RULES, **products.RULES, **attention.RULES})
"""Kind → rule. Ops of other kinds need their arguments whole."""
LINEAR = MappingProxyType(pointwise.LINEAR)
"""Kind → rule for arguments that are summands; other kinds need the sum."""
KEEP_FREE = pointwise.KEEP_FREE
