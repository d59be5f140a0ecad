"""Smaller problems whose ops are groups of ops, and how groups are chosen."""

from placewise.coarsen.coarse import CoarseProblem, coarse_problem, colocate, frozen_labels

__all__ = ["CoarseProblem", "coarse_problem", "colocate", "frozen_labels"]
