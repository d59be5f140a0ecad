"""Measure ops, links and memory of this machine, and fit the catalogue to the measurements."""
