"""Measuring: ops, links and memory of this machine, and the catalogue fitted to them."""
