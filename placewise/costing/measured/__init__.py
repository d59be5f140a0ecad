"""Measured times as files → the cost table: whatever a profiler wrote, matched to the ops of a graph."""

from placewise.costing.measured.load import load_measured

__all__ = ["load_measured"]
