"""How ops are split over devices: a rule per kind of op, and how splits spread through a graph."""

from placewise.costing.sharding.op_table import read_ops
from placewise.costing.sharding.shard import shard_graph

__all__ = ["read_ops", "shard_graph"]
