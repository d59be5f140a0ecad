"""Prices of stages, and dynamic programs for the best chain of stages: over ideals, and along one order."""
