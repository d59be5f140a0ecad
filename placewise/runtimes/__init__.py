"""Runtimes execute a placement on this machine, and time it."""
