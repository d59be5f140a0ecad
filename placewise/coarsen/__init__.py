"""Coarsening: smaller problems whose ops are groups of ops, and the choice of groups."""

from placewise.coarsen.coarse import CoarseProblem, coarse_problem, colocate

__all__ = ["CoarseProblem", "coarse_problem", "colocate"]
