"""cover: free placements for max-load, with a bound from set cover. Class: `CoverPlacer`.

Annealing finds placements; column generation over the sets of ops that fit a device proves a lower bound.
"""
