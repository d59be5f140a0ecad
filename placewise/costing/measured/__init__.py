"""Files with measured times → the cost table: read a profiler's output and match it to the ops of a graph."""

from placewise.costing.measured.load import load_measured

__all__ = ["load_measured"]
