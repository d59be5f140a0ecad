"""Exhaustive search: every placement of a small problem, priced and checked (`ExhaustivePlacer`)."""
