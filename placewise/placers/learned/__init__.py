"""Learned placers: neural networks that propose placements and learn from the time these take."""
