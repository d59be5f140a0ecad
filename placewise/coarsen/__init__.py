"""Smaller problems whose ops are groups of ops, and how groups are chosen."""

from placewise.coarsen.contraction import Coarse, coarse_problem, colocated, frozen_labels

__all__ = ["Coarse", "coarse_problem", "colocated", "frozen_labels"]
