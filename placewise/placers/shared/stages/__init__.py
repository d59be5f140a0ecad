"""Chains of stages, priced and split: the dynamic program over ideals, and over the prefixes of one line."""
