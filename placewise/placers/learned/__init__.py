"""Policies: neural networks that propose placements and learn from what those are worth."""
