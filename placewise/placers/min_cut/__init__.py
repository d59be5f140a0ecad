"""Minimum cuts for latency.

`TwoWayPlacer` is optimal for the host and one device that take turns (Stone 1977); `PathsPlacer` makes the placement
behind the lower bound of minimum cuts along a path.
"""
