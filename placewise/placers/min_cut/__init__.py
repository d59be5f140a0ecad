"""Minimum cuts for latency.

`MinCutPlacer` has two methods: a cut between the host and one device that take turns, which is optimal (Stone 1977),
and cuts along a path through the model, which also give a lower bound.
"""
