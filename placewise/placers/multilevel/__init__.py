"""multilevel: place a small problem of groups of ops, then let ever smaller groups move.

Class: `MultilevelPlacer` (Hendrickson and Leland 1995).
"""
