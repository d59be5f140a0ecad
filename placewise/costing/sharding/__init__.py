"""Tensor parallelism by rules: how ops are split over devices, what follows, and what every way to run costs."""

from placewise.costing.sharding.shard import shard_graph
from placewise.costing.sharding.ways import SplitOptions, make_ways

__all__ = ["SplitOptions", "make_ways", "shard_graph"]
