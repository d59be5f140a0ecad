"""exhaustive: every placement of a small problem, priced and checked. Class: `ExhaustivePlacer`."""
